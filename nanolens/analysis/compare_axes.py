"""Who is ahead where: at equal steps, tokens, FLOPs, time and energy, and how much sooner one side reaches what the other reached.

An evaluation is never extrapolated. Between two of them the loss is taken on the straight line over the logarithm of the axis. Where one
side was first evaluated beyond the place of comparison, its loss there can only have been higher, and that is all that is used of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nanolens.analysis.compare_noise import SMALLEST_DIFFERENCE, Measured, measure, seeds_needed
from nanolens.comparison.side import AXES, Side
from nanolens.message import Message, msg

KINDS = {"steps": "count", "tokens": "tokens", "flops": "flops", "time": "seconds", "energy": "about"}
JOULES_PER_KWH = 3.6e6
TITLES = {
    "steps": msg("at equal steps"), "tokens": msg("at equal tokens"), "flops": msg("at equal FLOPs"), "time": msg("at equal time"),
    "energy": msg("at equal energy by rated power"),
}  # fmt: skip
NEAR = 0.005  # evaluations within this share of the place count as being there

Result = Literal["ahead", "no_difference", "cannot_say"]


@dataclass(frozen=True)
class Verdict:
    result: Result
    words: Message
    ahead: str = ""  # name of the side that is ahead
    behind: str = ""
    by: float | None = None
    half_width: float | None = None  # of the 95 % interval of `by`
    measured: Measured | None = None


@dataclass(frozen=True)
class Outcome:
    axis: str
    at: float | None  # the place of comparison on the axis
    losses: tuple[float | None, ...]  # one a side
    verdicts: tuple[Verdict, ...]  # of the leader against each other side
    because: Message | None = None  # why there is no outcome


@dataclass(frozen=True)
class Sooner:
    """How much of each axis two sides needed to the same loss."""

    first: str
    second: str
    loss: float
    needed: dict[str, tuple[float, float]]  # axis -> (first, second)

    def times(self, axis: str) -> float:
        return self.needed[axis][1] / self.needed[axis][0]


def outcomes(sides: Sequence[Side], not_comparable: Message | None, not_on: Mapping[str, Message]) -> tuple[Outcome, ...]:
    """`not_on`: axes on which nothing can be said, and why."""
    return tuple(_outcome(sides, axis, not_comparable or not_on.get(axis)) for axis in AXES)


def _outcome(sides: Sequence[Side], axis: str, not_comparable: Message | None) -> Outcome:
    """Among the sides that have an evaluation and a place on the axis; two of them at least."""
    nothing = (None,) * len(sides)
    seen = [i for i, side in enumerate(sides) if len(side.curve)]
    if len(seen) < 2:
        missing = [side.name for side in sides if not len(side.curve)]
        return Outcome(axis, None, nothing, (), msg("there is no evaluation of {sides}", sides=missing))
    known = [i for i in seen if sides[i].per_step(axis)]
    if len(known) < 2:
        missing = [sides[i].name for i in seen if i not in known]
        return Outcome(axis, None, nothing, (), msg("not known for {sides}: {what}", sides=missing, what=LACKING[axis]))
    scale = {i: sides[i].per_step(axis) or 1.0 for i in known}
    at = min(sides[i].curve.step[-1] * scale[i] for i in known)
    places = {i: _place(sides[i], at / scale[i]) for i in known}
    losses = tuple(places[i].loss if i in places else None for i in range(len(sides)))
    if not_comparable is not None:
        return Outcome(axis, at, losses, (), not_comparable)
    leader = min(known, key=lambda i: (places[i].is_bound, places[i].loss))
    others = [i for i in known if i != leader]
    verdicts = tuple(_verdict(sides[leader], sides[i], places[leader], places[i], is_one_of_many=len(others) > 1) for i in others)
    return Outcome(axis, at, losses, verdicts)


LACKING = {
    "steps": msg("steps"), "tokens": msg("the tokens per update"), "flops": msg("the model's shape"),
    "time": msg("the time of an ordinary step"),
    "energy": msg("the device's rated power ({option:code} gives it; on one device energy goes with the time)", option="--watts=N"),
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """The val loss of a side at a step: evaluated there, or between the two evaluations around it, or at least this."""

    loss: float
    step: float  # the evaluation whose error stands for it
    is_bound: bool = False  # the loss was at least this, the first evaluation coming later


def _place(side: Side, step: float) -> Place:
    steps, vals = side.curve.step, side.curve.val
    near = np.flatnonzero(np.abs(steps - step) <= NEAR * max(step, 1.0))
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


def _verdict(leader: Side, other: Side, at_leader: Place, at_other: Place, *, is_one_of_many: bool = False) -> Verdict:
    seen = measure(leader, other, at_leader.step, at_other.step)
    if seen is None:
        return Verdict(
            "cannot_say", msg("cannot be said, because {because}", because=msg("the runs of a side were not evaluated at the same steps"))
        )
    by = at_other.loss - at_leader.loss
    measured = Measured(-by, seen.se, seen.freedom, seen.how, seen.spread, seen.bound)
    names = {"ahead": leader.name, "behind": other.name}
    if at_other.is_bound:
        if by > measured.half_width:
            words = msg("{ahead} by at least {by:nats}: {behind} was still higher at its first evaluation, later", by=by, **names)
            return Verdict("ahead", words, leader.name, other.name, by, measured.half_width, measured)
        because = msg("{behind} was first evaluated later, where it was lower or as low", **names)
        return Verdict("cannot_say", msg("cannot be said, because {because}", because=because), measured=measured)
    if measured.is_clear:
        if measured.se is None:
            words = msg("{ahead} by {by:nats}, more than any error of such an evaluation", by=by, **names)
        else:
            words = msg("{ahead} by {by:nats} ± {half:nats} (95%)", by=by, half=measured.half_width, **names)
        if is_one_of_many:
            words = msg("{words}, over {behind}", words=words, **names)
        return Verdict("ahead", words, leader.name, other.name, by, measured.half_width, measured)
    if measured.se is None:
        because = msg(
            "the evaluations' error is not known: {by:nats} between {ahead} and {behind} would mean something only if it "
            "were below {needed:nats} each",
            by=by,
            needed=by / (2 * math.sqrt(2)),
            **names,
        )
        return Verdict("cannot_say", msg("cannot be said, because {because}", because=because), by=by, measured=measured)
    return _no_difference(leader, other, by, measured)


def _no_difference(leader: Side, other: Side, by: float, measured: Measured) -> Verdict:
    runs = min(leader.runs, other.runs)
    needed = seeds_needed(measured.spread or 0.0)
    half = measured.half_width
    if needed > runs:
        words = msg(
            "no difference shown between {ahead} and {behind}: {by:nats} ± {half:nats} (95%); {more:count} more seeds a "
            "side would show {small:nats}",
            ahead=leader.name,
            behind=other.name,
            by=by,
            half=half,
            more=needed - runs,
            small=SMALLEST_DIFFERENCE,
        )
    elif half > SMALLEST_DIFFERENCE:
        words = msg(
            "no difference shown between {ahead} and {behind}: {by:nats} ± {half:nats} (95%); the evaluations are too "
            "coarse, {command:code} is sharper",
            ahead=leader.name,
            behind=other.name,
            by=by,
            half=half,
            command="compare --rescore",
        )
    else:
        words = msg(
            "no difference shown between {ahead} and {behind}: {by:nats} ± {half:nats} (95%), and {small:nats} would have shown",
            ahead=leader.name, behind=other.name, by=by, half=half, small=SMALLEST_DIFFERENCE,
        )  # fmt: skip
    return Verdict("no_difference", words, by=by, half_width=half, measured=measured)


def verdicts_at(sides: Sequence[Side], steps: Sequence[float]) -> tuple[Verdict, ...]:
    """Of evaluations that were made for the purpose: the leader against each other side, each at its own step."""
    places = [_place(side, step) for side, step in zip(sides, steps, strict=True)]
    leader = min(range(len(sides)), key=lambda i: places[i].loss)
    others = [i for i in range(len(sides)) if i != leader]
    return tuple(_verdict(sides[leader], sides[i], places[leader], places[i], is_one_of_many=len(others) > 1) for i in others)


def sooner(a: Side, b: Side, left_out: Sequence[str] = ()) -> Sooner | None:
    """What each side needed to the loss that both have reached: the worse of the two best. None where one never came down to it."""
    if not len(a.curve) or not len(b.curve) or a.best is None or b.best is None:
        return None
    loss = max(a.best[1], b.best[1])
    steps = [_first_at(side, loss) for side in (a, b)]
    if steps[0] is None or steps[1] is None:
        return None
    needed = {}
    for axis in (axis for axis in AXES if axis not in left_out):
        each = (a.per_step(axis), b.per_step(axis))
        if each[0] and each[1]:
            needed[axis] = (steps[0] * each[0], steps[1] * each[1])
    return Sooner(a.name, b.name, loss, needed)


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
