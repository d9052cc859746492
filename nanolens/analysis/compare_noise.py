"""Is a difference between two val losses more than noise? Errors of the evaluations, paired where possible, and the spread between repeats.

The error of a difference has two parts. The *evaluation's*: on the same batches it is taken from the paired differences, which are several
times sharper than two separate errors. And the *run's own*: a repeat with another seed ends elsewhere. With several runs a side the second
is seen in the runs themselves; with one run a side it is the spread known from runs of the same kind."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nanolens.comparison.side import Side
from nanolens.facts.references import SEED_SPREAD
from nanolens.facts.statistics import standard_error, t_quantile
from nanolens.message import Message, msg

CONFIDENCE = 0.95
POWER = 0.8  # with which a difference is to be seen, where more seeds are proposed
UNKNOWN_EVAL_ERROR = 0.05
"""An evaluation whose error nobody kept: hardly worse than this (20 batches of 12 windows of 64 characters come to 0.02)."""
FIXED_EVALUATIONS = {"modded-nanogpt": 0.001, "llm.c": 0.002, "build-nanogpt": 0.002, "nanochat": 0.001}
"""Trainers that evaluate the same val tokens in every run, 1 to 10 million of them: error of a difference, in nats."""
PRIOR_WEIGHT = 4.0  # degrees of freedom that the known spread counts for beside the spread of the runs at hand
SMALLEST_DIFFERENCE = 0.01  # the difference that more seeds should show


@dataclass(frozen=True)
class Measured:
    """a - b in nats, with its standard error and where that comes from. `se` is None where it is not known, only bounded."""

    difference: float
    se: float | None
    freedom: float  # degrees of freedom of `se`
    how: tuple[Message, ...]
    spread: float | None = None  # between repeats, one run against another of the same side
    bound: float = math.inf  # no plausible error is larger

    @property
    def half_width(self) -> float:
        """Of the 95 % interval."""
        se = self.bound if self.se is None else self.se
        return t_quantile(0.5 + CONFIDENCE / 2, self.freedom) * se

    @property
    def is_clear(self) -> bool:
        return abs(self.difference) > self.half_width


def measure(a: Side, b: Side, step_a: float, step_b: float) -> Measured | None:
    """The difference of the evaluations at those steps (of each side). None where one of them was not evaluated there."""
    vals_a, vals_b = a.val_at(step_a), b.val_at(step_b)
    if vals_a is None or vals_b is None:
        return None
    difference = float(vals_a.mean() - vals_b.mean())
    evaluation, shared, how_eval = _evaluation_error(a, b, step_a, step_b)
    repeats, freedom, spread, how_runs = _repeat_error(a, b, vals_a, vals_b, (step_a, step_b), evaluation, shared)
    how = tuple(each for each in (how_eval, how_runs) if each is not None)
    if evaluation is None:
        bound = math.hypot(math.sqrt(2) * UNKNOWN_EVAL_ERROR, repeats)
        return Measured(difference, None, freedom, how, spread, bound)
    se = math.hypot(evaluation, repeats)
    return Measured(difference, se, freedom, how, spread, se)


def _evaluation_error(a: Side, b: Side, step_a: float, step_b: float) -> tuple[float | None, bool, Message | None]:
    """(standard error of the difference that comes from the evaluations, whether all were on the same batches, how it is known)."""
    batches_a, batches_b = a.batch_losses_at(step_a), b.batch_losses_at(step_b)
    if batches_a and batches_b and len({fingerprint for fingerprint, _ in (*batches_a, *batches_b)}) == 1:
        mean_a = np.mean([losses for _, losses in batches_a], axis=0)
        mean_b = np.mean([losses for _, losses in batches_b], axis=0)
        error = standard_error(mean_a - mean_b)
        if error is not None:
            return error, True, msg("paired: the same {count:count} val batches, difference by difference", count=len(mean_a))
    trainers = {a.case.run.words.trainer, b.case.run.words.trainer}
    if len(trainers) == 1 and (fixed := FIXED_EVALUATIONS.get(trainers.pop())) and not a.by_batch_loss:
        return (
            fixed,
            True,
            msg("this trainer evaluates the same tokens each time, so that runs differ by no more than {error:nats} for it", error=fixed),
        )
    one, other = a.eval_error, b.eval_error
    if one is None or other is None:
        return None, False, msg("the evaluations' own error was not kept and cannot be inferred")
    error = math.hypot(one / math.sqrt(a.runs), other / math.sqrt(b.runs))
    known = a.case.eval_noise
    if a.by_batch_loss or known is None:
        return error, False, msg("scatter of the batch losses, {one:nats} and {other:nats}", one=one, other=other)
    return (
        error,
        False,
        msg("errors of the two evaluations, {one:nats} and {other:nats} ({source})", one=one, other=other, source=known.how),
    )


def _repeat_error(
    a: Side, b: Side, vals_a: np.ndarray, vals_b: np.ndarray, steps: tuple[float, float], evaluation: float | None, is_shared: bool
) -> tuple[float, float, float | None, Message | None]:
    """(standard error that comes from repeating the runs, its degrees of freedom, the spread itself, how it is known)."""
    known, how = known_spread(a, b, *steps)
    freedom = float(len(vals_a) + len(vals_b) - 2)
    share = math.sqrt(1 / len(vals_a) + 1 / len(vals_b))
    if freedom < 1:
        return known * share, math.inf, known, how
    squares = float(((vals_a - vals_a.mean()) ** 2).sum() + ((vals_b - vals_b.mean()) ** 2).sum())
    seen = squares / freedom
    if evaluation is not None and not is_shared:  # each run was evaluated on its own batches: their error is already in this scatter
        own = evaluation / share
        seen = max(0.0, seen - own**2)
    # The spread of a handful of runs is itself uncertain; the known spread steadies it, as in a moderated t-test.
    spread = math.sqrt((freedom * seen + PRIOR_WEIGHT * known**2) / (freedom + PRIOR_WEIGHT))
    words = msg(
        "spread of the {runs:count} runs themselves, {spread:nats}, steadied by what is usual",
        runs=len(vals_a) + len(vals_b),
        spread=spread,
    )
    return spread * share, freedom + PRIOR_WEIGHT, spread, words


REFERENCE_TOKENS = 0.7e9  # of the runs that SEED_SPREAD was measured on
MOST_JITTER = 0.15  # share of its tokens by which one repeat is ahead of another, even of the shortest runs
REFERENCE_SLOPE = 0.17  # nats an e-fold of tokens at their end
SPREAD_EXPONENT = -0.35
"""Repeats differ as if one were a little further along the curve than the other: by 1.1 % of its tokens in those runs of 0.7 B, by 12 % in
eight repeats of a 2 x 64 model at 0.8 M characters. Between the two the share is taken to go with this power of the tokens."""
WANDERING = 1.9
"""Spread between repeats over the sway of their difference from evaluation to evaluation: seeds of three small models, at every step of
their runs (bench/compare_noise.py)."""
LEAST_OF_USUAL = 0.5
"""Where the rate has decayed the difference stands still, however large it became before: sway then says too little."""
NEAR_BIGRAM = 0.12  # nats
PLACES, FEWEST_PLACES = 9, 6  # evaluations of the last third that the sway is taken from


def known_spread(a: Side, b: Side, step_a: float, step_b: float) -> tuple[float, Message]:
    """Standard deviation between repeats of one run: from how the two wander against each other where both were evaluated on the same
    batches on the way there, else as far as runs of this kind have been repeated."""
    sway = sway_between(a, b, step_a) if step_a == step_b else None
    usual = max(_usual_spread(a, step_a), _usual_spread(b, step_b))
    if sway is None or _are_near_bigram(a, b, step_a):
        return usual, msg("usual spread between repeats of such a run, {spread:nats}", spread=usual)
    if (seen := WANDERING * sway) > LEAST_OF_USUAL * usual:
        spread = max(SEED_SPREAD, seen)
        return spread, msg(
            "spread between repeats by how the two wander against each other from evaluation to evaluation, {spread:nats}", spread=spread
        )
    spread = max(SEED_SPREAD, LEAST_OF_USUAL * usual)
    return spread, msg("the two hardly wander against each other: half the usual spread between repeats, {spread:nats}", spread=spread)


def sway_between(a: Side, b: Side, step: float) -> float | None:
    """Standard deviation of one run, as seen in the steps of the difference over the last third of the way, its trend left out."""
    shared = sorted(set(a.curve.step.tolist()) & set(b.curve.step.tolist()))
    late = [each for each in shared if step * 2 / 3 <= each <= step and each > 0]
    if len(late) < FEWEST_PLACES:
        return None
    chosen = [late[i] for i in np.unique(np.linspace(0, len(late) - 1, PLACES).round().astype(int))]
    if not all(_same_batches(a, b, each) for each in chosen):
        return None
    steps_a, steps_b = (dict(zip(side.curve.step.tolist(), side.curve.val.tolist(), strict=True)) for side in (a, b))
    moves = np.diff([steps_a[each] - steps_b[each] for each in chosen])
    # Each move is of two places of a difference of two runs: four independent errors, were there no memory.
    runs = 1 / len(a.cases) + 1 / len(b.cases)
    return float(np.std(moves, ddof=1) / math.sqrt(2 * runs))


def _are_near_bigram(a: Side, b: Side, step: float) -> bool:
    """Repeats leave the bigram level sooner or later, and whole curves are shifted by that: no sway shows it."""
    bigram, vals_a, vals_b = a.case.bigram_nats, a.val_at(step), b.val_at(step)
    if bigram is None or vals_a is None or vals_b is None:
        return False
    return abs((vals_a.mean() + vals_b.mean()) / 2 - bigram) < NEAR_BIGRAM


def _same_batches(a: Side, b: Side, step: float) -> bool:
    batches_a, batches_b = a.batch_losses_at(step), b.batch_losses_at(step)
    return bool(batches_a and batches_b and len({fingerprint for fingerprint, _ in (*batches_a, *batches_b)}) == 1)


def _usual_spread(side: Side, step: float) -> float:
    slope, each = slope_at(side, step), side.per_step("tokens")
    if slope is None or each is None:
        return SEED_SPREAD
    jitter = min(MOST_JITTER, SEED_SPREAD / REFERENCE_SLOPE * (each * step / REFERENCE_TOKENS) ** SPREAD_EXPONENT)
    return max(SEED_SPREAD, slope * jitter)


def slope_at(side: Side, step: float) -> float | None:
    """Nats that the loss falls per e-fold of steps just before that step; 0 where it rises."""
    steps, vals = side.curve.step, side.curve.val
    before = (steps > 0) & (steps <= step)
    steps, vals = steps[before], vals[before]
    recent = steps >= step / 2
    if recent.sum() < 2:
        recent = np.arange(len(steps)) >= len(steps) - 2
    if recent.sum() < 2:
        return None
    return max(0.0, -float(np.polyfit(np.log(steps[recent]), vals[recent], 1)[0]))


def seeds_needed(spread: float, difference: float = SMALLEST_DIFFERENCE) -> int:
    """Runs a side that show a difference in 80 of 100 cases: 2 (z_0.975 + z_0.8)^2 (spread / difference)^2."""
    from scipy.special import ndtri

    z = float(ndtri(0.5 + CONFIDENCE / 2) + ndtri(POWER))
    return max(1, math.ceil(2 * (z * spread / difference) ** 2))
