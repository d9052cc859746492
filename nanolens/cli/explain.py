"""nanolens explain RUN | LOG | CONFIG | PRESET | - [--term=WORD]: every number in plain words, line by line, and the story of the run."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from nanolens.cli.arguments import Parser
from nanolens.errors import fault
from nanolens.message import msg

if TYPE_CHECKING:
    from nanolens.analysis.explanation import Explanation
    from nanolens.analysis.glossary import Entry
    from nanolens.explanation.subject import Subject

HELP = msg("what every number means, line by line, and the story of the run")


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "target", nargs="?", metavar="RUN|LOG|CONFIG|PRESET|-",
        help=msg("a run folder or its name, a log of any trainer, a config or preset before it is run, or - for a pipe"),
    )  # fmt: skip
    parser.add_argument("--term", metavar="WORD", help=msg("one word: mfu, loss, epoch, …; with a run, in that run's numbers"))
    parser.add_argument("--config", metavar="FILE", help=msg("the config of the log: TOML, JSON or nanoGPT's .py"))
    parser.add_argument("--hardware", metavar="NAME", help=msg('the device, as you would say it: "RTX 4070", "8x H100", "laptop CPU"'))
    parser.add_argument("--format", choices=("text", "md", "json"), default="text", help=msg("form of the answer"))
    parser.add_argument("--json", action="store_true", help=msg("the same as --format=json"))
    parser.takes_settings()


def run(given: argparse.Namespace) -> int:
    from nanolens.explanation.subject import Subject, entry, explained

    form = "json" if given.json else given.format
    subject = Subject(given.target, given.config, given.hardware, given.overrides)
    if given.term:
        _print_entry(entry(given.term, subject), form, given.lang)
    elif given.target is None and given.config is None:
        raise fault(
            msg("nothing was named to be explained"),
            fix=msg("give a run, a log, a config, a preset, {dash:code} for a pipe, or {term:code}", dash="-", term="--term=mfu"),
        )
    elif given.target == "-" and form == "text":
        _print_pipe(subject, given.lang)
    else:
        _print_explanation(explained(subject), form, given.lang)
    return 0


def _print_explanation(explanation: Explanation, form: str, lang: str) -> None:
    if form == "json":
        from nanolens.present.document import explanation as as_data

        print(json.dumps(as_data(explanation, lang), ensure_ascii=False, indent=1))
    elif form == "md":
        from nanolens.present.markdown import explanation as as_markdown

        print(as_markdown(explanation, lang), end="")
    else:
        from nanolens.present.blocks import for_stream
        from nanolens.present.text import explanation_blocks

        print(for_stream(explanation_blocks(explanation, lang), sys.stdout), end="")


def _print_pipe(subject: Subject, lang: str) -> None:
    """What has arrived is explained while the rest is still coming."""
    from nanolens.analysis.explanation import Explanation, Section
    from nanolens.explanation.subject import follow
    from nanolens.present.blocks import GAP, for_stream
    from nanolens.present.text import explanation_blocks, passages_blocks, section_blocks

    for part in follow(subject, sys.stdin.buffer):
        if isinstance(part, Explanation):
            blocks = explanation_blocks(part, lang)
        elif isinstance(part, Section):
            blocks = [*section_blocks(part, lang), GAP]
        else:
            blocks = passages_blocks(part, lang)
        if blocks:
            print(for_stream(blocks, sys.stdout), end="", flush=True)


def _print_entry(found: Entry, form: str, lang: str) -> None:
    if form == "json":
        from nanolens.present.document import glossary_entry as as_data

        print(json.dumps(as_data(found, lang), ensure_ascii=False, indent=1))
    elif form == "md":
        from nanolens.present.markdown import glossary_entry as as_markdown

        print(as_markdown(found, lang), end="")
    else:
        from nanolens.present.blocks import for_stream
        from nanolens.present.text import entry_blocks

        print(for_stream(entry_blocks(found, lang), sys.stdout), end="")
