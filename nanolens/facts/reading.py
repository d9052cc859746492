"""What was read of a source, in one sentence and as figures: the first thing that every answer says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.sentences import trainer_name
from nanolens.facts.timing import is_first
from nanolens.message import Message, msg

UNITS = {
    "bits_per_token": msg("bits per token"),
    "bits_per_char": msg("bits per character"),
    "bits_per_byte": msg("bits per byte"),
    "perplexity": msg("perplexity"),
}


@dataclass(frozen=True)
class WhatWasRead:
    sentence: Message
    runs: int
    updates: int  # with a loss
    evaluations: int
    rows: int
    first: Mapping[str, float | str] | None  # as printed
    last: Mapping[str, float | str] | None
    last_eval: Mapping[str, float | str] | None
    unit: str  # of the losses as printed
    first_loss_nats: float | None
    last_loss_nats: float | None
    step_time_s: float | None
    tokens_per_s: float | None
    tokens_per_update: int | None
    lines: int
    not_understood: int
    examples: Sequence[str]
    duplicates: int
    glued: int
    cut: int
    notes: Sequence[Message]


def what_was_read(case: Case) -> WhatWasRead:
    run, reading = case.run, case.run.reading
    steps = run.steps
    has_loss = np.flatnonzero(~np.isnan(steps.loss) | np.isin(steps.not_finite, (1.0, 3.0)))
    tokens, took = case.tokens_per_update, case.step_time
    return WhatWasRead(
        sentence=sentence(case, len(has_loss)),
        runs=reading.runs,
        updates=len(has_loss),
        evaluations=len(run.evals),
        rows=reading.rows or len(steps),
        first=reading.first or (_row(case, has_loss[0]) if len(has_loss) else None),
        last=reading.last or (_row(case, has_loss[-1]) if len(has_loss) else None),
        last_eval=reading.last_eval or _evaluation(case),
        unit=reading.unit,
        first_loss_nats=_finite(steps.loss[has_loss[0]]) if len(has_loss) else None,
        last_loss_nats=_finite(steps.loss[has_loss[-1]]) if len(has_loss) else None,
        step_time_s=reading.step_time_s if took is None else took.value,
        tokens_per_s=_speed(steps.tokens_per_s[~is_first(case)], reading.device_tokens_per_s),
        tokens_per_update=None if tokens is None else round(tokens.value),
        lines=reading.lines,
        not_understood=reading.not_understood,
        examples=reading.examples,
        duplicates=reading.duplicates,
        glued=reading.glued,
        cut=reading.cut,
        notes=reading.notes,
    )


def what_was_said(case: Case) -> tuple[Message, ...]:
    """What an answer begins with; nothing where nothing has happened yet."""
    return () if case.is_ahead else (sentence(case, updates_with_loss(case)), *case.run.reading.notes)


def updates_with_loss(case: Case) -> int:
    steps = case.run.steps
    return int(np.sum(~np.isnan(steps.loss) | np.isin(steps.not_finite, (1.0, 3.0))))


def _row(case: Case, row: int) -> dict[str, float | str]:
    loss = float(case.run.steps.loss[row])
    return {"step": int(case.run.steps.printed[row]), "loss": loss if math.isfinite(loss) else str(loss)}


def _evaluation(case: Case) -> dict[str, float | str] | None:
    evals = case.run.evals
    if not len(evals):
        return None
    losses = {name: float(getattr(evals, name)[-1]) for name in ("train", "val")}
    return {"step": int(evals.step[-1]), **{name: loss for name, loss in losses.items() if math.isfinite(loss)}}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _speed(printed: np.ndarray, of_device: float | None) -> float | None:
    """The median of what is printed; between two of them, and of fractions, to one part in ten thousand."""
    finite = printed[np.isfinite(printed)]
    speed = float(np.median(finite)) if len(finite) else of_device
    if speed is None or speed <= 0 or speed.is_integer() or speed < 1000:
        return speed
    power = 10.0 ** math.floor(math.log10(speed / 1e4))
    quantum = max(1.0, next(step * power for step in (5, 2, 1) if step * power <= speed / 1e4))
    return float(round(speed / quantum) * quantum)


def sentence(case: Case, updates: int) -> Message:
    """ "Read 41 updates (step 400 to 3,000) and 2 evaluations of one run written by Megatron-LM; …" """
    run, reading, trainer = case.run, case.run.reading, trainer_name(case)
    what = _rows_read(case, updates)
    if reading.runs > 1:
        whole = msg(
            "Read {what} of the run in lines {span}, one of {runs:count} in this text, written by {trainer}",
            what,
            reading.span,
            reading.runs,
            trainer,
        )
    else:
        whole = msg("Read {what} of one run written by {trainer}", what, trainer)
    if reading.unit in UNITS:
        whole = msg("{read}; losses printed as {unit}, here in nats", whole, UNITS[reading.unit])
    if not reading.not_understood:
        return msg("{read}.", whole)
    skipped, lines = run.reading.not_understood, run.reading.lines
    return msg("{read}; {skipped:count} of {lines:count line|lines} not understood.", whole, skipped, lines)


def _rows_read(case: Case, updates: int) -> Message:
    parts, steps = [], case.run.steps.step
    if updates:
        count = msg("{updates:count update|updates}", updates)
        first, last = int(steps[0]), int(steps[-1])
        span = (
            msg("step {first:count} to {last:count}", first, last) if last > first else msg("step {step:count}", first)
        )
        parts.append(msg("{updates} ({span})", count, span))
    elif len(steps):
        parts.append(msg("{rows:count update|updates} without a loss", len(steps)))
    if len(case.run.evals):
        parts.append(msg("{count:count evaluation|evaluations}", len(case.run.evals)))
    if len(parts) == 2:
        return msg("{one} and {other}", parts[0], parts[1])
    return parts[0] if parts else msg("no losses")
