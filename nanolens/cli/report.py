"""nanolens report RUN [-o FILE.html]"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from nanolens.cli.arguments import Parser
from nanolens.message import msg

HELP = msg("the page of a run or a log as one file that opens anywhere, to keep or to send")


def arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN | LOG | -", help=msg("a run folder or its name, a log of any trainer, or - for a pipe"))
    parser.add_argument("-o", "--out", metavar="FILE.html", help=msg("the file; otherwise the run's name with .html, here"))
    parser.add_argument("--config", metavar="FILE", help=msg("the config of the log: TOML, JSON or nanoGPT's .py"))
    parser.add_argument("--hardware", metavar="NAME", help=msg('the device, as you would say it: "RTX 4070", "8x H100", "laptop CPU"'))
    parser.takes_settings()


def run(given: Namespace) -> int:
    from nanolens import files
    from nanolens.api.sources import open_run
    from nanolens.cli import say
    from nanolens.page.runs import report
    from nanolens.record.store import source_name

    read = open_run(given.run, given.config, given.hardware, given.overrides)
    out = Path(given.out or f"{source_name(None, read.name)}.html")
    body = report(read, given.lang)
    files.write_whole(out, body)
    print(say(msg("{file:code}: {size:bytes}; it opens from disk and asks nobody for anything", file=str(out), size=len(body)), given.lang))
    return 0
