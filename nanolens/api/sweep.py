"""`nanolens sweep`: a few short runs for the settings that matter most, by successive halving, and the best of them as a config."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanolens import files
from nanolens.analysis.sweep import Range, Rung, range_named, rungs_of, shortened, survivors, trials_of
from nanolens.config.fields import Config, as_text
from nanolens.errors import fault
from nanolens.message import Message, msg

TIMED_UPDATES = 6
SPENT_FRAC = 0.8  # of the budget, for updates; the rest goes into evaluations, checks and checkpoints
EVALUATED_FRAC = 0.1
BEST_FILE = "best.toml"
DEFAULT_PRESET = "quickstart"


@dataclass(frozen=True)
class Trial:
    values: dict[str, float | int]
    folder: Path
    updates: int
    val: float


@dataclass(frozen=True)
class Swept:
    folder: Path
    ranges: tuple[Range, ...]
    rungs: tuple[Rung, ...]
    trials: tuple[Trial, ...]  # all, in the order of rungs
    best: Trial
    equal: tuple[Trial, ...]  # of the last rung, that cannot be told from the best
    margin: float | None  # nats to the next, where that is clear
    config_file: Path
    took_s: float


def sweep(
    source: str | None, overrides: Sequence[tuple[str, str]], budget_s: float, tell: Callable[[Message], None] = lambda message: None
) -> Swept:
    from nanolens.api.training import plan_job
    from nanolens.data.store import open_dataset

    ranges = tuple(found for key, text in overrides if (found := range_named(key, text)) is not None)
    if not ranges:
        raise fault(msg("nothing is to be swept"), fix=msg("give a range: {example:code}", example="--learning_rate=1e-4..1e-2"))
    swept = {each.key for each in ranges}
    job = plan_job(source or DEFAULT_PRESET, [(key, text) for key, text in overrides if key not in swept])
    base = job.settings.config
    dataset = open_dataset(base.dataset)
    started_at_s = time.monotonic()
    folder = _free(job.name) if base.out_dir == "auto" else Path(base.out_dir)
    folder.mkdir(parents=True, exist_ok=False) if not folder.exists() else None
    update_s = _timed(base, dataset, folder, ranges)
    rungs = rungs_of(SPENT_FRAC * budget_s / update_s, base.max_iters)
    tell(msg("an update takes {update:seconds}: {rungs}", update=update_s, rungs=[_said(rung) for rung in rungs]))
    values = trials_of(ranges, rungs[0].trials)
    done: list[Trial] = []
    for number, rung in enumerate(rungs):
        here: list[Trial] = []
        for each in values:
            if time.monotonic() - started_at_s > budget_s and here:
                break
            trial = _tried(base, dataset, folder / f"rung-{number + 1}-{_named(each)}", each, rung.updates)
            tell(
                msg(
                    "{updates:count} updates, {settings:code}: val loss {val:nats}",
                    updates=rung.updates,
                    settings=_typed(each),
                    val=trial.val,
                )
            )
            here.append(trial)
        done += here
        worse = _clearly_worse(here)
        planned = rungs[number + 1].trials if number + 1 < len(rungs) else 1
        order = survivors({i: trial.val for i, trial in enumerate(here)}, worse, planned)
        if not order:
            raise fault(msg("every run of this sweep diverged"), fix=msg("sweep smaller values"))
        values, last = [here[i].values for i in order], [here[i] for i in order]
    return _summed_up(job, folder, ranges, rungs, done, last, here, time.monotonic() - started_at_s)


def _timed(base: Config, dataset: Any, folder: Path, ranges: Sequence[Range]) -> float:
    """Seconds of an update, with each range in its middle."""
    import shutil

    import numpy as np

    from nanolens.record.read import read_run

    trial = folder / "timing"
    _tried(base, dataset, trial, {each.key: each.at(0.5) for each in ranges}, TIMED_UPDATES)
    took = read_run(trial).steps.took_s
    shutil.rmtree(trial)
    return float(np.median(took))


def _tried(base: Config, dataset: Any, folder: Path, values: dict[str, float | int], updates: int) -> Trial:
    from nanolens.config.check import faults_in
    from nanolens.errors import raise_if_any
    from nanolens.record.write import Recorder
    from nanolens.training.loop import train

    config = trial_config(base, values, updates, folder)
    raise_if_any(list(faults_in(config, {key: f"--{key}" for key in values})))
    recorder = Recorder(folder)
    try:
        outcome = train(config, dataset, folder, recorder)
    finally:
        recorder.close()
    if outcome.why == "stopped":
        raise KeyboardInterrupt
    return Trial(values, folder, updates, outcome.val_loss if outcome.why == "finished" else math.inf)


def trial_config(base: Config, values: dict[str, float | int], updates: int, folder: Path) -> Config:
    """A whole run of so many updates: the schedule is as long as the run, the warm-up keeps its share, the least rate its ratio."""
    ratio = values["learning_rate"] / base.learning_rate if "learning_rate" in values and base.learning_rate else 1.0
    schedule: dict[str, Any] = {
        "max_iters": updates, "lr_decay_iters": None, "warmup_iters": shortened(updates, base.max_iters, base.warmup_iters),
        "min_lr": base.min_lr * ratio,
    }  # fmt: skip
    iters = max(6, min(base.eval_iters, round(EVALUATED_FRAC * updates * 1.5)))
    quiet: dict[str, Any] = {
        "out_dir": str(folder), "eval_interval": max(1, math.ceil(updates / 2)), "eval_iters": iters, "sample_interval": 0,
        "keep_checkpoints": 1, "checkpoint_interval": updates + 1, "init_from": "scratch", "overwrite": False,
    }  # fmt: skip
    return dataclasses.replace(base, **{**schedule, **quiet, **values})


def _clearly_worse(trials: Sequence[Trial]) -> dict[int, bool]:
    """Of each trial, whether it is worse than the best by more than the noise of such runs (`compare`'s own measure)."""
    from nanolens.analysis.compare_noise import measure
    from nanolens.comparison.side import Group, Side
    from nanolens.record.read import read_run

    finite = [trial for trial in trials if math.isfinite(trial.val)]
    if not finite:
        return dict.fromkeys(range(len(trials)), True)
    best = min(finite, key=lambda trial: trial.val)
    sides = {id(trial): Side(Group(trial.folder.name, (read_run(trial.folder),)), trial.folder.name) for trial in finite}
    worse = {}
    for number, trial in enumerate(trials):
        if trial is best or not math.isfinite(trial.val):
            worse[number] = trial is not best
            continue
        found = measure(sides[id(trial)], sides[id(best)], float(trial.updates), float(best.updates))
        worse[number] = found is not None and found.is_clear
    return worse


def _summed_up(
    job: Any,
    folder: Path,
    ranges: tuple[Range, ...],
    rungs: list[Rung],
    done: list[Trial],
    order: list[Trial],
    here: list[Trial],
    took_s: float,
) -> Swept:
    from nanolens.present.plan import config_text

    best = order[0]
    worse = _clearly_worse(here)
    equal = tuple(trial for i, trial in enumerate(here) if trial is not best and not worse[i])
    others = sorted(trial.val for trial in here if trial is not best and math.isfinite(trial.val))
    margin = others[0] - best.val if others and not equal else None
    base = job.settings.config
    ratio = best.values["learning_rate"] / base.learning_rate if "learning_rate" in best.values and base.learning_rate else 1.0
    config = dataclasses.replace(base, **{"min_lr": base.min_lr * ratio, **best.values}, out_dir="auto")
    path = folder / BEST_FILE
    files.write_whole(path, config_text(config, f"nanolens sweep {job.name}"))
    return Swept(folder, ranges, tuple(rungs), tuple(done), best, equal, margin, path, took_s)


def _named(values: dict[str, float | int]) -> str:
    return "-".join(f"{key}-{value:g}" for key, value in values.items())


def _typed(values: dict[str, float | int]) -> list[str]:
    return [f"{key}={as_text(value)}" for key, value in values.items()]


def _said(rung: Rung) -> Message:
    return msg("{trials:count} runs of {updates:count} updates", trials=rung.trials, updates=rung.updates)


def _free(name: str) -> Path:
    from nanolens.record.layout import RUNS

    number = 1
    while (folder := Path(RUNS) / f"sweep-{name}-{number}").exists():
        number += 1
    return folder
