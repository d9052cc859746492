"""Val rises while train falls.

What it sees. Evaluations of both splits: val has left its minimum by more than twice its noise, for two evaluations or more and to
the end, while train went on falling and lies clearly below val. Where a log holds too few evaluations, the known run of the very
same config supplies the minimum.

Why it matters. Each step after the minimum makes the model worse on new text; the weights of the minimum are the ones to keep.

When it is wrong. Train near val is never overfitting, however flat the curve. A gap alone is not either: while val still falls,
more steps still pay. Below one epoch there is nothing to memorise. A lowest value among many noisy ones is lower than the truth, so
noise is allowed for.

What it looks like. 82 epochs over a million characters, whose val had been 1.47 at step 1,750:

    step 5000: train loss 0.6224, val loss 1.7044

What to change. Stop at the best evaluation, or get more text; dropout and weight decay help a little, a smaller model too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked, Sureness
from nanolens.facts.statistics import bias_of_minimum, noise_of, trend
from nanolens.message import msg

CODES = ("overfitting", "checkpoint_not_best")

DEFAULT_NOISE = 0.02  # of one evaluation, where nothing tells it


@dataclass(frozen=True)
class Minimum:
    """Where val was lowest, and how far it has risen since."""

    at: int  # row of evals
    last: int
    rise: float
    fall_of_train: float
    gap: float
    noise: float
    held: int  # evaluations after the minimum that stand clearly above it, without a break to the end


def look(case: Case) -> Iterator[Finding | NotChecked]:
    both = np.flatnonzero(np.isfinite(case.evals.val) & np.isfinite(_train(case)))
    if not len(both):
        yield NotChecked("overfitting", msg("there are no evaluations of both splits"))
        return
    epochs = case.epochs_at(case.last_step)
    if epochs is not None and epochs < 1:
        return
    found = minimum(case)
    if found is not None:
        yield _risen(case, found)
        yield from _checkpoint(case, found)
        return
    still = stalled(case)
    if still is not None:
        yield _stands(case, still)
        return
    yield from _past_known_minimum(case, int(both[-1]))


def minimum(case: Case) -> Minimum | None:
    """SCIENCE's definition: val above its minimum by more than 2 sigma for at least two evaluations, gap above 2 sigma, train falling."""
    train = _train(case)
    both = np.flatnonzero(np.isfinite(case.evals.val) & np.isfinite(train))
    if len(both) < 3:
        return None
    val, train = case.evals.val[both], train[both]
    noise = case.eval_noise.value if case.eval_noise is not None else DEFAULT_NOISE
    low = int(np.argmin(val))
    # The smallest of many noisy values lies below the truth: that much of the rise is no rise.
    floor = val[low] + bias_of_minimum(min(len(val), 50)) * noise
    above = val[low + 1 :] > floor + 2 * noise
    held = 0
    for is_above in above[::-1]:
        if not is_above:
            break
        held += 1
    rise, fall = float(val[-1] - val[low]), float(train[low] - train[-1])
    gap = float(val[-1] - train[-1])
    level = float(np.median(val[-min(3, max(held, 1)) :]))
    if held < 2 or gap < 2 * 1.41 * noise or fall < 2 * noise or level < floor + max(0.005, 3 * noise):
        return None
    if not _keeps_rising(case.evals.step[both][low + 1 :], val[low + 1 :], held):
        return None
    return Minimum(int(both[low]), int(both[-1]), rise, fall, gap, noise, held)


@dataclass(frozen=True)
class Stall:
    """A stretch at the end in which val stands still while train goes on falling."""

    since: int  # row of evals
    last: int
    fall_of_train: float
    gap: float
    noise: float


