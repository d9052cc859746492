"""Reads a log as it comes, in one piece or line by line, and gives the Runs that it tells of so far."""

from __future__ import annotations

import itertools
import re
from copy import copy

import numpy as np

from nanolens.errors import UserError, fault
from nanolens.interop.logs import csv_table, huggingface, keyvalue
from nanolens.interop.logs.assemble import Counts, assemble
from nanolens.interop.logs.door import Door, Found, Sign
from nanolens.interop.logs.facts import read_facts
from nanolens.interop.logs.given import Given
from nanolens.interop.logs.notes import read_notes
from nanolens.interop.logs.order import ranks_in
from nanolens.interop.logs.recognise import DOORS, door_named, recognise
from nanolens.logs.text import Text, clean, lines_with
from nanolens.message import msg
from nanolens.record.run import Run, Words

EXAMPLES = 5
LONGEST_EXAMPLE = 120
SETTLED_ROWS, SETTLED_CHARACTERS = 20, 100_000
MOST_PLACEHOLDERS = 1000  # of one kind in one piece of text; a log that prints nothing else needs no more
_STAMP = re.compile(r"^(?:\[[^\]\n]{1,20}\]:? ?)?[^\n\d]{0,4}(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)", re.M)
_PLACEHOLDERS = ("(+nanz)", "(-nanz)", "(nanz)", "step_avg:nanms")


class LogReader:
    """`feed` it text, ask it for `runs`. What was understood once is not read again."""

    def __init__(self, given: Given | None = None, *, format: str | None = None, name: str = "log"):
        self.given = given or Given()
        self.name = name
        self._door: Door | None = door_named(format) if format else None
        self._words: Words | None = None
        self._is_asked_for = format is not None
        self._is_settled = False  # enough was read to be sure of the door
        self._unsettled = ""  # until then what was read is kept, to be read again by another door if need be
        self._waiting: list[str] = []  # text that is not read yet
        self._forget()

    def _forget(self) -> None:
        self._found = Found()
        self._ranks: dict[int, int] = {}
        self._lines_read, self._characters_read = 0, 0
        self._lines, self._not_understood = 0, 0
        self._examples: list[str] = []

    def feed(self, text: str) -> None:
        if text:
            self._waiting.append(text)

    def runs(self, *, whole: bool = True) -> list[Run]:
        """The runs so far. With `whole=False` a last line (or redraw) without its end is left for the next time."""
        text = "".join(self._waiting)
        end = len(text) if whole else _end_of_rows(text)
        text, rest = text[:end], text[end:]
        if text:
            self._waiting = [rest] if rest else []
            self._read(clean(text))
        return self._assembled(self._found, self._door or keyvalue.DOOR, self._words)

    def _read(self, text: str) -> None:
        if not self._is_settled:
            text = self._unsettled = self._unsettled + text
            self._forget()
            self._words = None
        if not self._is_asked_for and (self._door is None or not self._is_settled):
            self._door = recognise(text)
        self._read_on(text)
        if len(self._found.steps) >= SETTLED_ROWS or len(self._unsettled) >= SETTLED_CHARACTERS:
            self._is_settled, self._unsettled = True, ""

    def _read_on(self, text: str) -> None:
        source = Text(text, self._lines_read + 1, self._characters_read)
        found = self._door.rows_in(source) if self._door is not None else Found()
        if self._door is not None and self._words is None and found:
            self._words = self._door.words_in(text, self._door.words) if self._door.words_in else self._door.words
        _take_other_evals(source, found, self._door)
        read_facts(source, found)
        for part in source.besides_rows:
            read_notes(part, found)
            _take_placeholders(part, found)
        _take_stamps(source, found)
        if found:  # ranks are asked of rows only
            self._ranks |= ranks_in(source)
        self._count(source, found)
        self._found.add(found)
        self._lines_read += text.count("\n")
        self._characters_read += len(text)

    def _assembled(self, found: Found, door: Door, words: Words | None) -> list[Run]:
        counts = Counts(self._lines, self._not_understood, tuple(self._examples))
        return assemble(_copy(found), door, words or door.words, self.given, counts, self.name, self._ranks)

    def _count(self, source: Text, found: Found) -> None:
        """Lines with something on them, and those of them that nothing was read from."""
        is_said = _lines_with_something(source)
        self._lines += int(is_said.sum())
        understood = np.concatenate([found.steps.line, found.evals.line, np.array(found.understood, np.int64)]) - source.first_line
        is_said[understood[understood < len(is_said)]] = False
        self._not_understood += int(is_said.sum())
        for index in np.flatnonzero(is_said)[: EXAMPLES - len(self._examples)].tolist():
            start = int(source.line_starts[index])
            self._examples.append(source.text[start : start + LONGEST_EXAMPLE].split("\n", 1)[0].strip())


