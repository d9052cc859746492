"""nanolens forecast RUN [--at=STEP|TOKENS]"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

from nanolens.cli.arguments import Parser
from nanolens.message import msg

HELP = msg("where the curve is going, with an interval, or why that cannot be said")


def arguments(parser: Parser) -> None:
    parser.takes_settings()
    parser.add_argument("run", metavar="RUN | LOG", help=msg("a run, going on or finished, or a log"))
    parser.add_argument("--at", metavar="STEP | TOKENS", help=msg("a step, or tokens as 500Mtok; without it the end of the run"))
    parser.add_argument("--config", metavar="FILE", help=msg("what a log does not say: above all its schedule"))
    parser.add_argument("-o", "--out", metavar="FILE", help=msg("also draw it into FILE.png or FILE.svg"))
    parser.add_argument("--format", choices=("text", "md", "json"), default="text", help=msg("form of the answer"))
    parser.add_argument("--json", action="store_true", help=msg("the same as --format=json"))


def run(given: Namespace) -> int:
    from nanolens.api.forecasting import step_named
    from nanolens.api.sources import open_run
    from nanolens.forecasting import Forecast, forecast
    from nanolens.present.forecast import json_of, markdown_of, panels_of, text_of
    from nanolens.present.plots import picture, require_picture_name

    form = require_picture_name(given.out) if given.out else ""
    read = open_run(given.run, given.config, None, given.overrides)
    found = forecast(read, step_named(given.at, read) if given.at else None)
    if given.out and isinstance(found, Forecast):
        from nanolens import files

        files.write_whole(Path(given.out), picture(panels_of(found, read, given.lang), form))
    if given.json or given.format == "json":
        print(json.dumps(json_of(found, read), indent=1))
    elif given.format == "md":
        print(markdown_of(found, read, given.lang), end="")
    else:
        print(text_of(found, read, sys.stdout, given.lang), end="")
    return 0
