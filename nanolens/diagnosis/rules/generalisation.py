"""What val says beside train."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, finding, rule
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, Sureness, known, see
from nanolens.facts.statistics import bias_of_minimum, noise_of, trend
from nanolens.message import msg


@dataclass(frozen=True)
class Minimum:
    """Where val was lowest, and how far it has risen since."""

    at: int  # row of evals
    last: int
    rise: float
    fall_of_train: float
    held: int  # evaluations after the minimum that stand clearly above it, without a break to the end


@rule("overfitting", "checkpoint_not_best", needs=("paired_evals",))
def overfitting(case: Case) -> Answers:
    """Val rises while train falls."""
    if case.epochs is not None and case.epochs < 1:
        return
    found, still = minimum(case), stalled(case)
    if found is not None:
        yield _val_rose(case, found)
        yield from _checkpoint_not_best(case, found)
    elif still is not None:
        yield still
    elif case.reference is not None and case.reference.train_at_best is not None:
        yield from _past_known_minimum(case)
    else:
        yield from _gap_only(case)


KNOWN_BY_HEART = 0.12  # nats per token: no text that is new to a model costs so little


@rule("overfitting")
def memorised(case: Case) -> Answers:
    """Batches of tokens, not letters, that cost next to nothing, without a held-out text to say so."""
    steps, losses = case.losses
    if len(losses) < 3 or len(case.val_rows) or case.is_char:
        return
    last = losses[-min(5, len(losses)) :]
    level = float(np.median(last))
    if 0 < level < KNOWN_BY_HEART and float(last.max()) < 2 * KNOWN_BY_HEART:
        where = locations.steps(steps[-len(last)], steps[-1])
        loss = Seen(level, msg("about {least:nats} or more", 1.0), where, steps[-1])
        yield finding("overfitting.memorised", "likely", loss, loss=level)


def minimum(case: Case) -> Minimum | None:
    """Val above its minimum by more than 2 sigma for at least two evaluations, a gap above 2 sigma, train falling."""
    both = case.paired_evals
    if len(both) < 3:
        return None
    val, train, noise = case.evals.val[both], case.train_at_evals[both], case.eval_error
    low = int(np.argmin(val))
    # The smallest of many noisy values lies below the truth: that much of the rise is no rise.
    floor = val[low] + bias_of_minimum(min(len(val), 50)) * noise
    below = np.flatnonzero(~(val[low + 1 :] > floor + 2 * noise))
    held = len(val) - low - 1 - (int(below[-1]) + 1 if len(below) else 0)
    rise, fall, gap = float(val[-1] - val[low]), float(train[low] - train[-1]), float(val[-1] - train[-1])
    level = float(np.median(val[-min(3, max(held, 1)) :]))
    if held < 2 or gap < 2 * 1.41 * noise or fall < 2 * noise or level < floor + max(0.005, 3 * noise):
        return None
    keeps_rising = _keeps_rising(case.evals.step[both][low + 1 :], val[low + 1 :], held)
    return Minimum(int(both[low]), int(both[-1]), rise, fall, held) if keeps_rising else None


def stalled(case: Case) -> Finding | None:
    """Val without a trend over the last quarter or more, train falling by more than 4 sigma, a gap above 2 sigma that
    grows."""
    both, steps = case.paired_evals, case.evals.step
    for share in (2, 3, 4):  # the longest stretch that stands still
        rows = both[-(len(both) // share) :]
        if len(rows) < 5:
            return None
        at, val, train = steps[rows], case.evals.val[rows], case.train_at_evals[rows]
        of_val, of_train, of_gap = trend(at, val), trend(at, train), trend(at, val - train)
        if of_val is None or of_train is None or of_val.is_falling or not of_train.is_falling:
            continue
        noise = max(case.eval_error, noise_of(at, train) or 0.0)
        length = float(at[-1] - at[0])
        fall, moved = -of_train.slope * length, -of_val.slope * length
        is_apart = float(np.median((val - train)[len(rows) // 2 :])) > 2 * 1.41 * noise
        if fall > 4 * noise and moved < 0.25 * fall and is_apart and of_gap is not None and of_gap.is_rising:
            return _val_stalled(case, int(rows[0]), int(rows[-1]), fall, noise)
    return None


def _keeps_rising(steps: np.ndarray, after: np.ndarray, held: int) -> bool:
    """Enough evaluations after the minimum must show a trend; of a few, each one must stand clearly above it, or above
    the one before."""
    if len(after) < 5:
        return held == len(after) or (held >= 3 and bool((np.diff(after) > 0).all()))
    slope = trend(steps, after)
    return slope is not None and slope.is_rising


def _val_rose(case: Case, found: Minimum) -> Finding:
    val, train, noise = case.evals.val, case.train_at_evals, case.eval_error
    where, step = locations.evaluations(case, found.at, found.last), int(case.evals.step[found.at])
    rose = Seen(val[found.last], val[found.at], where, step)
    what = msg("mean train loss since the second-to-last evaluation")
    if np.isfinite(case.evals.train).any():
        what = msg("train loss at the end")
    how = msg("compared with its value where val was lowest: it kept falling")
    fell = see(what, train[found.last], train[found.at], where, how, "nats")
    how = case.eval_noise.how if case.eval_noise is not None else msg("assumed: the log does not show it")
    rise, fall, more, change = found.rise, found.fall_of_train, [fell, *_epochs(case)], _keep_best(case, step)
    sureness: Sureness = "certain" if rise > 10 * noise and found.held >= 3 else "likely"
    return finding(
        "overfitting", sureness, rose, *more, change=change, rise=rise, best=step, fall=fall, noise=noise, how=how
    )


def _val_stalled(case: Case, first: int, last: int, fall: float, noise: float) -> Finding:
    gaps, steps, where = case.evals.val - case.train_at_evals, case.evals.step, locations.evaluations(case, first, last)
    since, best = int(steps[first]), int(steps[np.nanargmin(case.evals.val)])
    fell = Seen(fall, msg("as much as val, which shows no trend"), where, since)
    how = msg("at the end, and at the start of this range: it grows")
    apart = see(msg("val loss minus train loss"), gaps[last], gaps[first], where, how, "nats")
    return finding("overfitting.stalled", "likely", fell, apart, *_epochs(case), since=since, best=best, noise=noise)


def _past_known_minimum(case: Case) -> Iterator[Finding]:
    last, published = case.paired_evals[-1], known(case.reference)
    val, train, where = case.evals.val[last], case.train_at_evals[last], locations.evaluation(case, last)
    best, train_at_best = known(published.best_val), known(published.train_at_best)
    if train >= train_at_best - 0.05 or val <= best + max(5 * published.spread, 0.05):
        return
    step, source, rise = published.best_step, published.source, float(val - best)
    above, change = Seen(val, best, where, case.evals.step[last]), _keep_best(case, step)
    how = msg("its train loss at that minimum: this run is far past it")
    more = [see(msg("train loss"), train, train_at_best, where, how, "nats"), *_epochs(case)]
    yield finding("overfitting.past_known", "likely", above, *more, change=change, rise=rise, step=step, source=source)


def _gap_only(case: Case) -> Iterator[Finding]:
    """A wide gap after many epochs in a log too short to show the minimum."""
    last, count = case.paired_evals[-1], len(case.val_rows)
    train = float(case.train_at_evals[last])
    gap, epochs = float(case.evals.val[last]) - train, case.epochs_at(int(case.evals.step[last]))
    if count >= 3 or gap < 0.25 * train:
        return
    if epochs < 3 if epochs is not None else not np.isfinite(case.evals.train).any():
        return  # batch losses against one evaluation, of an unknown number of epochs, tell nothing of memory
    apart = Seen(gap, msg("below {limit:nats}", 0.1 * train), locations.evaluation(case, last))
    yield finding("overfitting.gap_only", "possible", apart, *_epochs(case), count=count)


def _epochs(case: Case) -> list[Evidence]:
    size = case.dataset_tokens
    if case.epochs is None or size is None:
        return []
    where = msg("{tokens:tokens} tokens seen", case.tokens_at(case.last_step))
    how = msg("tokens seen / tokens in the training split, {unique:tokens} ({how})", size.value, size.how)
    return [see(msg("epochs"), case.epochs, msg("up to 4"), where, how, "number")]


def _keep_best(case: Case, best: int | None) -> Change:
    if case.counts_epochs or case.run.get("steps_counted"):
        return Change(msg("keep the weights of the evaluation with the lowest val loss, and stop there next time"))
    words = msg("keep the weights of step {best:count}, and stop there next time", best)
    if _last_was_not_saved(case):
        words = msg(
            "the best weights are still on disk, because none were saved at the last evaluation: use those from "
            "about step {best:count}",
            best,
        )
    return Change(words, "max_iters", case.whole("max_iters") or case.last_step, best)


def _last_was_not_saved(case: Case) -> bool:
    """nanoGPT says so when it saves, before the line of that iteration; none stands between the last evaluation and its
    iteration."""
    if not case.is_nanogpt or not len(case.evals):
        return False
    last = int(case.evals.step[-1])
    has_line_after = bool((case.steps.step > last).any())
    saved = any(mark.step is not None and mark.step >= last for mark in case.marks("checkpoint"))
    return has_line_after and not saved and case.get("always_save_checkpoint") is not True


def _checkpoint_not_best(case: Case, found: Minimum) -> Iterator[Finding]:
    """Whether the weights on disk are the best ones."""
    best, val = int(case.evals.step[found.at]), case.evals.val
    if case.run.conventions.trainer == "nanolens":
        return  # keeps its best checkpoint besides the newest
    saved_later = any(mark.step is not None and mark.step > best for mark in case.marks("checkpoint"))
    if not saved_later and case.get("always_save_checkpoint") is not True:
        return
    newest = Seen(val[found.last], val[found.at], locations.evaluation(case, found.last), case.evals.step[found.last])
    is_sure = saved_later or case.run.known["always_save_checkpoint"].origin != "inferred"
    sureness: Sureness = "likely" if is_sure else "possible"
    yield finding("checkpoint_not_best", sureness, newest, sets=("always_save_checkpoint", True, False), best=best)


@rule("val_below_train_ok", needs=("both_splits",))
def split_offset(case: Case) -> Answers:
    """Val is lower than train, and that is fine."""
    both, noise = case.both_splits, case.eval_error
    trained = both if _knows_something(case) else both[case.evals.step[both] > 0]
    gaps = (case.evals.train - case.evals.val)[trained]
    if len(gaps) < 2 or float(np.median(gaps)) < 3 * 1.41 * noise or (gaps > 0).mean() < 0.8:
        return
    expected = msg("within {noise:nats} of 0 for similar splits", 2 * 1.41 * noise)
    where = locations.evaluations(case, int(trained[0]), int(trained[-1]))
    yield finding("val_below_train_ok", "likely", Seen(np.median(gaps), expected, where), count=len(gaps))


def _knows_something(case: Case) -> bool:
    """Whether the model at step 0 is a trained one: an untrained one finds every text equally hard, and says nothing of
    the splits."""
    first, chance = case.first_loss, case.ln_vocab
    return case.is_pretrained or (first is not None and chance is not None and first < 0.8 * chance)
