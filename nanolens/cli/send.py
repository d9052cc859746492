"""nanolens send RUN | LOG --to=tensorboard|wandb|trackio|mlflow"""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from nanolens.cli.arguments import Parser
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from rich.progress import Progress

    from nanolens.trackers.sender import Sent

HELP = msg("send a run, or the log of another trainer, to TensorBoard, Weights & Biases, trackio or MLflow")
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")


def arguments(parser: Parser) -> None:
    parser.add_argument("target", metavar="RUN | LOG", help=msg("a run folder or its name, or a log of any trainer"))
    parser.add_argument("--to", required=True, choices=TRACKERS, help=msg("the tracker"))
    parser.add_argument("--project", metavar="NAME", help=msg("project there; otherwise that of the run, or nanolens"))
    parser.add_argument("--name", metavar="NAME", help=msg("what the run is called there; otherwise its own name"))
    parser.add_argument("--config", metavar="FILE", help=msg("the config of the log: TOML, JSON or nanoGPT's .py"))
    parser.add_argument("--hardware", metavar="NAME", help=msg('the device, as you would say it: "RTX 4070", "8x H100", "laptop CPU"'))
    parser.takes_settings()
    parser.add_argument("--follow", action="store_true", help=msg("go on until the run has ended"))
    parser.add_argument("--again", action="store_true", help=msg("send all of it once more, as a new run of the tracker"))


def run(given: Namespace) -> int:
    from nanolens.cli import say
    from nanolens.trackers.sender import send

    bar = Bar(given.to)
    try:
        sent = send(
            given.target, given.to, project=given.project, name=given.name, again=given.again, config=given.config, hardware=given.hardware,
            known=given.overrides, follow=given.follow, on_progress=bar,
        )  # fmt: skip
    finally:
        bar.close()
    for said in words_of(sent):
        print(say(said, given.lang))
    return 1 if sent.complaints else 0


def words_of(sent: Sent) -> list[Message]:
    if sent.rows:
        said = [
            msg("{rows:count} steps went to {tracker:code}, up to step {step:count}", rows=sent.rows, tracker=sent.tracker, step=sent.step)
        ]
    else:
        said = [msg("{tracker:code} already has it all, up to step {step:count}", tracker=sent.tracker, step=sent.step)]
    if sent.repeated:
        said.append(msg("{count:count} steps were done twice; {tracker:code} keeps the first", count=sent.repeated, tracker=sent.tracker))
    said += [msg("{tracker:code} complained: {complaint}", tracker=sent.tracker, complaint=each) for each in sent.complaints]
    return [*said, msg("look at it with {look:code}", look=sent.look)]


class Bar:
    """A progress bar on a terminal, and nothing elsewhere."""

    def __init__(self, tracker: str):
        self._tracker = tracker
        self._progress: Progress | None = None

    def __call__(self, done: float, whole: float) -> None:
        if not sys.stderr.isatty() or not whole:
            return
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._progress.start()
            self._task = self._progress.add_task(self._tracker, total=whole)
        self._progress.update(self._task, completed=done, total=whole)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
