"""Rows, facts and signs -> Runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from nanolens.interop.logs.door import Door, Found
from nanolens.interop.logs.given import Given, known_facts
from nanolens.interop.logs.names import setting_of
from nanolens.interop.logs.order import Attempt, OneRun, runs_in, without_copies
from nanolens.interop.logs.rows import Rows
from nanolens.interop.logs.table import counts_from_zero
from nanolens.message import Message, msg
from nanolens.record.run import Evals, Known, Mark, Reading, Run, Steps, Words, evals_from, steps_from

STEP_COLUMNS = (
    "step",
    "loss",
    "rate",
    "grad_norm",
    "took_s",
    "tokens",
    "tokens_per_s",
    "mfu_frac",
    "at_s",
    "loss_scale",
    "memory_bytes",
    "data_s",
)
EVAL_COLUMNS = ("train", "val", "val_bits_per_byte", "at_s")
_SAID_AT_THE_END = ("wall_s",)  # facts that are printed when a run is done
_END = 1 << 60


@dataclass(frozen=True)
class Counts:
    """What the reader has counted over the whole text."""

    lines: int = 0
    not_understood: int = 0
    examples: tuple[str, ...] = ()
    notes: tuple[Message, ...] = ()


def assemble(found: Found, door: Door, words: Words, given: Given, counts: Counts, name: str, ranks: dict[int, int]) -> list[Run]:
    """The runs of a text, in its order. A text without rows is a run without rows: its facts and signs may be all there is to say."""
    if door.place is not None:
        door.place(found)
    cleaned = without_copies(found, ranks)
    found = cleaned.found
    if door.is_general and words.updates_before_printed == 0 and counts_from_zero(found.steps.printed):
        words = replace(words, updates_before_printed=1)
    steps = _our_steps(found.steps, words.updates_before_printed)
    evals = _our_evals(found.evals, found.steps, steps)
    runs = runs_in(found, steps - words.updates_before_printed, evals, _length(given, found.steps))
    reading = Reading(
        lines=counts.lines, understood=counts.lines - counts.not_understood, not_understood=counts.not_understood,
        examples=counts.examples, duplicates=cleaned.duplicates, glued=cleaned.glued, cut=found.steps.cut + found.evals.cut,
        ranks=cleaned.ranks, runs=max(1, len(runs)), notes=(*counts.notes, *_notes(found, len(runs))),
    )  # fmt: skip
    whole = _Whole(found, door, words, steps, evals, reading, given)
    if not runs:
        return [_a_run(OneRun([Attempt()]), whole, name, found)]
    parts = _parts(runs, found)
    return [_a_run(run, whole, run.name or name, part) for run, part in zip(runs, parts, strict=True)]


@dataclass(frozen=True)
class _Whole:
    """Everything that was found, for the runs to be cut from."""

    found: Found
    door: Door
    words: Words
    steps: np.ndarray  # our step of each row
    evals: np.ndarray
    reading: Reading
    given: Given


def _our_steps(rows: Rows, before: int) -> np.ndarray:
    told = rows.columns.get("updates")
    return rows.printed + before if told is None else np.nan_to_num(told, nan=0.0).astype(np.int64)


def _our_evals(rows: Rows, updates: Rows, steps: np.ndarray) -> np.ndarray:
    """An evaluation without a number is of the weights between the rows around it."""
    told = rows.columns.get("updates")
    ours = rows.printed.copy() if told is None else np.nan_to_num(told, nan=-1.0).astype(np.int64)
    for index in np.flatnonzero(ours < 0).tolist():
        after = int(np.searchsorted(updates.at, rows.at[index]))
        done = int(steps[after - 1]) if after > 0 else 0
        ours[index] = max(done, int(steps[after]) - 1) if after < len(steps) and steps[after] > done else done
    return ours


def _parts(runs: Sequence[OneRun], found: Found) -> list[Found]:
    """The facts and signs of each run.

    One run's text ends at the next one's heading, or right behind its last row; then what a trainer prints when it is done still belongs
    to it. What the text's head says, before any row, speaks for all.
    """
    headings = sorted(sign.at for sign in found.signs if sign.kind == "run")
    parts, after, after_tail = [], -1, -1
    head = min(run.attempts[0].starts_at for run in runs)
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        if following is None:
            until = tail = _END
        else:
            end, start = run.attempts[-1].ends_at, following.attempts[0].starts_at
            heading = next((at for at in headings if end < at <= start), None)
            until, tail = (end, start - 1) if heading is None else (heading - 1, heading - 1)
        part = Found(quoted=found.quoted)
        for name, facts in found.facts.items():
            low, high = (after_tail, tail) if name in _SAID_AT_THE_END else (after, until)
            own = [fact for fact in facts if low < fact.at <= high or fact.at < head]
            if own:
                part.facts[name] = own
        part.signs = [sign for sign in found.signs if after < sign.at <= until]
        parts.append(part)
        after, after_tail = until, tail
    return parts


def _a_run(one: OneRun, whole: _Whole, name: str, part: Found) -> Run:
    found, firsts = whole.found, [attempt.first for attempt in one.attempts]
    before = whole.words.updates_before_printed
    steps = _merged([attempt.steps for attempt in one.attempts], firsts, whole.steps - before, np.ones(len(whole.steps)))
    is_real = np.isnan(found.evals.column("quoted"))
    evals = _merged([attempt.evals for attempt in one.attempts], firsts, whole.evals, is_real)
    step_rows, eval_rows, eval_steps = found.steps.take(steps), found.evals.take(evals), whole.evals[evals]
    if whole.door.finish is not None:
        step_rows = whole.door.finish(step_rows, eval_rows)
    step_rows.columns["step"] = _our_steps(step_rows, whole.words.updates_before_printed).astype(float)
    known = known_facts(part, whole.given, whole.words.trainer)
    _take_total(known, step_rows)
    marks = (
        *_signs(part, step_rows, eval_rows, eval_steps, before),
        *(Mark("attempt", attempt.first, attempt.line) for attempt in one.attempts[1:] if not attempt.is_resume),
        *_sentinels(step_rows),
    )
    reading = replace(whole.reading, attempts=len(one.attempts))
    in_order = _with_done_again(sorted(marks, key=lambda mark: mark.line), one, whole)
    return Run(name, whole.words, _steps(step_rows), _evals(eval_rows, eval_steps), known, in_order, reading)


def _with_done_again(marks: list[Mark], one: OneRun, whole: _Whole) -> tuple[Mark, ...]:
    """Only the last attempt's rows count; what the one before said of the same step is kept with the mark that stands between them."""
    for before, attempt in pairwise(one.attempts):
        again = _done_again(before, attempt, whole)
        places = [i for i, mark in enumerate(marks) if mark.kind in ("resume", "attempt") and before.line < mark.line <= attempt.line]
        if again is not None and places:
            marks[places[-1]] = replace(marks[places[-1]], was=again[0], now=again[1], is_eval=again[2])
    return tuple(marks)


