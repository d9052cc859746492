"""From a preset's name to a finished, diagnosed run: settings, dataset, run folder, listeners, the loop, and a look at its own record.

`plan_job` finds every mistake that can be found before anything is written; `run_job` trains. The command line and `nanolens.train` are
both thin layers over these two.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.api.origins import initial_weights, run_named, settings_of_run, take_over, with_shape_of
from nanolens.api.ranks import ranks_here
from nanolens.api.tuning import with_answer
from nanolens.config.fields import settings as all_settings
from nanolens.config.load import load
from nanolens.config.preset import Preset, named_preset
from nanolens.config.settings import Settings
from nanolens.errors import fault
from nanolens.message import Message, msg
from nanolens.record.layout import OWN_MODEL, RUN_FILE, RUNS, is_run
from nanolens.record.progress import Progress, about_run
from nanolens.record.store import choose_folder, claim_folder, resumed_if_begun, source_name
from nanolens.trackers.live import check_trackers, told_of, tracking

if TYPE_CHECKING:
    from nanolens.facts.finding import Finding
    from nanolens.session.listeners import Listener, Trouble
    from nanolens.training.distributed.ranks import Ranks

DEFAULT_PRESET = "quickstart"


@dataclass(frozen=True)
class Job:
    """A run that has not begun."""

    settings: Settings
    name: str  # what the run folder is called after
    preset: Preset | None = None
    notes: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Ended:
    folder: Path
    outcome: Any  # train.loop.Outcome
    progress: Progress
    findings: Sequence[Finding] = ()
    troubles: Sequence[Trouble] = ()
    notes: tuple[Message, ...] = ()
    preset: Preset | None = None


def plan_job(
    source: str | None = None, overrides: Sequence[tuple[str, str]] = (), tell: Callable[[Message], None] = lambda message: None
) -> Job:
    """Reads the settings. Without a source: the quickstart; or, when resuming, what the run itself was started with. `tell` hears of
    measurements that `batch_size = auto` asks for."""
    overrides = resumed_if_begun(overrides)
    given = dict(overrides)
    if source is None and given.get("init_from") == "resume":
        named = ("init_from", "out_dir", "data_order", "dataset", "seed")
        take_over(load(None, [(key, value) for key, value in overrides if key in named]))
        settings = with_answer(_recorded_settings(given.get("out_dir", "auto"), overrides), tell)
        preset = named_preset(settings.preset) if settings.preset else None
        return Job(settings, source_name(None, settings.preset or DEFAULT_PRESET), preset, settings.notes)
    parent = run_named(given.get("init_from", "scratch"))
    settings = settings_of_run(parent, overrides) if source is None and parent else load(source or DEFAULT_PRESET, overrides)
    take_over(settings)
    if (origin := _origin(settings)) is not None:
        settings = with_shape_of(settings, origin)
    _refuse_unnamed_code(settings, given)
    settings = with_answer(settings, tell)
    preset = named_preset(settings.preset) if settings.preset else None
    return Job(settings, source_name(source, settings.preset), preset, settings.notes)


def _origin(settings: Settings) -> Path | None:
    """The run whose weights this one goes on with."""
    config = settings.config
    if config.init_from == "resume" and config.out_dir != "auto":
        return next((folder for folder in (Path(config.out_dir), Path(RUNS) / config.out_dir) if is_run(folder)), None)
    return run_named(config.init_from)


def _refuse_unnamed_code(settings: Settings, given: Mapping[str, str]) -> None:
    """A model of one's own is a program. It runs when its owner names it in the call, not because a file or a record names it."""
    arch = settings.config.arch
    if not arch.endswith(".py"):
        return
    if "arch" not in given:
        raise fault(
            msg("arch = {arch:code} is code, and code is only run if you name it yourself", arch=arch),
            where=msg("{where:code}", where=settings.came_from.get("arch", "")),
            fix=msg("add {option:code}", option=f"--arch={arch}"),
        )
    from nanolens.api.own_code import file_to_run, remember

    if Path(arch).is_file():
        remember(Path(arch))
    if settings.config.init_from == "resume" and settings.config.out_dir != "auto" and is_run(Path(settings.config.out_dir)):
        file_to_run(Path(settings.config.out_dir), arch, given["arch"])  # refuses a copy in the run folder that nobody named


def settle_folder(job: Job) -> Path:
    """The run's folder, there and ours; an old run in it has been moved aside if that was asked for."""
    config = job.settings.config
    if config.overwrite and config.out_dir != "auto" and config.init_from != "resume" and is_run(Path(config.out_dir)):
        from nanolens.record.write import living_process, move_aside, training_here

        if living_process(Path(config.out_dir)) is not None:
            with training_here(Path(config.out_dir)):  # refuses, in its own words
                pass
        move_aside(Path(config.out_dir))
    return claim_folder(config, job.name)


