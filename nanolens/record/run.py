"""A Run: one training, as columns of numbers and named facts, whoever made it.

`record.read` makes it from our own folders, `logs` from what other trainers print; every feature of the reading room
starts here. Columns hold NaN where the source does not say; what was not said is never filled in by a guess."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from nanolens.errors import require
from nanolens.message import Message

Column = np.ndarray


@dataclass(frozen=True)
class RowColumns:
    step: Column  # int64: updates done, of a row for an update this one included

    def __len__(self) -> int:
        return len(self.step)

    def to_pandas(self) -> Any:
        """A DataFrame of these columns, without the losses of single batches."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        kept = {name: column for name, column in columns.items() if not isinstance(column, tuple)}
        return require("pandas", "pandas").DataFrame(kept)


@dataclass(frozen=True)
class Steps(RowColumns):
    """One row per update that the source tells of, in order, later attempts in place of the steps they repeated."""

    loss: Column  # batch loss in nats per token, in the sense of `RunRecord.conventions.loss`
    lr: Column  # learning rate
    grad_norm: Column  # before clipping
    took_s: Column  # as the source gives it; `RunRecord.conventions.time` says what else is inside
    tokens: Column  # tokens of this update, all devices
    tokens_per_s: Column  # as printed
    mfu_frac: Column  # as printed, against `RunRecord.conventions.peak_flops`; NaN for placeholders such as -100 %
    at_s: Column  # instant, seconds since 1970, or NaN
    line: Column  # int64: line of the source (from 1), or number of the event
    printed: Column  # int64: the number that the source prints for this row (nanoGPT's `iter`), for speaking of it
    clipped: Column  # 1.0, 0.0, or NaN where unknown
    data_s: Column
    loss_scale: Column
    memory_bytes: Column
    # 1.0 where the loss was said and is NaN or infinite, 2.0 the gradient norm, 3.0 both; else 0.0 or NaN
    not_finite: Column


@dataclass(frozen=True)
class Evals(RowColumns):
    """One row per evaluation (both splits together)."""

    train: Column
    val: Column
    train_se: Column  # standard errors, where per-batch losses were kept
    val_se: Column
    took_s: Column
    val_bits_per_byte: Column
    at_s: Column
    line: Column
    printed: Column
    # 1.0 where the train loss was said and is NaN or infinite, 2.0 the val loss, 3.0 both; else 0.0 or NaN
    not_finite: Column
    batches: tuple[str, ...] = ()  # fingerprint of the val tokens of each row, where kept
    val_batch_losses: tuple[Column, ...] = ()  # per-batch val losses of each row, where kept
    train_batch_losses: tuple[Column, ...] = ()


Origin = Literal["recorded", "given", "printed", "inferred", "measured", "calculated", "estimated", "unknown"]
"""Where a number comes from. Facts of a run: our own record, the user, the log's text, or a named formula or published
config. Figures of a plan: the user, a measurement on this machine, exact arithmetic, a law with a range, or nowhere."""


@dataclass(frozen=True)
class Known:
    value: object
    origin: Origin
    where: str = ""  # "line 3", "--hardware", "known.toml", or the formula


@dataclass(frozen=True)
class Mark:
    """Something that happened at a place: kinds are listed in MARKS."""

    kind: str
    step: int | None
    line: int
    text: str = ""
    took_s: float = float("nan")
    # of a resume that did steps again: the loss of one of them in the attempt before, and in this one
    was: float = float("nan")
    now: float = float("nan")
    is_eval: bool = False  # whether both are evaluations


MARKS = (
    "checkpoint",  # weights were saved
    "resume",  # an attempt began from a checkpoint
    "attempt",  # the log starts again from an earlier step
    "compile",
    "skip",  # a step was kept from the weights
    "rollback",
    "out_of_memory",
    "error",  # a traceback or an error line; text holds it
    "sentinel",  # a placeholder that looks like a number: mfu -100 %, (+nanz), step_avg:nanms
    "chosen",  # our own runs: a decision of the program
    "config_change",
    "warned",
    "lost",  # events that could not be written
    "sample",
    "ended",
    "checkpoint_failed",
    "checkpoint_refused",  # a damaged one was passed over
    "micro_batch_halved",  # out of memory, and the run went on
    "rank_drifted",
    "rank_lost",  # one died, hung or could not be reached; text says which
)


