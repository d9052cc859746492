"""Events, or the columns of any run, become one Row per step.

The names are nanoGPT's where it has one (`train/loss`, `val/loss`, `lr`, and `mfu` in per cent), so that panels made
for nanoGPT go on working. `train/loss` and `val/loss` are evaluations; the loss of a single update is `batch/loss`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanolens.config.names import IN_PERCENT, TRACKER_COLUMNS
from nanolens.message import Message
from nanolens.record import events as e
from nanolens.record.run import Evals, RunRecord, Steps
from nanolens.show.answer import fenced
from nanolens.show.words import say
from nanolens.trackers import MetricRow

Notice = Callable[[e.Event], Message | None]
_ALSO = {"learning_rate": "lr", "train_loss": "loss", "train/loss": "loss", "val_loss": "val", "val/loss": "val"}
_NO_NUMBERS = ("printed", "mark", "text")  # of a Logged event: words about it
_STEP_COLUMNS = "loss lr grad_norm clipped tokens took_s data_s tokens_per_s mfu_frac loss_scale memory_bytes".split()
_EVAL_COLUMNS = "train val train_se val_se val_bits_per_byte took_s".split()


def named(values: Mapping[str, float]) -> dict[str, float]:
    return {
        TRACKER_COLUMNS.get(name, name): value * 100 if name in IN_PERCENT else value for name, value in values.items()
    }


@dataclass
class Draft:
    """The step whose events are still coming in, and before it what was recorded since the last one."""

    step: int | None = None
    begins_at: int = 0  # byte offset of its first event
    at_s: float = math.nan
    values: dict[str, float] = field(default_factory=dict)  # by our names
    texts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rewound:
    """The run went back to this step; what it had recorded beyond it does not count."""

    step: int


class Translator:
    """Takes events in the order of the record, gives whole rows: a step's row comes when the next step begins.

    `flops_per_token` and `peak_flops` make the MFU; without both there is none. `notice` gives the words for what a
    person should know of, None for everything else."""

    def __init__(self, flops_per_token: float | None, peak_flops: float | None, notice: Notice = lambda event: None):
        self._flops, self._peak, self._notice = flops_per_token, peak_flops, notice
        self.draft = Draft()
        self.ended: e.RunEnded | None = None

    def take(self, event: e.Event, at: int) -> Iterator[MetricRow | Rewound]:
        """`at` is the event's byte offset. What stands before `safe_offset` need not be read again."""
        if event.rank:
            return
        if isinstance(event, e.StepTaken | e.Evaluated | e.Logged | e.SampleWritten):
            if self.draft.step != event.step:
                yield from self.rest()
                self.draft.step, self.draft.begins_at = event.step, at
            self.draft.at_s = event.at_s or math.nan
        elif isinstance(event, e.RunStarted | e.RolledBack):
            step = event.to_step if isinstance(event, e.RolledBack) else event.step
            if self.draft.step is not None and self.draft.step > step:
                self.draft = Draft()
            yield from self.rest()
            yield Rewound(step)
            self.ended = None
        values, texts = self.draft.values, self.draft.texts
        match event:
            case e.StepTaken():
                values.update(self._of_step(event))
            case e.Evaluated():
                values.update(_of_evaluation(event, values))
            case e.Logged():
                values.update(_of_logged(event))
            case e.SampleWritten():
                texts["sample"] = fenced(event.text)
            case e.CheckpointSaved():  # recorded when it is written, some steps later, and shown there
                values.update(stall_s=event.stall_s, write_s=event.write_s, bytes=event.bytes, saved_step=event.step)
            case e.Chosen(what="peak_flops"):
                self._peak = float(event.value)
            case e.RunEnded():
                self.ended = event
        if (words := self._notice(event)) is not None:
            texts["notices"] = f"{texts['notices']}\n\n{say(words)}" if "notices" in texts else say(words)

    def rest(self) -> Iterator[MetricRow]:
        """The last step, when no more will come of it."""
        if self.draft.step is not None:
            row = MetricRow(self.draft.step, self.draft.at_s, named(self.draft.values), self.draft.texts)
            self.draft = Draft()
            yield row

    def safe_offset(self, read_to: int) -> int:
        return read_to if self.draft.step is None else self.draft.begins_at

    def _of_step(self, event: e.StepTaken) -> dict[str, float]:
        values = {name: float(value) for name in _STEP_COLUMNS if (value := getattr(event, name, None)) is not None}
        if event.took_s > 0:
            values["tokens_per_s"] = event.tokens / event.took_s
            if self._flops and self._peak:
                values["mfu_frac"] = values["tokens_per_s"] * self._flops / self._peak
        return values


def _of_evaluation(event: e.Evaluated, so_far: Mapping[str, float]) -> dict[str, float]:
    split = event.split
    values = {split: float(event.loss)}
    if not math.isnan(error := float(event.standard_error)):
        values[f"{split}_se"] = error
    if event.bits_per_byte is not None:
        values[f"{split}_bits_per_byte"] = float(event.bits_per_byte)
    if event.took_s:
        values["eval_s"] = so_far.get("eval_s", 0.0) + event.took_s
    return values


def _of_logged(event: e.Logged) -> dict[str, float]:
    """Names that we know are ours, others stay as the loop called them; what is no number is left out."""
    values = {}
    for name, value in event.values.items():
        if name not in _NO_NUMBERS:
            with contextlib.suppress(ValueError):
                values[_ALSO.get(name, name)] = float(value)
    return values


def rows_of(run: RunRecord) -> Iterator[MetricRow]:
    """Each step of a run from anywhere, with what the source says of it and nothing else."""
    samples = {mark.step: mark.text for mark in run.marks if mark.kind == "sample" and mark.step is not None}
    steps = {int(step): index for index, step in enumerate(run.steps.step)}
    evals = {int(step): index for index, step in enumerate(run.evals.step)}
    for step in sorted({*steps, *evals, *samples}):
        values: dict[str, float] = {}
        at_s = math.nan
        if (index := steps.get(step)) is not None:
            values |= _said(run.steps, index, _STEP_COLUMNS, {"loss": 1, "grad_norm": 2})
            at_s = float(run.steps.at_s[index])
        if (index := evals.get(step)) is not None:
            evaluated = _said(run.evals, index, _EVAL_COLUMNS, {"train": 1, "val": 2})
            values |= {"eval_s" if name == "took_s" else name: value for name, value in evaluated.items()}
            at_s = at_s if math.isfinite(at_s) else float(run.evals.at_s[index])
        if values.get("took_s", 0) > 0 and "tokens" in values:
            values.setdefault("tokens_per_s", values["tokens"] / values["took_s"])
        texts = {"sample": fenced(samples[step])} if step in samples else {}
        if values or texts:
            yield MetricRow(step, at_s, named(values), texts)


def _said(table: Steps | Evals, index: int, columns: Sequence[str], not_finite: Mapping[str, int]) -> dict[str, float]:
    """The cells of a row that say something: a NaN counts where the source printed one."""
    bad = int(np.nan_to_num(table.not_finite[index]))
    cells = {name: float(getattr(table, name)[index]) for name in columns}
    return {name: value for name, value in cells.items() if not math.isnan(value) or bad & not_finite.get(name, 0)}
