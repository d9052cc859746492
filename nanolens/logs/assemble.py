"""Rows, facts and signs -> Runs: copies and ranks, attempts that began again, and several runs in one text.

A step number that goes back is a new attempt of the same run when the text says that it was resumed, when the attempt
before ended in an error, or when it begins in the midst of what was done; or when the attempt before got less far. It
is another run when the attempt before had come to its end, when the new one got less far without a reason, when the
settings printed between them differ, or when a heading says so. One row out of order is only that."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from nanolens.logs.given import Given, known_facts
from nanolens.logs.rows import Found, Rows, joined, median
from nanolens.logs.settle import settle
from nanolens.logs.text import LogText
from nanolens.logs.trainers import UNKNOWN, Trainer
from nanolens.message import Message, msg
from nanolens.record.run import (
    Conventions,
    Evals,
    Known,
    Mark,
    Reading,
    RunRecord,
    Steps,
    evals_from,
    number_of,
    steps_from,
)

_SAID_AT_THE_END = ("wall_s",)  # facts that are printed when a run is done
_END = 1 << 60
PLACEHOLDER = -0.99  # -100 %: what several trainers print as long as they have no MFU
_RANKS = (re.compile(r"ank(?<=[Rr]ank)[ :=_]{0,2}(\d{1,5})\b"), re.compile(r"\[default(\d{1,5})\]:"))
MOST_ATTEMPTS = 500  # numbers that go back more often are no step numbers, or rows of many writers at once
MOST_SPANS = 6  # runs whose lines are named
_ENDS = ("error", "out_of_memory", "ended")


@dataclass
class Attempt:
    """Rows from one start to the next, as indices into all rows."""

    steps: list[int] = field(default_factory=list)
    evals: list[int] = field(default_factory=list)
    first: int = 0  # updates done at its first row, and the largest number of them
    last: int = 0
    starts_at: int = 0
    ends_at: int = 0
    line: int = 0  # of its first row
    is_resume: bool = False  # the text says that it goes on from a checkpoint


def assemble(
    found: Found,
    trainer: Trainer,
    given: Given,
    reading: Reading,
    name: str,
    ranks: dict[int, int] | None = None,
    conventions: Conventions | None = None,
) -> list[RunRecord]:
    """The runs of a text, in its order. A text without rows is a run without rows: its facts and signs may be all there
    is to say. `ranks` is the rank of each line that says one."""
    settle(found, trainer)
    reading = without_copies(found, ranks or {}, reading)
    conventions = conventions or trainer.conventions
    is_from_zero = found.steps.printed.min(initial=1) == 0
    if trainer is UNKNOWN and conventions.updates_before_printed == 0 and is_from_zero:
        # A loss at step 0 is that of the first update: such a trainer counts the updates before the row.
        conventions = replace(conventions, updates_before_printed=1)
    if found.loss_is_smoothed:
        conventions = replace(conventions, loss="smoothed")
    _number(found, conventions.updates_before_printed)
    max_step = given.max_iters if given.max_iters is not None else _total(found.steps)
    runs = runs_in(found, conventions.updates_before_printed, max_step) or [("", [Attempt()])]
    spans = [_lines_of(attempts, found) for _, attempts in runs]
    notes, cut = _notes(found, spans), found.cut
    reading = replace(
        reading, cut=cut, runs=len(runs), notes=notes, unit=found.loss_unit, nats_per_unit=found.loss_scale
    )
    parts = _parts([attempts for _, attempts in runs], found)
    return [
        _a_run(title or name, attempts, found, part, trainer, conventions, given, replace(reading, span=span))
        for (title, attempts), part, span in zip(runs, parts, spans, strict=True)
    ]


def _number(found: Found, before: int) -> None:
    """Gives each row our step. An evaluation without a number is of the weights between the rows around it."""
    updates, evals = found.steps, found.evals
    counted = updates.column("absolute")
    counted = np.where(np.isnan(counted), updates.printed, counted) + float(before)
    steps = np.where(np.isnan(updates.column("updates")), counted, np.nan_to_num(updates.column("updates")))
    ours = evals.column("absolute")
    ours = np.where(np.isnan(ours), evals.printed, ours)
    ours = np.where(np.isnan(evals.column("updates")), ours, np.nan_to_num(evals.column("updates")))
    for index in np.flatnonzero(ours < 0).tolist():
        after = int(np.searchsorted(updates.at, evals.at[index]))
        done = steps[after - 1] if after > 0 else 0
        # A row that counts the updates before it follows the evaluation of its step; another comes before it.
        is_before = before > 0 and after < len(steps) and steps[after] > done
        ours[index] = max(done, steps[after] - before) if is_before else done
    updates.columns["step"], evals.columns["step"] = steps, ours


def _parts(runs: list[list[Attempt]], found: Found) -> list[Found]:
    """The facts and signs of each run.

    One run's text ends at the next one's heading, or right behind its last row; then what a trainer prints when it is
    done still belongs to it. What the text's head says, before any row, speaks for all."""
    headings = sorted(heading.at for heading in found.headings)
    parts, after, after_tail = [], -1, -1
    head = min(attempts[0].starts_at for attempts in runs)
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        until = tail = _END
        if following is not None:
            end, start = run[-1].ends_at, following[0].starts_at
            heading = next((at for at in headings if end < at <= start), None)
            until, tail = (end, start - 1) if heading is None else (heading - 1, heading - 1)
        part = Found(signs=[sign for sign in found.signs if after < sign.at <= until])
        for name, facts in found.facts.items():
            low, high = (after_tail, tail) if name in _SAID_AT_THE_END else (after, until)
            if own := [fact for fact in facts if low < fact.at <= high or fact.at < head]:
                part.facts[name] = own
        parts.append(part)
        after, after_tail = until, tail
    return parts