def _end_of_rows(text: str) -> int:
    """Behind the last whole line; before a row whose names stand below it, one a line, as long as more of them may come."""
    end = max(text.rfind("\n"), text.rfind("\r")) + 1
    head = max(text.rfind("[step=", 0, end), text.rfind("[batch=", 0, end))
    if head < 0 or not keyvalue.OPEN_BLOCK.fullmatch(text, head, end):
        return end
    return text.rfind("\n", 0, head) + 1


def _take_other_evals(source: Text, found: Found, door: Door | None) -> None:
    """A trainer whose rows are known and that has no evaluations in the usual form may have been given some in its owner's words."""
    if door is None or door.is_general or len(found.evals) or not len(found.steps) or not _VAL_LOSS.search(source.text):
        return
    others = keyvalue.find(source).evals
    found.evals = others.take(np.flatnonzero(~np.isin(others.line, found.steps.line)))


_VAL_LOSS = re.compile(r"[Vv]al(?:idation)?[_ ][Ll]oss")


def read_text(text: str, given: Given, *, format: str | None, name: str) -> list[Run]:
    """The runs of a whole text. UserError where nothing in it is understood."""
    document = _document(text, given, format, name)
    if document is not None:
        return document
    reader = LogReader(given, format=format, name=name)
    reader.feed(text)
    runs = reader.runs()
    if text.strip() and not any(len(run.steps) or len(run.evals) or run.marks or _says_something(run) for run in runs):
        raise _nothing_understood(runs[0], name)
    return runs


def _document(text: str, given: Given, format: str | None, name: str) -> list[Run] | None:
    """Texts that only make sense as a whole: a JSON file, a table."""
    if format not in (None, "hf-trainer", "csv"):
        return None
    lines = Counts(lines=text.count("\n") + 1)
    if text[:1000].lstrip().startswith("{") and (state := huggingface.read_state(text)) is not None:
        return assemble(state, huggingface.DOOR, huggingface.WORDS, given, lines, name, {})
    tables = csv_table.read_csv(clean(text))
    if tables is None:
        return None
    door = Door("csv", csv_table.WORDS, (), is_general=True)
    return [run for title, found in tables.items() for run in assemble(found, door, csv_table.WORDS, given, lines, title or name, {})]


def _copy(found: Found) -> Found:
    """For assembling, which numbers and sorts rows in place, while more may be read into the original."""
    fresh = copy(found)
    fresh.steps, fresh.evals = copy(found.steps), copy(found.evals)
    for rows in (fresh.steps, fresh.evals):
        rows.columns, rows.not_finite = dict(rows.columns), dict(rows.not_finite)
    fresh.facts = {name: list(facts) for name, facts in found.facts.items()}
    fresh.signs, fresh.understood = list(found.signs), list(found.understood)
    return fresh


def _lines_with_something(source: Text) -> np.ndarray:
    starts = source.line_starts[source.line_starts < len(source.text)]
    return np.maximum.reduceat(source.codes, starts) > 32 if len(starts) else np.zeros(0, bool)


def _take_stamps(source: Text, found: Found) -> None:
    """The instant of each row whose line begins with a date and a time. Without a zone they are taken as UTC: only differences are used."""
    for rows in (found.steps, found.evals):
        if not len(rows) or not any(_STAMP.match(source.text, int(at) - source.offset) for at in rows.piece[:: max(1, len(rows) // 8)]):
            continue
        stamps = [_STAMP.match(source.text, at) for at in (rows.piece - source.offset).tolist()]
        seconds = _seconds(["NaT" if stamp is None else stamp[1].replace(",", ".") for stamp in stamps])
        rows.columns["at_s"] = np.where(np.isnan(rows.column("at_s")), seconds, rows.column("at_s"))


def _seconds(stamps: list[str]) -> np.ndarray:
    try:
        instants = np.array(stamps, "datetime64[us]")
    except ValueError:  # one of them is the 31st of February
        instants = np.array([_instant(stamp) for stamp in stamps], "datetime64[us]")
    return np.where(np.isnat(instants), np.nan, instants.astype(np.int64) / 1e6)


def _instant(stamp: str) -> np.datetime64:
    try:
        return np.datetime64(stamp, "us")
    except ValueError:
        return np.datetime64("NaT")


def _take_placeholders(source: Text, found: Found) -> None:
    for text in _PLACEHOLDERS:
        for start, _ in itertools.islice(lines_with(source.text, text), MOST_PLACEHOLDERS):
            found.sign(Sign("sentinel", source.offset + start, source.line_at(start), text))


def _says_something(run: Run) -> bool:
    return any(known.origin == "printed" and name not in ("notes", "comments") for name, known in run.known.items())


def _nothing_understood(run: Run, name: str) -> UserError:
    return fault(
        msg("no row of a training was found in {name:code}, {lines:count} lines; it begins with {example:code}",
            name=name, lines=run.reading.lines, example=(*run.reading.examples, "")[0]),
        fix=msg("give the text that the training printed, or say what it is with {option:code} (one of {names:code})",
                option="--log_format=NAME", names=[door.name for door in DOORS]),
    )  # fmt: skip
