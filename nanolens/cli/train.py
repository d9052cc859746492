"""nanolens train [PRESET | config.py | config.toml] [--key=value ...] [--detach] [--view=live|lines]"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from nanolens.cli.arguments import Parser, UsageError
from nanolens.errors import Fault
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from nanolens.api.training import Job
    from nanolens.data.prepare import Progress as DataProgress
    from nanolens.record.progress import Progress
    from nanolens.session.listeners import Listener
    from nanolens.training.loop import Outcome

HELP = msg("train a model; without a preset or a config file, the quickstart on a text that is already on this machine")


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "source", nargs="?", metavar="PRESET | FILE", help=msg("a preset, or a config file (.py as nanoGPT's, .toml, .json)")
    )
    parser.add_argument("--detach", action="store_true", help=msg("train in the background, and go on when the terminal closes"))
    parser.add_argument(
        "--view", choices=("live", "lines"), help=msg("live: one screen; lines: nanoGPT's lines. Otherwise live in a terminal")
    )
    parser.add_argument(
        "--devices", metavar="auto|N", help=msg("train on several devices of this machine, a process each; auto: all its GPUs")
    )
    parser.add_argument(
        "--max_restarts", type=int, default=3, metavar="N",
        help=msg("with --devices: how often to go on from the last checkpoint after a process died (default 3)"),
    )  # fmt: skip
    parser.takes_settings()


def run(given: Namespace) -> int:
    from nanolens.api.ranks import is_a_rank
    from nanolens.api.training import plan_job, run_job

    if is_a_rank():
        return _run_as_rank(given)
    if given.devices is not None and not given.detach:
        from nanolens.training.distributed.launch import how_many

        size, note = how_many(given.devices)
        if note is not None:
            _tell(note, given.lang)
        if size > 1:
            return _launch(given, size)
    job = plan_job(given.source, given.overrides, lambda words: _tell(words, given.lang))
    if given.detach:
        return _detach(given, job)
    view = chosen_view(given.view)
    ended = run_job(job, lambda progress, folder: _views(view, progress, folder, job, given.lang), _Preparing(job, given.lang))
    from nanolens.cli.watch import print_ending

    print_ending(ended, as_comment=view == "lines", lang=given.lang)
    return exit_code(ended.outcome)


def _tell(words: Message, lang: str) -> None:
    from nanolens.cli import say

    print(say(words, lang), file=sys.stderr, flush=True)


def _launch(given: Namespace, size: int) -> int:
    from nanolens.api.training import plan_job
    from nanolens.training.distributed.launch import launch

    plan_job(given.source, given.overrides, lambda words: None)  # a mistake is told once, before anything is started
    source = [] if given.source is None else [given.source]
    view = [] if given.view is None else [f"--view={given.view}"]
    words = ["train", *source, *(f"--{key}={value}" for key, value in given.overrides), *view, f"--lang={given.lang}"]
    return launch(words, size, given.max_restarts, lambda message: _tell(message, given.lang))


def _run_as_rank(given: Namespace) -> int:
    """One of several processes. The first speaks; the others only when something is wrong with them."""
    from nanolens.api.ranks import first_on_disk, leave, ranks_here
    from nanolens.api.training import plan_job, run_job
    from nanolens.cli.watch import print_ending
    from nanolens.training.distributed.launch import LOST

    ranks = ranks_here()
    assert ranks is not None
    try:
        overrides = first_on_disk(given.overrides, ranks)
        job = ranks.first_does(lambda: plan_job(given.source, overrides, lambda words: _tell(words, given.lang)))
        view = chosen_view(given.view) if ranks.is_first else "lines"
        ended = run_job(job, lambda progress, folder: _views(view, progress, folder, job, given.lang), _Preparing(job, given.lang), ranks)
    except BaseException:
        leave()
        raise
    if not ended.outcome.is_rank_lost:
        leave()
    if ranks.is_first:
        print_ending(ended, as_comment=view == "lines", lang=given.lang)
    elif ended.outcome.why == "failed" and ended.outcome.because is not None:
        _tell(ended.outcome.because, given.lang)
    if ended.outcome.is_rank_lost:
        sys.stdout.flush()
        os._exit(LOST)  # to close a connection whose other end is gone may take forever
    return exit_code(ended.outcome)


def exit_code(outcome: Outcome) -> int:
    """0 done, 1 failed or not on disk, 130 or 143 stopped by a signal after saving."""
    if outcome.why == "failed" or outcome.unsaved:
        return 1
    return 0 if outcome.signal is None else 128 + outcome.signal


def chosen_view(asked: str | None) -> str:
    is_screen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if asked == "live" and not is_screen:
        raise UsageError(
            Fault(
                msg("the live view needs a terminal"),
                where=msg("{option:code}", option="--view=live"),
                fix=msg("use {option:code}", option="--view=lines"),
            )
        )
    return asked or ("live" if is_screen else "lines")


class _Preparing:
    """Says once for each stage that a corpus is being made ready, so that nobody wonders what takes so long."""

    def __init__(self, job: Job, lang: str):
        self._dataset, self._lang = job.settings.config.dataset, lang
        self._said: set[str] = set()

    def __call__(self, progress: DataProgress) -> None:
        if progress.stage in self._said:
            return
        self._said.add(progress.stage)
        from nanolens.cli import say

        print(say(self._sentence(progress), self._lang), file=sys.stderr, flush=True)

    def _sentence(self, progress: DataProgress) -> Message:
        about = {"dataset": self._dataset, "size": progress.total_bytes}
        match progress.stage:
            case "download":
                return msg("downloading {dataset:code} ({size:bytes}), once", **about)
            case "vocabulary":
                return msg("collecting the vocabulary of {dataset:code} ({size:bytes}), once", **about)
            case _:
                return msg("turning {dataset:code} into tokens ({size:bytes}), once", **about)


def _views(view: str, progress: Progress, folder: Path, job: Job, lang: str) -> Iterable[Listener]:
    if view == "lines":
        from nanolens.show.lines import LineView

        return [LineView(progress, sys.stdout, folder=str(folder), log_interval=job.settings.config.log_interval, lang=lang)]
    from rich.console import Console

    from nanolens.record.store import as_typed
    from nanolens.show.live import LiveView

    hint = msg("Ctrl-C saves and stops · from any terminal: {watch:code}", watch=f"nanolens watch {as_typed(folder)}")
    return [LiveView(progress, Console(), hint=hint, lang=lang)]


def _detach(given: Namespace, job: Job) -> int:
    from nanolens.api.training import settle_folder
    from nanolens.cli import say
    from nanolens.session.detach import detach

    folder = settle_folder(job)
    kept = [(key, value) for key, value in given.overrides if key not in ("out_dir", "overwrite")]
    source = [] if given.source is None else [given.source]
    started = detach(
        folder,
        [
            "train",
            *source,
            *(f"--{key}={value}" for key, value in kept),
            f"--out_dir={folder}",
            "--view=lines",
            f"--lang={given.lang}",
            *([] if given.devices is None else [f"--devices={given.devices}", f"--max_restarts={given.max_restarts}"]),
        ],
    )
    if started.exit_code:
        print(started.words, file=sys.stderr)
        return started.exit_code
    said = [
        msg("training goes on in the background as process {pid:code}", pid=started.pid)
        if started.has_started
        else msg("process {pid:code} is getting ready in the background", pid=started.pid),
        msg("  look:  {command:code}", command=f"nanolens watch {folder}"),
        msg("  stop:  {command:code}", command=f"nanolens stop {folder}"),
        msg("  lines: {path:code}", path=str(started.log)),
    ]
    if started.exit_code == 0:
        said[0] = msg("process {pid:code} trained in the background and is done", pid=started.pid)
    print("\n".join(say(line, given.lang) for line in said))
    return 0
