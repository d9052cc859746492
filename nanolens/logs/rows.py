"""Rows of numbers in a text: how a trainer's rows are described by patterns, how they are found, and in which units.

A pattern is a regular expression that may match anywhere in a line, so that time stamps, ranks, quotes and rows glued
together need no care of their own. The name of a group says what the number is and in which unit it is printed
(`took_ms`, `mfu_pct`). Quantifiers are possessive or bounded: the time of a search grows with the text's length and no
faster, whatever the text is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from nanolens.logs.text import LogText
from nanolens.record.run import Conventions

NUMBER = (
    # 1234.5, 1,234,567, 1.0E-4
    r"[-+]?(?:\d{1,30}+(?:(?<!\d{4}),\d{3}(?!\d))*+(?:\.\d{0,30}+)?+(?:[eE][-+]?\d{1,4}+)?+"
    r"|\.\d{1,30}+(?:[eE][-+]?\d{1,4}+)?+|nan|NaN|NAN|inf|Inf|Infinity)"
)
WHOLE = r"\d{1,15}+(?:(?<!\d{4}),\d{3}(?!\d))*+"

UNITS: Mapping[str, tuple[str, float]] = {
    "took_ms": ("took_s", 1e-3),
    "mfu_pct": ("mfu_frac", 1e-2),
    "memory_mib": ("memory_bytes", 2.0**20),
    "memory_gib": ("memory_bytes", 2.0**30),
    "memory_mb": ("memory_bytes", 1e6),
    "memory_gb": ("memory_bytes", 1e9),
    "eval_ms": ("eval_s", 1e-3),
}
"""Groups that are printed in another unit than ours. Other names are columns of Steps and Evals, or of one format."""
SCALES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

_WHOLE_NUMBERS = ("step", "total", "epoch", "micro_batches")
_PLACEHOLDER = re.compile(r"(?<!\?P)<(\w+)>")


@cache  # compiled when a text holds one of its words: most texts hold few of them
def row_pattern(template: str, *, is_sentence: bool = False) -> re.Pattern[str]:
    """A regular expression in which `<loss>` stands for a group of that name with a number in it. In a sentence the
    number may end in a letter for thousands, millions or billions, which is the group `loss_scale`."""

    def group(placeholder: re.Match[str]) -> str:
        name = placeholder[1]
        if is_sentence:
            return rf"(?P<{name}>{NUMBER})(?P<{name}_scale>[KkMBT]?)(?!\w)"
        return f"(?P<{name}>{WHOLE if name in _WHOLE_NUMBERS else NUMBER})"

    return re.compile(_PLACEHOLDER.sub(group, template), re.M)


Said = Mapping[str, Sequence[str | float | None]]
"""By the name of a group or a column, the number of each row: as printed, already read, or none."""

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
    cut: int = 0

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
        return Rows(at, line, piece, printed, columns, not_finite, self.cut)

    def without(self, dropped: Sequence[int] | np.ndarray) -> Rows:
        return self.take(np.setdiff1d(np.arange(len(self)), dropped)) if len(dropped) else self


def joined(several: Iterable[Rows]) -> Rows:
    """All rows in the order of the text. Where two patterns matched at one place, the first one's row stays."""
    rows = [each for each in several if len(each) or each.cut]
    if len(rows) == 1:
        return rows[0]
    if not rows:
        return Rows()
    names, marked = ({name for each in rows for name in getattr(each, kind)} for kind in ("columns", "not_finite"))
    places = np.concatenate([np.stack([each.at, each.line, each.piece, each.printed]) for each in rows], axis=1)
    columns = {name: np.concatenate([each.column(name) for each in rows]) for name in names}
    not_finite = {name: np.concatenate([each.is_not_finite(name) for each in rows]) for name in marked}
    _, first = np.unique(places[0], return_index=True)  # sorted by place; the first of equals
    at, line, piece, printed = places
    return Rows(at, line, piece, printed, columns, not_finite, sum(each.cut for each in rows)).take(first)


