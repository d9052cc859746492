"""The printed MFU lags behind: a moving average swallowed a slow line.

What it sees. nanoGPT's recursion (nine tenths of the old value, one tenth of the new, once a printed line) reproduced from the
times: where the printed MFU differs from that of an ordinary step, and the slow lines that did it.

Why it matters. An MFU that climbs for fifty lines looks like a run that is getting faster, and one that drops like a slowdown.
Neither is real.

When it is wrong. If the times themselves change, the speed does too: see throttling_suspected.

What it looks like. One line with an evaluation in it:

    iter 4990: loss 0.8212, time 33.23ms, mfu 11.09%
    iter 5000: loss 0.8236, time 4446.83ms, mfu 9.99%

What to change. Nothing; read the MFU of an ordinary step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Evidence, Finding, NotChecked
from nanolens.facts.timing import EMA, follows, mfu_times_seconds
from nanolens.message import msg

CODES = ("mfu_ema_lag",)

OFF = 0.06  # share of the true value by which the printed one must differ


def look(case: Case) -> Iterator[Finding | NotChecked]:
    if not case.run.words.mfu_is_smoothed:
        return
    work, step = mfu_times_seconds(case), case.step_time
    if work is None or step is None:
        yield NotChecked("mfu_ema_lag", msg("no MFU is printed beside ordinary iterations"))
        return
    true = work / step.value
    mfu, took = case.steps.mfu_frac, case.steps.took_s
    usable = np.isfinite(mfu) & np.isfinite(took) & (took > 0)
    pairs = follows(case.steps.printed) & usable
    pairs[1:] &= usable[:-1]
    pairs[:1] = False
    now = np.flatnonzero(pairs)
    predicted = EMA * mfu[now - 1] + (1 - EMA) * work / took[now]
    explained = np.abs(predicted - mfu[now]) < np.maximum(0.02 * true, 0.0002)
    lags = np.abs(mfu / true - 1) > OFF
    seeded = _seeded_by_a_slow_line(case, true)
    found = now[explained & lags[now]]
    if not len(found) or (len(now) >= 6 and explained.mean() < 0.6):
        return
    if not seeded and not (took[now] > 2 * step.value).any():
        return
    worst = int(found[np.argmax(np.abs(mfu[found] / true - 1))])
    evidence = (
        Evidence(
            msg("MFU as printed"),
            float(mfu[worst]),
            true,
            places.row(case, worst),
            msg("of an ordinary step: unrolled from m = 0.9 m + 0.1 c / time over {count:count} pairs of lines", count=len(now)),
            "share",
            int(case.steps.step[worst]),
        ),
    )
    yield Finding(
        "mfu_ema_lag",
        "likely",
        msg("the printed MFU is a moving average that a slow line has pulled away; the speed did not change"),
        evidence,
        None,
        msg("the time of ordinary iterations changes with it"),
    )


def _seeded_by_a_slow_line(case: Case, true: float) -> bool:
    first = np.flatnonzero(np.isfinite(case.steps.mfu_frac))
    return len(first) > 0 and float(case.steps.mfu_frac[first[0]]) < 0.7 * true
