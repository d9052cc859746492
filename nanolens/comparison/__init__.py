"""Which of these runs is better, on which axis, is that more than noise, and what could explain it; or why it cannot be
said. What a user names becomes groups of repeats: run folders, logs, or one log that holds several runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from nanolens.comparison.remarks import Difference, differences, remarks, unexplained_speed
from nanolens.comparison.side import AXES, Comparability, SeedGroup, Side, grounds, in_bits_per_byte, labels
from nanolens.comparison.verdict import AxisOutcome, TimeToLoss, Verdict, outcome_on, sooner
from nanolens.config.load import read_foreign
from nanolens.config.python_file import ConfigFile
from nanolens.errors import fault
from nanolens.logs import Given, read_logs
from nanolens.logs.open import facts_of_options, open_run
from nanolens.message import Message, msg
from nanolens.record import is_run
from nanolens.record.run import Known, RunRecord

MOST_SIDES = 26


@dataclass(frozen=True)
class Comparison:
    sides: tuple[Side, ...]
    differences: tuple[Difference, ...]
    grounds: Comparability
    outcomes: tuple[AxisOutcome, ...]
    sooner: tuple[TimeToLoss, ...]
    remarks: tuple[Message, ...]
    rescored: tuple[Verdict, ...] = ()

    def outcome(self, axis: str) -> AxisOutcome:
        return next(each for each in self.outcomes if each.axis == axis)


def compare(
    groups: Sequence[SeedGroup], rescored: tuple[Verdict, ...] = (), names: Sequence[str] | None = None
) -> Comparison:
    """`names`: what sentences call the sides, where there is room for more than short labels and for many sides."""
    if len(groups) < 2:
        raise fault(msg("there is only one run to compare"), fix=msg("name two runs, or a log that contains two"))
    if names is None and len(groups) > MOST_SIDES:
        raise fault(
            msg("{count:count run is|runs are} too many for one table", len(groups)),
            fix=msg("compare groups of runs with {option:code}", "--against"),
        )
    sides = tuple(map(Side, groups, names or labels([group.name for group in groups])))
    if not any(len(side.curve) for side in sides):
        sides = tuple(Side(side.group, side.name, by_batch_loss=True) for side in sides)
    ground = grounds(sides)
    if ground.unit == "bits":
        sides = tuple(Side(in_bits_per_byte(side.group), side.name) for side in sides)
    differ = differences(sides)
    not_on: dict[str, Message] = {}
    if (times := unexplained_speed(sides, differ)) is not None:
        because = msg(
            "no known difference explains why a step takes {times:times} as long: the machine was probably busy", times
        )
        not_on = dict.fromkeys(("time", "energy"), because)  # the axes that a clock measured
    results = tuple(outcome_on(axis, sides, ground.not_comparable or not_on.get(axis)) for axis in AXES)
    # Each side against the one with the lowest val loss.
    vals = {side: side.best_val for side in sides if side.best_val is not None and not ground.not_comparable}
    best = min(vals, key=vals.__getitem__, default=None)
    faster = (sooner(best, side, tuple(not_on)) for side in vals if best is not None and side is not best)
    notes = tuple(remarks(sides, differ, ground, results))
    return Comparison(sides, differ, ground, results, tuple(each for each in faster if each), notes, rescored)


# --- from what a user names


Names: TypeAlias = Sequence[str]
Options: TypeAlias = Sequence[tuple[str, str]]  # --key=value


def comparison_of(
    targets: Names,
    against: Names = (),
    configs: Names = (),
    hardware: Names = (),
    given: Options = (),
    rescored: tuple[Verdict, ...] = (),
) -> Comparison:
    """`against` makes two groups of repeats. `configs` and `hardware` are one for all, or one each."""
    runs = _runs([*targets, *against], configs, hardware, given)
    return compare(groups_of(runs, targets, against), rescored)


def groups_of(runs: Sequence[RunRecord], targets: Sequence[str], against: Sequence[str] = ()) -> list[SeedGroup]:
    """The runs of `targets` and `against`, in this order, each by itself or as two groups of repeats."""
    if not against:
        return [SeedGroup(name, (run,)) for name, run in zip(told_apart([run.name for run in runs]), runs, strict=True)]
    one, other, split = _common(targets), _common(against), len(targets)
    if not one or not other or one == other:
        one, other = "A", "B"
    return [SeedGroup(one, tuple(runs[:split])), SeedGroup(other, tuple(runs[split:]))]


def _runs(targets: Names, configs: Names, hardware: Names, given: Options) -> list[RunRecord]:
    if len(targets) == 1 and not is_run(Path(targets[0])) and Path(targets[0]).is_file():
        return _runs_of_log(Path(targets[0]), configs, hardware, given)
    about = zip(targets, _one_each("--config", configs, targets), _hardware(hardware, targets), strict=True)
    return [open_run(target, config, device, given) for target, config, device in about]


def _runs_of_log(path: Path, configs: Names, hardware: Names, given: Options) -> list[RunRecord]:
    """A config may hold a table for each run, named like it; or there is a config for each."""
    read = [read_foreign(Path(config)) for config in configs]
    about = read[0] if len(read) == 1 else ConfigFile()
    runs = read_logs(path, Given(about.values, about.where, about.comments, facts=facts_of_options(given)))
    if len(runs) < 2:
        raise fault(
            msg("{path:code} contains only one run", str(path)), fix=msg("name a second run or log to compare it with")
        )
    names = [run.name for run in runs]
    if len(read) > 1:
        _one_each("--config", configs, names)
        runs = [_with(run, config.values, config.where) for run, config in zip(runs, read, strict=True)]
    return [
        _with(run, {"hardware": device}, {"hardware": "--hardware"}) if device else run
        for run, device in zip(runs, _hardware(hardware, names), strict=True)
    ]


def _one_each(option: str, values: Sequence[str], names: Sequence[str]) -> list[str | None]:
    """One value for all runs, or one for each."""
    if len(values) == len(names):
        return list(values)
    if len(values) < 2:
        return [values[0] if values else None] * len(names)
    count = len(names)
    what = msg(
        "{given:count value|values} of {option:code} given for {count:count run|runs}", len(values), option, count
    )
    raise fault(what, fix=msg("give one for all, or one per run in order"))


_LABELLED = re.compile(r"(?:^|;)\s*([\w.-]{1,24})\s*:\s*([^;]+)")


def _hardware(values: Sequence[str], names: Sequence[str]) -> list[str | None]:
    """One for all, one for each, or "A: laptop CPU; B: RTX 4070 Ti", which says it by a run's name or its letter."""
    found = []
    for i, (value, name) in enumerate(zip(_one_each("--hardware", values, names), names, strict=True)):
        labelled = {label.lower(): text.strip() for label, text in _LABELLED.findall(value or "")}
        first = re.split(r"[\s:(,;]", name.strip(), maxsplit=1)[0].lower()
        found.append(labelled.get(first) or labelled.get(chr(ord("a") + i)) or value)
    return found


def _with(run: RunRecord, values: Mapping[str, object], where: Mapping[str, str]) -> RunRecord:
    given = {key: Known(value, "given", where.get(key, "")) for key, value in values.items()}
    return replace(run, known={**run.known, **given})


def told_apart(names: Sequence[str]) -> list[str]:
    return [name if list(names).count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, 1)]


def _common(paths: Sequence[str]) -> str:
    """What the last parts of the paths have in common at their beginning: the name of a group of seeds."""
    names = [Path(path).name for path in paths]
    shared = names[0]
    while not all(name.startswith(shared) for name in names):
        shared = shared[:-1]
    if any(name[len(shared) :][:1].isdigit() for name in names):
        shared = shared.rstrip("0123456789")  # run-01 and run-02 share a name, and not the first digit of a number
    return shared.rstrip("-_. ")