def _a_run(
    name: str,
    attempts: list[Attempt],
    found: Found,
    part: Found,
    trainer: Trainer,
    conventions: Conventions,
    given: Given,
    reading: Reading,
) -> RunRecord:
    firsts, before = [attempt.first for attempt in attempts], conventions.updates_before_printed
    done_before = found.steps.column("step") - before
    kept = _merged([attempt.steps for attempt in attempts], firsts, done_before, np.ones(len(done_before)))
    is_real = np.isnan(found.evals.column("quoted"))
    kept_evals = _merged([attempt.evals for attempt in attempts], firsts, found.evals.column("step"), is_real)
    steps, evals = found.steps.take(kept), found.evals.take(kept_evals)
    known, total = known_facts(part, given, conventions.trainer), _total(steps)
    if total is not None and total > 0:
        known.setdefault("max_iters", Known(int(total), "printed", f"line {int(steps.line[-1])}"))
    without_mfu = steps.take(np.flatnonzero(steps.column("mfu_frac") <= PLACEHOLDER))
    numbered = zip(without_mfu.column("step").tolist(), without_mfu.line.tolist(), strict=True)
    marks = (
        *_signs(part, steps, evals, before),
        *(Mark("attempt", attempt.first, attempt.line) for attempt in attempts[1:] if not attempt.is_resume),
        *(Mark("sentinel", int(step), line, "mfu -100%") for step, line in numbered),
    )
    in_order = _with_done_again(sorted(marks, key=lambda mark: mark.line), attempts, found)
    reading = replace(
        reading,
        attempts=len(attempts),
        rows=sum(len(attempt.steps) for attempt in attempts) + found.rows_read,
        first=_printed(steps, 0, reading),
        last=_printed(steps, -1, reading),
        last_eval=_printed_eval(evals, reading),
        device_tokens_per_s=median(steps.column("device_tokens_per_s")),
        step_time_s=found.bar_step_s,
    )
    _tell_batch(known, steps)
    if trainer.speed_may_be_of_micro_batch and (parts := _micro_batches(known, steps)) > 1:
        steps.columns["tokens_per_s"] = steps.columns["tokens_per_s"] * parts
        reading = replace(reading, notes=(*reading.notes, _of_micro_batch(parts)))
    for key, value in trainer.defaults.items():
        known.setdefault(key, Known(value, "inferred", f"default of {trainer.name}"))
    return RunRecord(name, conventions, _steps(steps), _evals(evals), known, in_order, reading)


