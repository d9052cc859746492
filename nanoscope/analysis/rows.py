"""Rows that stand out: updates that took longer than an ordinary one, updates whose loss is no number."""

from __future__ import annotations

import numpy as np

from nanoscope.analysis.case import Case

SLOW = 1.5  # times an ordinary update: beyond the jitter of any machine that is not shared


def broken_rows(case: Case) -> np.ndarray:
    """Updates whose loss is no number. NaN in the column may also mean that none was said: a mark tells where the first real one stands."""
    losses = case.steps.loss
    first = [mark.line for mark in case.run.marks if mark.kind == "not_finite" and mark.text == "loss"]
    is_ours = case.run.words.trainer == "nanoscope"  # our own record has a loss in every row
    broken = np.isinf(losses)
    if is_ours:
        return broken | np.isnan(losses)
    return broken | (np.isnan(losses) & (case.steps.line >= min(first))) if first else broken


def slow_rows(case: Case) -> np.ndarray:
    """Updates that took clearly longer than an ordinary one."""
    took = case.steps.took_s
    if case.step_time is None:
        return np.zeros(len(took), bool)
    return np.nan_to_num(took, nan=0.0, posinf=0.0) > SLOW * case.step_time.value
