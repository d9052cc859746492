"""nanoGPT's printed lines, for pipes, logs and the scripts that scrape them. The formats are nanoGPT's, digit for
digit; the meanings are ours, and the first line says so:

    # nanolens 0.1.0 run=runs/quickstart-1 loss=mean time=step_only updates_before_printed=1 mfu=unsmoothed ...
    step 0: train loss 4.1751, val loss 4.1762
    iter 0: loss 4.1790, time 55.12ms, mfu 60.10%

`iter k` is the update from step k to step k+1; its time is that of the update alone, its MFU is against the peak in the
first line. Whatever else a person should know follows a `#`, which scrapers pass over."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import IO

from nanolens.message import Message, msg
from nanolens.record import events as e
from nanolens.record.progress import Progress, RunHeader, Watching, notice, reason
from nanolens.show.document import clean
from nanolens.show.words import say

HEADER = "# nanolens "
NO_MFU = "-100.00%"  # what nanoGPT prints as long as it has none


class LineView:
    """A listener that writes nanoGPT's line for an event, or a comment where nanoGPT has none."""

    name = "lines"
    poll_s = 0.1

    def __init__(self, progress: Progress, stream: IO[str], *, folder: str, log_interval: int = 1, lang: str = "en"):
        self.progress = progress
        self._stream, self._folder, self._log_interval, self._lang = stream, folder, log_interval, lang
        self._train_loss: tuple[int, float] | None = None

    def __call__(self, event: e.Event) -> None:
        for line in self._lines(event) if not event.rank else ():
            text = "# " + clean(say(line, self._lang)) if isinstance(line, Message) else line
            self._stream.write(text + "\n")

    def tick(self) -> None:
        self._stream.flush()

    def _lines(self, event: e.Event) -> Iterator[str | Message]:
        """nanoGPT's lines; messages become comments."""
        match event:
            case e.RunStarted():
                yield header(self._folder, self.progress.about)
                if event.step:
                    yield msg("resumed at step {step:count}", event.step)
            case e.StepTaken() if (event.step - 1) % self._log_interval == 0:
                yield iter_line(event, self.progress.about)
            case e.Evaluated() if event.split == "train":
                self._train_loss = (event.step, float(event.loss))
            case e.Evaluated():
                train = self._train_loss[1] if self._train_loss and self._train_loss[0] == event.step else math.nan
                yield eval_line(event.step, train, float(event.loss))
            case e.CheckpointSaved():
                yield f"saving checkpoint to {self._folder}"
            case e.Chosen(what=what, value=value):
                yield msg("chosen: {what:code} = {value:code}, because {because}", what, value, reason(event))
            case _:
                if (said := notice(event)) is not None:
                    yield said


def follow_lines(watching: Watching, lang: str = "en") -> None:
    """The lines of a run that trains elsewhere, until it ends."""
    lines = LineView(watching.progress, sys.stdout, folder=str(watching.folder), lang=lang)
    while True:
        over = watching.is_over
        for event in watching.catch_up():
            lines(event)
        lines.tick()
        if over:
            return
        time.sleep(lines.poll_s)


def header(folder: str, about: RunHeader) -> str:
    """Says what the numbers mean (`record.run.Conventions`), so that nobody takes them for nanoGPT's own."""
    facts = {
        "run": folder,
        "loss": "mean",
        "time": "step_only",
        "updates_before_printed": 1,
        "mfu": "unsmoothed",
        "peak_flops": about.peak_flops and round(about.peak_flops),
        "peak_origin": about.peak_origin,
        "flops_per_token": about.flops_per_token and round(about.flops_per_token),
        "parameters_total": about.parameters and round(about.parameters),
        "tokens_per_update": about.tokens_per_update,
        "device": about.device,
        "dtype": about.dtype,
    }
    said = " ".join(f"{key}={shlex.quote(clean(str(value)))}" for key, value in facts.items() if value)
    return f"{HEADER}{version('nanolens')} {said}"


def iter_line(event: e.StepTaken, about: RunHeader) -> str:
    mfu = NO_MFU
    if about.flops_per_token and about.peak_flops and event.took_s > 0:
        mfu = f"{event.tokens / event.took_s * about.flops_per_token / about.peak_flops * 100:.2f}%"
    return f"iter {event.step - 1}: loss {float(event.loss):.4f}, time {event.took_s * 1000:.2f}ms, mfu {mfu}"


def eval_line(step: int, train: float, val: float) -> str:
    return f"step {step}: train loss {train:.4f}, val loss {val:.4f}"