def _printed(steps: Rows, index: int, reading: Reading) -> Mapping[str, float | str]:
    """The first or the last row with a loss, as the text has it."""
    loss = steps.column("loss")
    told = np.flatnonzero(~np.isnan(loss) | steps.is_not_finite("loss"))
    if not len(told):
        return {}
    row = told[index]
    number = {"step": int(steps.printed[row])} if np.isnan(steps.column("updates")[row]) else {}
    epoch = steps.column("epoch")[row]
    return {**({} if np.isnan(epoch) else {"epoch": int(epoch)}), **number, "loss": _as_told(loss[row], reading)}


def _printed_eval(evals: Rows, reading: Reading) -> Mapping[str, float | str]:
    if not len(evals):
        return {}
    said = {
        name: _as_told(evals.column(name)[-1], reading)
        for name in ("train", "val")
        if not np.isnan(evals.column(name)[-1]) or evals.is_not_finite(name)[-1]
    }
    step, epoch = int(evals.printed[-1]), evals.column("epoch")[-1]
    number = {"step": step if step >= 0 else int(evals.column("step")[-1])}
    return {**({} if np.isnan(epoch) else {"epoch": int(epoch)}), **number, **said}


def _as_told(loss: float, reading: Reading) -> float | str:
    told = math.exp(loss) if reading.unit == "perplexity" and loss < 700 else loss / reading.nats_per_unit
    return float(told) if math.isfinite(told) else str(float(told))


def _of_micro_batch(parts: int) -> Message:
    return msg(
        "the printed tokens/s are those of one of {parts:count} micro-batches; here they are those of the update", parts
    )


def _micro_batches(known: Mapping[str, Known], steps: Rows) -> int:
    """How many times the tokens of (printed speed x time) make a stated update; 1 where it is no whole number."""
    products = steps.column("tokens_per_s") * steps.column("took_s")
    each = median(products) if np.isfinite(products).sum() > 2 else None  # one of them may be cut in its number
    stated = number_of(known["tokens_per_update"].value) if "tokens_per_update" in known else None
    parts = stated / each if stated and each else 1.0
    return round(parts) if parts > 1.5 and abs(parts / round(parts) - 1) < WHOLE_SEQUENCE else 1


WHOLE_SEQUENCE = 0.03  # tokens of a sequence that are worked out from rounded counts are a whole number this near


def _tell_batch(known: dict[str, Known], steps: Rows) -> None:
    """Tokens of an update, from what the rows count; where neither the text nor the user states them."""
    if not len(steps) or "tokens_per_update" in known:
        return
    where = f"line {int(steps.line[-1])}"
    if tokens := median(steps.column("tokens_per_update")):
        known["tokens_per_update"] = Known(round(tokens), "printed", where)
        return
    sequences, length = median(steps.column("batch_sequences")), known.get("block_size")
    stated = known.get("global_batch_size")
    if sequences is None and stated is not None and stated.origin == "printed" and isinstance(stated.value, int):
        sequences = float(stated.value)
    if sequences and length is not None and isinstance(length.value, int):
        product = round(sequences * length.value)
        known["tokens_per_update"] = Known(product, "inferred", "sequences of an update x their length")
        return
    seen, number = steps.column("tokens_seen"), steps.column("step")
    told = np.flatnonzero(np.isfinite(seen) & (seen > 0) & (number > 0))
    if len(told):
        each = float(seen[told[-1]] / number[told[-1]])
        added = np.diff(seen[told]) / np.maximum(np.diff(number[told]), 1)
        is_before = len(added) > 0 and seen[told[-1]] == added[-1] * (number[told[-1]] - 1)  # this update is left out
        if is_before or (len(added) > 2 and np.mean(added == np.median(added)) > 0.5):
            each = float(np.median(added))
        if sequences and abs(round(each / sequences) / (each / sequences) - 1) < WHOLE_SEQUENCE:
            each = sequences * round(each / sequences)  # a whole number of tokens a sequence
        known["tokens_per_update"] = Known(round(each), "inferred", "tokens seen / updates")


