"""nanolens watch RUN | -- COMMAND ..."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import IO

from nanolens.cli.arguments import UsageError
from nanolens.errors import Fault
from nanolens.logs.watch import watch_others
from nanolens.message import Message, msg
from nanolens.record.progress import Watching
from nanolens.record.store import find_run
from nanolens.session.summary import RunSummary, ending_of, summary_blocks
from nanolens.show.document import for_stream, plain
from nanolens.show.lines import follow_lines
from nanolens.show.live import follow_live
from nanolens.show.words import say


def run(given: Namespace) -> int:
    if given.command:
        return _watch_others(given.command, given.lang)
    if given.run is None:
        runs, watch = "nanolens runs", "nanolens watch -- python train.py"
        fix = msg("name one ({runs:code} lists them), or give a command after two dashes: {watch:code}", runs, watch)
        raise UsageError(Fault(msg("which run?"), fix=fix))
    watching = Watching(find_run(given.run).folder)
    view = chosen_view(given.view)
    try:
        (follow_lines if view == "lines" else follow_live)(watching, given.lang)
    except KeyboardInterrupt:
        name, stop = watching.folder.name, f"nanolens stop {watching.folder}"
        print(say(msg("{run} continues; {command:code} stops it", name, stop), given.lang))
        return 0
    ending = ending_of(watching.folder, watching.progress, watching.state())
    print_summary(ending, as_comment=view == "lines", lang=given.lang)
    return 0


def chosen_view(asked: str | None) -> str:
    is_screen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if asked == "live" and not is_screen:
        fix = msg("use {option:code}", "--view=lines")
        raise UsageError(Fault(msg("the live view needs a terminal"), where="--view=live", fix=fix))
    return asked or ("live" if is_screen else "lines")


def _watch_others(command: Sequence[str], lang: str) -> int:
    """What the trainer prints goes to standard output unchanged; what we say of it, to standard error behind a `#`."""

    def tell(message: Message) -> None:
        sys.stdout.flush()
        print(f"# {say(message, lang)}", file=sys.stderr, flush=True)

    code, folder = watch_others(command, tell)
    sys.stdout.flush()
    watching = Watching(folder)
    watching.catch_up()
    ending = ending_of(folder, watching.progress, watching.state())
    print_summary(ending, as_comment=True, lang=lang, stream=sys.stderr)
    return code


def print_summary(ending: RunSummary, *, as_comment: bool, lang: str, stream: IO[str] | None = None) -> None:
    stream = stream or sys.stdout
    blocks = summary_blocks(ending)
    if as_comment:
        stream.write("".join(f"# {line}".rstrip() + "\n" for line in plain(blocks, 100, lang).splitlines()))
    else:
        stream.write("\n" + for_stream(blocks, stream, lang))
    stream.flush()
