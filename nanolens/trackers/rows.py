"""Events, or the columns of any run, become one Row per step.

The names are nanoGPT's where it has one (`train/loss`, `val/loss`, `lr`, and `mfu` in per cent), so that panels made for nanoGPT go on
working. `train/loss` and `val/loss` are evaluations; the loss of a single update is `batch/loss`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanolens.interop.trackers import Row
from nanolens.record import events as e
from nanolens.record.run import Run

NAMES = {
    "loss": "batch/loss",
    "grad_norm": "batch/grad_norm",
    "clipped": "batch/clipped",
    "tokens": "batch/tokens",
    "loss_scale": "batch/loss_scale",
    "rate": "lr",
    "took_s": "speed/step_s",
    "data_s": "speed/data_s",
    "tokens_per_s": "speed/tokens_per_s",
    "mfu_frac": "mfu",
    "memory_bytes": "speed/memory_bytes",
    "train": "train/loss",
    "train_se": "train/loss_se",
    "train_bits_per_byte": "train/bits_per_byte",
    "val": "val/loss",
    "val_se": "val/loss_se",
    "val_bits_per_byte": "val/bits_per_byte",
    "eval_s": "speed/eval_s",
    "stall_s": "checkpoint/stall_s",
    "write_s": "checkpoint/write_s",
    "bytes": "checkpoint/bytes",
    "saved_step": "checkpoint/step",
}
"""Our columns, and what a tracker calls them."""

IN_PERCENT = ("mfu_frac",)
_ALSO = {"lr": "rate", "learning_rate": "rate", "train_loss": "loss", "train/loss": "loss", "val_loss": "val", "val/loss": "val"}
_NO_NUMBERS = ("printed", "mark", "text")  # of a Logged event: words about it


def named(values: Mapping[str, float]) -> dict[str, float]:
    return {NAMES.get(name, name): value * 100 if name in IN_PERCENT else value for name, value in values.items()}


@dataclass
class Draft:
    """The step whose events are still coming in."""

    step: int
    begins_at: int  # byte offset of its first event
    at_s: float = math.nan
    values: dict[str, float] = field(default_factory=dict)  # by our names
    texts: dict[str, str] = field(default_factory=dict)

    def row(self) -> Row:
        return Row(self.step, self.at_s, named(self.values), dict(self.texts))


@dataclass(frozen=True)
class Rewound:
    """The run went back to this step; what it had told beyond it does not count."""

    step: int


class Translator:
    """Takes events in the order of the record, gives whole rows: a step's row comes when the next step begins.

    `flops_per_token` and `peak_flops` make the MFU; without both there is none. `notice` gives the words for what a person should be told
    of, None for everything else.
    """

    def __init__(
        self, flops_per_token: float | None, peak_flops: float | None, notice: Callable[[e.Event], str | None] = lambda event: None
    ):
        self._flops, self._peak, self._notice = flops_per_token, peak_flops, notice
        self.draft: Draft | None = None
        self.ended: e.RunEnded | None = None
        self._early = Draft(-1, 0)  # what was told between two steps, and is shown at the next

    def take(self, event: e.Event, at: int) -> Iterator[Row | Rewound]:
        """`at` is the event's byte offset. What stands before `safe_offset` need not be read again."""
        if event.rank:
            return
        match event:
            case e.RunStarted() | e.RolledBack():
                yield from self._back_to(event.to_step if isinstance(event, e.RolledBack) else event.step)
                self.ended = None
            case e.StepTaken():
                yield from self._at_step(event.step, at, event.at_s)
                self._put(self._of_step(event))
            case e.Evaluated():
                yield from self._at_step(event.step, at, event.at_s)
                self._put(_of_evaluation(event, self._values))
            case e.Logged():
                yield from self._at_step(event.step, at, event.at_s)
                self._put(_of_logged(event))
            case e.SampleWritten():
                yield from self._at_step(event.step, at, event.at_s)
                self._texts["sample"] = quoted(event.text)
            case e.CheckpointSaved():  # told when it is written, some steps later, and shown there
                self._put({"stall_s": event.stall_s, "write_s": event.write_s, "bytes": event.bytes, "saved_step": event.step})
            case e.Chosen(what="peak_flops"):
                self._peak = float(event.value)
            case e.RunEnded():
                self.ended = event
            case _:
                pass
        if said := self._notice(event):
            before = self._texts.get("notices")
            self._texts["notices"] = f"{before}\n\n{said}" if before else said

    def rest(self) -> Iterator[Row]:
        """The last step, when no more will come of it."""
        if self.draft is not None:
            yield self.draft.row()
            self.draft = None

    def safe_offset(self, read_to: int) -> int:
        return read_to if self.draft is None else self.draft.begins_at

    def _at_step(self, step: int, at: int, at_s: float) -> Iterator[Row]:
        if self.draft is not None and self.draft.step != step:
            yield self.draft.row()
            self.draft = None
        if self.draft is None:
            self.draft = Draft(step, at, values=self._early.values, texts=self._early.texts)
            self._early = Draft(-1, 0)
        self.draft.at_s = at_s or math.nan

    def _back_to(self, step: int) -> Iterator[Row | Rewound]:
        if self.draft is not None and self.draft.step <= step:
            yield self.draft.row()
        self.draft = None
        yield Rewound(step)

    def _put(self, values: Mapping[str, float]) -> None:
        self._values.update(values)

    @property
    def _values(self) -> dict[str, float]:
        return (self.draft or self._early).values

    @property
    def _texts(self) -> dict[str, str]:
        return (self.draft or self._early).texts

    def _of_step(self, event: e.StepTaken) -> dict[str, float]:
        values = {
            "loss": float(event.loss), "rate": event.rate, "grad_norm": float(event.grad_norm), "clipped": float(event.clipped),
            "tokens": float(event.tokens), "took_s": event.took_s, "data_s": event.data_s,
        }  # fmt: skip
        if event.loss_scale is not None:
            values["loss_scale"] = event.loss_scale
        if event.memory_bytes is not None:
            values["memory_bytes"] = float(event.memory_bytes)
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
        if name in _NO_NUMBERS:
            continue
        try:
            values[_ALSO.get(name, name)] = float(value)
        except ValueError:
            continue
    return values


