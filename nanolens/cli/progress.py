"""What is being done, while it is being done: bars in a terminal, a line now and then elsewhere; all on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nanolens.message import Message, msg
from nanolens.show.words import say

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

    from nanolens.data.prepare.pipeline import OnProgress, PrepareProgress

STAGES: dict[str, Message] = {
    "download": msg("downloading"),
    "vocabulary": msg("vocabulary"),
    "encode": msg("encoding"),
    "read": msg("reading"),
    "write": msg("writing"),
}
CONVERT_EVERY_S = 2.0
PREPARE_EVERY_S = 10.0


def tell(message: Message, lang: str) -> None:
    print(say(message, lang), file=sys.stderr, flush=True)


def _bars(*columns: ProgressColumn) -> Progress:
    """Nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    name = TextColumn("{task.description}")
    return Progress(name, BarColumn(), *columns, console=console, transient=True, disable=not sys.stderr.isatty())


@contextmanager
def sending(tracker: str) -> Iterator[Callable[[float, float], None]]:
    from rich.progress import TextColumn, TimeRemainingColumn

    with _bars(TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn()) as bars:
        task = bars.add_task(tracker, total=None)
        yield lambda done, whole: bars.update(task, completed=done, total=whole or None)


@contextmanager
def converting(lang: str) -> Iterator[Callable[[str, int, int], None]]:
    """A line every two seconds with what is being done and for how long: nothing where it is done sooner."""
    begun_at_s = time.monotonic()
    now: list[tuple[str, int]] = [("read", 0)]
    is_done = threading.Event()

    def take(stage: str, done: int, total: int) -> None:
        now[0] = (stage, total)

    def tell_now() -> None:
        while not is_done.wait(CONVERT_EVERY_S):
            stage, total = now[0]
            took_s = time.monotonic() - begun_at_s
            line = msg("{stage} {total:bytes}, {took:rough_seconds} so far", STAGES[stage], total, took_s)
            tell(line if total else msg("{stage}, {took:rough_seconds} so far", STAGES[stage], took_s), lang)

    teller = threading.Thread(target=tell_now, name="progress", daemon=True)
    teller.start()
    try:
        yield take
    finally:
        is_done.set()
        teller.join()


@contextmanager
def preparing(lang: str) -> Iterator[OnProgress]:
    """A bar with rate and time left, or at most one line each ten seconds: a short job prints nothing."""
    if not sys.stderr.isatty():
        yield _lines(lang)
        return
    from rich.progress import DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[found]}"))
    tasks: dict[str, TaskID] = {}
    with _bars(*columns) as bars:

        def take(progress: PrepareProgress) -> None:
            if progress.stage not in tasks:
                name, total = say(STAGES[progress.stage], lang), progress.total_bytes or None
                tasks[progress.stage] = bars.add_task(name, total=total, found="")
            documents, tokens = progress.documents, progress.tokens
            found = msg("{documents:count document|documents}, {tokens:tokens} tokens", documents, tokens)
            shown = say(found, lang) if tokens else ""
            bars.update(tasks[progress.stage], completed=progress.done_bytes, found=shown)

        yield take


def _lines(lang: str) -> OnProgress:
    begun_at_s: dict[str, float] = {}
    said_at_s = time.monotonic()

    def take(progress: PrepareProgress) -> None:
        nonlocal said_at_s
        now = time.monotonic()
        begun = begun_at_s.setdefault(progress.stage, now)
        if now - said_at_s < PREPARE_EVERY_S or now == begun or not progress.done_bytes:
            return  # nor at the first report of a stage, which has no speed yet
        said_at_s = now
        done, total = progress.done_bytes, progress.total_bytes
        per_s = done / (now - begun)
        values = {"stage": STAGES[progress.stage], "done": done, "total": total, "rate": per_s}
        line = msg(
            "{stage}: {done:bytes} of {total:bytes}, {rate:bytes} per second, {left:seconds} to go",
            **values,
            left=(total - done) / per_s,
        )
        tell(line, lang)

    return take
