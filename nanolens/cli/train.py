"""nanolens train [PRESET | config.py | config.toml] [--key=value ...] [--detach] [--view=live|lines]"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from nanolens.cli.progress import tell
from nanolens.cli.watch import chosen_view, print_summary
from nanolens.data.prepare.pipeline import PrepareProgress
from nanolens.message import msg
from nanolens.record.progress import Progress
from nanolens.record.store import as_typed
from nanolens.session.detach import detach
from nanolens.session.job import JobResult, TrainingJob, plan_job, run_job, settle_folder
from nanolens.session.listeners import Listener
from nanolens.session.summary import ending_of
from nanolens.show.lines import LineView
from nanolens.show.live import LiveView
from nanolens.show.words import say
from nanolens.training.distributed.group import DistributedRanks
from nanolens.training.distributed.launch import LOST, first_on_disk, how_many, is_a_rank, launch, leave, ranks_here
from nanolens.training.loop import TrainingOutcome


def run(given: Namespace) -> int:
    tell_user = partial(tell, lang=given.lang)
    if is_a_rank():
        return _run_as_rank(given)
    if given.devices is not None and not given.detach:
        size, note = how_many(given.devices)
        if note is not None:
            tell_user(note)
        if size > 1:
            plan_job(given.source, given.overrides)  # a mistake is reported once, before anything is started
            shown = [f"--view={given.view}"] if given.view else []
            return launch([*_words(given), *shown, f"--lang={given.lang}"], size, given.max_restarts, tell_user)
    job = plan_job(given.source, given.overrides, tell_user)
    if given.detach:
        return _detach(given, job)
    view = chosen_view(given.view)
    ended = _trained(job, view, given.lang)
    _print_ending(ended, view, given.lang)
    return exit_code(ended.outcome)


def _words(given: Namespace, without: tuple[str, ...] = ()) -> Iterator[str]:
    """The command as it was typed, for another process."""
    yield "train"
    if given.source is not None:
        yield given.source
    yield from (f"--{key}={value}" for key, value in given.overrides if key not in without)


def _run_as_rank(given: Namespace) -> int:
    """One of several processes. The first speaks; the others only when something is wrong with them."""
    ranks = ranks_here()
    assert ranks is not None
    tell_user = partial(tell, lang=given.lang)
    try:
        overrides = first_on_disk(given.overrides, ranks)
        job = ranks.first_does(lambda: plan_job(given.source, overrides, tell_user))
        view = chosen_view(given.view) if ranks.is_first else "lines"
        ended = _trained(job, view, given.lang, ranks)
    except BaseException:
        leave()
        raise
    if not ended.outcome.is_rank_lost:
        leave()
    if ranks.is_first:
        _print_ending(ended, view, given.lang)
    elif ended.outcome.why == "failed" and ended.outcome.because is not None:
        tell_user(ended.outcome.because)
    if ended.outcome.is_rank_lost:
        sys.stdout.flush()
        os._exit(LOST)  # to close a connection whose other end is gone may take forever
    return exit_code(ended.outcome)


def _trained(job: TrainingJob, view: str, lang: str, ranks: DistributedRanks | None = None) -> JobResult:
    def views(progress: Progress, folder: Path) -> Iterable[Listener]:
        if view == "lines":
            interval = job.settings.config.log_interval
            return [LineView(progress, sys.stdout, folder=str(folder), log_interval=interval, lang=lang)]
        from rich.console import Console

        hint = msg("Ctrl-C saves and stops · from any terminal: {watch:code}", f"nanolens watch {as_typed(folder)}")
        return [LiveView(progress, Console(), hint=hint, lang=lang)]

    return run_job(job, views, _preparing(job.settings.config.dataset, lang), ranks)


def _preparing(dataset: str, lang: str) -> Callable[[PrepareProgress], None]:
    """Says once for each stage that a corpus is being made ready, so that nobody wonders what takes so long."""
    said: set[str] = set()

    def take(progress: PrepareProgress) -> None:
        if progress.stage in said:
            return
        said.add(progress.stage)
        size = progress.total_bytes
        sentences = {
            "download": msg("downloading {dataset:code} ({size:bytes}), only once", dataset, size),
            "vocabulary": msg("building the vocabulary of {dataset:code} ({size:bytes}), only once", dataset, size),
            "encode": msg("tokenizing {dataset:code} ({size:bytes}), only once", dataset, size),
        }
        tell(sentences[progress.stage], lang)

    return take


def _print_ending(ended: JobResult, view: str, lang: str) -> None:
    ending = ending_of(ended.folder, ended.progress, ended.progress.state, ended.findings, ended.notes)
    print_summary(ending, as_comment=view == "lines", lang=lang)


def exit_code(outcome: TrainingOutcome) -> int:
    """0 done, 1 failed or not on disk, 130 or 143 stopped by a signal after saving."""
    if outcome.why == "failed" or outcome.unsaved:
        return 1
    return 0 if outcome.signal is None else 128 + outcome.signal


def _detach(given: Namespace, job: TrainingJob) -> int:
    folder = settle_folder(job)
    words = [*_words(given, without=("out_dir", "overwrite")), f"--out_dir={folder}", "--view=lines"]
    if given.devices is not None:
        words += [f"--devices={given.devices}", f"--max_restarts={given.max_restarts}"]
    started = detach(folder, [*words, f"--lang={given.lang}"])
    if started.exit_code:
        print(started.words, file=sys.stderr)
        return started.exit_code
    state = msg("process {pid:code} is starting in the background", started.pid)
    if started.exit_code == 0:
        state = msg("background process {pid:code} has finished training", started.pid)
    elif started.has_started:
        state = msg("training continues in the background as process {pid:code}", started.pid)
    watch = msg("  watch: {command:code}", f"nanolens watch {folder}")
    stop = msg("  stop:  {command:code}", f"nanolens stop {folder}")
    for line in (state, watch, stop, msg("  log:   {path:code}", str(started.log))):
        print(say(line, given.lang))
    return 0