def quoted(text: str) -> str:
    """A text to be shown letter by letter, in Markdown: as a block, whose fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


_STEP_COLUMNS = (
    "loss",
    "rate",
    "grad_norm",
    "clipped",
    "tokens",
    "took_s",
    "data_s",
    "tokens_per_s",
    "mfu_frac",
    "loss_scale",
    "memory_bytes",
)
_EVAL_COLUMNS = {
    "train": "train", "val": "val", "train_se": "train_se", "val_se": "val_se", "val_bits_per_byte": "val_bits_per_byte",
    "took_s": "eval_s",
}  # fmt: skip


def rows_of(run: Run) -> Iterator[Row]:
    """Each step of a run from anywhere, with what the source says of it and nothing else."""
    samples = {mark.step: mark.text for mark in run.marks if mark.kind == "sample" and mark.step is not None}
    steps = {int(step): index for index, step in enumerate(run.steps.step)}
    evals = {int(step): index for index, step in enumerate(run.evals.step)}
    for step in sorted({*steps, *evals, *samples}):
        values: dict[str, float] = {}
        at_s = math.nan
        if (index := steps.get(step)) is not None:
            values |= _said(run.steps, index, {name: name for name in _STEP_COLUMNS}, {"loss": 1, "grad_norm": 2})
            at_s = float(run.steps.at_s[index])
        if (index := evals.get(step)) is not None:
            values |= _said(run.evals, index, _EVAL_COLUMNS, {"train": 1, "val": 2})
            at_s = at_s if math.isfinite(at_s) else float(run.evals.at_s[index])
        if values.get("took_s", 0) > 0 and "tokens" in values:
            values.setdefault("tokens_per_s", values["tokens"] / values["took_s"])
        texts = {"sample": quoted(samples[step])} if step in samples else {}
        if values or texts:
            yield Row(step, at_s, named(values), texts)


def _said(table: Any, index: int, names: Mapping[str, str], not_finite: Mapping[str, int]) -> dict[str, float]:
    """The cells of a row that say something: a NaN counts where the source printed one."""
    bad = float(np.nan_to_num(table.not_finite[index]))
    found = {}
    for column, name in names.items():
        value = float(getattr(table, column)[index])
        if not math.isnan(value) or int(bad) & not_finite.get(column, 0):
            found[name] = value
    return found