def _steps(rows: Rows) -> Steps:
    mfu, not_finite = rows.column("mfu_frac"), _not_finite(rows, "loss", "grad_norm")
    columns = {**rows.columns, "mfu_frac": np.where(mfu <= PLACEHOLDER, np.nan, mfu), "not_finite": not_finite}
    return steps_from({**columns, "line": rows.line, "printed": rows.printed}, len(rows))


def _evals(rows: Rows) -> Evals:
    printed = np.where(rows.printed < 0, rows.column("step"), rows.printed)
    not_finite = _not_finite(rows, "train", "val")
    columns = {**rows.columns, "printed": printed, "took_s": rows.column("eval_s"), "not_finite": not_finite}
    return evals_from({**columns, "line": rows.line}, len(rows))


def _with_done_again(marks: list[Mark], attempts: list[Attempt], found: Found) -> tuple[Mark, ...]:
    """Only the last attempt's rows count; what the one before said of a step is kept with the mark between them."""
    for before, attempt in pairwise(attempts):
        again = _done_again(before, attempt, found)
        starts = [i for i, mark in enumerate(marks) if mark.kind in ("resume", "attempt")]
        between = [i for i in starts if before.line < marks[i].line <= attempt.line]
        if again is not None and between:
            marks[between[-1]] = replace(marks[between[-1]], was=again[0], now=again[1], is_eval=again[2])
    return tuple(marks)


def _done_again(before: Attempt, attempt: Attempt, found: Found) -> tuple[float, float, bool] | None:
    """The first loss of both attempts for one step: an evaluation where there is one."""
    for rows, name, mine, its, is_eval in (
        (found.evals, "val", attempt.evals, before.evals, True),
        (found.steps, "loss", attempt.steps, before.steps, False),
    ):
        steps, losses = rows.column("step"), rows.column(name)
        earlier = {steps[i]: float(losses[i]) for i in its if np.isfinite(losses[i])}
        for i in mine:
            if steps[i] in earlier and np.isfinite(losses[i]):
                return earlier[steps[i]], float(losses[i]), is_eval
    return None


