"""Being asked to stop: a signal, or the file that `nanolens stop` leaves in the run folder.

The first request is noticed at the next micro-batch, evaluation batch or sampled token, and the run saves and ends. A
second signal ends the process on the spot, which harms nothing: what is being written is written beside its place."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

FILE_LOOKED_FOR_EVERY_S = 0.25
ECHO_S = 5.0
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))


class Stopped(Exception):
    """Raised where a stop request is noticed; the loop catches it and saves."""


class StopRequest:
    def __init__(self, stop_file: Path):
        self.signal: int | None = None
        self._file, self._is_file_seen, self._look_again_at_s, self._signalled_at_s = stop_file, False, 0.0, 0.0
        # a second signal right after the first is the same request, passed on by a launcher
        self.is_echo_ignored = False

    @property
    def because(self) -> str:
        return signal.Signals(self.signal).name if self.signal is not None else "stop requested"

    def check(self) -> None:
        """Raises Stopped if anybody asked."""
        if self.is_asked():
            raise Stopped

    def is_asked(self) -> bool:
        """Whether anybody asked. Cheap enough for every micro-batch: the disk is looked at four times a second."""
        now_s = time.monotonic()
        if self.signal is None and now_s >= self._look_again_at_s:
            self._look_again_at_s = now_s + FILE_LOOKED_FOR_EVERY_S
            self._is_file_seen = self._is_file_seen or self._file.exists()
        return self.signal is not None or self._is_file_seen

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            if self.is_echo_ignored and time.monotonic() - self._signalled_at_s < ECHO_S:
                return
            os._exit(128 + number)
        self.signal, self._signalled_at_s = number, time.monotonic()


@contextlib.contextmanager
def listening(stop_file: Path) -> Iterator[StopRequest]:
    """Listens for signals in the block, where it runs in the main thread (elsewhere Python cannot); then no longer."""
    request, is_main = StopRequest(stop_file), threading.current_thread() is threading.main_thread()
    with handled_by(request.on_signal, SIGNALS if is_main else ()):
        yield request


@contextlib.contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None], numbers: Iterable[int]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
