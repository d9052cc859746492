"""nanolens dashboard [DIR]"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from nanolens.cli.arguments import Parser
from nanolens.errors import fault
from nanolens.message import msg

HELP = msg("a local web page over the runs, live: curves, findings, comparisons, any log you drop on it")


def arguments(parser: Parser) -> None:
    parser.add_argument("folder", nargs="?", metavar="DIR", help=msg("a folder of runs, or one run; runs/ if not given"))
    parser.add_argument("--port", type=int, metavar="N", help=msg("port of this machine's loopback; otherwise 7860, or a free one"))
    parser.add_argument("--no_browser", action="store_true", help=msg("only print the address; do not open a browser"))


def run(given: Namespace) -> int:
    from nanolens.page.runs import serve
    from nanolens.record.layout import RUNS, is_run

    folder = Path(given.folder) if given.folder else None
    if folder is not None and not folder.is_dir() and is_run(Path(RUNS) / given.folder):
        folder = Path(RUNS) / given.folder
    if folder is not None and not folder.is_dir():
        raise fault(msg("there is no folder {folder:code}", folder=given.folder), fix=msg("name the folder that holds your runs"))
    serve(folder, given.port, given.lang, lambda url: _ready(url, given))
    return 0


def _ready(url: str, given: Namespace) -> None:
    from nanolens.cli import say

    print(say(msg("nanolens is at {url:code}", url=url), given.lang))
    print(say(msg("Only this machine can reach it, and only with this address. Ctrl-C ends it."), given.lang), flush=True)
    if not given.no_browser:
        _open_browser(url)


def _open_browser(url: str) -> None:
    """Where there is a screen. Browsers of the terminal would take the terminal away."""
    import os
    import sys
    import threading
    import webbrowser

    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
