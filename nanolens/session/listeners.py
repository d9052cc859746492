"""One `emit` for the loop, any number of listeners behind it, none of which can stop or slow the training.

The record is written at once, in the loop's own thread: it is the truth. Every other listener has a thread and a queue
of its own. `emit` only appends to the queue and wakes nobody, so it costs the loop well under a microsecond. A listener
that raises is counted and reported; one that hangs loses events, not the run.

A listener is a callable that takes an event. It may also have: `tick()`, called after each look at the queue;
`close()`, called at the end; `poll_s`, how often to look; `patience_s`, how long the end of a run waits for it; `name`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from nanolens.diagnosis import FAULTS, diagnose
from nanolens.message import Message, msg
from nanolens.record import events as e
from nanolens.record.read import read_run
from nanolens.show.words import say

QUEUE_LIMIT = 50_000  # events that may wait for one listener: more than an hour of 10 steps a second, about 20 MB
FAILURES_IN_A_ROW = 20  # after so many a listener is not called any more
PATIENCE_S = 10.0
BUDGET_FRAC = 0.005  # of the time of a run, for looking whether something is wrong with it
FIRST_LOOK_EVALS = 2  # an evaluation before the first step says nothing yet

Listener = Callable[[e.Event], object]


@dataclass(frozen=True)
class Trouble:
    listener: str
    failures: int  # times it raised
    missed: int  # events it never got
    because: str  # the first error, or that it did not come to an end


class Listeners:
    def __init__(
        self,
        record: Callable[[e.Event], e.Event],
        others: Iterable[Listener] = (),
        reduce: Callable[[e.Event], None] = lambda event: None,
    ):
        """`record` stamps each event and gives it back, `reduce` adds it up (`Progress.take`) before others hear it."""
        self._record, self._reduce = record, reduce
        self._reduce_failed = ""
        self._lock = threading.Lock()
        self._channels = [_Channel(listener, self) for listener in others]

    def add(self, listener: Listener) -> None:
        self._channels.append(_Channel(listener, self))

    def emit(self, event: e.Event) -> None:
        with self._lock:  # checkpoints are saved, and trouble is noticed, in threads of their own
            event = self._record(event)
            try:
                self._reduce(event)
            except Exception as error:  # a mistake in adding up may not end a training
                self._reduce_failed = self._reduce_failed or f"{type(error).__name__}: {error}"
        for channel in self._channels:
            channel.put(event)

    def close(self) -> list[Trouble]:
        """Lets each listener finish what waits for it, all at the same time, and tells of those that had trouble."""
        began_at_s = time.monotonic()
        for channel in self._channels:
            channel.closing.set()
        troubles = [trouble for channel in self._channels if (trouble := channel.join(began_at_s)) is not None]
        return [*troubles, *([Trouble("progress", 1, 0, self._reduce_failed)] if self._reduce_failed else [])]


class _Channel:
    def __init__(self, listener: Listener, owner: Listeners):
        self.listener = listener
        self.name = getattr(listener, "name", type(listener).__name__)
        self.owner = owner
        self.closing = threading.Event()
        self.waiting: deque[e.Event] = deque()
        self.failures = self.failures_in_a_row = self.missed = 0
        self.because = ""
        self.thread = threading.Thread(target=self._work, name=f"nanolens-{self.name}", daemon=True)
        self.thread.start()

    def put(self, event: e.Event) -> None:
        if len(self.waiting) < QUEUE_LIMIT:
            self.waiting.append(event)
        else:
            self.missed += 1

    def join(self, began_at_s: float) -> Trouble | None:
        until_s = began_at_s + getattr(self.listener, "patience_s", PATIENCE_S)
        self.thread.join(max(0.0, until_s - time.monotonic()))
        if self.thread.is_alive():
            self.missed += len(self.waiting)
            self.because = self.because or "it did not come to an end"
        if self.failures or self.missed or self.because:
            return Trouble(self.name, self.failures, self.missed, self.because or "it was too slow")
        return None

    def _work(self) -> None:
        poll_s = getattr(self.listener, "poll_s", 0.25)
        try:
            closing = False
            while not closing:
                closing = self.closing.wait(poll_s)
                while self.waiting:
                    self._call(self.listener, self.waiting.popleft())
                if (tick := getattr(self.listener, "tick", None)) is not None:
                    self._call(tick)
        finally:
            if (close := getattr(self.listener, "close", None)) is not None:
                self._call(close)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        if self.failures_in_a_row >= FAILURES_IN_A_ROW:
            self.missed += len(args)
            return
        try:
            function(*args)
            self.failures_in_a_row = 0
        except Exception as error:  # whatever it is, it may not end a training; it is reported at once and at the end
            self.failures += 1
            self.failures_in_a_row += 1
            if not self.because:
                self.because = f"{type(error).__name__}: {error}"
                step = getattr(args[0], "step", 0) if args else 0
                words = msg("{listener} raised {error}", self.name, self.because)
                self.owner.emit(e.Warned(step=step, code="listener_failed", claim=str(words), words=words))


class Watchdog:
    """Reports each certain fault once, while the run still goes on: after an evaluation it diagnoses the record. The
    next look waits until the last one has cost at most BUDGET_FRAC of the time since."""

    name = "watch for trouble"
    poll_s = 1.0

    def __init__(self, certain_faults: Callable[[], Iterable[tuple[str, Message]]], emit: Callable[[e.Event], None]):
        """`certain_faults` gives (code, claim) of what the record shows now."""
        self._certain_faults, self._emit = certain_faults, emit
        self._reported: set[str] = set()
        self._step = self._evals_seen = 0
        self._looks_due = False
        self._cost_s = 0.0
        self._looked_at_s = time.monotonic()

    def __call__(self, event: e.Event) -> None:
        if isinstance(event, e.Evaluated) and event.split == "val":
            self._step = event.step
            self._evals_seen += 1
            self._looks_due = self._evals_seen >= FIRST_LOOK_EVALS
        elif isinstance(event, e.StepSkipped | e.RolledBack):
            self._looks_due = True

    def tick(self) -> None:
        if not self._looks_due or self._cost_s > BUDGET_FRAC * (time.monotonic() - self._looked_at_s):
            return
        started_s = time.thread_time()
        self._looks_due = False
        for code, claim in self._certain_faults():
            if code not in self._reported:
                self._reported.add(code)
                self._emit(e.Warned(step=self._step, code=code, claim=say(claim), words=claim))
        self._cost_s = time.thread_time() - started_s
        self._looked_at_s = time.monotonic()


def certain_faults(folder: Path) -> list[tuple[str, Message]]:
    """What the record of a run in progress leaves no doubt of, among the things that are wrong."""
    found = diagnose(read_run(folder)).findings
    return [(each.code, each.claim) for each in found if each.sureness == "certain" and each.code in FAULTS]
