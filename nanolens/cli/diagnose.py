"""nanolens diagnose: what is wrong with a run, how sure that is, and what to do."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from nanolens.cli.arguments import Parser
from nanolens.errors import fault
from nanolens.message import msg

if TYPE_CHECKING:
    from nanolens.record.run import Run

HELP = msg("what is wrong with a run or a log, how sure that is, and what to change")


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "target", nargs="?", metavar="RUN|LOG|-", help=msg("a run folder or its name, a log of any trainer, a config, or - for a pipe")
    )
    parser.add_argument("--config", metavar="FILE", help=msg("the config of the log: TOML, JSON or nanoGPT's .py"))
    parser.add_argument("--hardware", metavar="NAME", help=msg('the device, as you would say it: "RTX 4070", "8x H100", "laptop CPU"'))
    parser.add_argument("--json", action="store_true", help=msg("the same as --format=json"))
    parser.add_argument("--format", choices=("text", "md", "json"), default="text")
    parser.add_argument("--why", metavar="CODE", help=msg("what a finding means: what it sees, when it is wrong, what to change"))
    parser.takes_settings()


def run(given: argparse.Namespace) -> int:
    if given.why:
        _print_why(given.why, given.lang)
        return 0
    from nanolens.api.sources import open_run
    from nanolens.diagnosis import diagnose

    diagnosis = diagnose(open_run(given.target, given.config, given.hardware, given.overrides))
    form = "json" if given.json else given.format
    if form == "json":
        from nanolens.present.as_json import diagnosis_json

        print(diagnosis_json(diagnosis, given.lang))
    elif form == "md":
        from nanolens.present.markdown import findings as as_markdown

        print(as_markdown(diagnosis, given.lang))
    else:
        from nanolens.present.blocks import for_stream
        from nanolens.present.text import findings_blocks

        print(for_stream(findings_blocks(diagnosis, given.lang), sys.stdout), end="")
        _print_plan(diagnosis.run, given.lang)
    return 0


def _print_plan(run: Run, lang: str) -> None:
    """The run against what `nanolens plan` had expected of these very settings, where it was asked."""
    from nanolens.api.plans import planned_for
    from nanolens.present.blocks import GAP, Block, for_stream
    from nanolens.show.words import tied

    held = planned_for(run)
    if held:
        head = Block(tied(msg("Plan against actual"), lang), "head")
        print(for_stream([GAP, head, *(Block(tied(each.words, lang), indent=2, mark="- ") for each in held)], sys.stdout))


def _print_why(code: str, lang: str) -> None:
    """The symptom's own page."""
    from nanolens.analysis.symptoms import all_codes, module_of
    from nanolens.cli.arguments import did_you_mean
    from nanolens.present.blocks import for_stream
    from nanolens.present.text import page_blocks

    symptom = module_of(code)
    if symptom is None:
        raise fault(
            msg("there is no finding {code:code}", code=code),
            fix=did_you_mean(code, all_codes()) or msg("the codes are {codes:code}", codes=all_codes()),
        )
    print(for_stream(page_blocks(symptom.__doc__ or "", lang), sys.stdout), end="")
