"""Which of these runs is better, on which axis, is it more than noise, and what could explain it; or why that cannot be said.

comparison = compare([Group("A", (run_a,)), Group("B", (run_b,))])
comparison.differences, .outcomes, .sooner, .speeds, .remarks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanolens.analysis.compare_axes import Outcome, Sooner, Verdict, outcomes, sooner
from nanolens.analysis.compare_differences import Difference, differences, unexplained_speed
from nanolens.analysis.compare_grounds import Grounds, grounds, in_bits_per_byte
from nanolens.analysis.compare_labels import labels
from nanolens.analysis.compare_remarks import remarks
from nanolens.comparison.side import Group, Side
from nanolens.errors import fault
from nanolens.message import Message, msg

MOST_SIDES = 26


@dataclass(frozen=True)
class Comparison:
    sides: tuple[Side, ...]
    differences: tuple[Difference, ...]
    grounds: Grounds
    outcomes: tuple[Outcome, ...]
    sooner: tuple[Sooner, ...]
    remarks: tuple[Message, ...]
    rescored: tuple[Verdict, ...] = ()

    def outcome(self, axis: str) -> Outcome:
        return next(each for each in self.outcomes if each.axis == axis)


def compare(groups: Sequence[Group], rescored: tuple[Verdict, ...] = ()) -> Comparison:
    if len(groups) < 2:
        raise fault(msg("there is only one run to compare"), fix=msg("name two runs, or a log that holds two"))
    if len(groups) > MOST_SIDES:
        raise fault(
            msg("{count:count} runs are too many for one table", count=len(groups)),
            fix=msg("compare groups of them with {option:code}", option="--against"),
        )
    drafts = [Side(group) for group in groups]
    by_batch_loss = not any(len(side.curve) for side in drafts)
    ground = grounds(drafts, by_batch_loss=by_batch_loss)
    if ground.unit == "bits":
        groups = [in_bits_per_byte(group) for group in groups]
    names = labels([group.name for group in groups])
    sides = tuple(Side(group, name, by_batch_loss=by_batch_loss) for group, name in zip(groups, names, strict=True))
    differ = differences(sides)
    results = outcomes(sides, ground.not_comparable, _no_time(sides, differ))
    faster = () if ground.not_comparable else _sooner(sides, BY_CLOCK if unexplained_speed(sides, differ) else ())
    return Comparison(sides, differ, ground, results, faster, tuple(remarks(sides, differ, ground, results)), rescored)


BY_CLOCK = ("time", "energy")


def _no_time(sides: Sequence[Side], differ: Sequence[Difference]) -> dict[str, Message]:
    """Why nothing is said on the axes that a clock measured."""
    times = unexplained_speed(sides, differ)
    if times is None:
        return {}
    because = msg(
        "nothing that is known to differ explains why a step takes {times:times} as long: the machine was probably busy", times=times
    )
    return dict.fromkeys(BY_CLOCK, because)


def _sooner(sides: Sequence[Side], left_out: Sequence[str]) -> tuple[Sooner, ...]:
    """Each side against the one with the lowest val loss."""
    known = [side for side in sides if side.best is not None]
    if len(known) < 2:
        return ()
    best = min(known, key=lambda side: side.best[1] if side.best else 0.0)
    found = [sooner(best, side, left_out) for side in known if side is not best]
    return tuple(each for each in found if each is not None)