def _merged(parts: list[list[int]], firsts: list[int], step_of: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Rows of all attempts in the order of their steps; a later attempt takes the place of what it did again.

    Of rows with one step that are left, the weightier counts, and then the later."""
    kept = np.zeros(0, np.int64)
    for part, first in zip(parts, firsts, strict=True):
        kept = np.concatenate([kept[step_of[kept] < first], np.array(part, np.int64)])
    latest = kept[np.lexsort((kept, weight[kept]))][::-1]
    return latest[np.unique(step_of[latest], return_index=True)[1]]


def _total(steps: Rows) -> float | None:
    """`step 10/500` says how long the run is meant to be."""
    total = steps.column("total")
    finite = total[np.isfinite(total)]
    return float(finite[-1]) if len(finite) else None


def _signs(part: Found, steps: Rows, evals: Rows, before: int) -> list[Mark]:
    """Signs with their step: that of the last row before; of a resume, where the first row after it begins."""
    order = np.argsort(np.concatenate([steps.at, evals.at]), kind="stable")
    at = np.concatenate([steps.at, evals.at])[order]
    done = np.concatenate([steps.column("step"), evals.column("step")])[order]
    begun = np.concatenate([steps.column("step") - max(before, 1), evals.column("step")])[order]
    signs = [sign for sign in part.signs if sign.kind != "run"]
    following = np.searchsorted(at, np.array([sign.at for sign in signs], np.int64), side="right")
    marks = []
    for sign, after in zip(signs, following.tolist(), strict=True):
        place = sign.step
        if sign.kind == "resume" and after < len(at):
            # Whatever number the text gives: the rows may be counted from another start, or be an epoch's.
            place = int(begun[after])
        elif place is None and after > 0:
            place = int(done[after - 1])
        marks.append(Mark(sign.kind, place, sign.line, sign.text))
    return marks


def _not_finite(rows: Rows, first: str, second: str) -> np.ndarray:
    """1 where the first is printed as "nan" or "inf", 2 the second, 3 both; other NaN mean that nothing was said."""
    return 1.0 * rows.is_not_finite(first) + 2.0 * rows.is_not_finite(second)


def _lines_of(attempts: list[Attempt], found: Found) -> str:
    lines = [int(found.steps.line[i]) for attempt in attempts for i in attempt.steps]
    lines += [int(found.evals.line[i]) for attempt in attempts for i in attempt.evals]
    return f"{min(lines)}-{max(lines)}" if lines else ""


def _notes(found: Found, spans: list[str]) -> tuple[Message, ...]:
    cut = found.cut
    several = msg(
        "this log contains {runs:count run|runs}, in lines {spans}; {command:code} compares them",
        len(spans),
        ", ".join(span for span in spans[:MOST_SPANS] if span) + (", …" if len(spans) > MOST_SPANS else ""),
        "nanolens compare FILE",
    )
    quoted = msg("{count:count evaluation was|evaluations were} read from a series quoted in a note", found.quoted)
    notes = (
        (len(spans) > 1, several),
        (found.quoted, quoted),
        ("steps_counted" in found.facts, msg("the rows have no step numbers; rows were counted instead")),
        (cut, msg("truncated rows: {count:count}; a number cut in the middle was left out", cut)),
    )
    return tuple(note for is_so, note in notes if is_so)


# --- which rows belong together


def ranks_in(source: LogText) -> dict[int, int]:
    found: dict[int, int] = {}
    for pattern in _RANKS:
        matches = list(pattern.finditer(source.text))
        lines = source.lines_at(np.array([match.start() for match in matches], np.int64))
        found |= dict(zip(lines.tolist(), (int(match[1]) for match in matches), strict=True))
    return found


def without_copies(found: Found, ranks: dict[int, int], reading: Reading) -> Reading:
    """Leaves the rows of one rank, each once. What stands under two headings is of two runs, and no copy."""
    headings = np.sort(np.array([heading.at for heading in found.headings], np.int64))
    duplicates, glued, most_ranks = 0, 0, 1
    for name in ("steps", "evals"):
        rows: Rows = getattr(found, name)
        pieces = rows.piece[np.isnan(rows.column("quoted"))]
        glued += int(np.sum(np.diff(pieces) == 0))  # rows that stand in a line behind another
        of_one, its_ranks = _of_one_rank(rows, ranks)
        bounds = [0, *np.searchsorted(of_one.at, headings).tolist(), len(of_one)]
        stretches = [of_one.take(np.arange(low, high)) for low, high in pairwise(bounds) if high > low]
        parts = [_told_in_parts(stretch) for stretch in stretches]
        once = [_without_unnamed_ranks(_without_redraws(_without_exact_copies(part))) for part in parts]
        duplicates += len(rows) - len(of_one) + sum(map(len, parts)) - sum(len(part) for part, _ in once)
        most_ranks = max(most_ranks, its_ranks, *(count for _, count in once))
        whole = joined(part for part, _ in once)
        setattr(found, name, whole)
    return replace(reading, duplicates=duplicates, glued=glued, ranks=most_ranks)


def _of_one_rank(rows: Rows, ranks: dict[int, int]) -> tuple[Rows, int]:
    """The rows of the lowest rank, and how many ranks there are."""
    if not ranks or not len(rows):
        return rows, 1
    rank = np.array([ranks.get(line, -1) for line in rows.line.tolist()])
    seen = np.unique(rank[rank >= 0])
    return (rows.take(np.flatnonzero((rank == seen[0]) | (rank < 0))), len(seen)) if len(seen) > 1 else (rows, 1)


def _told_in_parts(rows: Rows) -> Rows:
    """Makes one row of two neighbours with one number that agree, where only one of them tells a loss."""
    if "loss" not in rows.columns or np.all(np.diff(rows.printed) > 0):
        return rows
    table = np.stack(list(rows.columns.values()), axis=1)
    has_loss = ~np.isnan(rows.column("loss")) | rows.not_finite.get("loss", np.zeros(len(rows), bool))
    agree = (np.isnan(table[:-1]) | np.isnan(table[1:]) | np.isclose(table[:-1], table[1:], rtol=1e-3)).all(axis=1)
    parts = np.flatnonzero((np.diff(rows.printed) == 0) & (has_loss[:-1] != has_loss[1:]) & agree)
    parts = parts[np.append(True, np.diff(parts) > 1)] if len(parts) else parts
    if not len(parts):
        return rows
    kept, gone = np.where(has_loss[parts], parts, parts + 1), np.where(has_loss[parts], parts + 1, parts)
    for values in rows.columns.values():
        values[kept] = np.where(np.isnan(values[kept]), values[gone], values[kept])
    for strange in rows.not_finite.values():
        strange[kept] |= strange[gone]
    return rows.without(gone)


def _without_exact_copies(rows: Rows) -> Rows:
    if np.all(np.diff(rows.printed) > 0):
        return rows
    _, index, counts = np.unique(rows.printed, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(counts[index] > 1)
    columns = [rows.columns[name][repeated] for name in sorted(rows.columns)]
    table = np.stack([rows.printed[repeated].astype(float), *columns], axis=1)
    _, first = np.unique(table.view(f"V{table.shape[1] * table.itemsize}"), return_index=True)
    return rows.without(np.setdiff1d(repeated, repeated[first]))


def _without_redraws(rows: Rows) -> Rows:
    """Of neighbours with one number the one that says more stays: a line that was cut and drawn again."""
    same = np.flatnonzero(np.diff(rows.printed) == 0)
    if not len(same) or len(same) > max(3, len(rows) // 3):
        return rows  # so many are no accident: several ranks, or several runs
    said = np.sum([~np.isnan(values) for values in rows.columns.values()], axis=0)
    loss = rows.column("loss" if "loss" in rows.columns else "val")
    agree = (loss[same] == loss[same + 1]) | np.isnan(loss[same]) | np.isnan(loss[same + 1])
    less = np.where(said[same] < said[same + 1], same, same + 1)
    return rows.without(less[agree & (said[same] != said[same + 1])])


def _without_unnamed_ranks(rows: Rows) -> tuple[Rows, int]:
    """Nearly every step equally often, in step with each other: ranks that do not say their number; and how many."""
    _, first, counts = np.unique(rows.printed, return_index=True, return_counts=True)
    usual = int(np.bincount(counts).argmax())
    not_rising = int(np.sum(np.diff(rows.printed) <= 0))
    if usual < 2 or len(counts) < 3 or np.mean(counts == usual) < 0.8 or not_rising < 0.4 * (len(rows) - len(counts)):
        return rows, 1  # runs one after the other go back only once each
    return rows.take(np.sort(first)), usual


def runs_in(found: Found, updates_before: int, max_step: float | None) -> list[tuple[str, list[Attempt]]]:
    """Attempts, gathered into runs, each with the name that its heading gives it.

    For a trainer that counts the updates before a row, its row k counts as k here: its evaluation at k may stand
    before the row or behind it."""
    runs: list[tuple[str, list[Attempt]]] = []
    for attempt in _attempts(found, (found.steps.column("step") - updates_before).astype(np.int64)):
        before = runs[-1][1][-1] if runs else None
        is_apart = before is not None and _is_in_another_block(before, attempt, found)
        after = before.ends_at if before else -1
        names = [sign.text for sign in found.headings if after < sign.at <= attempt.starts_at]
        if before is not None and not names and not is_apart and _is_same_run(before, attempt, found, max_step):
            runs[-1][1].append(attempt)
        else:
            runs.append((names[-1] if names else "", [attempt]))
    return runs


def _attempts(found: Found, steps: np.ndarray) -> list[Attempt]:
    """The rows in the order of the text, broken where numbers go back or a heading stands."""
    evals, count = found.evals, len(steps)
    is_quoted = ~np.isnan(evals.column("quoted"))  # a series quoted in a note has no place in the order
    updates = np.stack([found.steps.at, np.arange(count), steps, found.steps.line])
    others = np.stack([evals.at, count + np.arange(len(evals)), evals.column("step").astype(np.int64), evals.line])
    rows = np.concatenate([updates, others[:, ~is_quoted]], axis=1)
    at, index, step, line = rows[:, np.argsort(rows[0], kind="stable")]
    headings = np.array([heading.at for heading in found.headings], np.int64)
    blocks = np.searchsorted(np.array(found.fences, np.int64), at)
    breaks = _breaks(step, np.searchsorted(at, headings), blocks)
    breaks = breaks if len(breaks) <= MOST_ATTEMPTS else [0]
    attempts = []
    for low, high in pairwise([*breaks, len(step)]):
        its = index[low:high]
        mine, its_evals = its[its < count].tolist(), (its[its >= count] - count).tolist()
        first, last = int(step[low]), int(step[low:high].max())
        attempts.append(Attempt(mine, its_evals, first, last, int(at[low]), int(at[high - 1]), int(line[low])))
    quoted = np.flatnonzero(is_quoted)
    if len(quoted) and not attempts:
        first, last = evals.printed[quoted[[0, -1]]].tolist()
        starts_at, ends_at = evals.at[quoted[[0, -1]]].tolist()
        attempts.append(Attempt(first=first, last=last, starts_at=starts_at, ends_at=ends_at))
    starts = [attempt.starts_at for attempt in attempts]
    for place in quoted.tolist():  # a quoted series belongs to the run above it, or to the only one
        attempts[max(0, bisect.bisect_right(starts, int(evals.at[place])) - 1)].evals.append(place)
    return attempts


def _breaks(step: np.ndarray, at_headings: np.ndarray, blocks: np.ndarray) -> list[int]:
    """Indices of first rows. A row that goes back begins an attempt, unless the next one is above all before; in
    another block of a page also one that does not go on."""
    if not len(step):
        return []
    forced = {int(index) for index in at_headings if index < len(step)}
    forced |= {int(i) + 1 for i in np.flatnonzero((np.diff(step) <= 0) & (np.diff(blocks) > 0))}
    if np.all(np.diff(step) >= 0):
        return sorted({0, *forced})
    breaks, largest = [0], int(step[0])
    listed = [*step.tolist(), -1]
    for i in range(1, len(step)):
        here = listed[i]
        if i in forced or (here < largest and not listed[i + 1] > largest):
            breaks.append(i)
            largest = here
        elif here > largest:
            largest = here
    return breaks


def _is_in_another_block(before: Attempt, attempt: Attempt, found: Found) -> bool:
    """Quoted apart on a page, and not going on: of another run."""
    is_apart = bisect.bisect(found.fences, before.ends_at) != bisect.bisect(found.fences, attempt.starts_at)
    return is_apart and attempt.first <= before.last


def _is_same_run(before: Attempt, attempt: Attempt, found: Found, max_step: float | None) -> bool:
    between = [sign for sign in found.signs if before.ends_at < sign.at <= attempt.starts_at]
    attempt.is_resume = any(sign.kind == "resume" for sign in between)
    if attempt.is_resume or any(sign.kind in _ENDS for sign in between):
        return True
    if attempt.first > before.first + 0.1 * (before.last - before.first) and attempt.first > 1:
        return True  # in the midst of what was done: resumed without a word
    came_to_its_end = max_step is not None and before.last >= max_step
    return not (came_to_its_end or attempt.last <= before.last or _settings_differ(before, attempt, found))


def _settings_differ(before: Attempt, attempt: Attempt, found: Found) -> bool:
    for name, facts in found.facts.items():
        if name in ("notes", "comments", "wall_s", "gpu_index"):
            continue
        first = [fact.value for fact in facts if fact.at <= before.starts_at]
        second = [fact.value for fact in facts if before.ends_at < fact.at <= attempt.starts_at]
        if first and second and first[-1] != second[-1]:
            return True
    return False
