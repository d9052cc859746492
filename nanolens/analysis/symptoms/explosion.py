"""The loss left its level and did not come back.

What it sees. A rise of the loss far beyond its scatter that still stands at the end of the log (loss_divergence), and, where it
happened from one line to the next and by orders of magnitude, the one update that destroyed the model (grad_explosion).

Why it matters. A run that has diverged seldom returns to where it was; what is trained after it is wasted.

When it is wrong. A resumed run whose schedule began anew rises for a while by design, a switch to harder data looks the same, and
so does the logged loss of another quantity. A rise that comes back within a hundred steps is a spike (loss_spike).

What it looks like. Good for a hundred iterations, then:

    iter 640: loss 4.2205, time 251.30ms
    iter 650: loss 88.1520, time 250.85ms

What to change. Go back to the checkpoint before the rise, with half the learning rate or twice the warm-up; check that gradients
are clipped (grad_clip=1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.statistics import MAD_TO_SD, noise_of, paired_difference
from nanolens.message import msg

CODES = ("grad_explosion", "loss_divergence")

MANY = 20_000  # points
EXPLODED = 4.0  # a loss this many times its level before, from one line to the next, is no fluctuation


@dataclass(frozen=True)
class Rise:
    """Where a curve left its lowest level for good."""

    at: int  # index into the curve: first point of the rise
    low: float  # the level before
    end: float  # the level at the end
    noise: float


def look(case: Case) -> Iterator[Finding | NotChecked]:
    steps, losses = case.losses
    rise = _both_rose(case)
    if rise is not None and not _is_learnt(case, float(case.evals.step[rise.at])):
        yield _diverged(case, case.evals.step, case.evals.val, rise, msg("val loss"))
    if len(losses) < 4 and len(case.vals[1]) < 4:
        yield NotChecked("loss_divergence", msg("there are too few losses"))
        return
    yield from _jump(case, steps, losses)
    for (at, values), what in ((case.losses, msg("batch loss")), (case.vals, msg("val loss"))):
        rise = lasting_rise(at, values)
        if rise is not None and not _is_resume(case, at[rise.at]) and not _is_overfitting(case, values is case.vals[1]):
            yield _diverged(case, at, values, rise, what)
            return
    rise = _risen_evaluations(case)
    if rise is not None and not _is_resume(case, case.vals[0][rise.at]) and not _is_learnt(case, float(case.vals[0][rise.at])):
        yield _diverged(case, *case.vals, rise, msg("val loss"))


def lasting_rise(x: np.ndarray, y: np.ndarray) -> Rise | None:
    """A level at the end that stands clearly above the lowest level before, held by several points."""
    if len(y) < 6:
        return None
    width = max(2, min(len(y) // 6, 50))
    levels = _levels(y, width)
    end = float(np.median(y[-max(3, width) :]))
    lowest = int(np.argmin(levels[width - 1 : -2])) + width - 1 if len(y) > width + 2 else int(np.argmin(levels))
    low = float(levels[lowest])
    noise = _scatter(x, y, lowest, low)
    tail = y[-max(3, width) :]
    if lowest >= len(y) - 3:
        return None
    if width >= 10:  # both levels are medians of many points: their own error counts, not the scatter of single points
        error = 1.25 * noise * np.sqrt(1 / len(tail) + 1 / width)
        holds = np.mean(tail > 0.5 * (low + end)) > 0.85
    else:
        error = 1.0 * noise
        holds = (tail > low + 4 * noise).all()
    if not holds or end < low + max(0.2, 10 * error, 0.08 * abs(low)):
        return None
    above = np.flatnonzero(y[lowest:] > low + 0.5 * (end - low))
    return Rise(lowest + int(above[0]), low, end, noise)


def _risen_evaluations(case: Case) -> Rise | None:
    """Where the batches of each evaluation are kept, two evaluations are enough: batch by batch, val stands clearly above its lowest."""
    kept, names = case.evals.val_batch_losses, case.evals.batches
    val, train = case.evals.val, case.evals.train
    if len(kept) < 4 or len(set(names)) != 1 or len(kept) != len(val) or not (np.isfinite(val).all() and np.isfinite(train).all()):
        return None
    low = int(np.argmin(val))
    if low > len(val) - 3 or min(train[-2:]) < train[low] + 0.1:
        return None
    rises = [paired_difference(kept[i], kept[low]) for i in (-2, -1)]
    if any(rise is None or rise[0] < max(0.1, 6 * rise[1]) for rise in rises):
        return None
    noise = case.eval_noise.value if case.eval_noise is not None else 0.0
    return Rise(low + 1, float(val[low]), float(val[-1]), noise)


def _both_rose(case: Case) -> Rise | None:
    """Of three evaluations or fewer no curve can be made; but two splits, measured apart, do not both rise by half by chance."""
    train, val = case.evals.train, case.evals.val
    if not 2 <= len(val) <= 3 or any(mark.kind in ("resume", "attempt") for mark in case.run.marks):
        return None
    low = int(np.argmin(val[:-1]))
    rose = [split[-1] - split[low] for split in (train, val)]
    if not all(np.isfinite(by) and by > max(1.0, 0.5 * split[low]) for by, split in zip(rose, (train, val), strict=True)):
        return None
    return Rise(len(val) - 1, float(val[low]), float(val[-1]), 0.03 * abs(float(val[low])))


def _scatter(x: np.ndarray, y: np.ndarray, lowest: int, low: float) -> float:
    """Of a single point: before the lowest level or at the end, whichever is calmer; the rise itself would count as scatter."""
    parts = (slice(lowest // 3, lowest + 1), slice(len(y) - max(5, len(y) // 4), None))
    found = [noise for part in parts if (noise := noise_of(x[part], y[part])) is not None]
    return min(found) if found else 0.03 * abs(low)


def _levels(y: np.ndarray, width: int) -> np.ndarray:
    """Median of the `width` points up to each one. In a long series it is worked out for every tenth of a width: it changes little."""
    padded = np.r_[np.full(width - 1, y[0]), y]
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    every = max(1, width // 10) if len(y) > MANY else 1
    levels = np.median(windows[::every], axis=1)
    return np.repeat(levels, every)[: len(y)] if every > 1 else levels


def _jump(case: Case, steps: np.ndarray, losses: np.ndarray) -> Iterator[Finding]:
    """One line to the next, by a factor."""
    if len(losses) < 4:
        return
    before = np.array([np.median(losses[max(0, i - 5) : i]) for i in range(1, len(losses))]) if len(losses) < 5000 else losses[:-1]
    ratio = losses[1:] / np.maximum(before, 1e-9)
    jumps = np.flatnonzero((ratio > EXPLODED) & (losses[1:] > before + 3) & (before > 0.05))
    # A line that is gone in the next is one bad batch: an update that destroys a model is seen for longer.
    jumps = np.array([j for j in jumps[:100] if _stays(losses[j + 2 : j + 5], float(before[j]), float(losses[j + 1]))], int)
    if not len(jumps):
        return
    i = int(jumps[0]) + 1
    spread = MAD_TO_SD * float(np.median(np.abs(losses[max(0, i - 10) : i] - np.median(losses[max(0, i - 10) : i]))))
    row = int(np.flatnonzero(case.steps.step == steps[i])[0])
    ceiling = case.ln_vocab
    evidence = [
        Evidence(
            msg("loss"),
            float(losses[i]),
            (float(before[i - 1] - 3 * spread), float(before[i - 1] + 3 * spread)),
            places.row(case, row),
            msg("median of the five lines before, and three times their scatter"),
            "nats",
            int(steps[i]),
        )
    ]
    if ceiling is not None and losses[i] > ceiling:
        evidence.append(
            Evidence(
                msg("loss of a model that knows nothing"),
                float(losses[i]),
                ceiling,
                places.row(case, row),
                msg("ln of the vocabulary's size: above it the model is confidently wrong"),
                "nats",
            )
        )
    rate = case.peak_rate
    change = Change(
        msg(
            "go back before step {step:count}, halve the learning rate or double the warm-up, and check that gradients are clipped",
            step=int(steps[i]),
        ),
        key="learning_rate" if rate else "",
        old=rate,
        new=rate / 2 if rate else None,
    )
    yield Finding(
        "grad_explosion",
        "certain" if ratio[i - 1] > 10 else "likely",
        msg("one update between two lines destroyed the model"),
        tuple(evidence),
        change,
        msg("the data changed at this step, or the printed loss is another quantity from there on"),
    )


def _stays(after: np.ndarray, before: float, high: float) -> bool:
    return len(after) == 0 or float(np.median(after)) > before + 0.1 * (high - before)


def _diverged(case: Case, x: np.ndarray, y: np.ndarray, rise: Rise, what: object) -> Finding:
    evidence = Evidence(
        msg("{what} at the end", what=what),
        rise.end,
        (rise.low - 2 * rise.noise, rise.low + 2 * rise.noise),
        places.steps(x[rise.at], x[-1]),
        msg("median of the last lines, against the lowest level before and its scatter"),
        "nats",
        int(x[rise.at]),
    )
    rate = case.peak_rate
    return Finding(
        "loss_divergence",
        "possible" if _may_be_overfitting(case, y, rise) else "likely",
        msg("the {what} rose from {low:nats} to {end:nats} and did not come back", what=what, low=rise.low, end=rise.end),
        (evidence,),
        Change(
            msg("go back to the last checkpoint before step {step:count} and continue with half the learning rate", step=int(x[rise.at])),
            key="learning_rate" if rate else "",
            old=rate,
            new=rate / 2 if rate else None,
        ),
        msg("the data, the task or the printed quantity changed at that step"),
    )


def _may_be_overfitting(case: Case, y: np.ndarray, rise: Rise) -> bool:
    """A val loss alone, risen slowly and to no more than where it began: whether what is trained on rose with it is not told."""
    if len(case.losses[0]) >= 4 or np.isfinite(case.evals.train).any() or rise.end >= float(y[0]):
        return False
    return not y[rise.at] > max(1.5 * float(y[rise.at - 1]), float(y[rise.at - 1]) + 1.0)


def _is_resume(case: Case, step: float) -> bool:
    return any(mark.kind in ("resume", "attempt") and mark.step is not None and abs(mark.step - step) <= 200 for mark in case.run.marks)


def _is_overfitting(case: Case, of_val: bool) -> bool:
    """A val loss that rises while what is trained on falls is another finding."""
    if not of_val:
        return False
    trained = case.evals.train[np.isfinite(case.evals.train)]
    if len(trained) >= 4 and float(np.median(trained[-3:])) <= float(np.min(trained[: len(trained) // 2])):
        return True
    return _is_learnt(case, float(case.vals[0][np.argmin(case.vals[1])]))


def _is_learnt(case: Case, since: float) -> bool:
    """Whether the batches that are trained on have become easier since then: whatever rises beside them, the updates do as they should."""
    steps, losses = case.losses
    before, after = losses[steps <= since], losses[steps > since]
    if len(before) < 4 or len(after) < 4:
        return False
    return float(np.median(after[-max(3, len(after) // 4) :])) < float(np.median(before[-max(3, len(before) // 4) :]))