def find_rows(pattern: re.Pattern[str], source: LogText) -> Rows:
    """Every place where the pattern matches, its groups as columns."""
    matches = list(pattern.finditer(source.text))
    if not matches:
        return Rows()
    starts = np.array([match.start() for match in matches], np.int64)
    source.note_rows(starts, np.array([match.end() for match in matches], np.int64))
    groups = dict(zip(pattern.groupindex, zip(*[match.groups() for match in matches], strict=True), strict=True))
    texts = groups.pop("step", ())
    try:
        steps = np.array(list(map(int, texts)), np.int64)
    except (ValueError, TypeError):  # with commas, or none
        steps = np.array([int(text.replace(",", "")[:18]) if text else -1 for text in texts], np.int64)
    return _without_cut_ones(rows_at(starts, source, groups, steps), matches, source)


def rows_at(starts: np.ndarray, source: LogText, said: Said, steps: np.ndarray) -> Rows:
    """Rows at these places from what they say, by the names of groups; without step numbers where there are none."""
    printed = steps if len(steps) else np.full(len(starts), -1)
    pieces = source.pieces_at(starts)[0] + source.offset
    return Rows(starts + source.offset, source.lines_at(starts), pieces, printed, *to_columns(said))


def from_records(records: Sequence[tuple[int, int, Mapping[str, str | float]]], source: LogText) -> Rows:
    """Rows from (place, printed step or -1, numbers by our column names, printed or already read)."""
    if not records:
        return Rows()
    starts, steps, numbers = zip(*records, strict=True)
    said = {name: [each.get(name) for each in numbers] for name in {name for each in numbers for name in each}}
    return rows_at(np.array(starts, np.int64), source, said, np.array(steps, np.int64))


