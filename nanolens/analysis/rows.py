"""Rows that stand out: updates that took longer than an ordinary one, updates whose loss is no number."""

from __future__ import annotations

import numpy as np

from nanolens.facts.case import Case

SLOW = 1.5  # times an ordinary update: beyond the jitter of any machine that is not shared


def broken_rows(case: Case) -> np.ndarray:
    """Updates whose loss was said and is no number."""
    return np.isinf(case.steps.loss) | np.isin(np.nan_to_num(case.steps.not_finite), (1.0, 3.0))


def slow_rows(case: Case) -> np.ndarray:
    """Updates that took clearly longer than an ordinary one."""
    took = case.steps.took_s
    if case.step_time is None:
        return np.zeros(len(took), bool)
    return np.nan_to_num(took, nan=0.0, posinf=0.0) > SLOW * case.step_time.value
