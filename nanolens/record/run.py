"""A Run: one training, as columns of numbers and named facts, whoever made it.

`record.read` makes it from our own folders, `interop` from the logs of other trainers; all of `analysis` and `present` starts here.
Columns hold NaN where the source does not say; what was not said is never filled in by a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from nanolens.errors import require
from nanolens.message import Message

Column = np.ndarray


@dataclass(frozen=True)
class Steps:
    """One row per update that the source tells of, in order, later attempts in place of the steps they repeated."""

    step: Column  # int64: updates done, this one included
    loss: Column  # batch loss in nats per token, in the sense of `Run.words.loss`
    rate: Column  # learning rate
    grad_norm: Column  # before clipping
    took_s: Column  # as the source gives it; `Run.words.time` says what else is inside
    tokens: Column  # tokens of this update, all devices
    tokens_per_s: Column  # as printed
    mfu_frac: Column  # as printed, against `Run.words.peak_flops`; NaN for placeholders such as -100 %
    at_s: Column  # instant, seconds since 1970, or NaN
    line: Column  # int64: line of the source (from 1), or number of the event
    printed: Column  # int64: the number that the source prints for this row (nanoGPT's `iter`), for speaking of it
    clipped: Column  # 1.0, 0.0, or NaN where unknown
    data_s: Column
    loss_scale: Column
    memory_bytes: Column
    not_finite: Column  # 1.0 where the loss was said and is NaN or infinite, 2.0 the gradient norm, 3.0 both; else 0.0 or NaN

    def __len__(self) -> int:
        return len(self.step)

    def to_pandas(self) -> Any:
        """A DataFrame of these columns."""
        return _frame(self)


@dataclass(frozen=True)
class Evals:
    """One row per evaluation (both splits together)."""

    step: Column  # int64: updates done
    train: Column
    val: Column
    train_se: Column  # standard errors, where per-batch losses were kept
    val_se: Column
    took_s: Column
    val_bits_per_byte: Column
    at_s: Column
    line: Column
    printed: Column
    not_finite: Column  # 1.0 where the train loss was said and is NaN or infinite, 2.0 the val loss, 3.0 both; else 0.0 or NaN
    batches: tuple[str, ...] = ()  # fingerprint of the val tokens of each row, where kept
    val_batch_losses: tuple[Column, ...] = ()  # per-batch val losses of each row, where kept
    train_batch_losses: tuple[Column, ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    def to_pandas(self) -> Any:
        """A DataFrame of these columns, without the losses of single batches."""
        return _frame(self)


def _frame(rows: Steps | Evals) -> Any:
    columns = {each.name: getattr(rows, each.name) for each in fields(rows)}
    return require("pandas", "pandas").DataFrame({name: column for name, column in columns.items() if not isinstance(column, tuple)})


Origin = Literal["recorded", "given", "printed", "inferred"]


@dataclass(frozen=True)
class Known:
    """A fact and where it comes from: our own record, the user (command line or config file), the log's text, or a named formula."""

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
    was: float = float("nan")  # of a resume that did steps again: the loss of one of them in the attempt before, and in this one
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
    "micro_batch_halved",  # out of memory, and mended
    "rank_drifted",
    "rank_lost",  # one died, hung or could not be reached; text says which
)


@dataclass(frozen=True)
class Words:
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
    """How well the source was understood."""

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
    notes: tuple[Message, ...] = ()  # what a reader should know: an ambiguous format, a hardware match, keys that were not used


@dataclass(frozen=True)
class Run:
    name: str
    words: Words
    steps: Steps
    evals: Evals
    known: Mapping[str, Known] = field(default_factory=dict)
    """Facts by name. nanoGPT's config names keep their meaning; besides them: vocab_size, dataset_tokens (train split), val_tokens,
    bytes_per_token, unigram_nats and bigram_nats (entropies of the train split), hardware, devices (how many), parameters (as printed),
    parameters_total, tokens_per_update, flops_per_token, peak_flops, peak_origin, torch, trainer_version, data_fingerprint,
    tokenizer_fingerprint, claimed_parameters, arch, wall_s, machine, state (running, finished, stopped, failed), comments
    (config comments and names that claim something)."""
    marks: tuple[Mark, ...] = ()
    reading: Reading = field(default_factory=Reading)
    time_parts: Mapping[str, float] = field(default_factory=dict)  # seconds by part of events.PARTS, where recorded

    def get(self, name: str, default: object = None) -> object:
        known = self.known.get(name)
        return default if known is None else known.value

    def number(self, name: str) -> float | None:
        """A known fact as a number, or None: a config may hold anything under any name."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value)


def until(run: Run, step: int) -> Run:
    """The run as it stood when `step` updates were done. Where its seconds went is not known for a part of it."""
    kept, seen = run.steps.step <= step, run.evals.step <= step
    steps = steps_from({f.name: getattr(run.steps, f.name)[kept] for f in fields(Steps)}, int(kept.sum()))
    columns: dict[str, object] = {}
    for each in fields(Evals):
        value = getattr(run.evals, each.name)
        if isinstance(value, np.ndarray):
            columns[each.name] = value[seen]
        elif len(value) == len(seen):  # a tuple with an item for each evaluation
            columns[each.name] = tuple(item for item, keep in zip(value, seen, strict=True) if keep)
    marks = tuple(mark for mark in run.marks if mark.step is None or mark.step <= step)
    return replace(run, steps=steps, evals=evals_from(columns, int(seen.sum())), marks=marks, time_parts={})


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