def _done_again(before: Attempt, attempt: Attempt, whole: _Whole) -> tuple[float, float, bool] | None:
    """The first loss of both attempts for one step: an evaluation where there is one."""
    found = whole.found
    for rows, mine, its, steps, is_eval in (
        (found.evals.column("val"), attempt.evals, before.evals, whole.evals, True),
        (found.steps.column("loss"), attempt.steps, before.steps, whole.steps, False),
    ):
        earlier = {int(steps[i]): float(rows[i]) for i in its if np.isfinite(rows[i])}
        for i in mine:
            if int(steps[i]) in earlier and np.isfinite(rows[i]):
                return earlier[int(steps[i])], float(rows[i]), is_eval
    return None


def _merged(parts: Sequence[Sequence[int]], firsts: Sequence[int], step_of: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Rows of all attempts in the order of their steps; a later attempt takes the place of what it did again.

    Of rows with one step that are left, the weightier counts, and then the later.
    """
    kept = np.zeros(0, np.int64)
    for part, first in zip(parts, firsts, strict=True):
        kept = np.concatenate([kept[step_of[kept] < first], np.array(part, np.int64)])
    kept = kept[np.lexsort((kept, weight[kept], step_of[kept]))]
    is_last = np.append(np.diff(step_of[kept]) != 0, True) if len(kept) else np.zeros(0, bool)
    return kept[is_last]


def _take_total(known: dict[str, Known], steps: Rows) -> None:
    """`step 10/500` says how long the run is meant to be."""
    total = _total(steps)
    if total is not None and total > 0:
        known.setdefault("max_iters", Known(int(total), "printed", f"line {int(steps.line[-1])}"))


def _total(steps: Rows) -> float | None:
    total = steps.column("total")
    finite = total[np.isfinite(total)]
    return float(finite[-1]) if len(finite) else None


def _length(given: Given, steps: Rows) -> float | None:
    """How many updates a run was meant to have, by what is given or printed."""
    for key, value in (*given.facts.items(), *given.config.items()):
        if setting_of(key) == "max_iters" and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return _total(steps)


def _steps(rows: Rows) -> Steps:
    columns: dict[str, object] = {name: rows.columns[name] for name in STEP_COLUMNS if name in rows.columns}
    mfu = rows.column("mfu_frac")
    columns |= {"mfu_frac": np.where(_is_placeholder(mfu), np.nan, mfu), "not_finite": _not_finite(rows, "loss", "grad_norm")}
    return steps_from({**columns, "line": rows.line, "printed": rows.printed}, len(rows))


def _evals(rows: Rows, steps: np.ndarray) -> Evals:
    columns: dict[str, object] = {name: rows.columns[name] for name in EVAL_COLUMNS if name in rows.columns}
    printed = np.where(rows.printed < 0, steps, rows.printed)
    columns |= {"took_s": rows.column("eval_s"), "not_finite": _not_finite(rows, "train", "val")}
    return evals_from({**columns, "step": steps, "line": rows.line, "printed": printed}, len(rows))


def _is_placeholder(mfu: np.ndarray) -> np.ndarray:
    """-100 %: what several trainers print as long as they have no MFU."""
    return mfu <= -0.99


def _signs(part: Found, steps: Rows, evals: Rows, eval_steps: np.ndarray, before: int) -> list[Mark]:
    """Signs with the step at which they stand: that of the last row before them; of a resume, where the first row after it begins."""
    at = np.concatenate([steps.at, evals.at])
    order = np.argsort(at, kind="stable")
    at = at[order]
    done = np.concatenate([steps.columns["step"], eval_steps])[order]
    begun = np.concatenate([steps.columns["step"] - max(before, 1), eval_steps])[order]
    signs = [sign for sign in part.signs if sign.kind != "run"]
    following = np.searchsorted(at, np.array([sign.at for sign in signs], np.int64), side="right")
    marks = []
    for sign, after in zip(signs, following.tolist(), strict=True):
        place = sign.step
        if sign.kind == "resume" and after < len(at):
            place = int(begun[after])  # whatever number the text gives: the rows may be counted from another start, or be an epoch's
        elif place is None and after > 0:
            place = int(done[after - 1])
        marks.append(Mark(sign.kind, place, sign.line, sign.text, sign.took_s))
    return marks


def _sentinels(steps: Rows) -> list[Mark]:
    where = np.flatnonzero(_is_placeholder(steps.column("mfu_frac")))
    return [Mark("sentinel", int(steps.columns["step"][i]), int(steps.line[i]), "mfu -100%") for i in where.tolist()]


def _not_finite(rows: Rows, first: str, second: str) -> np.ndarray:
    """1 where the first is printed as "nan" or "inf", 2 the second, 3 both: elsewhere NaN in a column means that nothing was said."""
    nowhere = np.zeros(len(rows), bool)
    return 1.0 * rows.not_finite.get(first, nowhere) + 2.0 * rows.not_finite.get(second, nowhere)


def _notes(found: Found, runs: int) -> list[Message]:
    notes = []
    if runs > 1:
        notes.append(
            msg(
                "this log holds {runs:count} runs; each can be compared with the others, and the one that got furthest is read here",
                runs=runs,
            )
        )
    if found.quoted:
        notes.append(msg("{count:count} evaluations were read from a series that is quoted in a note", count=found.quoted))
    if "steps_counted" in found.facts:
        notes.append(msg("the rows have no step numbers; they were counted"))
    if found.steps.cut + found.evals.cut:
        notes.append(
            msg("{count:count} rows end early; a number in which the cut fell was left out", count=found.steps.cut + found.evals.cut)
        )
    return notes
