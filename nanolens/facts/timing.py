"""Where the time of the iterations goes: ordinary steps, those that hold an evaluation, the first one; and the MFU
behind a moving average.

Rows that stand out: updates that took longer than an ordinary one, updates whose loss is no number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nanolens.facts.finding import Figure
from nanolens.message import msg

if TYPE_CHECKING:
    from nanolens.facts.case import Case

EMA = 0.9  # nanoGPT: running_mfu = 0.9 * running_mfu + 0.1 * mfu, at each printed line


def holds_eval(case: Case) -> np.ndarray:
    """Which rows' time contains an evaluation. nanoGPT evaluates at the top of the iteration whose line then shows the
    time of both."""
    rows, evals = case.steps, case.evals
    if case.run.conventions.time not in ("with_eval", "unknown"):
        return np.zeros(len(rows), bool)
    at_eval = np.isin(rows.step - case.run.conventions.updates_before_printed, evals.step)
    interval = case.whole("eval_interval")
    if interval and case.run.conventions.trainer == "nanogpt":
        at_eval |= rows.printed % interval == 0
    return at_eval


def is_first(case: Case) -> np.ndarray:
    """The first row of the run and of each attempt: compilation, allocation and warming up are in it."""
    rows = case.steps
    first = np.zeros(len(rows), bool)
    if len(rows) and rows.step[0] <= case.run.conventions.updates_before_printed + 1:
        first[0] = True
    for mark in case.run.marks:
        if mark.kind in ("resume", "attempt", "compile") and mark.step is not None:
            after = np.flatnonzero(rows.step > mark.step)
            if len(after):
                first[after[0]] = True
    return first


def ordinary(case: Case) -> np.ndarray:
    """Rows that hold nothing but a step, as far as can be told."""
    return np.isfinite(case.steps.took_s) & (case.steps.took_s > 0) & ~holds_eval(case) & ~is_first(case)


def ordinary_seconds(case: Case) -> Figure | None:
    took = case.steps.took_s[ordinary(case)]
    if len(took):
        how = msg("median of {rows:count normal iteration|normal iterations}", len(took))
        return Figure(float(np.median(took)), how, "printed")
    speed = case.steps.tokens_per_s[np.isfinite(case.steps.tokens_per_s)]
    stated = case.number("tokens_per_update")
    if len(speed) and stated:
        return Figure(stated / float(np.median(speed)), msg("tokens per update / printed tokens/s"), "inferred")
    return _by_time_of_day(case)


def _by_time_of_day(case: Case) -> Figure | None:
    """Where no time is printed: from the instants of the rows."""
    rows = case.steps
    known = np.flatnonzero(np.isfinite(rows.at_s))
    if len(known) < 2:
        return None
    passed, done = np.diff(rows.at_s[known]), np.diff(rows.step[known])
    each = passed[(done > 0) & (passed >= 0)] / done[(done > 0) & (passed >= 0)]
    if not len(each) or np.median(each) <= 0:
        return None
    how = msg("median of the time between {rows:count row|rows}, by their time of day", len(each))
    return Figure(float(np.median(each)), how, "inferred")


BATCH_SLACK = (
    0.003  # tokens of an update that are worked out from printed figures are taken for a round number this near
)


def rounded_batch(tokens: float) -> float:
    """Batches are small numbers times a power of two: the roundest one that is near."""
    for odd in range(1, 64, 2):
        power = round(np.log2(tokens / odd)) if tokens >= odd else -1
        if power >= 4 and abs(odd * 2.0**power / tokens - 1) < BATCH_SLACK:
            return odd * 2.0**power
    return tokens


def eval_seconds(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """(row, seconds beyond an ordinary step) of the rows that hold an evaluation; the first row is left out, as it
    holds more."""
    step = case.step_time
    if step is None:
        return np.zeros(0, int), np.zeros(0)
    rows = np.flatnonzero(holds_eval(case) & ~is_first(case) & np.isfinite(case.steps.took_s))
    extra = case.steps.took_s[rows] - step.value
    return rows[extra > 0], extra[extra > 0]


def eval_spacing(case: Case) -> int | None:
    """Updates between two evaluations: as configured, or the closest two that the log shows."""
    given = case.whole("eval_interval")
    if given:
        return given
    apart = np.diff(np.unique(case.evals.step))
    return int(apart.min()) if len(apart) else None


def measured_mfu_work(case: Case) -> float | None:
    """MFU x time of a step, the constant behind the printed MFUs: work over peak.

    A smoothed MFU is unrolled: m_t = 0.9 m_(t-1) + 0.1 c / dt_t, solved for c over the pairs of lines that follow each
    other directly."""
    mfu, took = case.steps.mfu_frac, case.steps.took_s
    usable = np.isfinite(mfu) & np.isfinite(took) & (took > 0) & (mfu > 0)
    if not usable.any():
        return None
    plain = usable & ordinary(case)
    if not case.run.conventions.mfu_is_smoothed:
        return float(np.median((mfu * took)[plain])) if plain.any() else None
    settled = _settled(case, plain)
    if settled is not None:
        return settled
    if not plain.any():
        return None
    # Slow lines pull the average down and never up: at a steady speed the highest products come closest to the truth.
    highest = float(np.quantile((mfu * took)[plain], 0.9))
    unrolled = _unrolled(case, usable)
    return unrolled if unrolled is not None and unrolled > 0.9 * highest else highest


def _settled(case: Case, plain: np.ndarray) -> float | None:
    """Where step time and printed MFU have both stood still for five ordinary lines, none left out, the average has
    arrived. Lines with evaluations in them stand still as well, each with the average of what came between."""
    if len(plain) < 5:
        return None
    columns = case.steps.mfu_frac, case.steps.took_s, plain, follows(case.steps.printed, plain)
    mfu, took, is_plain, is_next = (np.lib.stride_tricks.sliding_window_view(each[:200_000], 5) for each in columns)
    steady = is_plain.all(axis=1) & is_next[:, 1:].all(axis=1)
    mfu, took = mfu[steady], took[steady]
    still = (np.ptp(mfu, axis=1) <= 0.004 * mfu[:, -1]) & (np.ptp(took, axis=1) <= 0.02 * took[:, -1])
    if not still.any():
        return None
    return float(np.median(np.median(mfu[still], axis=1) * np.median(took[still], axis=1)))


def _unrolled(case: Case, usable: np.ndarray) -> float | None:
    mfu, took, printed = case.steps.mfu_frac, case.steps.took_s, case.steps.printed
    now = np.flatnonzero(follows(printed, usable) & ordinary(case))
    if len(now) < 3:
        return None  # of one or two pairs the rounding of the printed figures decides
    gain = (1 - EMA) / took[now]
    return float(((mfu[now] - EMA * mfu[now - 1]) * gain).sum() / (gain**2).sum())


def follows(printed: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Rows that come directly after the row before them, no line left out: as close as any two rows are; where both are
    usable."""
    apart = np.diff(printed, prepend=printed[:1])  # the first row follows none
    positive = apart[apart > 0]
    both = usable & np.r_[False, usable[:-1]]
    return both & (apart == positive.min()) if len(positive) else np.zeros(len(printed), bool)


def instant_mfu(case: Case) -> float | None:
    """The MFU of an ordinary step, without the moving average."""
    work, step = case.mfu_work, case.step_time
    return None if work is None or step is None else work / step.value


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
