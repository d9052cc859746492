"""From a preset's name to a finished, diagnosed run: `plan_job` finds every mistake that can be found before anything
is written; `run_job` trains. Of several processes, the first has the folder, the record and the terminal.

A run may begin from another run, a model of another program, or nanoGPT's `out` folder. A run that goes on from weights
has their shape: settings that were not asked for are taken from where the weights come from, and only those that were
asked for and do not fit are refused.

A run folder may come from anybody, and code that is kept in it runs only if its owner named it, now or (these very
bytes, on this machine) before: the sha256 of what was named with `--arch=my_model.py` is remembered in the cache."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nanolens import files
from nanolens.config.fields import Config, Settings, as_text
from nanolens.config.fields import settings as all_settings
from nanolens.config.load import DEFAULT_PRESET, load
from nanolens.convert.foreign import fit
from nanolens.convert.importing import import_model, read_foreign_model
from nanolens.convert.nanogpt import nanogpt_file
from nanolens.data.prepare.pipeline import OnProgress
from nanolens.data.store import Dataset, open_dataset
from nanolens.errors import UserError, fault
from nanolens.facts.finding import Finding
from nanolens.measure.tune import with_answer
from nanolens.message import Message, msg
from nanolens.record import OWN_MODEL, RUN_FILE, is_run
from nanolens.record.progress import Progress, about_folder, about_run
from nanolens.record.store import (
    choose_folder,
    claim_folder,
    make_way,
    resumed_if_begun,
    run_at,
    run_folder,
    source_name,
)
from nanolens.record.write import Recorder, read_run_file
from nanolens.session.listeners import Listener, Listeners, Trouble, Watchdog, certain_faults
from nanolens.session.summary import diagnosed
from nanolens.trackers.live import check_trackers, tracker_problems, tracking
from nanolens.training import loop
from nanolens.training.distributed.launch import ranks_here
from nanolens.training.distributed.ranks import SINGLE_PROCESS, Ranks, partition_of
from nanolens.training.loop import TrainingOutcome

if TYPE_CHECKING:
    from torch import Tensor

Overrides = Sequence[tuple[str, str]]
Views = Callable[[Progress, Path], Iterable[Listener]]  # listeners beyond the record
OF_A_PROCESS = ("init_from", "out_dir", "overwrite")
OF_THE_WEIGHTS = ("block_size", "gelu")  # besides those that a checkpoint fixes; they may be changed on purpose
OWN_MODELS = "own-models"  # folder of the cache: an empty file for each sha256


@dataclass(frozen=True)
class TrainingJob:
    settings: Settings
    name: str  # what the run folder is called after


@dataclass(frozen=True)
class JobResult:
    folder: Path
    outcome: TrainingOutcome
    progress: Progress
    findings: Sequence[Finding] = ()
    notes: tuple[Message, ...] = ()


# --- the settings


def plan_job(
    source: str | None = None, overrides: Overrides = (), tell: Callable[[Message], None] = lambda message: None
) -> TrainingJob:
    """Reads the settings. Without a source: the quickstart; or, when resuming, what the run itself was started with.
    `tell` hears of measurements that `batch_size = auto` asks for."""
    overrides = resumed_if_begun(overrides)
    given = dict(overrides)
    if source is None and given.get("init_from") == "resume":
        named = ("init_from", "out_dir", "data_order", "dataset", "seed")
        _adopt_nanogpt_out(load(None, [(key, value) for key, value in overrides if key in named]))
        settings = with_answer(_settings_to_resume(given.get("out_dir", "auto"), overrides), tell)
        return TrainingJob(settings, source_name(None, settings.preset or DEFAULT_PRESET))
    parent = _run_named(given.get("init_from", "scratch"))
    if source is None and parent is not None:
        settings = settings_of_run(parent, overrides)
    else:
        settings = load(source or DEFAULT_PRESET, overrides)
    _adopt_nanogpt_out(settings)
    config = settings.config
    is_resumed = config.init_from == "resume" and config.out_dir != "auto"
    origin = run_folder(config.out_dir) if is_resumed else _run_named(config.init_from)
    if origin is not None:
        settings = _with_shape_of(settings, origin)
    _refuse_unnamed_code(settings, given.get("arch"))
    return TrainingJob(with_answer(settings, tell), source_name(source, settings.preset))


def _run_named(init_from: str) -> Path | None:
    """The folder of `RUN` or `RUN@STEP`; None where `init_from` is something else."""
    at = None if init_from in ("scratch", "resume") else run_at(init_from)
    return None if at is None else at.folder


def settings_of_run(run: Path, overrides: Overrides, origins: Mapping[str, str] | None = None) -> Settings:
    """What a run was started with, and what is asked for now on top. `origins`: where the run had each setting from."""
    saved = read_run_file(run).get("config", {})
    recorded = [(key, as_text(saved[key])) for key in saved if key in all_settings() and key not in OF_A_PROCESS]
    settings = load(None, [*recorded, *overrides])
    asked = {key.replace("-", "_") for key, _ in overrides}
    came_from = {
        key: where if key in asked or where == "default" else (origins or {}).get(key, str(run))
        for key, where in settings.came_from.items()
    }
    return dataclasses.replace(settings, came_from=came_from)


def _settings_to_resume(out_dir: str, overrides: Overrides) -> Settings:
    probe = load(DEFAULT_PRESET, [("init_from", "resume"), ("out_dir", out_dir)])
    folder = choose_folder(probe.config, DEFAULT_PRESET)
    facts = read_run_file(folder)
    arch = str(facts.get("config", {}).get("arch", ""))
    if arch.endswith(".py"):
        file_to_run(folder, arch, dict(overrides).get("arch"))  # refuses what nobody named
        if (folder / OWN_MODEL).is_file():  # which the loop then takes
            overrides = [(key, value) for key, value in overrides if key != "arch"]
    origins = {key: facts.get("came_from", {}).get(key, RUN_FILE) for key in all_settings()}
    settings = settings_of_run(folder, overrides, origins)
    config = dataclasses.replace(settings.config, out_dir=str(folder))
    return dataclasses.replace(settings, config=config, preset=str(facts.get("preset") or ""))


def _with_shape_of(settings: Settings, run: Path) -> Settings:
    """The settings, with the run's own where a checkpoint fixes them and nobody asked for another."""
    recorded = read_run_file(run).get("config", {})
    fixed = [key for key, about in all_settings().items() if about.is_fixed_by_checkpoint or key in OF_THE_WEIGHTS]
    taken = {key: recorded[key] for key in fixed if key in recorded and settings.came_from.get(key) == "default"}
    came_from = {**settings.came_from, **dict.fromkeys(taken, str(run))}
    return dataclasses.replace(settings, config=dataclasses.replace(settings.config, **taken), came_from=came_from)