def run_job(
    job: Job,
    views: Callable[[Progress, Path], Iterable[Listener]] = lambda progress, folder: (),
    on_preparing: Callable[[Any], None] | None = None,
    ranks: Ranks | None = None,
) -> Ended:
    """Trains. `views` gives the listeners beyond the record, once it is known where the run is; `on_preparing` hears how far a corpus is
    (`data.prepare.Progress`) that has to be prepared first. `ranks`: the processes that train together, of which this is one."""
    ranks = ranks or ranks_here()
    if ranks is not None:
        from nanolens.api.training_together import run_together

        return run_together(job, ranks, views, on_preparing)
    config = job.settings.config
    choose_folder(config, job.name)  # a folder that cannot be used is told before a corpus is prepared for it
    check_trackers(job.settings)
    from nanolens.data.store import open_dataset

    dataset = open_dataset(config.dataset, on_preparing)
    folder = settle_folder(job)
    try:
        return _train(job, dataset, folder, views)
    finally:
        _remove_if_empty(folder)


def _train(job: Job, dataset: Any, folder: Path, views: Callable[[Progress, Path], Iterable[Listener]], **together: Any) -> Ended:
    from nanolens.api.watchdog import Watchdog, certain_faults
    from nanolens.record.write import Recorder
    from nanolens.session.listeners import Listeners
    from nanolens.training.loop import train

    config, initial = initial_weights(job.settings.config, dataset)
    progress = Progress(about_run(folder.name, dataclasses.asdict(config)), learn=lambda: about_folder(folder))
    recorder = Recorder(folder)
    listeners = Listeners(recorder, views(progress, folder))
    listeners.add(Watchdog(lambda: certain_faults(folder), listeners.emit))
    trackers = tracking(config, folder, listeners.emit)
    for tracker in trackers:
        listeners.add(tracker)
    try:
        outcome = train(
            config, dataset, folder, listeners.emit, came_from=job.settings.came_from, preset=job.settings.preset, initial=initial,
            **together,
        )  # fmt: skip
    finally:
        troubles = listeners.close()
        recorder.close()
    findings, notes = diagnosed(folder)
    if outcome.unsaved:
        notes = (msg("the last state is not on disk: {because}", because=outcome.unsaved), *notes)
    notes = (*job.notes, *notes, *map(_told, troubles), *check_trackers(job.settings), *told_of(trackers))
    return Ended(folder, outcome, progress, findings, troubles, notes, job.preset)


def diagnosed(folder: Path) -> tuple[Sequence[Finding], tuple[Message, ...]]:
    """What the run's own record shows. A diagnosis that fails is told, and costs the run nothing."""
    from nanolens.diagnosis import diagnose
    from nanolens.record.read import read_run

    try:
        return diagnose(read_run(folder)).findings, ()
    except Exception as error:  # the run is done and saved; a fault of ours in reading it may not look like a failed training
        return (), (msg("the run could not be diagnosed: {error}; please report this", error=f"{type(error).__name__}: {error}"),)


def about_folder(folder: Path) -> Any:
    """What `run.json` says, for a view."""
    from nanolens.record.read import known_facts
    from nanolens.record.write import read_run_file

    known = known_facts(read_run_file(folder))
    return about_run(folder.name, {name: fact.value for name, fact in known.items()})


def _recorded_settings(out_dir: str, overrides: Sequence[tuple[str, str]]) -> Settings:
    """What the run to be resumed was started with, and the changes asked for now on top."""
    from nanolens.config.fields import as_text
    from nanolens.record.write import read_run_file

    probe = load(DEFAULT_PRESET, [("init_from", "resume"), ("out_dir", out_dir)])
    folder = choose_folder(probe.config, DEFAULT_PRESET)
    facts = read_run_file(folder)
    recorded = [
        (key, as_text(value))
        for key, value in facts.get("config", {}).items()
        if key in all_settings() and key not in ("init_from", "out_dir", "overwrite")
    ]
    arch = str(facts.get("config", {}).get("arch", ""))
    if arch.endswith(".py"):
        from nanolens.api.own_code import file_to_run

        file_to_run(folder, arch, dict(overrides).get("arch"))  # refuses what nobody named; the loop then takes the run's own copy
        if is_kept_with(folder):
            overrides = [(key, value) for key, value in overrides if key != "arch"]
    settings = load(None, [*recorded, *overrides, ("out_dir", str(folder))])
    changed = {key for key, _ in overrides}
    came_from = {
        key: where if key in changed else facts.get("came_from", {}).get(key, RUN_FILE) for key, where in settings.came_from.items()
    }
    return dataclasses.replace(settings, came_from=came_from, preset=str(facts.get("preset") or ""))


def is_kept_with(folder: Path) -> bool:
    return (folder / OWN_MODEL).is_file()


def _told(trouble: Trouble) -> Message:
    return msg(
        "{listener} had trouble: it raised {failures:count} times and missed {missed:count} events ({because}); the record is complete",
        listener=trouble.listener, failures=trouble.failures, missed=trouble.missed, because=trouble.because,
    )  # fmt: skip


def _remove_if_empty(folder: Path) -> None:
    """A run that never began leaves no empty folder."""
    with contextlib.suppress(OSError):
        folder.rmdir()