def stalled(case: Case) -> Stall | None:
    """Val without a trend over the last quarter or more, train falling by more than 4 sigma, a gap above 2 sigma that grows."""
    train = _train(case)
    both = np.flatnonzero(np.isfinite(case.evals.val) & np.isfinite(train))
    for share in (2, 3, 4):  # the longest stretch that stands still
        rows = both[-(len(both) // share) :]
        if len(rows) < 5:
            return None
        val, fell = case.evals.val[rows], train[rows]
        slopes = trend(case.evals.step[rows], val), trend(case.evals.step[rows], fell)
        if slopes[0] is None or slopes[1] is None or slopes[0].is_falling or not slopes[1].is_falling:
            continue
        noise = case.eval_noise.value if case.eval_noise is not None else DEFAULT_NOISE
        noise = max(noise, noise_of(case.evals.step[rows], fell) or 0.0)
        length = float(case.evals.step[rows[-1]] - case.evals.step[rows[0]])
        fall, moved = -slopes[1].slope * length, -slopes[0].slope * length
        gaps = val - fell
        grows = trend(case.evals.step[rows], gaps)
        is_apart = float(np.median(gaps[len(gaps) // 2 :])) > 2 * 1.41 * noise and grows is not None and grows.is_rising
        if fall > 4 * noise and moved < 0.25 * fall and is_apart:
            return Stall(int(rows[0]), int(rows[-1]), fall, float(gaps[-1]), noise)
    return None


def _keeps_rising(steps: np.ndarray, after: np.ndarray, held: int) -> bool:
    """Enough evaluations after the minimum must show a trend; of a few, each one must stand clearly above it, or above the one before."""
    if len(after) < 5:
        return held == len(after) or (held >= 3 and bool((np.diff(after) > 0).all()))
    slope = trend(steps, after)
    return slope is not None and slope.is_rising


def _train(case: Case) -> np.ndarray:
    """Train loss at each evaluation: evaluated, or else the mean of the batch losses since the evaluation before."""
    train = case.evals.train
    if _is_evaluated(case) or not len(case.losses[0]) or not len(case.evals):
        return train
    steps, losses = case.losses
    ends = np.searchsorted(steps, case.evals.step, side="right")
    starts = np.r_[0, ends[:-1]]
    return np.array([losses[low:high].mean() if high > low else np.nan for low, high in zip(starts, ends, strict=True)])


def _is_evaluated(case: Case) -> bool:
    return bool(np.isfinite(case.evals.train).any())


def _risen(case: Case, found: Minimum) -> Finding:
    val, train = case.evals.val, _train(case)
    noise_how = case.eval_noise.how if case.eval_noise is not None else msg("assumed: nothing in the log tells it")
    evidence = [
        Evidence(
            msg("val loss at the end"),
            float(val[found.last]),
            float(val[found.at]),
            places.evaluations(case, found.at, found.last),
            msg("against its lowest value; the noise of one evaluation is {noise:nats} ({how})", noise=found.noise, how=noise_how),
            "nats",
            int(case.evals.step[found.at]),
        ),
        Evidence(
            msg("train loss at the end") if _is_evaluated(case) else msg("mean train loss since the evaluation before the last"),
            float(train[found.last]),
            float(train[found.at]),
            places.evaluations(case, found.at, found.last),
            msg("against its value where val was lowest: it went on falling"),
            "nats",
        ),
    ]
    evidence += _epochs(case)
    best = int(case.evals.step[found.at])
    sure: Sureness = "certain" if found.rise > 10 * found.noise and found.held >= 3 else "likely"
    return Finding(
        "overfitting",
        sure,
        msg(
            "overfitting: val is {rise:nats} above its minimum of step {best:count} while train fell by {fall:nats}",
            rise=found.rise,
            best=best,
            fall=found.fall_of_train,
        ),
        tuple(evidence),
        _remedy(case, best),
        msg("the val loss falls below its minimum again"),
    )


def _stands(case: Case, found: Stall) -> Finding:
    val, train = case.evals.val, _train(case)
    since = int(case.evals.step[found.since])
    evidence = (
        Evidence(
            msg("fall of the train loss"),
            found.fall_of_train,
            msg("as much as val, which shows no trend"),
            places.evaluations(case, found.since, found.last),
            msg("Mann-Kendall test of both; the noise of one evaluation is {noise:nats}", noise=found.noise),
            "nats",
            since,
        ),
        Evidence(
            msg("val loss minus train loss"),
            found.gap,
            float(val[found.since] - train[found.since]),
            places.evaluations(case, found.since, found.last),
            msg("at the end, and where the stretch begins: it grows"),
            "nats",
        ),
        *_epochs(case),
    )
    best = int(case.evals.step[np.nanargmin(val)])
    return Finding(
        "overfitting",
        "likely",
        msg("overfitting: val has stood still since step {since:count} while train fell on", since=since),
        evidence,
        Change(msg("keep the weights of step {best:count}; more text, weight decay or dropout help, more steps do not", best=best)),
        msg("the val loss falls again, as it may while the learning rate decays"),
    )


def _past_known_minimum(case: Case, last: int) -> Iterator[Finding | NotChecked]:
    known = case.reference
    val, train = float(case.evals.val[last]), float(_train(case)[last])
    epochs = case.epochs_at(int(case.evals.step[last]))
    if known is None or known.best_val is None or known.train_at_best is None:
        yield from _gap_only(case, last, val, train, epochs)
        return
    if not (train < known.train_at_best - 0.05 and val > known.best_val + max(5 * known.spread, 0.05)):
        return
    evidence = [
        Evidence(
            msg("val loss"),
            val,
            known.best_val,
            places.evaluation(case, last),
            msg("the known run of this config was lowest near step {step:count} ({source})", step=known.best_step, source=known.source),
            "nats",
            int(case.evals.step[last]),
        ),
        Evidence(
            msg("train loss"),
            train,
            known.train_at_best,
            places.evaluation(case, last),
            msg("its train loss at that minimum: this run is far past it"),
            "nats",
        ),
    ]
    evidence += _epochs(case)
    yield Finding(
        "overfitting",
        "likely",
        msg("overfitting: val stands {rise:nats} above the minimum that this very config is known to reach", rise=val - known.best_val),
        tuple(evidence),
        _remedy(case, known.best_step),
        msg("an earlier evaluation of this run was not lower than its last one"),
    )


def _gap_only(case: Case, last: int, val: float, train: float, epochs: float | None) -> Iterator[Finding | NotChecked]:
    """A wide gap after many epochs in a log too short to show the minimum."""
    count = int(np.isfinite(case.evals.val).sum())
    if count >= 3 or val - train < 0.25 * train:
        return
    if epochs < 3 if epochs is not None else not _is_evaluated(case):
        return  # batch losses against one evaluation, of an unknown number of epochs, tell nothing of memory
    evidence = Evidence(
        msg("val loss minus train loss"),
        val - train,
        msg("below {limit:nats}", limit=0.1 * train),
        places.evaluation(case, last),
        msg("the gap of one evaluation; where val was lowest cannot be seen in {count:count} evaluation(s)", count=count),
        "nats",
    )
    yield Finding(
        "overfitting",
        "possible",
        msg("train is far below val: much of the text has been memorised"),
        (evidence, *_epochs(case)),
        _remedy(case, None),
        msg("val is still falling: then more steps still pay"),
    )


def _epochs(case: Case) -> list[Evidence]:
    epochs = case.epochs_at(case.last_step)
    if epochs is None or case.dataset_tokens is None:
        return []
    where = msg("{tokens:tokens} tokens seen", tokens=case.tokens_at(case.last_step))
    how = msg(
        "tokens seen / tokens of the training split, {unique:tokens} ({how})", unique=case.dataset_tokens.value, how=case.dataset_tokens.how
    )
    return [Evidence(msg("passes over the data"), epochs, msg("up to 4"), where, how, "number")]


def _remedy(case: Case, best: int | None) -> Change:
    if best is None:
        return Change(msg("keep the weights of the lowest val loss; get more text, or train for fewer steps"))
    if case.counts_epochs or case.run.get("steps_counted"):
        return Change(msg("keep the weights of the evaluation with the lowest val loss, and stop there the next time"))
    return Change(
        msg("the best weights are still on disk, as the last evaluation was not saved: use those of about step {best:count}", best=best)
        if _last_was_not_saved(case)
        else msg("keep the weights of step {best:count}, and stop there the next time", best=best),
        key="max_iters",
        old=case.whole("max_iters") or case.last_step,
        new=best,
    )


def _last_was_not_saved(case: Case) -> bool:
    """nanoGPT says so when it saves, before the line of that iteration; none stands between the last evaluation and its iteration."""
    if case.run.words.trainer != "nanogpt" or not len(case.evals):
        return False
    last = int(case.evals.step[-1])
    has_line_after = bool((case.steps.step > last).any())
    saved = any(mark.kind == "checkpoint" and mark.step is not None and mark.step >= last for mark in case.run.marks)
    return has_line_after and not saved and case.get("always_save_checkpoint") is not True


def _checkpoint(case: Case, found: Minimum) -> Iterator[Finding]:
    """Whether the weights on disk are the best ones."""
    best, last = int(case.evals.step[found.at]), int(case.evals.step[found.last])
    if case.run.words.trainer == "nanolens":
        return  # keeps its best checkpoint besides the newest
    saved = [mark.step for mark in case.run.marks if mark.kind == "checkpoint" and mark.step is not None]
    always = case.get("always_save_checkpoint")
    saved_later = [step for step in saved if step > best]
    if not saved_later and always is not True:
        return
    evidence = Evidence(
        msg("val loss of the newest checkpoint"),
        float(case.evals.val[found.last]),
        float(case.evals.val[found.at]),
        places.evaluation(case, found.last),
        msg("a checkpoint was written after the minimum of step {best:count}, over the better one", best=best),
        "nats",
        last,
    )
    yield Finding(
        "checkpoint_not_best",
        "likely" if saved_later or case.run.known["always_save_checkpoint"].origin != "inferred" else "possible",
        msg("the saved weights are not the best ones"),
        (evidence,),
        Change(msg("save only when val improves"), key="always_save_checkpoint", old=True, new=False),
        msg("the checkpoint of step {best:count} was kept elsewhere", best=best),
    )
