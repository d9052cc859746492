"""A thread that writes checkpoints while training goes on. Its owner asks it for news; it never speaks by itself."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Written:
    step: int
    bytes: int
    stall_s: float
    write_s: float
    cpu_s: float
    is_best: bool


@dataclass(frozen=True)
class NotWritten:
    step: int
    because: str


class BackgroundWriter:
    """At most one job at a time: a second one waits for the first, so that two snapshots are never held at once."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._news: queue.SimpleQueue[Written | NotWritten] = queue.SimpleQueue()

    def start(self, step: int, write: Callable[[], int], *, stall_s: float, is_best: bool) -> None:
        self.wait()
        self._thread = threading.Thread(target=self._work, args=(step, write, stall_s, is_best), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def news(self) -> list[Written | NotWritten]:
        found = []
        while not self._news.empty():
            found.append(self._news.get())
        return found

    def _work(self, step: int, write: Callable[[], int], stall_s: float, is_best: bool) -> None:
        started_at_s, cpu_at_s = time.perf_counter(), time.thread_time()
        try:
            size = write()
        except OSError as error:  # no room, no permission, a broken disk: training goes on and the owner tells
            self._news.put(NotWritten(step, str(error)))
            return
        except Exception as error:  # a fault of ours must be told too, not die with the thread
            self._news.put(NotWritten(step, f"{type(error).__name__}: {error}"))
            return
        self._news.put(
            Written(
                step=step, bytes=size, stall_s=stall_s, write_s=time.perf_counter() - started_at_s,
                cpu_s=time.thread_time() - cpu_at_s, is_best=is_best,
            )
        )  # fmt: skip
