"""`nanolens sweep`: a few short runs for the settings that matter most, and the best of them as a config.

Successive halving: many settings for a short time, the better third for three times as long, and so on. Each trial is a
whole run with its whole schedule, since a loss in the middle of one says little about its end. A setting is only left
behind when it is worse than the best by more than noise, so that a rung may keep more than its third."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nanolens import files
from nanolens.comparison.side import SeedGroup, Side
from nanolens.comparison.verdict import measure
from nanolens.config.fields import Config, as_text, faults_in, settings
from nanolens.config.load import DEFAULT_PRESET
from nanolens.data.store import Dataset, open_dataset
from nanolens.errors import fault, raise_if_any
from nanolens.measure.timed import short_run, update_times
from nanolens.message import Message, msg
from nanolens.planning.words import config_text
from nanolens.record.events import Event
from nanolens.record.read import read_run
from nanolens.record.store import free_folder
from nanolens.session.job import plan_job
from nanolens.show.answer import Answer, typed
from nanolens.show.document import GAP, Part, Table, Text, TextBlock
from nanolens.show.words import show
from nanolens.training.loop import TrainingOutcome

KEEP = 3  # one in so many goes on, three times as long
SHORTEST_TRIAL = 30  # of a trial that says anything
CANDIDATES = (9, 6, 4, 3)
MOST_KEPT = 2  # times as many as planned may go on because they cannot be told apart
GOLDEN = 0.6180339887498949
TIMED_UPDATES = 6
SPENT_FRAC = 0.8  # of the budget, for updates; the rest goes into evaluations, checks and checkpoints
EVALUATED_FRAC = 0.1
BEST_FILE = "best.toml"
SweptValues = dict[str, float | int]  # of the settings that are swept


@dataclass(frozen=True)
class Range:
    key: str
    low: float
    high: float
    is_log: bool
    is_whole: bool

    def at(self, place: float) -> float | int:
        """The value at a place from 0 to 1."""
        value = self.low * (self.high / self.low) ** place if self.is_log else self.low + (self.high - self.low) * place
        return round(value) if self.is_whole else float(f"{value:.3g}")


@dataclass(frozen=True)
class Rung:
    trials: int
    updates: int


def range_named(key: str, text: str) -> Range | None:
    """`1e-4..1e-2` as a range of that setting; None where the text is a plain value."""
    found = re.fullmatch(r"\s*([^.\s][^\s]*?)\.\.([^\s]+)\s*", text)
    if found is None:
        return None
    known = settings().get(key)
    if known is None or known.type not in (int, float):
        fix = msg("sweep {examples:code} or another number", ("learning_rate", "weight_decay", "n_embd"))
        raise fault(msg("{key:code} is not a number and cannot be swept", key), where=f"--{key}={text}", fix=fix)
    with contextlib.suppress(ValueError):
        low, high = float(found[1]), float(found[2])
        if math.isfinite(low) and math.isfinite(high) and low < high:
            return Range(key, low, high, is_log=low > 0 and high / low >= 4, is_whole=known.type is int)
    fix = msg("write the smaller number, two dots and the larger one: {example:code}", f"--{key}=1e-4..1e-2")
    raise fault(msg("{text:code} is not a valid range", text), where=f"--{key}={text}", fix=fix)


def trials_of(ranges: Sequence[Range], count: int) -> list[SweptValues]:
    """Different settings that fill the ranges evenly: a grid of one, a golden-ratio sequence of several."""
    found: list[SweptValues] = []
    for number in range(count):
        places = [number / max(1, count - 1)]
        # Powers of the golden ratio's kin: each next range is filled by steps that no earlier one repeats.
        places += [(0.5 + (number + 1) * GOLDEN**other) % 1.0 for other in range(1, len(ranges))]
        trial = {each.key: each.at(place) for each, place in zip(ranges, places, strict=True)}
        if trial not in found:
            found.append(trial)
    return found


def rungs_of(updates: float, longest: int) -> list[Rung]:
    """Trials and their lengths for a budget in updates; the longest is at most the run itself."""
    for count in CANDIDATES:
        trials = [count]
        while trials[-1] > 2:
            trials.append(max(2, math.ceil(trials[-1] / KEEP)))
        worth = sum(number * KEEP**place for place, number in enumerate(trials))
        first = min(updates / worth, longest / KEEP ** (len(trials) - 1))
        if first >= SHORTEST_TRIAL:
            return [Rung(number, round(first * KEEP**place)) for place, number in enumerate(trials)]
    if updates >= CANDIDATES[-1] * longest:  # the run itself is short: no need for shorter ones
        return [Rung(min(CANDIDATES[0], int(updates // longest)), longest)]
    few = {"updates": int(updates), "count": CANDIDATES[-1]}
    what = msg("the budget is {updates:count update|updates}, too few for even {count:count} short runs", **few)
    raise fault(what, fix=msg("give a larger {option:code}, or sweep a smaller model", "--budget"))


def survivors(losses: Mapping[int, float], is_clearly_worse: Mapping[int, bool], planned: int) -> list[int]:
    """The trials that go on, best first: the best `planned`, and those that are not clearly worse, up to as many."""
    order = sorted((trial for trial, loss in losses.items() if math.isfinite(loss)), key=lambda trial: losses[trial])
    equals = [trial for trial in order[planned:] if not is_clearly_worse[trial]]
    return (order[:planned] + equals)[: MOST_KEPT * planned]


@dataclass(frozen=True)
class SweepTrial:
    values: SweptValues
    folder: Path
    updates: int
    val: float  # infinite where it diverged


@dataclass(frozen=True)
class SweepResult:
    folder: Path
    ranges: tuple[Range, ...]
    rungs: tuple[Rung, ...]
    trials: tuple[SweepTrial, ...]  # all, in the order of rungs
    best: SweepTrial
    equal: tuple[SweepTrial, ...]  # of the last rung, that cannot be told from the best
    margin: float | None  # nats to the next, where that is clear
    config_file: Path
    took_s: float


def sweep(
    source: str | None,
    overrides: Sequence[tuple[str, str]],
    budget_s: float,
    tell: Callable[[Message], None] = lambda message: None,
) -> SweepResult:
    ranges = tuple(found for key, text in overrides if (found := range_named(key, text)) is not None)
    if not ranges:
        raise fault(msg("nothing to sweep"), fix=msg("give a range: {example:code}", "--learning_rate=1e-4..1e-2"))
    swept = {each.key for each in ranges}
    job = plan_job(source or DEFAULT_PRESET, [(key, text) for key, text in overrides if key not in swept])
    base, started_at_s = job.settings.config, time.monotonic()
    dataset = open_dataset(base.dataset)
    folder = free_folder(f"sweep-{job.name}") if base.out_dir == "auto" else Path(base.out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    middle = checked_config(base, {each.key: each.at(0.5) for each in ranges}, TIMED_UPDATES, folder / "timing")
    update_s = statistics.median(update_times(_run(middle, dataset, None)[0]))
    rungs = rungs_of(SPENT_FRAC * budget_s / update_s, base.max_iters)
    lengths = [msg("{trials:count run|runs} of {updates:count update|updates}", **vars(rung)) for rung in rungs]
    tell(msg("an update takes {update:seconds}: {rungs}", update_s, lengths))
    values, trials = trials_of(ranges, rungs[0].trials), []
    for number, rung in enumerate(rungs):
        here: list[SweepTrial] = []
        for each in values:
            if time.monotonic() - started_at_s > budget_s and here:
                break
            name = "-".join(f"{key}-{value:g}" for key, value in each.items())
            here.append(_tried(base, dataset, folder / f"rung-{number + 1}-{name}", each, rung.updates))
            said = {"updates": rung.updates, "settings": _typed(each), "val": here[-1].val}
            tell(msg("{updates:count update|updates}, {settings:code}: val loss {val:nats}", **said))
        trials += here
        worse = _clearly_worse(here)
        planned = rungs[number + 1].trials if number + 1 < len(rungs) else 1
        order = survivors({i: trial.val for i, trial in enumerate(here)}, worse, planned)
        if not order:
            raise fault(msg("every run of this sweep diverged"), fix=msg("sweep smaller values"))
        values = [here[i].values for i in order]
    best = here[order[0]]
    equal = tuple(trial for i, trial in enumerate(here) if trial is not best and not worse[i])
    path, config = folder / BEST_FILE, dataclasses.replace(with_values(base, best.values), out_dir="auto")
    files.write_whole(path, config_text(config, f"nanolens sweep {job.name}"))
    others = [trial.val for trial in here if trial is not best and math.isfinite(trial.val)]
    margin = min(others) - best.val if others and not equal else None
    took_s = time.monotonic() - started_at_s
    return SweepResult(folder, ranges, tuple(rungs), tuple(trials), best, equal, margin, path, took_s)


def _tried(base: Config, dataset: Dataset, folder: Path, values: SweptValues, updates: int) -> SweepTrial:
    _, outcome = _run(checked_config(base, values, updates, folder), dataset, folder)
    is_good = outcome.why == "finished" and math.isfinite(outcome.val_loss)
    return SweepTrial(values, folder, updates, outcome.val_loss if is_good else math.inf)


def _run(config: Config, dataset: Dataset, folder: Path | None) -> tuple[list[Event], TrainingOutcome]:
    events, outcome = short_run(config, dataset, folder)
    if outcome.why == "stopped":
        raise KeyboardInterrupt
    return events, outcome


def checked_config(base: Config, values: SweptValues, updates: int, folder: Path) -> Config:
    """A whole run of so many updates: the schedule is as long as the run, and the warm-up keeps its share."""
    warmup = max(1, round(base.warmup_iters * updates / max(1, base.max_iters))) if base.warmup_iters else 0
    whole = dataclasses.replace(
        base,
        max_iters=updates,
        lr_decay_iters=None,
        warmup_iters=warmup,
        out_dir=str(folder),
        eval_interval=max(1, math.ceil(updates / 2)),
        eval_iters=max(6, min(base.eval_iters, round(EVALUATED_FRAC * updates * 1.5))),
        sample_interval=0,
        keep_checkpoints=1,
        checkpoint_interval=updates + 1,
        init_from="scratch",
        overwrite=False,
    )
    config = with_values(whole, values)
    raise_if_any(faults_in(config, {key: f"--{key}" for key in values}))
    return config


def with_values(base: Config, values: SweptValues) -> Config:
    """`min_lr` keeps its ratio to a learning rate that is swept."""
    lr = values.get("learning_rate", base.learning_rate)
    min_lr = base.min_lr * (lr / base.learning_rate if base.learning_rate else 1.0)
    return dataclasses.replace(base, **{"min_lr": min_lr, **values})  # type: ignore[arg-type]


def _clearly_worse(trials: Sequence[SweepTrial]) -> dict[int, bool]:
    """Of each trial, whether it is worse than the best by more than noise, as `compare` measures it."""
    best = min(trials, key=lambda trial: trial.val)

    def is_worse(trial: SweepTrial) -> bool:
        if trial is best or trial.val == math.inf:
            return trial.val == math.inf
        paths = (trial.folder, best.folder)
        one, other = (Side(SeedGroup(path.name, (read_run(path),)), path.name) for path in paths)
        difference = measure(one, other, float(trial.updates), float(best.updates))
        return difference is not None and difference.is_clear

    return {number: is_worse(trial) for number, trial in enumerate(trials)}


def _typed(values: SweptValues) -> list[str]:
    return [f"{key}={as_text(value)}" for key, value in values.items()]


# --- in words and as JSON


def sweep_answer(found: SweepResult) -> Answer[SweepResult]:
    return Answer(found, lambda lang: list(_sweep_parts(found)), lambda lang: sweep_data(found, lang))


def _sweep_parts(found: SweepResult) -> Iterator[Part]:
    keys = [each.key for each in found.ranges]
    rows: list[list[Text]] = []
    for trial in sorted(found.trials, key=lambda trial: (-trial.updates, trial.val)):
        val = show(trial.val, "nats") if math.isfinite(trial.val) else msg("diverged")
        rows.append([*(show(trial.values[key], "rate") for key in keys), show(trial.updates, "count"), val])
    yield from (Table([*keys, msg("updates"), msg("val loss")], rows, left=()), GAP)
    yield TextBlock(msg("Best: {settings:code}, val loss {val:nats}.", _typed(found.best.values), found.best.val))
    if found.equal:
        others = [" ".join(_typed(trial.values)) for trial in found.equal]
        yield TextBlock(msg("It cannot be told from {others:code}: they are within noise.", others))
    elif found.margin is not None:
        yield TextBlock(msg("Better than the next by {margin:nats}, more than noise.", found.margin))
    yield TextBlock(msg("A longer run needs a somewhat lower learning rate than these short ones."))
    file, command = str(found.config_file), f"nanolens train {found.config_file}"
    yield TextBlock(msg("The settings are in {file:code}; to train with them: {command:code}", file, command))


class TrialData(msgspec.Struct):
    values: dict[str, float]
    run: str
    updates: int
    val: float | None


class SweepData(msgspec.Struct):
    best: TrialData
    equal: list[TrialData]
    margin: float | None
    trials: list[TrialData]
    config_file: str
    took_s: float


def sweep_data(found: SweepResult, lang: str = "en") -> SweepData:
    def data(trial: SweepTrial) -> TrialData:
        val = trial.val if math.isfinite(trial.val) else None
        return TrialData(dict(trial.values), str(trial.folder), trial.updates, val)

    equal, trials = (list(map(data, group)) for group in (found.equal, found.trials))
    return typed(SweepData, found, lang, best=data(found.best), equal=equal, trials=trials)
