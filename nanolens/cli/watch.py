"""nanolens watch RUN | -- COMMAND ..."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from nanolens.cli.arguments import Parser, UsageError
from nanolens.errors import Fault
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from nanolens.api.training import Ended
    from nanolens.api.watching import Watching
    from nanolens.session.summary import Ending

HELP = msg("look at a run while it is training, or start any trainer behind two dashes and look at that")


def arguments(parser: Parser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help=msg("a run folder, or its name below runs/"))
    parser.takes_command()
    parser.add_argument(
        "--view", choices=("live", "lines"), help=msg("live: one screen; lines: nanoGPT's lines. Otherwise live in a terminal")
    )


def run(given: Namespace) -> int:
    if given.command:
        return _watch_others(given.command, given.lang)
    if given.run is None:
        raise UsageError(
            Fault(
                msg("which run?"),
                fix=msg(
                    "name one ({runs:code} lists them), or give a command after two dashes: {watch:code}",
                    runs="nanolens runs",
                    watch="nanolens watch -- python train.py",
                ),
            )
        )
    from nanolens.api.watching import Watching
    from nanolens.cli.train import chosen_view
    from nanolens.record.store import find_run

    watching = Watching(find_run(given.run).folder)
    view = chosen_view(given.view)
    try:
        _follow(watching, view, given.lang)
    except KeyboardInterrupt:
        watching.catch_up()
        from nanolens.cli import say

        print(
            say(
                msg("{run} goes on; {command:code} stops it", run=watching.folder.name, command=f"nanolens stop {watching.folder}"),
                given.lang,
            )
        )
        return 0
    print_end_of(watching, as_comment=view == "lines", lang=given.lang)
    return 0


def _watch_others(command: Sequence[str], lang: str) -> int:
    """What the trainer prints goes to standard output unchanged; what we say of it, to standard error behind a `#`."""
    from nanolens.api.watching import Watching
    from nanolens.api.watching_others import watch_others
    from nanolens.cli import say

    def tell(message: Message) -> None:
        sys.stdout.flush()
        print(f"# {say(message, lang)}", file=sys.stderr, flush=True)

    code, folder = watch_others(command, tell)
    sys.stdout.flush()
    watching = Watching(folder)
    watching.catch_up()
    print_end_of(watching, as_comment=True, lang=lang, stream=sys.stderr)
    return code


def _follow(watching: Watching, view: str, lang: str) -> None:
    if view == "lines":
        _follow_lines(watching, lang)
    else:
        _follow_live(watching, lang)


def _follow_live(watching: Watching, lang: str) -> None:
    from rich.console import Console

    from nanolens.record.store import as_typed
    from nanolens.show.live import LiveView

    watching.catch_up()
    if watching.is_over:
        return
    hint = msg("Ctrl-C leaves the view; the training goes on · {stop:code} stops it", stop=f"nanolens stop {as_typed(watching.folder)}")
    live = LiveView(watching.progress, Console(), hint=hint, lang=lang, state=watching.state)
    try:
        while not watching.is_over:
            live.tick()
            time.sleep(live.poll_s)
            watching.catch_up()
    finally:
        live.close()


def _follow_lines(watching: Watching, lang: str) -> None:
    from nanolens.record.progress import Progress
    from nanolens.show.lines import LineView

    lines = LineView(Progress(watching.progress.about, learn=watching.progress.learn), sys.stdout, folder=str(watching.folder), lang=lang)
    while True:
        over = watching.is_over
        for event in watching.catch_up():
            lines(event)
        lines.tick()
        if over:
            return
        time.sleep(lines.poll_s)


def print_end_of(watching: Watching, *, as_comment: bool, lang: str, stream: IO[str] | None = None) -> None:
    """The summary of a run that has ended, from its folder alone."""
    from nanolens.api.ending import ending_of

    _print(ending_of(watching.folder, watching.progress, watching.state()), as_comment, lang, stream or sys.stdout)


def print_ending(ended: Ended, *, as_comment: bool, lang: str) -> None:
    from nanolens.api.ending import ending_of

    _print(ending_of(ended.folder, ended.progress, ended.progress.state, ended.findings, ended.notes), as_comment, lang, sys.stdout)


def _print(ending: Ending, as_comment: bool, lang: str, stream: IO[str]) -> None:
    from nanolens.present.blocks import for_stream, plain
    from nanolens.session.summary import summary_blocks

    blocks = summary_blocks(ending, lang)
    if as_comment:
        stream.write("".join(f"# {line}".rstrip() + "\n" for line in plain(blocks, 100).splitlines()))
    else:
        stream.write("\n" + for_stream(blocks, stream))
    stream.flush()