def to_columns(said: Said) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Columns in our units, and for each column where a number that is not finite was printed."""
    columns: dict[str, np.ndarray] = {}
    not_finite: dict[str, np.ndarray] = {}
    for name, printed in said.items():
        try:
            values = np.array(printed, dtype=np.float64)  # None becomes NaN
        except ValueError:
            plain = [each.replace(",", "") if isinstance(each, str) else each for each in printed]
            values = np.array(plain, dtype=np.float64)
        strange = ~np.isfinite(values)
        if strange.any():
            strange &= np.fromiter((each is not None for each in printed), bool, len(printed))
        ours, scale = UNITS.get(name, (name, 1.0))
        values = values * scale if scale != 1.0 else values
        columns[ours] = np.where(np.isnan(columns[ours]), values, columns[ours]) if ours in columns else values
        if strange.any():
            not_finite[ours] = strange | not_finite.get(ours, False)
    return columns, not_finite


def _without_cut_ones(rows: Rows, matches: Sequence[re.Match[str]], source: LogText) -> Rows:
    """Rows that were cut short lose the number in which the cut fell; without their first number they go.

    A row may be cut when it ends with its line and has fewer fields than nearly all others, or is the last of a text
    that ends without a line end. Its last number is believed when it has as many decimals as in other rows."""
    fields = np.array([match.lastindex or 0 for match in matches], np.int64)
    usual = int(np.bincount(fields).argmax())
    shorter = np.flatnonzero(fields < usual)
    suspects = set(shorter.tolist()) if len(shorter) <= max(1, len(matches) // 20) else set()
    if len(matches) > 1 and matches[-1].end() == len(source.text):
        suspects.add(len(matches) - 1)
    dropped = []
    for index in sorted(suspects):
        match = matches[index]
        name, places = match.lastgroup or "", match.re.groupindex
        alike = [other for other in matches[:200] if other is not match and other.lastindex == usual and other[name]]
        if source.text[match.end() : match.end() + 1] not in ("", "\n", "\r") or not alike:
            continue  # something follows: it is another form of row, not a shorter one
        is_short = _decimals(match[name]) < min(_decimals(other[name]) for other in alike)
        rows.cut += is_short or int(fields[index]) < usual
        if is_short and not any(match[each] for each in places if places[each] < places[name] and each != "step"):
            dropped.append(index)  # nothing of the row would be left
        elif is_short:
            rows.columns[UNITS.get(name, (name, 1.0))[0]][index] = np.nan
    return rows.without(dropped)


def _decimals(number: str) -> int:
    return len(number.partition(".")[2])


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

    def __bool__(self) -> bool:
        return bool(len(self.steps) or len(self.evals))

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
        steps, evals = self.steps.take(slice(None)), self.evals.take(slice(None))
        return Found(steps, evals, facts, list(self.signs), list(self.understood), self.quoted)

    def add(self, other: Found) -> None:
        """Takes in what was found in a later piece of the same text."""
        self.steps, self.evals = joined((self.steps, other.steps)), joined((self.evals, other.evals))
        for name, facts in other.facts.items():
            self.facts.setdefault(name, []).extend(facts)
        self.signs += other.signs
        self.understood += other.understood
        self.quoted += other.quoted


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


@dataclass(frozen=True)
class LogFormat:
    """How the text of a trainer is read; `formats/trainers.toml` describes the patterns."""

    name: str  # what `--log_format` calls it
    conventions: Conventions
    words: Sequence[str] = ()  # a text without any of them is not searched
    steps: Sequence[str] = ()
    steps_from_zero: Sequence[str] = ()
    evals: Sequence[str] = ()
    passed_over: Sequence[str] = ()
    sentences: Sequence[Sentence] = ()
    header: str = ""
    # (pattern of updates, text) -> the pattern with more fields
    widen: Callable[[re.Pattern[str], str], re.Pattern[str]] = lambda pattern, text: pattern
    find: Callable[[LogText], Found] | None = None  # where patterns alone do not do
    place: Callable[[Found], None] | None = None  # gives rows without a step number theirs, once all rows are known
    finish: Callable[[Rows, Rows], Rows] | None = None  # (updates, evaluations) of one run -> its updates
    conventions_in: Callable[[str, LogFormat], Conventions] | None = None  # where the text says which it follows
    is_general: bool = False  # understands many texts a little: asked only when no other format finds a row

    def rows_in(self, source: LogText) -> Found:
        if self.find is not None:
            return self.find(source)
        found = Found(self._updates(source), joined(find_rows(row_pattern(each), source) for each in self.evals))
        for each in self.passed_over if found else ():
            found.understood += find_rows(row_pattern(each), source).line.tolist()
        return found

    def _updates(self, source: LogText) -> Rows:
        rows = [find_rows(self.widen(row_pattern(each), source.text), source) for each in self.steps]
        from_zero = [find_rows(row_pattern(each), source) for each in self.steps_from_zero]
        for each in from_zero:
            each.columns["updates"] = each.printed + 1.0
        updates = joined([*rows, *from_zero])
        if "updates" in updates.columns:
            updates.fill("updates", updates.printed)
        return updates


STEP_COLUMNS = "loss lr grad_norm took_s tokens_per_s mfu_frac at_s loss_scale memory_bytes tokens".split()
EVAL_COLUMNS = "train val val_bits_per_byte eval_s at_s".split()


def split_table(table: Rows) -> Found:
    """Updates and evaluations of a table with our column names.

    A val loss makes an evaluation. A train loss that only ever comes with a val loss is an evaluation of the train
    split; one that also comes alone is the loss of a batch. MFU without a sign is per cent where any value is above 1
    (a share cannot be), else a share."""
    if (mfu := table.columns.pop("mfu", None)) is not None:
        table.fill("mfu_frac", mfu / 100.0 if np.any(mfu[np.isfinite(mfu)] > 1.0) else mfu)
    has_loss, has_grad_norm, has_val = (
        ~np.isnan(table.column(name)) | table.is_not_finite(name) for name in ("loss", "grad_norm", "val")
    )
    has_val |= np.isfinite(table.column("val_bits_per_byte"))
    if has_val.any() and has_loss.any() and not (has_loss & ~has_val).any():
        table.columns["train"] = table.column("loss")
        if "loss" in table.not_finite:
            table.not_finite["train"] = table.not_finite.pop("loss")
        return Found(Rows(), _only(table, has_val, EVAL_COLUMNS))
    has_update = has_loss | has_grad_norm | (np.isfinite(table.column("lr")) & ~has_val)
    return Found(_only(table, has_update, STEP_COLUMNS), _only(table, has_val, EVAL_COLUMNS))


def _only(table: Rows, chosen: np.ndarray, names: Sequence[str]) -> Rows:
    rows = table.take(np.flatnonzero(chosen))
    for kind in (rows.columns, rows.not_finite):
        for name in kind.keys() - {*names, "updates", "total"}:
            del kind[name]
    return rows
