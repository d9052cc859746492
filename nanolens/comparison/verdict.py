"""Who is ahead where, and whether that is more than noise.

At equal steps, tokens, FLOPs, time and energy, and how much sooner one side reaches what the other reached. An
evaluation is never extrapolated. Between two of them the loss is taken on the straight line over the logarithm of the
axis. Where one side was first evaluated beyond the place of comparison, its loss there can only have been higher, and
that is all that is used of it.

The error of a difference has two parts. The *evaluation's*: on the same batches it is taken from the paired
differences, which are several times sharper than two separate errors. And the *run's own*: a repeat with another seed
ends elsewhere. With several runs a side the second is seen in the runs themselves; with one run a side it is the spread
known from runs of the same kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from nanolens.comparison.side import AXES, Side
from nanolens.facts.references import SEED_SPREAD
from nanolens.facts.statistics import CONFIDENCE, fall_per_efold, standard_error, t_quantile
from nanolens.message import Message, msg

NEAR_FRAC = 0.005  # evaluations within this share of the place count as being there

Result = Literal["ahead", "no_difference", "cannot_say"]


@dataclass(frozen=True)
class Verdict:
    result: Result
    words: Message
    ahead: str | None = None  # name of the side that is ahead
    behind: str | None = None
    by: float | None = None
    half_width_95: float | None = None  # of the interval of `by`
    measured: MeasuredDifference | None = None

    @property
    def standard_error(self) -> float | None:
        return self.measured.se if self.measured else None

    @property
    def noise(self) -> tuple[Message, ...]:
        return self.measured.how if self.measured else ()


@dataclass(frozen=True)
class AxisOutcome:
    axis: str
    at: float | None  # the place of comparison on the axis
    losses: tuple[float | None, ...]  # one a side
    verdicts: tuple[Verdict, ...]  # of the leader against each other side
    because: Message | None = None  # why there is no outcome


@dataclass(frozen=True)
class TimeToLoss:
    """How much of each axis two sides needed to the same loss."""

    first: str
    second: str
    loss: float
    needed: dict[str, tuple[float, float]]  # axis -> (first, second)

    @property
    def times(self) -> dict[str, float]:
        return {axis: second / first for axis, (first, second) in self.needed.items()}


def outcome_on(axis: str, sides: Sequence[Side], not_comparable: Message | None) -> AxisOutcome:
    """Among the sides that have an evaluation and a place on the axis; two of them at least."""
    seen = [i for i, side in enumerate(sides) if len(side.curve)]
    scale = {i: each for i in seen if (each := sides[i].per_step[axis])}
    if len(seen) < 2:
        because = msg("{sides}: no evaluations", [side.name for side in sides if not len(side.curve)])
    else:
        missing = [sides[i].name for i in seen if i not in scale]
        because = msg("not known for {sides}: {what}", missing, AXES[axis].lacking)
    if len(scale) < 2:
        return AxisOutcome(axis, None, (None,) * len(sides), (), because)
    at = min(sides[i].curve.step[-1] * scale[i] for i in scale)
    places = {i: _place(sides[i], at / scale[i]) for i in scale}
    losses = tuple(places[i].loss if i in places else None for i in range(len(sides)))
    verdicts = () if not_comparable else _verdicts(sides, places)
    return AxisOutcome(axis, at, losses, verdicts, not_comparable)


def verdicts_at(sides: Sequence[Side], steps: Sequence[float]) -> tuple[Verdict, ...]:
    """Of evaluations that were made for the purpose, each side at its own step."""
    return _verdicts(sides, {i: _place(side, steps[i]) for i, side in enumerate(sides)})


def _verdicts(sides: Sequence[Side], places: Mapping[int, Place]) -> tuple[Verdict, ...]:
    leader = min(places, key=lambda i: (places[i].is_bound, places[i].loss))
    others, is_many = (i for i in places if i != leader), len(places) > 2
    return tuple(_verdict(sides[leader], sides[i], places[leader], places[i], is_one_of_many=is_many) for i in others)


@dataclass(frozen=True)
class Place:
    """The val loss of a side at a step: evaluated there, or between the two evaluations around it, or at least this."""

    loss: float
    step: float  # the evaluation whose error stands for it
    is_bound: bool = False  # the loss was at least this, the first evaluation coming later


def _place(side: Side, step: float) -> Place:
    steps, vals = side.curve.step, side.curve.val
    near = np.flatnonzero(np.abs(steps - step) <= NEAR_FRAC * max(step, 1.0))
    if len(near):
        i = near[np.argmin(np.abs(steps[near] - step))]
        return Place(float(vals[i]), float(steps[i]))
    after = np.flatnonzero(steps > step)
    assert len(after), "the place is at or before each side's last evaluation"
    i = after[0]
    if i == 0 or steps[i - 1] <= 0:
        return Place(float(vals[i]), float(steps[i]), is_bound=True)
    share = (math.log(step) - math.log(steps[i - 1])) / (math.log(steps[i]) - math.log(steps[i - 1]))
    nearest = i if share > 0.5 else i - 1
    return Place(float(vals[i - 1] + share * (vals[i] - vals[i - 1])), float(steps[nearest]))


def _verdict(leader: Side, other: Side, at_leader: Place, at_other: Place, *, is_one_of_many: bool) -> Verdict:
    seen = measure(leader, other, at_leader.step, at_other.step)
    if seen is None:
        return _unknown(msg("the runs on one side were not evaluated at the same steps"))
    by = at_other.loss - at_leader.loss
    measured = replace(seen, difference=-by)
    half = measured.half_width
    names: dict[str, object] = {"ahead": leader.name, "behind": other.name, "by": by}
    if at_other.is_bound:
        if by <= half:
            because = msg("{behind} was first evaluated later, and by then it was as low or lower", **names)
            return _unknown(because, measured=measured)
        words = msg(
            "{ahead} by at least {by:nats}: {behind} was still higher at its first evaluation, which came later",
            **names,
        )
    elif not measured.is_clear and measured.se is None:
        because = msg(
            "the evaluations' error is not known: {by:nats} between {ahead} and {behind} would only be significant "
            "if the error of each were below {needed:nats}",
            **names,
            needed=by / (2 * math.sqrt(2)),
        )
        return _unknown(because, by, measured)
    elif not measured.is_clear:
        words = _no_difference(msg("{by:nats} ± {half:nats} (95%)", by, half), measured, leader, other)
        return Verdict("no_difference", words, by=by, half_width_95=half, measured=measured)
    elif measured.se is None:
        words = msg("{ahead} by {by:nats}, more than any error of such an evaluation", **names)
    else:
        words = msg("{ahead} by {by:nats} ± {half:nats} (95%)", **names, half=half)
    if is_one_of_many and not at_other.is_bound:
        words = msg("{words}, compared with {behind}", words, other.name)
    return Verdict("ahead", words, leader.name, other.name, by, half, measured)


def _unknown(because: Message, by: float | None = None, measured: MeasuredDifference | None = None) -> Verdict:
    return Verdict("cannot_say", msg("unknown, because {because}", because), by=by, measured=measured)


def _no_difference(by: Message, measured: MeasuredDifference, leader: Side, other: Side) -> Message:
    runs, needed = min(leader.count, other.count), seeds_needed(measured.spread)
    if needed > runs:
        more = msg("to detect {small:nats}, add {more:count seed|seeds} per side", SMALLEST_DIFFERENCE, needed - runs)
    elif measured.half_width > SMALLEST_DIFFERENCE:
        more = msg("the evaluations are too noisy, {command:code} is more precise", "compare --rescore")
    else:
        more = msg("a difference of {small:nats} would have been visible", SMALLEST_DIFFERENCE)
    return msg("no difference shown between {ahead} and {behind}: {by}; {more}", leader.name, other.name, by, more)


def sooner(a: Side, b: Side, left_out: Sequence[str] = ()) -> TimeToLoss | None:
    """What each side needed to the worse of the two best losses. None where one never came down to it."""
    if a.best_val is None or b.best_val is None:
        return None
    loss = max(a.best_val, b.best_val)
    first, second = _first_at(a, loss), _first_at(b, loss)
    if first is None or second is None:
        return None
    costs = {axis: (a.per_step[axis], b.per_step[axis]) for axis in AXES if axis not in left_out}
    needed = {axis: (first * each, second * other) for axis, (each, other) in costs.items() if each and other}
    return TimeToLoss(a.name, b.name, loss, needed)


def _first_at(side: Side, loss: float) -> float | None:
    """The step at which the side first came down to that loss; None where its first evaluation is already below."""
    steps, vals = side.curve.step, side.curve.val
    reached = np.flatnonzero(vals <= loss + 1e-12)
    if not len(reached):
        return None
    i = int(reached[0])
    if abs(vals[i] - loss) < 1e-9:
        return float(steps[i]) if steps[i] > 0 else None
    if i == 0 or steps[i - 1] <= 0:
        return None
    share = (vals[i - 1] - loss) / (vals[i - 1] - vals[i])
    return float(math.exp(math.log(steps[i - 1]) + share * (math.log(steps[i]) - math.log(steps[i - 1]))))


POWER = 0.8  # with which a difference is to be seen, where more seeds are proposed
UNKNOWN_EVAL_ERROR = 0.05  # hardly worse where nobody kept it: 20 batches of 12 windows of 64 characters come to 0.02
FIXED_EVALUATIONS = {"modded-nanogpt": 0.001, "llm.c": 0.002, "build-nanogpt": 0.002, "nanochat": 0.001}
"""Trainers that evaluate the same val tokens in every run, 1 to 10 million of them: error of a difference, in nats."""
PRIOR_WEIGHT = 4.0  # degrees of freedom that the known spread counts for beside the spread of the runs at hand
SMALLEST_DIFFERENCE = 0.01  # the difference that more seeds should show


@dataclass(frozen=True)
class MeasuredDifference:
    """a - b in nats, with its standard error and where that comes from; `se` is None where it is only bounded."""

    difference: float
    se: float | None
    freedom: float  # degrees of freedom of `se`
    how: tuple[Message, ...]
    spread: float  # between repeats, one run against another of the same side
    bound: float  # no plausible error is larger; `se` itself where that is known

    @property
    def half_width(self) -> float:
        """Of the 95 % interval."""
        return t_quantile(0.5 + CONFIDENCE / 2, self.freedom) * self.bound

    @property
    def is_clear(self) -> bool:
        return abs(self.difference) > self.half_width


def measure(a: Side, b: Side, step_a: float, step_b: float) -> MeasuredDifference | None:
    """The difference of the evaluations at those steps. None where a run was not evaluated there."""
    vals_a, vals_b = a.val_at(step_a), b.val_at(step_b)
    if vals_a is None or vals_b is None:
        return None
    evaluation, is_shared, how_eval = _evaluation_error(a, b, step_a, step_b)
    spread, how_runs = known_spread(a, b, step_a, step_b)
    share, freedom = math.sqrt(1 / len(vals_a) + 1 / len(vals_b)), float(len(vals_a) + len(vals_b) - 2)
    if freedom:
        # Runs that were evaluated on batches of their own have the error of those in their scatter already.
        own = 0.0 if is_shared or evaluation is None else evaluation / share
        # That of a handful of runs is itself uncertain; the known spread steadies it, as in a moderated t-test.
        squares = float(((vals_a - vals_a.mean()) ** 2).sum() + ((vals_b - vals_b.mean()) ** 2).sum())
        seen = max(0.0, squares / freedom - own**2)
        spread = math.sqrt((freedom * seen + PRIOR_WEIGHT * spread**2) / (freedom + PRIOR_WEIGHT))
        how_runs = msg(
            "observed spread of the {runs:count run|runs}, {spread:nats}, stabilised with the typical spread",
            len(vals_a) + len(vals_b),
            spread,
        )
    bound = math.hypot(math.sqrt(2) * UNKNOWN_EVAL_ERROR if evaluation is None else evaluation, spread * share)
    return MeasuredDifference(
        float(vals_a.mean() - vals_b.mean()),
        None if evaluation is None else bound,
        freedom + PRIOR_WEIGHT if freedom else math.inf,
        (how_eval, how_runs),
        spread,
        bound,
    )


def _evaluation_error(a: Side, b: Side, step_a: float, step_b: float) -> tuple[float | None, bool, Message]:
    """(standard error of the difference from the evaluations, whether all share their batches, how it is known)."""
    apart = _paired_difference(a, b, step_a, step_b)
    error = None if apart is None else standard_error(apart)
    if apart is not None and error is not None:
        return error, True, msg("paired: the same {count:count} val batches, compared batch by batch", len(apart))
    trainers = {a.case.run.conventions.trainer, b.case.run.conventions.trainer}
    if len(trainers) == 1 and (fixed := FIXED_EVALUATIONS.get(trainers.pop())) and not a.by_batch_loss:
        how = msg(
            "this trainer always evaluates the same tokens, so this adds no more than {error:nats} to the "
            "difference between runs",
            fixed,
        )
        return fixed, True, how
    one, other = a.eval_error, b.eval_error
    if one is None or other is None:
        return None, False, msg("the evaluations' own error was not recorded and cannot be inferred")
    error = math.hypot(one / math.sqrt(a.count), other / math.sqrt(b.count))
    known = a.case.eval_noise
    if a.by_batch_loss or known is None:
        return error, False, msg("scatter of the batch losses, {one:nats} and {other:nats}", one, other)
    how = msg("errors of the two evaluations, {one:nats} and {other:nats} ({source})", one, other, known.how)
    return error, False, how


def _paired_difference(a: Side, b: Side, step_a: float, step_b: float) -> np.ndarray | None:
    """Batch by batch, the mean over the runs of a less that of b; None unless all share their batches."""
    batches_a, batches_b = a.batch_losses_at(step_a), b.batch_losses_at(step_b)
    if not batches_a or not batches_b or len({fingerprint for fingerprint, _ in (*batches_a, *batches_b)}) > 1:
        return None
    mean_a, mean_b = (np.mean([losses for _, losses in each], axis=0) for each in (batches_a, batches_b))
    return mean_a - mean_b


REFERENCE_TOKENS = 0.7e9  # of the runs that SEED_SPREAD was measured on
MOST_JITTER = 0.15  # share of its tokens by which one repeat is ahead of another, even of the shortest runs
REFERENCE_SLOPE = 0.17  # nats an e-fold of tokens at their end
SPREAD_EXPONENT = -0.35
"""Repeats differ as if one were a little further along the curve than the other: by 1.1 % of its tokens in those runs
of 0.7 B, by 12 % in eight repeats of a 2 x 64 model at 0.8 M characters. Between the two the share is taken to go with
this power of the tokens."""
WANDERING = 1.9
"""Spread between repeats over the sway of their difference from evaluation to evaluation: seeds of three small models,
at every step of their runs (bench/compare_noise.py)."""
LEAST_OF_USUAL = 0.5
"""Where the rate has decayed the difference stands still, however large it became before: sway then says too little."""
NEAR_BIGRAM = 0.12  # nats
COMPARED_PLACES, FEWEST_PLACES = 9, 6  # evaluations of the last third that the sway is taken from


def known_spread(a: Side, b: Side, step_a: float, step_b: float) -> tuple[float, Message]:
    """Standard deviation between repeats of one run: from how the two wander against each other where both were
    evaluated on the same batches on the way there, else as far as runs of this kind have been repeated."""
    sway = sway_between(a, b, step_a) if step_a == step_b else None
    usual = max(usual_spread(a, step_a), usual_spread(b, step_b))
    if sway is None or _are_near_bigram(a, b, step_a):
        return usual, msg("typical spread between repeats of such a run, {spread:nats}", usual)
    if (seen := WANDERING * sway) > LEAST_OF_USUAL * usual:
        spread = max(SEED_SPREAD, seen)
        return spread, msg(
            "spread between repeats, estimated from how the two runs fluctuate against each other between "
            "evaluations, {spread:nats}",
            spread,
        )
    spread = max(SEED_SPREAD, LEAST_OF_USUAL * usual)
    return spread, msg(
        "the two runs hardly fluctuate against each other: half the typical spread between repeats, {spread:nats}",
        spread,
    )


def sway_between(a: Side, b: Side, step: float) -> float | None:
    """Standard deviation of one run, seen in how the difference moves over the last third of the way."""
    shared = np.intersect1d(a.curve.step, b.curve.step)
    late = shared[(shared >= step * 2 / 3) & (shared <= step) & (shared > 0)]
    if len(late) < FEWEST_PLACES:
        return None
    chosen = late[np.unique(np.linspace(0, len(late) - 1, COMPARED_PLACES).round().astype(int))]
    if any(_paired_difference(a, b, each, each) is None for each in chosen):
        return None
    vals_a, vals_b = (side.curve.val[np.searchsorted(side.curve.step, chosen)] for side in (a, b))
    moves = np.diff(vals_a - vals_b)
    # Each move is of two places of a difference of two runs: four independent errors, were there no memory.
    runs = 1 / a.count + 1 / b.count
    return float(np.std(moves, ddof=1) / math.sqrt(2 * runs))


def _are_near_bigram(a: Side, b: Side, step: float) -> bool:
    """Repeats leave the bigram level sooner or later, and whole curves are shifted by that: no sway shows it."""
    bigram, vals_a, vals_b = a.case.bigram_nats, a.val_at(step), b.val_at(step)
    if bigram is None or vals_a is None or vals_b is None:
        return False
    return abs((vals_a.mean() + vals_b.mean()) / 2 - bigram) < NEAR_BIGRAM


def usual_spread(side: Side, step: float) -> float:
    """By the slope of the loss just before that step, which is 0 where it rises."""
    known = (side.curve.step > 0) & (side.curve.step <= step)
    steps, vals = side.curve.step[known], side.curve.val[known]
    recent = max(2, int((steps >= step / 2).sum()))
    slope, each = fall_per_efold(steps[-recent:], vals[-recent:]), side.tokens_per_update
    if slope is None or each is None:
        return SEED_SPREAD
    jitter = min(MOST_JITTER, SEED_SPREAD / REFERENCE_SLOPE * (each * step / REFERENCE_TOKENS) ** SPREAD_EXPONENT)
    return max(SEED_SPREAD, slope * jitter)


def seeds_needed(spread: float, difference: float = SMALLEST_DIFFERENCE) -> int:
    """Runs a side that show a difference in 80 of 100 cases: 2 (z_0.975 + z_0.8)^2 (spread / difference)^2."""
    z = t_quantile(0.5 + CONFIDENCE / 2, math.inf) + t_quantile(POWER, math.inf)
    return max(1, math.ceil(2 * (z * spread / difference) ** 2))
