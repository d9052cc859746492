"""Rows of numbers, facts and signs, as they are found in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from nanolens.logs.fields import NUMBER

COUNT_SCALES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_PLACEHOLDER = re.compile(r"(?<!\?P)<(\w+)>")


@cache  # compiled when a text holds one of its words: most texts hold few of them
def sentence_pattern(template: str) -> re.Pattern[str]:
    """A regular expression in which `<loss>` stands for a group of that name with a number in it, which may end in a
    letter for thousands, millions or billions: the group `loss_scale`."""

    def group(placeholder: re.Match[str]) -> str:
        name = placeholder[1]
        return rf"(?P<{name}>{NUMBER})(?P<{name}_scale>[KkMBT]?)(?!\w)"

    return re.compile(_PLACEHOLDER.sub(group, template), re.M)


_no_places = partial(np.zeros, 0, np.int64)


@dataclass
class Rows:
    at: np.ndarray = field(default_factory=_no_places)  # offset of the row's first character in the source
    line: np.ndarray = field(default_factory=_no_places)
    piece: np.ndarray = field(default_factory=_no_places)  # offset of the line or redraw that it stands in
    printed: np.ndarray = field(default_factory=_no_places)  # the number printed as step; -1 where none is
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    # True where "nan" or "inf" is printed; NaN elsewhere means: not said
    not_finite: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.at)

    def column(self, name: str) -> np.ndarray:
        return self.columns.get(name, np.full(len(self), np.nan))

    def is_not_finite(self, name: str) -> np.ndarray:
        return self.not_finite.get(name, np.zeros(len(self), bool))

    def fill(self, name: str, values: np.ndarray) -> None:
        """Gives a column these values where it says nothing."""
        self.columns[name] = np.where(np.isnan(self.column(name)), values, self.column(name))

    def take(self, chosen: np.ndarray | slice) -> Rows:
        at, line, piece, printed = (places[chosen] for places in (self.at, self.line, self.piece, self.printed))
        columns = {name: values[chosen] for name, values in self.columns.items()}
        not_finite = {name: values[chosen] for name, values in self.not_finite.items()}
        return Rows(at, line, piece, printed, columns, not_finite)

    def copy(self) -> Rows:
        return self.take(np.arange(len(self)))

    def without(self, dropped: Sequence[int] | np.ndarray) -> Rows:
        return self.take(np.setdiff1d(np.arange(len(self)), dropped)) if len(dropped) else self


def joined(several: Iterable[Rows]) -> Rows:
    """All rows in the order of the text. Where two patterns matched at one place, the first one's row stays."""
    rows = [each for each in several if len(each)]
    if len(rows) == 1:
        return rows[0]
    if not rows:
        return Rows()
    names, marked = ({name for each in rows for name in getattr(each, kind)} for kind in ("columns", "not_finite"))
    places = np.concatenate([np.stack([each.at, each.line, each.piece, each.printed]) for each in rows], axis=1)
    count = places.shape[1]
    columns = {name: np.full(count, np.nan) for name in names}
    not_finite = {name: np.zeros(count, bool) for name in marked}
    start = 0
    for each in rows:
        part = slice(start, start + len(each))
        for name, values in each.columns.items():
            columns[name][part] = values
        for name, strange in each.not_finite.items():
            not_finite[name][part] = strange
        start = part.stop
    _, first = np.unique(places[0], return_index=True)  # sorted by place; the first of equals
    at, line, piece, printed = places
    return Rows(at, line, piece, printed, columns, not_finite).take(first)


