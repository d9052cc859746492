"""nanolens plot RUN [RUN ...] [-o FILE.png]"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from nanolens.cli.arguments import Parser
from nanolens.message import msg

HELP = msg("the loss of one run or several as a picture, for a paper or a README")


def arguments(parser: Parser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN | LOG", help=msg("run folders, their names, or logs of any trainer"))
    parser.add_argument("-o", "--out", metavar="FILE", help=msg("FILE.png, FILE.svg or FILE.pdf; otherwise loss.png"))
    parser.add_argument("--x", choices=("step", "tokens", "flops", "time"), default="step", help=msg("what the loss is drawn against"))
    parser.add_argument("--log_x", action="store_true", help=msg("logarithmic x axis"))
    parser.add_argument("--log_y", action="store_true", help=msg("logarithmic loss"))
    parser.add_argument(
        "--smooth", type=int, metavar="N", help=msg("mean of the last N batch losses; otherwise about a fiftieth of the run")
    )
    parser.add_argument("--title", default="", help=msg("a title above the picture"))


def run(given: Namespace) -> int:
    from nanolens import files
    from nanolens.api.sources import open_run
    from nanolens.cli import say
    from nanolens.present.plots import require_picture_name
    from nanolens.present.report_plot import loss_picture

    out = Path(given.out or "loss.png")
    form = require_picture_name(str(out))
    runs = [open_run(target) for target in given.runs]
    picture = loss_picture(
        runs, form, axis=given.x, log_x=given.log_x, log_y=given.log_y, smooth=given.smooth, title=given.title, lang=given.lang
    )
    files.write_whole(out, picture)
    print(say(msg("{file:code}: {size:bytes}", file=str(out), size=len(picture)), given.lang))
    return 0
