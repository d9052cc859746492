"""Rows of numbers in a text: how one is written down as a pattern, how they are found, and what each number's unit is.

A pattern is a regular expression that may match anywhere in a line, so that time stamps, ranks, quotes and rows glued together need no
care of their own. The name of a group says what the number is and in which unit it is printed (`took_ms`, `mfu_pct`). Quantifiers are
possessive or bounded: the time of a search grows with the text's length and no faster, whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanolens.logs.text import Text

NUMBER = (
    r"[-+]?(?:\d{1,30}+(?:(?<!\d{4}),\d{3}(?!\d))*+(?:\.\d{0,30}+)?+(?:[eE][-+]?\d{1,4}+)?+"  # 1234.5, 1,234,567, 1.0E-4
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
"""Groups whose number is printed in another unit than ours. Other names are columns of Steps and Evals, or a door's own business."""


def num(name: str) -> str:
    """A group for a number, NaN and infinity included."""
    return f"(?P<{name}>{NUMBER})"


def whole(name: str = "step") -> str:
    """A group for a whole number, thousands marked or not."""
    return f"(?P<{name}>{WHOLE})"


@dataclass
class Rows:
    """Rows of one kind, in the order of the text."""

    at: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # offset of the row's first character in the source
    line: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    piece: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # offset of the line or redraw that it stands in
    printed: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # the number printed as step; -1 where none is
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    not_finite: dict[str, np.ndarray] = field(default_factory=dict)  # True where "nan" or "inf" is printed; NaN elsewhere means: not said
    cut: int = 0

    def __len__(self) -> int:
        return len(self.at)

    def column(self, name: str) -> np.ndarray:
        return self.columns.get(name, np.full(len(self), np.nan))

    def take(self, chosen: np.ndarray) -> Rows:
        return Rows(
            self.at[chosen], self.line[chosen], self.piece[chosen], self.printed[chosen],
            {name: values[chosen] for name, values in self.columns.items()},
            {name: values[chosen] for name, values in self.not_finite.items()},
            self.cut,
        )  # fmt: skip


def joined(several: Iterable[Rows]) -> Rows:
    """All rows in the order of the text. Where two patterns matched at one place, the first one's row stays."""
    rows = [each for each in several if len(each) or each.cut]
    if len(rows) == 1:
        return rows[0]
    if not rows:
        return Rows()
    names = {name for each in rows for name in each.columns}
    marked = {name for each in rows for name in each.not_finite}
    whole = Rows(
        np.concatenate([each.at for each in rows]),
        np.concatenate([each.line for each in rows]),
        np.concatenate([each.piece for each in rows]),
        np.concatenate([each.printed for each in rows]),
        {name: np.concatenate([each.column(name) for each in rows]) for name in names},
        {name: np.concatenate([each.not_finite.get(name, np.zeros(len(each), bool)) for each in rows]) for name in marked},
        sum(each.cut for each in rows),
    )
    _, first = np.unique(whole.at, return_index=True)  # sorted by place; the first of equals
    return whole.take(first)


def find_rows(pattern: re.Pattern[str], source: Text) -> Rows:
    """Every place where the pattern matches, its groups as columns."""
    matches = list(pattern.finditer(source.text))
    if not matches:
        return Rows()
    starts, ends = np.array([match.start() for match in matches], np.int64), np.array([match.end() for match in matches], np.int64)
    note_rows_alone(source, starts, ends)
    groups = dict(zip(pattern.groupindex, zip(*[match.groups() for match in matches], strict=True), strict=True))
    columns, not_finite = to_columns({name: texts for name, texts in groups.items() if name != "step"})
    printed = to_whole(groups["step"]) if "step" in groups else np.full(len(matches), -1)
    rows = Rows(starts + source.offset, source.lines_at(starts), _pieces(source, starts), printed, columns, not_finite)
    return _without_cut_ones(rows, matches, source)


def note_rows_alone(source: Text, starts: np.ndarray, ends: np.ndarray) -> None:
    """Lines that say nothing but their row, braces around it left aside."""
    lines = np.searchsorted(source.line_starts, starts, side="right") - 1
    before = starts - source.line_starts[lines]
    behind = np.append(source.line_starts[1:] - 1, len(source.text))[lines] - ends
    is_braced = (before <= 2) & (behind <= 1)
    is_braced[is_braced] = source.codes[source.line_starts[lines[is_braced]]] == ord("{")
    source.rows_alone.append(lines[((before == 0) & (behind == 0)) | is_braced])


