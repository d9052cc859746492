"""The lines of a text -> rows: of updates and evaluations that say their number, and of others that get it from what
stands around them (`settle.py`): heads (`Epoch 3/20`), bars, rows without a number.

Lines of one form are one kind of row; what it means is worked out once, from its first line."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from nanolens.config.names import FOREIGN_COLUMNS, is_of_validation, normalised
from nanolens.logs.fields import EVALUATION_WORDS, WORD, Row, meaning_of, split
from nanolens.logs.rows import Found, Rows, joined, to_numbers
from nanolens.logs.text import LogText
from nanolens.logs.trainers import Trainer

MOST_FRUITLESS = 3000  # forms that mean nothing, before only lines with a usual word are looked at
_LONGEST_LINE = 20_000
FEWEST_UNKNOWN = 5  # rows of a form whose names nobody knows: what they are shows only in what they do
MOST_WORDS_OF_HEAD = 4  # besides its names
LONGEST_SENTENCE = 9  # words besides names: a row has few
_USUAL = re.compile(r"(?i)loss|nll|ppl|perplex|损失|हानि|损|step|iter|epoch")
OF_LOSS = frozenset("loss loss_bits smoothed ppl nll bits epoch_loss mean_loss train train_bits".split())
OF_VAL = frozenset("val val_bits val_bits_per_byte val_ppl val_nll test".split())
_OF_UPDATE = frozenset(
    "grad_norm lr took_s took clock_s average_s tokens_per_s mfu mfu_frac device_tokens_per_s it_per_s".split()
)
_AS_VAL = {"loss": "val", "loss_bits": "val_bits", "ppl": "val_ppl", "nll": "val_nll", "bits": "val_bits"}
_AS_VAL |= {"epoch_loss": "val", "smoothed": "val"}


_Lines: TypeAlias = list[tuple[int, list[str]]]
"""(piece, its texts and numbers by turns)"""


def read_lines(source: LogText, trainer: Trainer, skipped: np.ndarray) -> Found:
    """Every row of the text, by its kind. `skipped` are pieces (lines or redraws) that tables are made of."""
    found = Found()
    forms: dict[tuple[str, ...], list[_Lines]] = {}
    lines: dict[tuple[Row, str], _Lines] = {}
    fruitless, likely = 0, set[tuple[int, str]]()
    text, last, parts = source.text, "", [""]
    low, high = _program(source)
    for piece, start, end in _pieces_with_numbers(source, skipped):
        if low <= piece < high:
            continue
        if (line := text[start:end]) != last:
            last, parts = line, split(line)
        if len(parts) < 3:
            continue
        form = tuple(parts[::2])
        its_rows = forms.get(form)
        if its_rows is None:
            if fruitless > MOST_FRUITLESS and not _is_worth_a_look(form, fruitless, likely):
                continue
            rows = _rows_of(form, parts[1::2], trainer)
            its_rows = forms[form] = [lines.setdefault(row, []) for row in rows]
            is_row = any(kind in ("steps", "evals", "heads", "bars") for _, kind in rows)
            fruitless += not is_row
            if is_row:
                likely.add((len(form), form[0][:6]))
        for each in its_rows:
            each.append((piece, parts))
    tables: dict[str, list[Rows]] = {}
    found.cut = _without_cut_numbers(lines, len(source.piece_starts) - 1 if not text.endswith("\n") else -1)
    for (row, kind), its in lines.items():
        is_rare = len(its) < FEWEST_UNKNOWN and not any(is_of_validation(field.name) for field in row.fields)
        if not its or (kind == "unknown" and is_rare):
            continue
        rows_read = _rows(row, its, source)
        if kind == "loose_steps":
            rows_read = _under_a_title(rows_read, source, tables, row)
        tables.setdefault(kind, []).append(rows_read)
        if kind in ("steps", "evals", "bars") and row.words <= 4:
            source.rows_alone.append(rows_read.line - source.first_line)
    for summary in tables.pop("summary", ()):
        for line, at, seconds in zip(summary.line, summary.at, summary.column("run_s"), strict=True):
            found.tell("wall_s", float(seconds), int(line), int(at))
    found.tables = {kind: joined(rows) for kind, rows in tables.items()}
    return found


def _rows_of(form: tuple[str, ...], numbers: Sequence[str], trainer: Trainer) -> list[tuple[Row, str]]:
    """What lines of a form hold, each with its kind."""
    rows = []
    for row in meaning_of(form, numbers):
        ours = _as_meant(row, trainer)
        is_set_aside = len(ours.fields) < len(row.fields) and not ours.fields  # by the trainer's table
        if kind := "known" if is_set_aside else _kind_of(ours, form):
            rows.append((ours, kind))
    return rows


def _pieces_with_numbers(source: LogText, skipped: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(piece, start, end) of lines and redraws that hold a number and are none of those."""
    starts = source.piece_starts
    ends = np.append(starts[1:] - 1, len(source.text))
    digits = np.concatenate([[0], np.cumsum((source.codes >= ord("0")) & (source.codes <= ord("9")), dtype=np.int32)])
    is_in = digits[ends] > digits[np.minimum(starts, ends)]
    if "nan" in source.text or "NaN" in source.text or "inf" in source.text:
        strange = [match.start() for match in _NOT_FINITE.finditer(source.text)]
        is_in[np.searchsorted(starts, np.array(strange, np.int64), side="right") - 1] = True
    is_in &= ends - starts <= _LONGEST_LINE
    is_in[skipped] = False
    pieces = np.flatnonzero(is_in)
    return zip(pieces.tolist(), starts[pieces].tolist(), ends[pieces].tolist(), strict=True)


