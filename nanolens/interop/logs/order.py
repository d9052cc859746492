"""Which rows of a text belong together: copies and ranks, attempts that began again, and several runs in one text.

- A row printed twice is one row: exactly the same, or the same step drawn again with more fields. What two lines in a row say of one
  step, each something else, is one row too.
- Several ranks that print the same steps, with or without a prefix, are one run: the lowest rank's rows stay.
- A step number that goes back is a new attempt of the same run when the text says that it was resumed, when the attempt before ended in
  an error, or when it begins in the midst of what was done; or when the attempt before got less far. It is another run when the attempt
  before had come to its end, when the new one got less far without a reason, when the settings printed between them differ, or when a
  heading says so.
- One row out of order is only that.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nanolens.interop.logs.door import Found, Sign
from nanolens.interop.logs.rows import Rows, joined
from nanolens.logs.text import Text

_RANKS = (re.compile(r"ank(?<=[Rr]ank)[ :=_]{0,2}(\d{1,5})\b"), re.compile(r"\[default(\d{1,5})\]:"))
MOST_ATTEMPTS = 500  # numbers that go back more often are no step numbers, or rows of many writers at once
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


@dataclass
class OneRun:
    attempts: list[Attempt]
    name: str = ""


@dataclass
class Cleaned:
    found: Found
    duplicates: int = 0
    glued: int = 0
    ranks: int = 1


def ranks_in(source: Text) -> dict[int, int]:
    """Rank by line, where lines say which they are of."""
    found: dict[int, int] = {}
    for pattern in _RANKS:
        matches = list(pattern.finditer(source.text))
        lines = source.lines_at(np.array([match.start() for match in matches], np.int64))
        found |= dict(zip(lines.tolist(), (int(match[1]) for match in matches), strict=True))
    return found


def without_copies(found: Found, ranks: dict[int, int]) -> Cleaned:
    """The rows of one rank, each once. What stands under two headings is of two runs, and no copy."""
    cleaned = Cleaned(found)
    headings = np.sort(np.array([sign.at for sign in found.signs if sign.kind == "run"], np.int64))
    for name in ("steps", "evals"):
        rows: Rows = getattr(found, name)
        cleaned.glued += _glued(rows)
        rows = _of_one_rank(rows, ranks, cleaned)
        bounds = [0, *np.searchsorted(rows.at, headings).tolist(), len(rows)]
        parts = [rows.take(np.arange(low, high)) for low, high in itertools.pairwise(bounds) if high > low]
        whole = joined(_each_once(part, cleaned) for part in parts)
        whole.cut = rows.cut
        setattr(found, name, whole)
    return cleaned


def _glued(rows: Rows) -> int:
    """Rows that stand in a line behind another."""
    quoted = rows.columns.get("quoted")
    piece = rows.piece if quoted is None else rows.piece[np.isnan(quoted)]
    return int(np.sum(np.diff(piece) == 0)) if len(piece) > 1 else 0


def _of_one_rank(rows: Rows, ranks: dict[int, int], cleaned: Cleaned) -> Rows:
    if not ranks or not len(rows):
        return rows
    rank = np.array([ranks.get(line, -1) for line in rows.line.tolist()])
    seen = np.unique(rank[rank >= 0])
    if len(seen) < 2:
        return rows
    cleaned.ranks = max(cleaned.ranks, len(seen))
    kept = np.flatnonzero((rank == seen[0]) | (rank < 0))
    cleaned.duplicates += len(rows) - len(kept)
    return rows.take(kept)


def _each_once(rows: Rows, cleaned: Cleaned) -> Rows:
    if np.all(np.diff(rows.printed) > 0):
        return rows
    _, index, counts = np.unique(rows.printed, return_inverse=True, return_counts=True)
    if counts.max() == 1:
        return rows
    rows = _told_in_parts(rows)
    _, index, counts = np.unique(rows.printed, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(counts[index] > 1)
    rows = _without_exact_copies(rows, repeated, cleaned)
    rows = _without_redraws(rows, cleaned)
    return _without_unnamed_ranks(rows, cleaned)


def _told_in_parts(rows: Rows) -> Rows:
    """Of two neighbours with one number of which only one tells a loss, and which agree where both speak, one row is made."""
    table = np.stack([rows.columns[name] for name in rows.columns], axis=1) if rows.columns else np.zeros((len(rows), 0))
    if len(rows) < 2 or "loss" not in rows.columns:
        return rows
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
    return rows.take(np.setdiff1d(np.arange(len(rows)), gone))


def _without_exact_copies(rows: Rows, repeated: np.ndarray, cleaned: Cleaned) -> Rows:
    names = sorted(rows.columns)
    table = np.stack([rows.printed[repeated].astype(float), *(rows.columns[name][repeated] for name in names)], axis=1)
    seen: set[bytes] = set()
    copies = []
    for index, row in zip(repeated.tolist(), table, strict=True):
        key = row.tobytes()
        if key in seen:
            copies.append(index)
        seen.add(key)
    cleaned.duplicates += len(copies)
    return rows.take(np.setdiff1d(np.arange(len(rows)), copies)) if copies else rows


def _without_redraws(rows: Rows, cleaned: Cleaned) -> Rows:
    """Of neighbours with one number the one that says more stays: a line that was cut and drawn again."""
    same = np.flatnonzero(np.diff(rows.printed) == 0)
    if not len(same) or len(same) > max(3, len(rows) // 3):
        return rows  # so many are no accident: several ranks, or several runs
    said = np.sum([~np.isnan(values) for values in rows.columns.values()], axis=0)
    loss = rows.column("loss") if "loss" in rows.columns else rows.column("val")
    dropped = []
    for i in same.tolist():
        agree = loss[i] == loss[i + 1] or np.isnan(loss[i]) or np.isnan(loss[i + 1])
        if agree and said[i] != said[i + 1]:
            dropped.append(i if said[i] < said[i + 1] else i + 1)
    cleaned.duplicates += len(set(dropped))
    return rows.take(np.setdiff1d(np.arange(len(rows)), dropped)) if dropped else rows


def _without_unnamed_ranks(rows: Rows, cleaned: Cleaned) -> Rows:
    """Nearly every step the same number of times, in step with each other: ranks that do not say their number. The first of each stays."""
    _, first, counts = np.unique(rows.printed, return_index=True, return_counts=True)
    usual = int(np.bincount(counts).argmax())
    not_rising = int(np.sum(np.diff(rows.printed) <= 0))
    if usual < 2 or len(counts) < 3 or np.mean(counts == usual) < 0.8 or not_rising < 0.4 * (len(rows) - len(counts)):
        return rows  # runs one after the other go back only once each
    cleaned.ranks = max(cleaned.ranks, usual)
    cleaned.duplicates += len(rows) - len(first)
    return rows.take(np.sort(first))


def runs_in(found: Found, steps: np.ndarray, evals: np.ndarray, max_step: float | None) -> list[OneRun]:
    """Attempts, gathered into runs. `steps` and `evals` are the updates done when the rows' numbers are reached.

    For a trainer that counts the updates before a row, that of its row k is k: its evaluation at k may stand before the row or behind it.
    """
    attempts = _attempts(found, steps, evals)
    headings = [sign for sign in found.signs if sign.kind == "run"]
    runs: list[OneRun] = []
    for attempt in attempts:
        before = runs[-1].attempts[-1] if runs else None
        name = _heading(headings, before.ends_at if before else -1, attempt.starts_at)
        if before is not None and name is None and _is_same_run(before, attempt, found, max_step):
            runs[-1].attempts.append(attempt)
        else:
            runs.append(OneRun([attempt], name or ""))
    return runs


def _attempts(found: Found, steps: np.ndarray, evals: np.ndarray) -> list[Attempt]:
    """The rows in the order of the text, broken where numbers go back or a heading stands."""
    quoted = found.evals.columns.get("quoted", np.full(len(evals), np.nan))
    spoken = np.flatnonzero(np.isnan(quoted))  # a series quoted in a note has no place in the order
    at = np.concatenate([found.steps.at, found.evals.at[spoken]])
    index = np.concatenate([np.arange(len(steps)), len(steps) + spoken])
    step = np.concatenate([steps, evals[spoken]])
    line = np.concatenate([found.steps.line, found.evals.line[spoken]])
    order = np.argsort(at, kind="stable")
    at, index, step, line = at[order], index[order], step[order], line[order]
    headings = np.array([sign.at for sign in found.signs if sign.kind == "run"], np.int64)
    breaks = _breaks(step, np.searchsorted(at, headings))
    breaks = breaks if len(breaks) <= MOST_ATTEMPTS else [0]
    attempts = []
    for low, high in itertools.pairwise([*breaks, len(step)]):
        its = index[low:high]
        attempts.append(
            Attempt(
                its[its < len(steps)].tolist(), (its[its >= len(steps)] - len(steps)).tolist(), int(step[low]), int(step[low:high].max()),
                int(at[low]), int(at[high - 1]), int(line[low]),
            )
        )  # fmt: skip
    _take_in_quoted(attempts, found, np.flatnonzero(~np.isnan(quoted)))
    return attempts


def _breaks(step: np.ndarray, at_headings: np.ndarray) -> list[int]:
    """Indices of first rows. A row that goes back begins an attempt, unless the next one goes on above all before: then it is only out
    of order."""
    if not len(step):
        return []
    forced = {int(index) for index in at_headings if index < len(step)}
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


def _take_in_quoted(attempts: list[Attempt], found: Found, quoted: np.ndarray) -> None:
    """A quoted series belongs to the run above it, or to the only one."""
    if len(quoted) and not attempts:
        at = found.evals.at[quoted]
        attempts.append(
            Attempt(
                starts_at=int(at[0]),
                ends_at=int(at[-1]),
                first=int(found.evals.printed[quoted[0]]),
                last=int(found.evals.printed[quoted[-1]]),
            )
        )
    starts = [attempt.starts_at for attempt in attempts]
    for index in quoted.tolist():
        attempts[max(0, bisect.bisect_right(starts, int(found.evals.at[index])) - 1)].evals.append(index)


def _heading(headings: Sequence[Sign], after: int, before: int) -> str | None:
    between = [sign for sign in headings if after < sign.at <= before]
    return between[-1].text if between else None


def _is_same_run(before: Attempt, attempt: Attempt, found: Found, max_step: float | None) -> bool:
    between = [sign for sign in found.signs if before.ends_at < sign.at <= attempt.starts_at]
    resume = any(sign.kind == "resume" for sign in between)
    if resume:
        attempt.is_resume = True
        return True
    if any(sign.kind in _ENDS for sign in between):
        return True
    if attempt.first > before.first + 0.1 * (before.last - before.first) and attempt.first > 1:
        return True  # in the midst of what was done: resumed without a word
    came_to_its_end = max_step is not None and before.last >= max_step
    return not (came_to_its_end or attempt.last <= before.last or _settings_differ(before, attempt, found))


def _settings_differ(before: Attempt, attempt: Attempt, found: Found) -> bool:
    """Do the texts before the two attempts state a setting differently?"""
    for name, facts in found.facts.items():
        if name in ("notes", "comments", "wall_s", "gpu_index"):
            continue
        first = [fact.value for fact in facts if fact.at <= before.starts_at]
        second = [fact.value for fact in facts if before.ends_at < fact.at <= attempt.starts_at]
        if first and second and first[-1] != second[-1]:
            return True
    return False