def _adopt_nanogpt_out(settings: Settings) -> None:
    """nanoGPT's `out` folder that is to be resumed becomes a run where it is; its `ckpt.pt` stays."""
    config, folder = settings.config, Path(settings.config.out_dir)
    if config.init_from != "resume" or config.out_dir == "auto" or run_folder(config.out_dir) is not None:
        return
    if folder.is_dir() and nanogpt_file(folder) is not None:
        asked = [key for key in ("data_order", "dataset", "seed") if settings.came_from.get(key) != "default"]
        import_model(str(folder), str(folder), [(key, as_text(getattr(config, key))) for key in asked])


# --- code of the user's own


def _refuse_unnamed_code(settings: Settings, named: str | None) -> None:
    """A custom model is a program: it runs when its owner names it in the call, not because a file does."""
    config, arch = settings.config, settings.config.arch
    if not arch.endswith(".py"):
        return
    if named is None:
        what = msg("arch = {arch:code} is custom code, and custom code only runs if you name it yourself", arch)
        where = settings.came_from.get("arch", "")
        raise fault(what, where=where, fix=msg("add {option:code}", f"--arch={arch}"))
    if Path(arch).is_file():
        _remember(Path(arch))
    if config.init_from == "resume" and config.out_dir != "auto" and is_run(Path(config.out_dir)):
        file_to_run(Path(config.out_dir), arch, named)  # refuses a copy in the run folder that nobody named


def file_to_run(run: Path, recorded: str, named: str | None) -> tuple[Path, Message | None]:
    """The model file of a run that was made by `recorded`, and what to know of it. `named`: in this call."""
    kept = run / OWN_MODEL

    def refusal(file: Path | str) -> UserError:
        what = msg("this model was built by {file:code}, and custom code only runs if you name it", recorded)
        if named is not None:
            what = msg("{named:code} is not the code this model was built by", named)
        return fault(what, where=str(run), fix=msg("read it, then add {option:code}", f"--arch={file}"))

    if not kept.is_file():  # a run of an early version: there is only what the user names
        if named is None:
            raise refusal(recorded)
        return Path(named), None
    if named is not None and Path(named).is_file():
        _remember(Path(named))
    if not (files.cache_folder() / OWN_MODELS / files.sha256_of(kept)).is_file():
        raise refusal(kept)
    if Path(recorded).is_file() and files.sha256_of(Path(recorded)) != files.sha256_of(kept):
        return kept, msg(
            "{file:code} has changed since the run began; the run's own copy {kept:code} is used", recorded, str(kept)
        )
    return kept, None


