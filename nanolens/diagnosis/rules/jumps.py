"""Losses that jump: for good, for a while, or at a resume."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, finding, new_lr, rule
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import Evidence, Finding, NotChecked, Sureness, see
from nanolens.facts.statistics import noise_of, paired_difference, spikes, spread_of
from nanolens.message import Message, msg
from nanolens.record.run import Mark

MANY_POINTS = 20_000  # points
GREW = 10.0  # times: a gradient norm that announces what comes
EXPLODED = 4.0  # a loss this many times its level before, from one line to the next, is no fluctuation


@dataclass(frozen=True)
class Rise:
    """Where a curve left its lowest level for good."""

    at: int  # index into the curve: first point of the rise
    low: float  # the level before
    end: float  # the level at the end
    noise: float


@rule("loss_divergence", only=("has_two_or_three_evals",))
def both_rose(case: Case) -> Answers:
    """Of three evaluations or fewer no curve can be made; but two splits, measured apart, do not both rise by half by
    chance."""
    steps, train, val = case.evals.step, case.evals.train, case.evals.val
    low = int(np.argmin(val[:-1]))
    has_risen = all(split[-1] - split[low] > max(1.0, 0.5 * split[low]) for split in (train, val))
    if not has_risen or case.marks("resume", "attempt") or _is_learning(case, float(steps[-1])):
        return
    rise = Rise(len(val) - 1, float(val[low]), float(val[-1]), 0.03 * abs(float(val[low])))
    yield _divergence(case, steps, val, rise, msg("val loss"))


@rule("grad_explosion", needs=("losses>=2",))
def explosion(case: Case) -> Answers:
    """One update destroyed the model."""
    yield from _explosion(case, *case.losses)


@rule("loss_divergence", needs=("has_a_curve",))
def divergence(case: Case) -> Answers:
    """The loss rose and did not recover."""
    for (at, values), what in ((case.losses, msg("batch loss")), (case.vals, msg("val loss"))):
        rise = lasting_rise(at, values)
        if rise is None or _is_resume(case, at[rise.at]) or (values is case.vals[1] and _is_overfitting(case)):
            continue
        yield _divergence(case, at, values, rise, what)
        return
    rise, at = _risen_evaluations(case), case.vals[0]
    if rise is not None and not _is_resume(case, at[rise.at]) and not _is_learning(case, float(at[rise.at])):
        yield _divergence(case, *case.vals, rise, msg("val loss"))


def lasting_rise(x: np.ndarray, y: np.ndarray) -> Rise | None:
    """A level at the end that stands clearly above the lowest level before, held by several points."""
    if len(y) < 6:
        return None
    width = max(2, min(len(y) // 6, 50))
    levels, tail = _levels(y, width), y[-max(3, width) :]
    lowest = int(np.argmin(levels[width - 1 : -2])) + width - 1 if len(y) > width + 2 else int(np.argmin(levels))
    if lowest >= len(y) - 3:
        return None
    low, end = float(levels[lowest]), float(np.median(tail))
    noise = _scatter(x, y, lowest, low)
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


def rise_of_loss(case: Case) -> Iterator[Evidence]:
    """That the batch loss rose for good, where it did."""
    steps, losses = case.losses
    rise = lasting_rise(steps, losses)
    if rise is not None:
        where, how = locations.onwards(steps[rise.at]), msg("it rose and did not recover")
        yield see(msg("loss at the end"), rise.end, rise.low, where, how, "nats")


def _risen_evaluations(case: Case) -> Rise | None:
    """Where the batches of each evaluation are kept, two evaluations are enough: batch by batch, val stands clearly
    above its lowest."""
    kept, val, train = case.evals.val_batch_losses, case.evals.val, case.evals.train
    is_complete = len(kept) == len(val) and np.isfinite(val).all() and np.isfinite(train).all()
    if len(kept) < 4 or len(set(case.evals.batches)) != 1 or not is_complete:
        return None
    low = int(np.argmin(val))
    if low > len(val) - 3 or min(train[-2:]) < train[low] + 0.1:
        return None
    rises = [paired_difference(kept[i], kept[low]) for i in (-2, -1)]
    if any(rise is None or rise[0] < max(0.1, 6 * rise[1]) for rise in rises):
        return None
    noise = case.eval_noise.value if case.eval_noise is not None else 0.0
    return Rise(low + 1, float(val[low]), float(val[-1]), noise)


def _scatter(x: np.ndarray, y: np.ndarray, lowest: int, low: float) -> float:
    """Of a single point: before the lowest level or at the end, whichever is calmer; the rise itself would count as
    scatter."""
    parts = (slice(lowest // 3, lowest + 1), slice(len(y) - max(5, len(y) // 4), None))
    found = [noise for part in parts if (noise := noise_of(x[part], y[part])) is not None]
    return min(found) if found else 0.03 * abs(low)


def _levels(y: np.ndarray, width: int) -> np.ndarray:
    """Median of the `width` points up to each one. In a long series it is worked out for every tenth of a width: it
    changes little."""
    padded = np.r_[np.full(width - 1, y[0]), y]
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    every = max(1, width // 10) if len(y) > MANY_POINTS else 1
    levels = np.median(windows[::every], axis=1)
    return np.repeat(levels, every)[: len(y)] if every > 1 else levels


def _explosion(case: Case, steps: np.ndarray, losses: np.ndarray) -> Iterator[Finding]:
    """One line to the next, by a factor; or by two nats, with a gradient that grew before."""
    if len(losses) < 2:
        return
    before = losses[:-1]
    if len(losses) < 5000:
        before = np.array([np.median(losses[max(0, i - 5) : i]) for i in range(1, len(losses))])
    ratio = losses[1:] / np.maximum(before, 1e-9)
    by_factor = (ratio > EXPLODED) & (losses[1:] > before + 3) & (before > 0.05) & (len(losses) >= 4)
    jumps = np.flatnonzero(by_factor | ((losses[1:] > before + 2) & _gradient_grew(case)))[:100]
    # A line that is gone in the next is one bad batch: an update that destroys a model is seen for longer.
    i = next((j + 1 for j in jumps if _stays(losses[j + 2 : j + 5], float(before[j]), float(losses[j + 1]))), None)
    if i is None:
        return
    step, level, spread = int(steps[i]), before[i - 1], spread_of(losses[max(0, i - 10) : i])
    where = locations.row(case, np.flatnonzero(case.steps.step == step)[0])
    jump, above = Seen(losses[i], (level - 3 * spread, level + 3 * spread), where, step), []
    if case.ln_vocab is not None and losses[i] > case.ln_vocab:
        what = msg("loss of a model that knows nothing")
        how = msg("ln of the vocabulary size: above it the model is confidently wrong")
        above = [see(what, losses[i], case.ln_vocab, where, how, "nats")]
    sureness: Sureness = "certain" if ratio[i - 1] > 10 else "likely"
    yield finding("grad_explosion", sureness, jump, *above, sets=new_lr(case.peak_lr, 1 / 2), step=step)


def _gradient_grew(case: Case) -> np.ndarray:
    """For each loss but the first: whether the gradient norm of its line or of the one before is GREW times that of the
    lines before it."""
    norms = case.steps.grad_norm[case.rows("loss")]
    grew = np.zeros(max(len(norms) - 1, 0), bool)
    for i in range(1, len(grew)):
        earlier = norms[max(0, i - 5) : i]
        earlier = earlier[np.isfinite(earlier)]
        if len(earlier):
            grew[i] = max(norms[i], norms[i + 1]) > GREW * float(np.median(earlier))
    return grew


def _stays(after: np.ndarray, before: float, high: float) -> bool:
    return len(after) == 0 or float(np.median(after)) > before + 0.1 * (high - before)


def _divergence(case: Case, x: np.ndarray, y: np.ndarray, rise: Rise, what: Message) -> Finding:
    step, low, end, sets = int(x[rise.at]), rise.low, rise.end, new_lr(case.peak_lr, 1 / 2)
    level = Seen(end, (low - 2 * rise.noise, low + 2 * rise.noise), locations.steps(step, x[-1]), step)
    sureness: Sureness = "possible" if _may_be_overfitting(case, y, rise) else "likely"
    return finding("loss_divergence", sureness, level, sets=sets, what=what, low=low, end=end, step=step)


def _may_be_overfitting(case: Case, y: np.ndarray, rise: Rise) -> bool:
    """A val loss alone, risen slowly and to no more than where it began: whether what is trained on rose with it is not
    known."""
    if len(case.losses[0]) >= 4 or np.isfinite(case.evals.train).any() or rise.end >= float(y[0]):
        return False
    return not y[rise.at] > max(1.5 * float(y[rise.at - 1]), float(y[rise.at - 1]) + 1.0)


def _is_resume(case: Case, step: float) -> bool:
    marks = case.marks("resume", "attempt")
    return any(mark.step is not None and abs(mark.step - step) <= 200 for mark in marks)


def _is_overfitting(case: Case) -> bool:
    """A val loss that rises while what is trained on falls is another finding."""
    trained = case.evals.train[np.isfinite(case.evals.train)]
    if len(trained) >= 4 and float(np.median(trained[-3:])) <= float(np.min(trained[: len(trained) // 2])):
        return True
    return _is_learning(case, float(case.vals[0][np.argmin(case.vals[1])]))


def _is_learning(case: Case, since: float) -> bool:
    """Whether the batches that are trained on have become easier since then: whatever rises beside them, the updates do
    as they should."""
    steps, losses = case.losses
    before, after = losses[steps <= since], losses[steps > since]
    if len(before) < 4 or len(after) < 4:
        return False
    return float(np.median(after[-max(3, len(after) // 4) :])) < float(np.median(before[-max(3, len(before) // 4) :]))


LEAST = 0.3  # nats, and a twentieth of the level


@rule("loss_spike", needs=("losses>=40",))
def loss_spikes(case: Case) -> Answers:
    """The loss jumped and came back."""
    steps, losses = case.losses
    early = steps <= max(50, (case.whole("warmup_iters") or 0))
    jumps = spikes(losses, floor=max(LEAST, 0.1 * float(np.median(losses))))
    jumps = jumps[~early[jumps]]
    if not len(jumps):
        return
    at = int(jumps[np.argmax(losses[jumps])])
    where = locations.row(case, np.flatnonzero(case.steps.step == steps[at])[0])
    usual = np.median(losses[max(0, at - 20) : at + 21])
    yield finding("loss_spike", "possible", Seen(losses[at], usual, where, steps[at]), count=len(jumps))


FEWEST_LINES = 2  # lines on either side; of fewer than four only a large jump counts


@rule("resume_discontinuity", marks=("resume", "attempt", "rollback"))
def resume(case: Case) -> Answers:
    """A jump where the run was resumed."""
    for mark in case.marks("resume", "attempt", "rollback"):
        if not mark.step:
            continue
        if np.isfinite(mark.was) and np.isfinite(mark.now):
            if _is_worse(case, mark):
                name = "resume_discontinuity.same_evaluation" if mark.is_eval else "resume_discontinuity.same_step"
                again = Seen(mark.now, mark.was, msg("from line {line:count} on", mark.line), mark.step)
                yield finding(name, "likely", again)
                return
            if mark.is_eval:
                continue  # the same step, evaluated alike: nothing says more
        jump = _jump_at(case, mark.step)
        if jump is not None:
            yield jump
            if isinstance(jump, Finding):
                return


def _is_worse(case: Case, mark: Mark) -> bool:
    """One evaluation of each attempt, or one batch: a single pair must lie further apart than medians of many."""
    if mark.is_eval:
        return mark.now - mark.was > max(0.05, 4 * 1.41 * case.eval_error)
    noise = case.batch_noise.value if case.batch_noise is not None else 0.1
    return mark.now - mark.was > max(0.3, 6 * 1.41 * noise)


def _jump_at(case: Case, step: int) -> Finding | NotChecked | None:
    """The lines before the resume against those after it."""
    steps, losses = case.losses
    before, after = np.flatnonzero(steps <= step)[-12:], np.flatnonzero(steps > step)[:12]
    fewer = min(len(before), len(after))
    if fewer < FEWEST_LINES:
        return NotChecked("resume_discontinuity", msg("too few losses around the resume at step {step:count}", step))
    noise = noise_of(steps, losses) or 0.0
    was, now = np.median(losses[before]), np.median(losses[after])
    if now - was < max(0.05 if fewer >= 4 else 0.3, 6 * noise / np.sqrt(fewer), 2 * noise):
        return None
    where, is_before = msg("step {step:count}", step), case.steps.step <= step
    loss = Seen(now, was, where, step)
    lr_before, lr_after = case.steps.lr[is_before][-1], case.steps.lr[~is_before][0]
    if not lr_after > 1.2 * lr_before:
        return finding("resume_discontinuity", "likely", loss, count=len(after), noise=noise)
    lr = see(msg("learning rate after the resume"), lr_after, lr_before, where, msg("the schedule restarted"), "rate")
    return finding("resume_discontinuity.lr_jumped", "likely", loss, lr, count=len(after), noise=noise)
