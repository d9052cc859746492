"""nanolens compare A B [C ...] [--against D ...] [--rescore]"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from nanolens.cli.arguments import Parser
from nanolens.message import msg

if TYPE_CHECKING:
    from nanolens.analysis.compare_axes import Verdict

HELP = msg("which of these runs is better, on which axis, is it more than noise, or why that cannot be said")


def arguments(parser: Parser) -> None:
    parser.takes_settings()
    parser.add_argument("runs", nargs="+", metavar="RUN | LOG", help=msg("two or more runs or logs, or one log that holds several runs"))
    parser.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="RUN",
        help=msg("the runs before it are repeats of one another, and so are these: compare the two groups"),
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help=msg("what a log does not say: one config for all, or one for each in their order"),
    )
    parser.add_argument(
        "--hardware", action="append", default=[], metavar="NAME", help=msg("the device: one for all, one for each, or A: NAME; B: NAME")
    )
    parser.add_argument(
        "--rescore",
        action="store_true",
        help=msg("evaluate the checkpoints of all runs again on the same text, and compare batch by batch"),
    )
    parser.add_argument("-o", "--out", metavar="FILE", help=msg("also draw the curves into FILE.png or FILE.svg"))
    parser.add_argument("--format", choices=("text", "md", "json"), default="text", help=msg("form of the answer"))
    parser.add_argument("--json", action="store_true", help=msg("the same as --format=json"))


def run(given: Namespace) -> int:
    from nanolens.api.comparing import comparison_of
    from nanolens.present.compare import json_of, markdown_of, text_of
    from nanolens.present.plots import require_picture_name

    form = require_picture_name(given.out) if given.out else ""
    rescored: tuple[Verdict, ...] = ()
    if given.rescore:
        from nanolens.api.rescore import rescore

        rescored = rescore([*given.runs, *given.against], len(given.runs) if given.against else None)
    found = comparison_of(given.runs, given.against, given.config, given.hardware, given.overrides, rescored)
    if given.out:
        from nanolens import files
        from nanolens.present.compare import panels_of
        from nanolens.present.plots import picture

        files.write_whole(Path(given.out), picture(panels_of(found, given.lang), form))
    if given.json or given.format == "json":
        print(json.dumps(json_of(found), indent=1))
    elif given.format == "md":
        print(markdown_of(found, given.lang), end="")
    else:
        print(text_of(found, sys.stdout, given.lang), end="")
    return 0