def _is_worth_a_look(form: tuple[str, ...], fruitless: int, likely: set[tuple[int, str]]) -> bool:
    """In a text of many lines that mean nothing: with a usual word, and in the end only if it begins as a row does."""
    if fruitless > 4 * MOST_FRUITLESS:
        return (len(form), form[0][:6]) in likely
    return _USUAL.search("".join(form)) is not None


_NOT_FINITE = re.compile(r"(?<![A-Za-z])(?:nan|NaN|inf)(?![A-Za-z])")  # a line may have no other number
_CODE = re.compile(
    r"^(?:import \w|from [\w.]+ import |def \w+\(|class \w+[(:]|@\w|if __name__|    (?:return|self\.|def )\b)", re.M
)
FEWEST_CODE_LINES = 6


def _program(source: LogText) -> tuple[int, int]:
    """Pieces that are a program's source, which some trainers print first: (first, behind the last)."""
    if "import " not in source.text:
        return 0, 0
    places = [match.start() for match in _CODE.finditer(source.text)]
    if len(places) < FEWEST_CODE_LINES:
        return 0, 0
    low, high = np.searchsorted(source.piece_starts, [places[0], places[-1]], side="right").tolist()
    starts, text = source.piece_starts, source.text
    while high < len(starts) and starts[high] < len(text) and text[starts[high]] in " \t)}]\n":
        high += 1
    return low - 1, high


def _under_a_title(rows: Rows, source: LogText, tables: dict[str, list[Rows]], row: Row) -> Rows:
    """Without those under a line that announces an evaluation (`Evaluation results:`): these are its losses."""
    starts, text = source.line_starts, source.text
    is_eval = np.zeros(len(rows), bool)
    if not row.columns & OF_LOSS or len(rows) > MOST_UNDER_TITLES:
        return rows
    for index, line in enumerate((rows.line - source.first_line).tolist()):
        for above in range(line - 1, max(-1, line - 4), -1):
            title = text[starts[above] : starts[above + 1]]
            if title.lstrip()[:1] in _OF_TITLES or not any(character.isdigit() for character in title):
                words = [word.lower() for word in WORD.findall(title)]
                is_eval[index] = len(words) <= LONGEST_TITLE and not EVALUATION_WORDS.isdisjoint(words)
                break
    if is_eval.any():
        theirs = rows.take(np.flatnonzero(is_eval))
        theirs.columns = {_AS_VAL.get(name, name): values for name, values in theirs.columns.items()}
        theirs.not_finite = {_AS_VAL.get(name, name): values for name, values in theirs.not_finite.items()}
        tables.setdefault("loose_evals", []).append(theirs)
    return rows.take(np.flatnonzero(~is_eval))


