"""What the remarks on all rows share: computed once, since a run may have a million rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nanolens.analysis.rows import broken_rows, slow_rows
from nanolens.facts import timing as pace
from nanolens.facts.case import Case


@dataclass(frozen=True)
class Context:
    case: Case
    holds_eval: np.ndarray
    is_first: np.ndarray
    is_slow: np.ndarray
    is_broken: np.ndarray  # updates whose loss was said and is not finite
    checkpoint_lines: np.ndarray
    placeholder_lines: frozenset[int]  # lines whose MFU is a placeholder
    told: set[str] = field(default_factory=set)  # what needs saying once only

    def is_new(self, what: str) -> bool:
        """Whether this has not been told before; from now on it has."""
        is_new = what not in self.told
        self.told.add(what)
        return is_new


def context_of(case: Case, told: set[str] | None = None) -> Context:
    """`told` carries over what an earlier reading of the same source has said."""
    marks = case.run.marks
    return Context(
        case, pace.holds_eval(case), pace.is_first(case), slow_rows(case), broken_rows(case),
        np.array(sorted(mark.line for mark in marks if mark.kind == "checkpoint"), np.int64),
        frozenset(mark.line for mark in marks if mark.kind == "sentinel" and "mfu" in mark.text.lower()),
        set() if told is None else told,
    )  # fmt: skip
