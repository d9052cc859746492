"""From what a user names to a comparison: run folders, logs, groups of seeds, or one log that holds several runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from nanolens.analysis.compare import Comparison, compare
from nanolens.analysis.compare_axes import Verdict
from nanolens.comparison.side import Group
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.record.layout import is_run
from nanolens.record.run import Known, Run


def comparison_of(
    targets: Sequence[str], against: Sequence[str] = (), configs: Sequence[str] = (), hardware: Sequence[str] = (),
    given: Sequence[tuple[str, str]] = (), rescored: tuple[Verdict, ...] = (),
) -> Comparison:  # fmt: skip
    """`against` makes two groups of repeats of what would be single runs. `configs` and `hardware` are one for all, or one each."""
    return compare(groups_of(targets, against, configs, hardware, given), rescored)


def groups_of(
    targets: Sequence[str], against: Sequence[str] = (), configs: Sequence[str] = (), hardware: Sequence[str] = (),
    given: Sequence[tuple[str, str]] = (),
) -> list[Group]:  # fmt: skip
    runs = _runs([*targets, *against], configs, hardware, given)
    if not against:
        return [Group(name, (run,)) for name, run in zip(told_apart([run.name for run in runs]), runs, strict=True)]
    first, second = tuple(runs[: len(targets)]), tuple(runs[len(targets) :])
    return [Group(name, group) for name, group in zip(_group_names(targets, against), (first, second), strict=True)]


def _runs(targets: Sequence[str], configs: Sequence[str], hardware: Sequence[str], given: Sequence[tuple[str, str]]) -> list[Run]:
    from nanolens.api.sources import open_run

    if len(targets) == 1 and not is_run(Path(targets[0])) and Path(targets[0]).is_file():
        return _runs_of_log(Path(targets[0]), configs, hardware, given)
    config_of, hardware_of = _shared("--config", configs, len(targets)), _shared("--hardware", hardware, len(targets))
    return [
        open_run(target, config, device, given)
        for target, config, device in zip(targets, config_of, _by_label(hardware_of, targets), strict=True)
    ]


def _runs_of_log(path: Path, configs: Sequence[str], hardware: Sequence[str], given: Sequence[tuple[str, str]]) -> list[Run]:
    """The runs of one log. A config may hold a table for each of them, named like the run; or there is a config for each."""
    from nanolens.api.sources import facts_of_options
    from nanolens.config.load import read_foreign
    from nanolens.interop.logs import read_logs

    read = [read_foreign(Path(config)) for config in configs]
    about = {"config": read[0].values, "config_where": read[0].where, "comments": read[0].comments} if len(read) == 1 else {}
    runs = read_logs(path, given=facts_of_options(given), **about)  # type: ignore[arg-type]
    if len(runs) < 2:
        raise fault(msg("{path:code} holds only one run", path=str(path)), fix=msg("name a second run or log to compare it with"))
    if len(read) > 1:
        _shared("--config", configs, len(runs))
        runs = [_with(run, config.values, config.where) for run, config in zip(runs, read, strict=True)]
    devices = _by_label(_shared("--hardware", hardware, len(runs)), [run.name for run in runs])
    return [
        _with(run, {"hardware": device}, {"hardware": "--hardware"}) if device else run for run, device in zip(runs, devices, strict=True)
    ]


def _shared(option: str, values: Sequence[str], count: int) -> list[str | None]:
    """One value for all, or one for each."""
    if not values:
        return [None] * count
    if len(values) == 1:
        return [values[0]] * count
    if len(values) == count:
        return list(values)
    raise fault(
        msg("{given:count} values of {option:code} for {count:count} runs", given=len(values), option=option, count=count),
        fix=msg("give one for all, or one for each in their order"),
    )


_LABELLED = re.compile(r"(?:^|;)\s*([\w.-]{1,24})\s*:\s*([^;]+)")


def _by_label(values: Sequence[str | None], names: Sequence[str]) -> list[str | None]:
    """ "A: laptop CPU; B: RTX 4070 Ti" says it for each run by its name, or by its letter."""
    found = []
    for i, (value, name) in enumerate(zip(values, names, strict=True)):
        labelled = {label.lower(): text.strip() for label, text in _LABELLED.findall(value or "")}
        first = re.split(r"[\s:(,;]", name.strip(), maxsplit=1)[0].lower()
        found.append(labelled.get(first) or labelled.get(chr(ord("a") + i)) or value if labelled else value)
    return found


def _with(run: Run, values: Mapping[str, object], where: Mapping[str, str]) -> Run:
    known = dict(run.known)
    for key, value in values.items():
        known[key] = Known(value, "given", where.get(key, ""))
    return dataclasses.replace(run, known=known)


def told_apart(names: Sequence[str]) -> list[str]:
    """The names, numbered where two are the same."""
    return [name if list(names).count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, 1)]


def _group_names(targets: Sequence[str], against: Sequence[str]) -> tuple[str, str]:
    one, other = _common(targets), _common(against)
    return (one, other) if one and other and one != other else ("A", "B")


def _common(paths: Sequence[str]) -> str:
    """What the last parts of the paths have in common at their beginning: the name of a group of seeds."""
    names = [Path(path).name for path in paths]
    shared = names[0]
    for name in names[1:]:
        while not name.startswith(shared):
            shared = shared[:-1]
    if any(name[len(shared) :][:1].isdigit() for name in names):
        shared = shared.rstrip("0123456789")  # run-01 and run-02 have a name in common, and not the first digit of a number
    return shared.rstrip("-_. ")