MOST_UNDER_TITLES, LONGEST_TITLE, _OF_TITLES = 2000, 6, ("*", "=", "#")


def _without_cut_numbers(lines: dict[tuple[Row, str], _Lines], last: int) -> int:
    """Takes away the number in which a row was cut short, or the row where it is its only one; how many were cut.

    A row may be cut when it ends with its line and has fewer fields than nearly all of its kind, or is the last of a
    text that ends without a line end. Its last number is believed when it has as many decimals as in other rows."""
    most: dict[tuple[str, str], Row] = {}
    for (row, kind), its in lines.items():
        name = (kind, row.counter.name if row.counter else "")
        if name not in most or len(its) > len(lines[most[name], kind]):
            most[name] = row
    cut = 0
    for (row, kind), its in list(lines.items()):
        usual = most[kind, row.counter.name if row.counter else ""]
        if kind not in ("steps", "evals") or not row.fields:
            continue
        names, wanted = [field.column for field in row.fields], [field.column for field in usual.fields]
        others = [parts for piece, parts in lines[usual, kind][:200] if piece != last]
        is_shorter = (
            names != wanted and names == wanted[: len(names)] and len(its) <= max(1, len(lines[usual, kind]) // 20)
        )
        place = row.fields[-1].place
        for index, (piece, parts) in reversed(list(enumerate(its[-1:] if not is_shorter else its))):
            index = index if is_shorter else len(its) - 1
            if not (is_shorter or piece == last) or len(parts) != 2 * place + 3 or parts[-1].strip() or not others:
                continue
            decimals = [_decimals(other[2 * place + 1]) for other in others if len(other) > 2 * place + 1]
            is_short = _decimals(parts[2 * place + 1]) < min(decimals, default=0)
            cut += is_short or is_shorter
            if is_short and len(row.fields) == 1:
                del its[index]
            elif is_short:
                its[index] = (piece, [*parts[: 2 * place + 1], "", parts[-1]])
    return cut


def _decimals(number: str) -> int:
    return len(number.partition(".")[2])


def _as_meant(row: Row, trainer: Trainer) -> Row:
    """With the columns that this trainer's names stand for, and a loss among words of an evaluation as a val loss."""
    own = dict(trainer.columns_of(field.name for field in row.fields))
    fields = [replace(field, column=own.get(field.name, field.column)) for field in row.fields]
    if row.is_eval and not {field.column for field in fields} & OF_VAL:
        fields = [replace(field, column=_AS_VAL.get(field.column, field.column)) for field in fields]
    if "val" not in {field.column for field in fields}:
        fields = [replace(field, column="loss") if field.column == "train" else field for field in fields]
    by_column = {field.column: field for field in reversed(fields) if field.column}
    return replace(row, fields=tuple(sorted(by_column.values(), key=lambda field: field.place)))


def _kind_of(row: Row, form: Sequence[str]) -> str:
    columns = row.columns
    is_dict = "{" in form[0] or any("{'" in text or '{"' in text for text in form)
    has_loss, has_val = bool(columns & OF_LOSS), bool(columns & OF_VAL)
    has_counter = row.counter is not None or row.epoch is not None
    if "run_s" in columns:
        return "summary"
    unknown = sum(column[0] == "?" for column in columns)
    if unknown >= 4 and 2 * unknown > len(columns) and not (is_dict or has_loss or row.is_bar):
        return ""  # settings, or a command
    if columns & OF_VAL == {"test"}:
        return "tests"
    if row.words > LONGEST_SENTENCE and not is_dict and not row.is_bar and row.words > 3 * len(row.fields):
        return ""
    if row.is_eval and row.counter is not None and row.counter.column == "" and row.total is not None:
        return "progress"
    if row.is_bar and not has_loss and not has_val:
        return "bars" if row.counter is not None else ""
    if has_val:
        return "evals" if has_counter else "loose_evals"
    if has_loss:
        return "steps" if has_counter else "loose_steps"
    if has_counter and columns & _OF_UPDATE:
        return "steps"
    is_named = row.epoch is not None or (row.counter is not None and normalised(row.counter.name) in FOREIGN_COLUMNS)
    if is_named and not any(column[0] != "?" for column in columns) and row.words <= MOST_WORDS_OF_HEAD:
        return "heads"
    if columns & (_OF_UPDATE | {"tokens_seen", "samples_seen"}):
        return "loose_steps"
    if {column for column in columns if column[0] != "?"} == {"bare"} and (
        len(form) == 2 or form[0].strip() == "tensor("
    ):
        return "bare"
    of_val = any(is_of_validation(field.name) for field in row.fields)
    if has_counter or of_val or sum(column[0] == "?" for column in columns) > 1:
        return "unknown"
    return "known" if any(column[0] != "?" for column in columns) else ""


def _pair(row: Row) -> float:
    """A number for the names of the counter and the loss: rows that share both are of one kind."""
    loss = next((field.name for field in row.fields if field.column in ("loss", "train", "loss_bits")), "")
    return float(zlib.crc32(f"{row.counter.name if row.counter else ''}\n{loss}".lower().encode("utf-8", "replace")))


def _rows(row: Row, lines: Sequence[tuple[int, list[str]]], source: LogText) -> Rows:
    pieces = np.fromiter((piece for piece, _ in lines), np.int64, len(lines))
    places = source.piece_starts[pieces]
    counts = [place for place in (row.counter.place if row.counter else None, row.epoch) if place is not None]
    at = places + min([*counts, *(field.place for field in row.fields)], default=0)

    def numbers(place: int) -> list[str]:
        return [parts[2 * place + 1] for _, parts in lines]

    columns: dict[str, np.ndarray] = {"kind": np.full(len(lines), _pair(row))}
    if row.counter is None:
        is_dict = any("{'" in text or '{"' in text for text in lines[0][1][::2])
        columns["repeats"] = np.full(len(lines), np.inf if is_dict else float(len(lines)))
    not_finite: dict[str, np.ndarray] = {}
    for field in row.fields:
        if field.column[0] == "?" and len(lines) < FEWEST_UNKNOWN and not is_of_validation(field.name):
            continue
        values, strange = to_numbers(numbers(field.place))
        columns[field.column] = values * field.scale if field.scale != 1.0 else values
        if strange.any():
            not_finite[field.column] = strange
    for name, place in (("total", row.total), ("epoch", row.epoch), ("epochs", row.epochs)):
        if place is not None:
            columns[name] = to_numbers(numbers(place))[0]
    printed = np.full(len(lines), -1, np.int64)
    if row.counter is not None:
        counted = to_numbers(numbers(row.counter.place))[0]
        printed = np.where((counted >= 0) & (counted < 1e15), np.nan_to_num(counted), -1).astype(np.int64)
        columns["is_iter"] = np.full(len(lines), float(row.counter.column == "iter"))
    elif not row.words or row.is_plain:
        columns["is_plain"] = np.ones(len(lines))
    if row.is_bar:
        columns["is_bar"] = np.ones(len(lines))
    return Rows(at + source.offset, source.lines_at(places), places + source.offset, printed, columns, not_finite)
