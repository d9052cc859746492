"""Tables with a line of names: any CSV, Lightning's metrics.csv, a table pasted from a notebook or a page, an export of Weights & Biases.

Names are read as `names.py` has them. The export names its columns `run - metric` and adds `__MIN` and `__MAX`: each run becomes a run,
and those columns are left out. A table of epochs without a step is counted in epochs, which `steps_are_epochs` says. What the numbers
mean is not known, save that a loss at step 0 tells that updates are counted before the row.
"""

from __future__ import annotations

import csv
import re

import numpy as np

from nanolens.interop.logs import table
from nanolens.interop.logs.door import Found
from nanolens.interop.logs.names import column_of, normalised
from nanolens.interop.logs.rows import Rows
from nanolens.logs.text import Text
from nanolens.record.run import Words

WORDS = Words(trainer="unknown")
DELIMITERS = (",", "\t", ";", "|", "  ", " ")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z_ /()\-]{0,60}")
_WIDE = re.compile(r"\t| {2,40}")
_UNITS = {"took_ms": ("took_s", 1e-3), "took_s": ("took_s", 1.0)}


def read_csv(text: str) -> dict[str, Found] | None:
    """What a table says, by run ("" where it names none); None where the text is no table of a training."""
    head = _head(text)
    if head is None:
        return None
    line, delimiter, names = head
    names, is_by_epoch = _with_step(names)
    body = [*text.split("\n", line), ""][line]
    numbered = ((number, _cells(row, delimiter)) for number, row in enumerate(body.split("\n"), line))
    kept = [(number, row) for number, row in numbered if len(row) == len(names)]
    rows = [row for _, row in kept]
    columns = {index: _numbers([row[index] for row in rows]) for index, name in enumerate(names) if _column(name)[1]}
    source = Text(text)
    starts = source.line_starts[np.array([number for number, _ in kept], np.int64)]
    found = {run: _found(names, columns, run, starts, source) for run in _runs(names)}
    for each in found.values() if is_by_epoch else ():
        each.tell("steps_are_epochs", True, line, 0)
    return found if any(found.values()) else None


def _head(text: str) -> tuple[int, str, list[str]] | None:
    """(lines up to the table's first row, delimiter, names) where the first lines look like a table with a step and a loss."""
    for number, line in enumerate(text[:20000].split("\n")[:5], 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        for delimiter in DELIMITERS:
            names = _cells(line, delimiter)
            ours = {_column(name)[1] for name in _with_step(names)[0]}
            is_loose = delimiter in "| " or delimiter == "  "  # lines of prose are split by these too: only plain words are names then
            if is_loose and not all(_PLAIN.fullmatch(name) for name in names):
                continue
            if "step" in ours and ours & {"loss", "val", "val_bits_per_byte"} and not any(_is_number(name) for name in names):
                return number, delimiter, names
    return None


def _with_step(names: list[str]) -> tuple[list[str], bool]:
    """The names, with the epoch for a step where there is no other, and whether it is."""
    if any(_column(name)[1] == "step" for name in names) or not (epochs := [name for name in names if normalised(name) == "epoch"]):
        return names, False
    return ["step" if name == epochs[0] else name for name in names], True


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == "|":  # Markdown
        return [cell.strip() for cell in line.strip().strip("|").split("|")]
    if delimiter == " ":
        return line.split()
    if delimiter == "  ":  # columns whose names are of several words
        return _WIDE.split(line.strip())
    if '"' not in line:
        return line.strip("\r").split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _column(name: str) -> tuple[str, str]:
    """(run, our column) of a column's name."""
    if name.endswith(("__MIN", "__MAX")):
        return "", ""
    run, dash, metric = name.rpartition(" - ")
    column = column_of(metric if dash else name)
    return run, "" if column in ("took", "memory") else column


def _runs(names: list[str]) -> list[str]:
    runs = dict.fromkeys(run for run, column in map(_column, names) if column and column != "step")
    return list(runs)


def _found(names: list[str], columns: dict[int, np.ndarray], run: str, starts: np.ndarray, source: Text) -> Found:
    ours: dict[str, np.ndarray] = {}
    for index, name in enumerate(names):
        its_run, column = _column(name)
        if column and (its_run == run or column == "step"):
            column, scale = _UNITS.get(column, (column, 1.0))
            values = columns[index] * scale
            ours[column] = np.where(np.isnan(ours[column]), values, ours[column]) if column in ours else values
    step = ours.pop("step")
    told = np.isfinite(step) & (step >= 0) & (step < 1e15)
    printed = np.where(told, np.nan_to_num(step), -1).astype(np.int64)
    rows = Rows(starts, source.lines_at(starts), starts, printed, ours)
    return table.split(rows.take(np.flatnonzero(told)))


def _numbers(texts: list[str]) -> np.ndarray:
    """An empty cell says nothing; a word in a column of numbers says nothing either."""
    try:
        return np.array([text or "nan" for text in texts], np.float64)
    except ValueError:
        return np.array([float(text) if _is_number(text) else np.nan for text in texts], np.float64)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
