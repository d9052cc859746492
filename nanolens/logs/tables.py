"""Tables in a text: a line of names, and lines with as many numbers below it. Any CSV, Lightning's metrics.csv, a table
pasted from a notebook or a page, columns aligned with spaces."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from nanolens.config.names import LOSS_NAMES, column_of
from nanolens.logs.lines import OF_LOSS, OF_VAL
from nanolens.logs.rows import Found, Rows, to_numbers
from nanolens.logs.text import LogText

_LATIN = (
    r"[Ll]oss|LOSS|[Vv]al|VAL|[Pp]pl|PPL|[Pp]erplex|PERPLEX|[Nn]ll|NLL|[Xx]ent|XENT|[Cc]ost|COST|[Oo]bjective|OBJECTIVE|bpb"
    r"|_ce\b|\bce\b"
)
_OTHERS = "|".join(re.escape(word) for word in LOSS_NAMES if not word.isascii())
_IN_ASCII, _IN_ANY = re.compile(_LATIN), re.compile(f"{_LATIN}|[Vv]erlust|[Pp]erte|[Pp]erd[ai]|{_OTHERS}")
MOST_HEADS, LONGEST_HEAD = 300, 8000
DELIMITERS = (",", "\t", ";", "|", "  ", " ")
_LOOSE = ("|", "  ", " ")  # lines of prose are split by these too: only plain words are names then
_PLAIN = re.compile(r"[^\W\d][\w\u0900-\u0963 /()%.'’\-]{0,60}")
_WIDE = re.compile(r"\t| {2,40}")
_RULE = re.compile(r"[\s|+:=\-]+")
_COUNTERS = ("updates", "step", "iter", "batch")
_NUMERIC = frozenset("0123456789.-+nN")  # a number begins so
_MISSING = ("-", "--", "—", "", "n/a", "N/A", "None", "null")
_CLOCK = re.compile(r"\d{1,3}(?::\d\d){1,2}")
_MOST_MISSES = 8  # lines within a table that are none of its rows


def read_tables(source: LogText) -> tuple[np.ndarray, Found]:
    """The pieces of the text that tables take up, and their rows."""
    found, taken = Found(), [np.zeros(0, np.int64)]
    lines: list[str] | None = None
    after = -1
    for start, line in itertools.islice(_lines_of_names(source), MOST_HEADS):
        number = int(np.searchsorted(source.line_starts, start, side="right")) - 1
        if number <= after or (head := head_of(line)) is None:
            continue
        lines = source.text.split("\n") if lines is None else lines
        rows, after = _body(lines, number, head)
        if not rows:
            continue
        numbers = np.array([line for line, _ in rows], np.int64)
        cells = list(zip(*(row for _, row in rows), strict=True))
        columns = dict(zip(head[1], cells, strict=True))
        found.add(of_columns(columns, source.line_starts[numbers], source))
        taken.append(np.append(numbers, number))
        found.understood += (taken[-1] + source.first_line).tolist()
    lines_taken = np.unique(np.concatenate(taken))
    pieces = np.searchsorted(source.piece_starts, source.line_starts[lines_taken])
    return pieces, found


def _lines_of_names(source: LogText) -> Iterator[tuple[int, str]]:
    """(offset, line) of lines that may name columns: the first, whatever it says, and those that name a loss."""
    text, at = source.text, 0
    start = len(text) - len(text.lstrip())
    end = text.find("\n", start, start + LONGEST_HEAD)
    if source.first_line == 1 and end > start:
        yield start, text[start:end]
        at = end
    pattern = _IN_ASCII if text.isascii() else _IN_ANY
    while match := pattern.search(text, at):
        start = text.rfind("\n", at, match.start()) + 1 or at
        at = text.find("\n", match.end())
        at = len(text) if at < 0 else at + 1
        if at - start <= LONGEST_HEAD:
            yield start, text[start:at].rstrip("\n")


def head_of(line: str) -> tuple[str, list[str]] | None:
    """(delimiter, names) of a line of names: of a loss at least, and of more."""
    for delimiter in DELIMITERS:
        names = cells_of(line, delimiter)
        if len(names) < 2 or any(is_number(name) for name in names):
            continue
        ours = [column_of(_metric(name))[0] for name in names]
        is_known = bool({*ours} & (OF_LOSS | OF_VAL)) and sum(map(bool, ours)) > 1
        may_be = {*ours} & {*_COUNTERS} and delimiter in DELIMITERS[:4] and len(names) > 2  # its loss shows what it is
        if not is_known and not may_be:
            continue
        if delimiter in _LOOSE and not all(_PLAIN.fullmatch(name) for name in names if name):
            continue
        if delimiter == " " and sum(map(bool, ours)) < len(names):
            continue
        return delimiter, names
    return None


def _metric(name: str) -> str:
    return name.rpartition(" - ")[2].strip('*` "')


def _body(lines: Sequence[str], head: int, names: tuple[str, list[str]]) -> tuple[list[tuple[int, list[str]]], int]:
    """The rows below a head, and the last line of the table."""
    delimiter, wanted = names[0], len(names[1])
    rows: list[tuple[int, list[str]]] = []
    last, misses = head, 0
    for number in range(head + 1, len(lines)):
        line = lines[number]
        if delimiter == "|" and _RULE.fullmatch(line):
            continue
        row = cells_of(line, delimiter)
        numbers = sum(cell[:1] in _NUMERIC for cell in row if cell) if len(row) == wanted else 0
        if delimiter in ("  ", " ") and not all(
            is_number(cell) or cell in _MISSING or _CLOCK.fullmatch(cell) for cell in row
        ):
            numbers = 0
        if numbers >= min(2, wanted):
            rows.append((number, row))
            last, misses = number, 0
        else:
            misses += 1
            if misses > _MOST_MISSES or (not rows and misses > 1):
                break
    return (rows, last) if len(rows) > (delimiter == " ") else ([], head)


def cells_of(line: str, delimiter: str) -> list[str]:
    if delimiter == "|":  # Markdown
        return [cell.strip(" *`") for cell in line.strip().strip("|").split("|")]
    if delimiter == " ":
        return line.split()
    if delimiter == "  ":  # columns whose names are of several words
        return _WIDE.split(line.strip())
    if '"' not in line:
        cells = line.strip("\r").split(delimiter)
        return [cell.strip() for cell in cells] if " " in line else cells
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return "_" not in text


def of_columns(
    columns: Mapping[str, Sequence[str | float]], starts: np.ndarray, source: LogText, *, is_ours: bool = False
) -> Found:
    """Rows of updates and of evaluations from columns by their printed names.

    A train loss that only ever comes with a val loss is an evaluation of the train split; one that also comes alone is
    the loss of a batch (`settle`)."""
    count = len(starts)
    ours: dict[str, np.ndarray] = {}
    strange: dict[str, np.ndarray] = {}
    for name, cells in columns.items():
        column, scale = (name, 1.0) if is_ours or name == "at_s" else column_of(_metric(name))
        if name.endswith(("__MIN", "__MAX")):
            continue
        column = column or f"?{name}"
        texts = [cell if isinstance(cell, float) else (cell or "-") for cell in cells]
        values, is_strange = _numbers(texts)
        if column not in ours or np.isnan(ours[column]).all():
            ours[column] = values * scale
            strange[column] = is_strange
    counter = next((name for name in _COUNTERS if name in ours), "")
    number = np.nan_to_num(ours.pop(counter), nan=-1.0) if counter else np.full(count, -1.0)
    printed = np.where((number >= 0) & (number < 1e15), number, -1).astype(np.int64)
    ours |= {"is_iter": np.full(count, float(counter == "iter")), "kind": np.full(count, -float(count) - 1)}
    rows = Rows(
        starts + source.offset,
        source.lines_at(starts),
        starts + source.offset,
        printed,
        ours,
        {name: each for name, each in strange.items() if each.any() and name in ours},
    )
    rows = _with_epoch_means(rows)
    has_val = _says(rows, OF_VAL)
    has_loss = _says(rows, OF_LOSS | {"grad_norm", "lr", "mfu", "mfu_frac"}) & (
        ~has_val | _says(rows, frozenset(("loss",)))
    )
    if not has_val.any() and not _says(rows, OF_LOSS).any():
        return Found(tables={"unknown": rows})
    rows.columns = {name: values for name, values in rows.columns.items() if name[0] != "?"}
    numbered = (rows.printed >= 0) | ~np.isnan(rows.column("epoch"))
    only_loss = has_loss & ~has_val
    tables = {
        "steps": rows.take(np.flatnonzero(only_loss & numbered)),
        "evals": rows.take(np.flatnonzero(has_val & numbered)),
        "loose_steps": rows.take(np.flatnonzero(only_loss & ~numbered)),
        "loose_evals": rows.take(np.flatnonzero(has_val & ~numbered)),
    }
    for each in (tables["steps"], tables["loose_steps"]):
        for name in OF_VAL & each.columns.keys():
            del each.columns[name]
    return Found(tables={kind: each for kind, each in tables.items() if len(each)})


def _numbers(texts: Sequence[str | float]) -> tuple[np.ndarray, np.ndarray]:
    if texts and isinstance(texts[0], float):
        values = np.array(texts, np.float64)
        return values, np.zeros(len(values), bool)
    return to_numbers([str(text) for text in texts])


def _says(rows: Rows, names: frozenset[str] | set[str]) -> np.ndarray:
    says = np.zeros(len(rows), bool)
    for name in names & rows.columns.keys():
        says |= ~np.isnan(rows.columns[name]) | rows.is_not_finite(name)
    return says


def _with_epoch_means(rows: Rows) -> Rows:
    """The mean of an epoch, which Lightning writes beside the val loss of its end, is the train loss there."""
    means = rows.columns.pop("epoch_loss", None)
    if means is None:
        return rows
    has_val = _says(rows, OF_VAL)
    if not has_val.any():
        rows.fill("loss", means)
        return rows
    by_step = {step: mean for step, mean in zip(rows.printed.tolist(), means.tolist(), strict=True) if mean == mean}
    found = np.array([by_step.get(step, np.nan) for step in rows.printed.tolist()])
    rows.columns["train"] = np.where(has_val, found, np.nan)
    return rows