def _remember(path: Path) -> None:
    with contextlib.suppress(OSError):  # without a cache it has to be named each time
        files.write_whole(files.cache_folder() / OWN_MODELS / files.sha256_of(path), "")


# --- the training


def run_job(
    job: TrainingJob,
    views: Views = lambda progress, folder: (),
    on_preparing: OnProgress | None = None,
    ranks: Ranks | None = None,
) -> JobResult:
    """Trains. `views` gives the listeners beyond the record, once it is known where the run is; `on_preparing` hears
    how far a corpus is that has to be prepared first; `ranks` are the processes that train together."""
    ranks = ranks or ranks_here() or SINGLE_PROCESS
    config = job.settings.config

    def refuse_early() -> None:
        """What can be refused before a corpus is prepared for it."""
        choose_folder(config, job.name)
        partition_of(config, ranks.rank, ranks.size)
        check_trackers(job.settings)

    ranks.first_does(refuse_early)
    dataset = ranks.each_does(lambda: open_dataset(config.dataset, on_preparing if ranks.local_rank == 0 else None))
    if ranks.size > 1:
        prints = f"{dataset.fingerprint} {dataset.tokenizer_fingerprint} {len(dataset.train)}"
        ranks.require_equal(msg("the dataset"), prints)
    folder = ranks.first_does(lambda: settle_folder(job))
    if not ranks.is_first:
        config, initial = initial_weights(config, dataset)
        outcome = loop.train(config, dataset, folder, lambda event: None, initial=initial, ranks=ranks)
        return JobResult(folder, outcome, Progress(about_run(folder.name, {})))
    try:
        return _train(job, dataset, folder, views, ranks)
    finally:
        with contextlib.suppress(OSError):  # a run that never began leaves no empty folder
            folder.rmdir()


def settle_folder(job: TrainingJob) -> Path:
    """The run's folder, there and ours; an old run in it has been moved aside if that was asked for."""
    config = job.settings.config
    if config.out_dir != "auto" and config.init_from != "resume":
        make_way(Path(config.out_dir), config)
    return claim_folder(config, job.name)


def _train(job: TrainingJob, dataset: Dataset, folder: Path, views: Views, ranks: Ranks) -> JobResult:
    config, initial = initial_weights(job.settings.config, dataset)
    progress = Progress(about_run(folder.name, dataclasses.asdict(config)), learn=lambda: about_folder(folder))
    recorder = Recorder(folder)
    listeners = Listeners(recorder, views(progress, folder), progress.take)
    listeners.add(Watchdog(lambda: certain_faults(folder), listeners.emit))
    trackers = tracking(config, folder, listeners.emit)
    for tracker in trackers:
        listeners.add(tracker)
    came_from, preset = job.settings.came_from, job.settings.preset
    try:
        outcome = loop.train(
            config, dataset, folder, listeners.emit, came_from=came_from, preset=preset, initial=initial, ranks=ranks
        )
    finally:
        troubles = listeners.close()
        recorder.close()
    findings, notes = diagnosed(folder)
    if outcome.unsaved:
        notes = (msg("the last state was not saved: {because}", outcome.unsaved), *notes)
    more = (*map(_trouble_words, troubles), *check_trackers(job.settings), *tracker_problems(trackers))
    return JobResult(folder, outcome, progress, findings, (*job.settings.notes, *notes, *more))


def initial_weights(config: Config, dataset: Dataset) -> tuple[Config, Mapping[str, Tensor] | None]:
    """Weights of another program, with the shape that they bring along; None where there are none."""
    is_own = config.init_from in ("scratch", "resume") or _run_named(config.init_from) is not None
    model = None if is_own else read_foreign_model(config.init_from)
    if model is None:
        return config, None
    if model.tokenizer is not None and dataset.tokenizer is not None and model.tokenizer != dataset.tokenizer:
        option, command = "--tokenizer=RUN/checkpoints/step-000000", "nanolens prepare --tokenizer=gpt2"
        fix = msg("import the model first, and prepare the text with {option:code}", option)
        if model.tokenizer.kind == "gpt2":
            fix = msg("prepare the text with the model's own tokenizer: {command:code}", command)
        what = msg("the data was prepared with a different tokenizer than the model's")
        where = msg("dataset {name:code}, init_from {source:code}", dataset.name, config.init_from)
        raise fault(what, where=where, fix=fix)
    return fit(model, config, msg("{where:code}", f"init_from={config.init_from}"))


def _trouble_words(trouble: Trouble) -> Message:
    return msg(
        "{listener} had errors: exceptions: {failures:count}, missed events: {missed:count} ({because}); the record "
        "is complete",
        **dataclasses.asdict(trouble),
    )