@dataclass(frozen=True)
class Conventions:
    """How this trainer's numbers translate into ours (see `record/events.py`)."""

    trainer: str  # "nanolens", "nanogpt", "nanochat", "llm.c", …
    loss: Literal["mean", "last_micro_batch", "smoothed", "unknown"] = "unknown"
    time: Literal["step_only", "with_eval", "average", "unknown"] = "unknown"
    updates_before_printed: int = 0  # our step = printed number + this (nanoGPT's `iter 0` is our step 1)
    peak_flops: float | None = None  # what its printed MFU divides by, where that is fixed
    mfu_is_smoothed: bool = False
    eval_mode_off_dropout: bool = True  # evaluations run without dropout


@dataclass(frozen=True)
class Reading:
    lines: int = 0
    understood: int = 0
    not_understood: int = 0
    examples: tuple[str, ...] = ()  # a few lines that were not understood
    duplicates: int = 0  # repeated rows that were dropped (redraws, copies, ranks)
    glued: int = 0  # rows found in the middle of a line
    cut: int = 0  # rows that end early
    attempts: int = 1
    ranks: int = 1
    runs: int = 1  # runs in the same source, this one included
    span: str = ""  # the lines from its first row to its last, where there are several
    rows: int = 0  # rows of updates, those of micro-batches and of repeated steps included
    unit: str = "nats"  # of the losses as printed; ours are nats
    nats_per_unit: float = 1.0
    first: Mapping[str, float | str] = field(default_factory=dict)  # first row with a loss, as printed
    last: Mapping[str, float | str] = field(default_factory=dict)
    last_eval: Mapping[str, float | str] = field(default_factory=dict)
    step_time_s: float | None = None  # where only rows of evaluations tell it
    device_tokens_per_s: float | None = None  # where only the speed of one device is printed
    notes: tuple[Message, ...] = ()  # for the reader: an ambiguous format, a hardware match, keys that were not used


@dataclass(frozen=True)
class RunRecord:
    name: str
    conventions: Conventions
    steps: Steps
    evals: Evals
    known: Mapping[str, Known] = field(default_factory=dict)
    """Facts by name. nanoGPT's config names keep their meaning; besides them: vocab_size, dataset_tokens (train split),
    val_tokens, bytes_per_token, unigram_nats and bigram_nats (entropies of the train split), hardware, devices (how
    many), parameters (as printed), parameters_total, tokens_per_update, flops_per_token, peak_flops, peak_origin,
    torch, trainer_version, data_fingerprint, tokenizer_fingerprint, claimed_parameters, arch, wall_s, machine, state
    (running, finished, stopped, failed), comments (config comments and names that claim something)."""
    marks: tuple[Mark, ...] = ()
    reading: Reading = field(default_factory=Reading)
    time_parts: Mapping[str, float] = field(default_factory=dict)  # seconds by part of events.PARTS, where recorded

    def get(self, name: str, default: object = None) -> object:
        known = self.known.get(name)
        return default if known is None else known.value

    def number(self, name: str) -> float | None:
        """A known fact as a number, or None: a config may hold anything under any name."""
        return number_of(self.get(name))


def number_of(value: object) -> float | None:
    """A number as a float; None for what is none, text and True included."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def until(run: RunRecord, step: int) -> RunRecord:
    """The run as it stood when `step` updates were done. Where its seconds went is not known for a part of it."""
    steps = Steps(**{each.name: getattr(run.steps, each.name)[run.steps.step <= step] for each in fields(Steps)})
    seen = run.evals.step <= step
    columns = {each.name: getattr(run.evals, each.name) for each in fields(Evals)}
    for name, value in columns.items():  # a tuple has an item for each evaluation, or none
        columns[name] = value[seen] if isinstance(value, np.ndarray) else tuple(itertools.compress(value, seen))
    marks = tuple(mark for mark in run.marks if mark.step is None or mark.step <= step)
    return replace(run, steps=steps, evals=Evals(**columns), marks=marks, time_parts={})


def steps_from(rows: Mapping[str, object], count: int) -> Steps:
    """Steps from the columns at hand; the others are filled with NaN (0 for whole numbers)."""
    return Steps(**{f.name: _column(f.name, rows, count) for f in fields(Steps)})


def evals_from(rows: Mapping[str, object], count: int) -> Evals:
    kept = ("batches", "val_batch_losses", "train_batch_losses")
    columns = {f.name: _column(f.name, rows, count) for f in fields(Evals) if f.name not in kept}
    return Evals(**columns, **{name: tuple(rows[name]) for name in kept if name in rows})  # type: ignore[arg-type]


def _column(name: str, rows: Mapping[str, object], count: int) -> Column:
    whole = name in ("step", "line", "printed")
    if name not in rows:
        return np.zeros(count, np.int64) if whole else np.full(count, np.nan)
    return np.asarray(rows[name], dtype=np.int64 if whole else np.float64)