def to_columns(texts: Mapping[str, Sequence[str | None]]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Columns in our units from printed numbers, and for each column where a number that is not finite was printed."""
    columns: dict[str, np.ndarray] = {}
    not_finite: dict[str, np.ndarray] = {}
    for name, printed in texts.items():
        values = to_numbers(printed)
        strange = ~np.isfinite(values)
        if strange.any():
            strange &= np.fromiter((text is not None for text in printed), bool, len(printed))
        ours, scale = UNITS.get(name, (name, 1.0))
        values = values * scale if scale != 1.0 else values
        if ours in columns:  # two ways to print the same: whichever is there
            values = np.where(np.isnan(columns[ours]), values, columns[ours])
        columns[ours] = values
        if strange.any():
            not_finite[ours] = strange | not_finite.get(ours, False)
    return columns, not_finite


def from_records(
    records: Sequence[Mapping[str, str | float]], starts: Sequence[int], source: Text, steps: Sequence[int] | None = None
) -> Rows:
    """Rows from numbers by our column names, printed or already read, and the place of each."""
    if not records:
        return Rows()
    columns: dict[str, np.ndarray] = {}
    not_finite: dict[str, np.ndarray] = {}
    for name in {name for record in records for name in record}:
        said = [record.get(name) for record in records]
        values = np.array([np.nan if x is None else float(x.replace(",", "")) if isinstance(x, str) else x for x in said], np.float64)
        columns[name] = values
        strange = ~np.isfinite(values) & np.array([x is not None for x in said])
        if strange.any():
            not_finite[name] = strange
    at = np.array(starts, np.int64)
    printed = np.full(len(at), -1) if steps is None else np.array(steps, np.int64)
    return Rows(at + source.offset, source.lines_at(at), _pieces(source, at), printed, columns, not_finite)


def rows_at(starts: np.ndarray, source: Text, columns: dict[str, np.ndarray], not_finite: dict[str, np.ndarray]) -> Rows:
    """Rows without a step of their own, from columns that are read already."""
    return Rows(starts + source.offset, source.lines_at(starts), _pieces(source, starts), np.full(len(starts), -1), columns, not_finite)


def to_numbers(texts: Sequence[str | None]) -> np.ndarray:
    try:
        return np.array(texts, dtype=np.float64)  # None becomes NaN
    except ValueError:
        return np.array([None if text is None else text.replace(",", "") for text in texts], dtype=np.float64)


def to_whole(texts: Sequence[str | None]) -> np.ndarray:
    try:
        return np.array(list(map(int, texts)), np.int64)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return np.array([-1 if text is None else int(text.replace(",", "")[:18]) for text in texts], np.int64)


def _pieces(source: Text, starts: np.ndarray) -> np.ndarray:
    return source.piece_starts[np.searchsorted(source.piece_starts, starts, side="right") - 1] + source.offset


def _without_cut_ones(rows: Rows, matches: Sequence[re.Match[str]], source: Text) -> Rows:
    """Rows that a full disk, a kill or a copy cut short lose the number in which the cut fell; without their first number they go.

    A row may be cut when it ends with its line and has fewer fields than nearly all others, or is the last of a text that ends
    without a line end. Its last number is believed when it has as many digits after the point as that number has in other rows.
    """
    fields = np.array([match.lastindex or 0 for match in matches], np.int64)
    usual = int(np.bincount(fields).argmax())
    shorter = np.flatnonzero(fields < usual)
    suspects = set(shorter.tolist()) if len(shorter) <= max(1, len(matches) // 20) else set()
    if len(matches) > 1 and matches[-1].end() == len(source.text):
        suspects.add(len(matches) - 1)
    dropped = []
    for index in sorted(suspects):
        match = matches[index]
        name = _last_group(match)
        others = [_decimals(other[name]) for other in matches[:200] if other is not match and other.lastindex == usual and other[name]]
        if source.text[match.end() : match.end() + 1] not in ("", "\n", "\r") or not others:
            continue  # something follows: it is another form of row, not a shorter one
        is_short = _decimals(match[name]) < min(others)
        rows.cut += is_short or int(fields[index]) < usual
        if is_short and _is_first_number(match, name):
            dropped.append(index)
        elif is_short:
            rows.columns[UNITS.get(name, (name, 1.0))[0]][index] = np.nan
    return rows.take(np.setdiff1d(np.arange(len(rows)), dropped)) if dropped else rows


def _last_group(match: re.Match[str]) -> str:
    return next((name for name, index in match.re.groupindex.items() if index == match.lastindex), "")


def _is_first_number(match: re.Match[str], name: str) -> bool:
    """Is this the first number after the step? Then nothing of the row is left without it."""
    before = [
        other for other, index in match.re.groupindex.items() if index < match.re.groupindex[name] and match[other] and other != "step"
    ]
    return not before


def _decimals(number: str) -> int:
    _, point, decimals = number.partition(".")
    return len(decimals) if point else 0
