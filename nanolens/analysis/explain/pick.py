"""Which rows are worth a paragraph. A short paste gets one for each line; of a long log, those that a reader would point at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nanolens.record.run import Evals, Run

SHORT = 16  # rows: about what fits on two screens when every one is explained
EVALS_SHOWN = 5
FIRST_SHOWN = 2  # updates of a growing log: one in full, one for comparison


@dataclass(frozen=True)
class Row:
    kind: Literal["update", "evaluation"]
    index: int
    line: int


def picked(run: Run, slow: np.ndarray, broken: np.ndarray) -> list[Row]:
    """Rows in the order of the source. `slow` and `broken` mark updates: those that took too long, those without a finite loss."""
    if len(run.steps) + len(run.evals) > SHORT:
        updates, evals = _telling_updates(run, slow, broken), _telling_evals(run.evals)
    else:
        updates, evals = list(range(len(run.steps))), list(range(len(run.evals)))
    rows = [Row("update", i, int(run.steps.line[i])) for i in updates] + [Row("evaluation", i, int(run.evals.line[i])) for i in evals]
    return sorted(rows, key=lambda row: _place(run, row))


def arrived(run: Run, slow: np.ndarray, broken: np.ndarray, after_line: int) -> list[Row]:
    """Of a source that grows: the first updates, then evaluations, slow lines and the first loss that is not finite."""
    steps, evals = run.steps, run.evals
    telling = slow.copy()
    telling[:FIRST_SHOWN] = True
    telling[np.flatnonzero(broken)[:1]] = True
    rows = [Row("update", int(i), int(steps.line[i])) for i in np.flatnonzero(telling & (steps.line > after_line))]
    rows += [Row("evaluation", int(i), int(evals.line[i])) for i in np.flatnonzero(evals.line > after_line)]
    return sorted(rows, key=lambda row: _place(run, row))


def _place(run: Run, row: Row) -> tuple[int, int, int]:
    """By line; rows that share one by step: an evaluation at k stands before the update from k."""
    step = int(run.evals.step[row.index]) if row.kind == "evaluation" else int(run.steps.step[row.index]) - 1
    return row.line, step, 0 if row.kind == "evaluation" else 1


def _telling_updates(run: Run, slow: np.ndarray, broken: np.ndarray) -> list[int]:
    steps = run.steps
    count = len(steps)
    if count == 0:
        return []
    ordinary = np.flatnonzero(~slow)
    chosen = {0, count - 1}
    if len(ordinary):
        chosen |= {int(ordinary[0]), int(ordinary[len(ordinary) // 2]), int(ordinary[-1])}
    if slow.any():
        places = np.flatnonzero(slow)
        longest = places[int(np.nanargmax(steps.took_s[places]))]
        chosen |= {int(places[0]), int(longest), int(places[-1])}
    for first in np.flatnonzero(broken)[:1]:
        chosen |= {int(first), max(0, int(first) - 1)}
    return sorted(chosen)


def _telling_evals(evals: Evals) -> list[int]:
    count = len(evals)
    chosen = {int(i) for i in np.linspace(0, count - 1, min(count, EVALS_SHOWN)).round()} if count else set()
    if count and np.isfinite(evals.val).any():
        chosen.add(int(np.nanargmin(evals.val)))
    return sorted(chosen)
