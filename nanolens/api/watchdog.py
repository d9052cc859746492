"""Says so while the run still goes on, when its record leaves no doubt that something is wrong.

A listener: after an evaluation it reads the record as anybody could and diagnoses it, in its own thread, and tells each certain fault
once. It keeps its own cost in view: the next look waits until the last one is at most BUDGET_FRAC of the time since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from nanolens.record import events as e

BUDGET_FRAC = 0.005
FIRST_LOOK_EVALS = 2  # an evaluation before the first step says nothing yet


class Watchdog:
    name = "watch for trouble"
    poll_s = 1.0

    def __init__(self, certain_faults: Callable[[], Iterable[tuple[str, str]]], emit: Callable[[e.Event], None]):
        """`certain_faults` gives (code, claim) of what the record shows now."""
        self._certain_faults, self._emit = certain_faults, emit
        self._told: set[str] = set()
        self._step = 0
        self._evals_seen = 0
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
            if code not in self._told:
                self._told.add(code)
                self._emit(e.Warned(step=self._step, code=code, claim=claim))
        self._cost_s = time.thread_time() - started_s
        self._looked_at_s = time.monotonic()


def certain_faults(folder: Path) -> list[tuple[str, str]]:
    """What the record of a run in progress leaves no doubt of, among the things that are wrong."""
    from nanolens.diagnosis import FAULTS, diagnose
    from nanolens.record.read import read_run
    from nanolens.show.words import say

    found = diagnose(read_run(folder)).findings
    return [(finding.code, say(finding.claim)) for finding in found if finding.sureness == "certain" and finding.code in FAULTS]
