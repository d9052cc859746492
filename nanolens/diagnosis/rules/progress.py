"""Whether the weights move, and whether there are enough updates to judge."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, finding, rule
from nanolens.diagnosis.rules.trends import is_as_known
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import Finding, Sureness, known
from nanolens.facts.statistics import block_medians, printed_decimals
from nanolens.message import msg

USUAL_VOCABULARIES = (65, 256, 8192, 32000, 50257, 50304, 65536, 100277, 128256, 151936)
SAME = 2e-4  # relative spread below which losses are the same number
FAR_APART = 100  # updates


@rule("lr_zero", "lr_schedule_mismatch", only=("peak_lr",))
def zero_lr(case: Case) -> Answers:
    """The learning rate is 0 on every line."""
    if not _has_zero_lr(case):
        return
    where = locations.rows(case, 0, len(case.steps) - 1) if len(case.steps) else case.where("learning_rate")
    lr, count = Seen(0.0, (1e-4, 1e-3), where), max(len(case.rows("lr")), 1)
    yield finding("lr_zero", "certain", lr, sets=("learning_rate", 0.0, 6e-4), count=count)
    if "warm" in (case.text("scheduler") + case.text("schedule")).lower() or (case.number("warmup_iters") or 0) > 0:
        yield finding("lr_schedule_mismatch.zero_lr", "likely", lr, count=count)


def _has_zero_lr(case: Case) -> bool:
    rates, losses = case.steps.lr[case.rows("lr")], case.losses[1]
    if len(rates) < 3:
        return case.number("learning_rate") == 0
    # Where the loss falls, the rate is merely printed with too few digits.
    learns = len(losses) >= 8 and float(np.median(losses[-4:])) < 0.97 * float(np.median(losses[:4]))
    return float(rates.max()) == 0.0 and not learns


@rule("constant_loss", "dead_init", needs=("losses>=2",))
def standstill(case: Case) -> Answers:
    """The weights do not move: a loss that never changes, or stays that of random guessing."""
    rate_is_zero = _has_zero_lr(case)
    if not rate_is_zero:
        yield from _no_progress(case)
        yield from _constant_evaluations(case)
    steps, losses = case.losses
    constant = _constant_from(losses)
    has_few_digits = printed_decimals(losses[:200], 0, 2) is not None
    is_far_apart = constant is None and _is_same_far_apart(steps, losses)
    if is_far_apart:
        constant = 0
    if constant is None or (has_few_digits and len(losses) - constant < 20 and not rate_is_zero):
        return
    same, median = losses[constant:], float(np.median(losses[constant:]))
    where, start = locations.steps(steps[constant], steps[-1]), steps[constant]
    spread = Seen(np.ptp(same), (0.005, 0.3), where, start)
    sureness: Sureness = "likely" if is_far_apart else "certain"
    yield finding("constant_loss", sureness, spread, loss=median, count=len(same))
    vocab = _uniform_over(case, float(np.median(losses)))
    if not rate_is_zero and constant == 0 and vocab is not None:
        expected = msg("below {level:nats} after a few steps", math.log(vocab))
        yield finding("dead_init.uniform", "likely", Seen(median, expected, where, start), vocab=vocab)


def _constant_from(losses: np.ndarray) -> int | None:
    """Index from which all losses are the same; None where fewer than five are."""
    last = losses[-1]
    off = np.flatnonzero(np.abs(losses - last) > SAME * max(abs(float(last)), 1e-3))
    start = int(off[-1]) + 1 if len(off) else 0
    return start if len(losses) - start >= 5 else None


def _is_same_far_apart(steps: np.ndarray, losses: np.ndarray) -> bool:
    """Two losses are enough where four digits after the point agree over many updates: batches differ by far more."""
    has_four_digits = printed_decimals(losses, 0, 3) is None
    return has_four_digits and float(np.ptp(losses)) < 1e-9 and steps[-1] - steps[0] >= FAR_APART


def _uniform_over(case: Case, loss: float) -> int | None:
    """The vocabulary over which this loss is that of an even guess. One that is not known is taken from the usual ones
    where the loss is its logarithm to four digits: a model that computes anything at all does not stand there by
    chance."""
    if case.vocab_size is not None:
        return int(case.vocab_size.value) if abs(loss - math.log(case.vocab_size.value)) < 0.02 else None
    return next((size for size in USUAL_VOCABULARIES if abs(loss - math.log(size)) < 1e-4), None)


def _no_progress(case: Case) -> Iterator[Finding]:
    """After a hundred updates beyond the warm-up the loss still is what chance gives."""
    steps, losses = case.losses
    level, rate = case.ln_vocab, case.lr_at(case.last_step)
    warm = case.whole("warmup_iters") or 0
    if level is None or case.is_pretrained or rate is None or rate < 1e-5 or steps[-1] < warm + 100 or steps[0] > 10:
        return
    tail = losses[steps > steps[-1] / 2]
    medians = block_medians(steps, losses, 20)[1]
    if len(tail) < 10 or medians.min() < 0.97 * level or abs(float(np.median(tail)) / level - 1) > 0.015:
        return
    if medians[0] - medians[-1] > 0.01 * level:
        return  # slowly, but it learns
    where, expected = locations.steps(steps[-len(tail)], steps[-1]), msg("below {level:nats}", 0.8 * level)
    loss = Seen(np.median(tail), expected, where, steps[-1])
    yield finding("dead_init", "likely", loss, count=int(steps[-1]), level=level)


def _constant_evaluations(case: Case) -> Iterator[Finding]:
    """The same batches give the same loss to the last digit: the weights have not moved between the evaluations."""
    batches, val = case.evals.batches, case.evals.val
    is_repeated = len(batches) >= 3 and len(set(batches)) == 1 and bool(batches[0])
    if not is_repeated or not np.isfinite(val).all() or float(np.ptp(val)) > 1e-7:
        return
    spread = Seen(np.ptp(val), msg("above 0"), locations.evaluations(case, 0, len(val) - 1), case.evals.step[0])
    yield finding("dead_init.constant_evaluations", "certain", spread, count=len(val))


FEWEST_RECURRING = {True: 3, False: 5}  # by whether there are at most MANY_LOSSES: more of them meet by chance
MANY_LOSSES = 1000


@rule("weights_not_updated", needs=("losses>=2",))
def recurring(case: Case) -> Answers:
    """The losses recur exactly: no update reaches the weights."""
    steps, losses = case.losses
    size = FEWEST_RECURRING[len(losses) <= MANY_LOSSES]
    if printed_decimals(losses[:200], 0, 3) is not None:
        return
    pair = _recurrence(steps, losses, case.steps.printed[case.rows("loss")], size)
    if pair is None:
        return
    first, again = pair
    length = size
    while again + length < len(losses) and losses[again + length] == losses[first + length]:
        length += 1
    where = locations.steps(steps[again], steps[again + length - 1])
    equal = Seen(length, 0, where, steps[again])
    yield finding("weights_not_updated", "likely", equal, updates=int(steps[again] - steps[first]))


def _recurrence(steps: np.ndarray, losses: np.ndarray, printed: np.ndarray, size: int) -> tuple[int, int] | None:
    """Where a row of different losses stands, and where it comes again with the same spacing: not as the same lines."""
    seen: dict[tuple[float, ...], int] = {}
    values, gaps = losses.tolist(), np.diff(steps).tolist()
    for index in range(len(values) - size + 1):
        window = values[index : index + size]
        if len(set(window)) < size:
            continue
        first = seen.setdefault((*window, *gaps[index : index + size - 1]), index)
        if index - first >= size and printed[first] != printed[index]:
            return first, index
    return None


FEW_UPDATES = 100


@rule("run_too_short", only=("planned_updates",))
def too_short(case: Case) -> Answers:
    """Too few updates to conclude anything."""
    length = known(case.planned_updates)
    if length > FEW_UPDATES or not (len(case.steps) or len(case.evals)) or is_as_known(case):
        return
    updates = Seen(length, msg("above {few:count}", FEW_UPDATES), msg("the whole run"))
    yield finding("run_too_short", "likely", updates, sets=("max_iters", length, 1000), length=length)