def median(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def to_numbers(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The numbers that are printed, and where "nan" or "inf" is; what is no number says nothing."""
    try:
        values = np.array(texts, dtype=np.float64)
    except ValueError:
        values = np.array([_number(text) for text in texts])
    strange = ~np.isfinite(values)
    if strange.any():
        strange &= np.fromiter((":" not in text and text[-1:].isalpha() for text in texts), bool, len(texts))
    return values, strange


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return _seconds(text)


def _seconds(clock: str) -> float:
    """Of 0:12:34, or 12:34; NaN for any other text."""
    parts = clock.split(":")
    if not 2 <= len(parts) <= 3 or not all(part.replace(".", "", 1).isdecimal() for part in parts):
        return float("nan")
    return sum(float(part) * 60.0**place for place, part in enumerate(reversed(parts)))


@dataclass
class Fact:
    value: object
    line: int
    at: int  # offset in the source


@dataclass
class Sign:
    """Something that happened, before it is known at which step; `kind` is one of record.run.MARKS."""

    kind: str
    line: int
    at: int
    text: str = ""
    step: int | None = None  # where the text itself says it


@dataclass
class Found:
    """What was found in a text: rows of updates, rows of evaluations, facts by name, signs."""

    steps: Rows = field(default_factory=Rows)
    evals: Rows = field(default_factory=Rows)
    facts: dict[str, list[Fact]] = field(default_factory=dict)
    signs: list[Sign] = field(default_factory=list)
    understood: list[int] = field(default_factory=list)  # lines that hold a fact, a sign or a note
    quoted: int = 0  # evaluations that were read out of a note
    tables: dict[str, Rows] = field(default_factory=dict)  # rows as they were printed, by their kind (`lines`)
    cut: int = 0  # rows that end early
    rows_read: int = 0  # rows that are no update of their own, such as those of micro-batches
    fences: list[int] = field(default_factory=list)  # where blocks of a page begin and end
    bits_unit: str = ""  # what a bit is of, where the text says it
    loss_unit: str = "nats"  # as printed
    loss_scale: float = 1.0  # nats in that unit
    loss_is_smoothed: bool = False  # only a mean was printed
    bar_step_s: float | None = None  # seconds of a step, where only rows of evaluations tell them

    def __bool__(self) -> bool:
        return bool(len(self.steps) or len(self.evals) or any(map(len, self.tables.values())))

    @property
    def headings(self) -> list[Sign]:
        return [sign for sign in self.signs if sign.kind == "run"]

    def tell(self, name: str, value: object, line: int, at: int) -> None:
        self.facts.setdefault(name, []).append(Fact(value, line, at))
        self.understood.append(line)

    def sign(self, sign: Sign) -> None:
        self.signs.append(sign)
        self.understood.append(sign.line)

    def copy(self) -> Found:
        """For assembling, which changes it, while more may be read into this one."""
        facts = {name: list(facts) for name, facts in self.facts.items()}
        steps, evals = self.steps.copy(), self.evals.copy()
        tables = {kind: rows.copy() for kind, rows in self.tables.items()}
        copied = Found(steps, evals, facts, list(self.signs), list(self.understood), self.quoted, tables)
        copied.cut = self.cut
        copied.bits_unit, copied.fences = self.bits_unit, list(self.fences)
        return copied

    def add(self, other: Found) -> None:
        """Takes in what was found in a later piece of the same text."""
        self.steps, self.evals = joined((self.steps, other.steps)), joined((self.evals, other.evals))
        for name, facts in other.facts.items():
            self.facts.setdefault(name, []).extend(facts)
        self.signs += other.signs
        self.understood += other.understood
        self.quoted += other.quoted
        self.bits_unit = self.bits_unit or other.bits_unit
        self.fences += other.fences
        self.cut += other.cut
        for kind, rows in other.tables.items():
            self.tables[kind] = joined((self.tables.get(kind, Rows()), rows))


@dataclass(frozen=True)
class Sentence:
    """Something that a trainer says besides its rows; `sentences.toml` describes the pattern."""

    word: str  # a line without it is not looked at
    pattern: str
    mark: str = ""  # the kind of Sign, where it is something that happened


def sentences_in(table: Mapping[str, Any]) -> tuple[Sentence, ...]:
    return tuple(
        Sentence(word, pattern, mark)
        for mark, sentences in {"": table.get("facts", ()), **table.get("marks", {})}.items()
        for words, pattern in sentences
        for word in ([words] if isinstance(words, str) else words)
    )
