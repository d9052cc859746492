"""What the remarks on all rows share: computed once, since a run may have a million rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nanoscope.analysis import pace
from nanoscope.analysis.case import Case

SLOW = 1.5  # times an ordinary update: beyond the jitter of any machine that is not shared


@dataclass(frozen=True)
class Context:
    case: Case
    holds_eval: np.ndarray
    is_first: np.ndarray
    is_slow: np.ndarray
    checkpoint_lines: np.ndarray
    placeholder_lines: frozenset[int]  # lines whose MFU is a placeholder
    told: set[str] = field(default_factory=set)  # what needs saying once only

    def is_new(self, what: str) -> bool:
        """Whether this has not been told before; from now on it has."""
        is_new = what not in self.told
        self.told.add(what)
        return is_new


def context_of(case: Case) -> Context:
    marks = case.run.marks
    return Context(
        case, pace.holds_eval(case), pace.is_first(case), _slow(case),
        np.array(sorted(mark.line for mark in marks if mark.kind == "checkpoint"), np.int64),
        frozenset(mark.line for mark in marks if mark.kind == "sentinel" and "mfu" in mark.text.lower()),
    )  # fmt: skip


def _slow(case: Case) -> np.ndarray:
    """Updates that took clearly longer than an ordinary one."""
    took = case.steps.took_s
    if case.step_time is None:
        return np.zeros(len(took), bool)
    return np.nan_to_num(took, nan=0.0, posinf=0.0) > SLOW * case.step_time.value
