"""Lines of names and numbers, by whatever trainer: the door for texts that no other door knows.

    step 10 | loss 3.2011 | lr 1.0e-03 | 210.5 ms
    03:22:14 [INFO] [Rank 0] step: 289, loss: 0.4310, tokens_per_second: 76477.73, mfu: 37.59

    [43000] | gnorm 0.38 lr 0.000196 | loss 7.93
    25/21150 (epoch 0.059), train_loss = 2.91823
    [step=100/739328,epoch=0]
        train/CrossEntropyLoss=6.031

A row is a step's name and number (or its place in brackets, or before its epoch), and then a loss by a name with one meaning
(`names.py`). What the numbers mean is not known, and `Words` says so: whether the loss is a mean or a sample, what the time includes,
what the MFU divides by. A trainer that prints a loss at step 0 counts the updates before the row; then our step is one more.

Rows of one program look alike, so a few of them are taken apart, made into patterns, and the rest is found by those; what fits none of
them is taken apart too.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from nanolens.interop.logs import table
from nanolens.interop.logs.door import Door, Found
from nanolens.interop.logs.names import column_of, normalised
from nanolens.interop.logs.rows import NUMBER, UNITS, Rows, find_rows, from_records, joined
from nanolens.logs.text import Text
from nanolens.record.run import Words

WORDS = Words(trainer="unknown")

# Each begins with a plain part of the word, which is found many times faster than a choice of words; so a row "begins" at its second
# letter.
_NUMBERED = r"[\"']?(?: {0,8}+[:=#] {0,8}+| {1,8}+)(?P<step>\d{1,15}+)(?![.\d])(?=[^\r\n]{0,40}?[A-Za-z])"
ANCHORS = tuple(
    re.compile(rf"{rest}(?<=[{first}]{rest})(?:(?<![\w.\-].{rest})|(?<=lobal[_ ].{rest})){more}s?{_NUMBERED}")
    for first, rest, more in (("Ss", "tep", ""), ("Ii", "ter", "(?:ation)?"), ("Uu", "pdate", ""))
)
PLACES = (
    ("] | ", re.compile(r"\[(?P<step>\d{1,15}+)(?=\] \| )")),
    ("[batch=", re.compile(r"\[batch=(?P<step>\d{1,15}+)(?=/\d{1,15}+\])")),
    ("ter(train) [", re.compile(r"ter\(train\) {1,4}+\[ {0,8}+(?P<step>\d{1,12}+)(?=/ {0,8}+\d{1,12}+\])")),
    (
        "poch(train) [",
        re.compile(r"poch\(train\) {1,4}+\[(?P<epoch>\d{1,6}+)\]\[ {0,8}+(?P<step>\d{1,12}+)(?=/ {0,8}+(?P<total>\d{1,12}+)\])"),
    ),
    (" (epoch ", re.compile(r"(?<![\w./:\-])(?P<step>\d{1,15}+)(?=/\d{1,15}+ \(epoch [\d.]{1,20}+\))")),
)
"""Rows that do not name their step; each with a sign without which a text is not searched."""
OPEN_BLOCK = re.compile(r"\[(?:step|batch)=[^\n]{0,80}\]:?\n(?:[ \t]{2,12}[A-Za-z][\w/. \-]{0,80}(?:=|: )[^\n]{0,60}\n)*+")
BLOCK = re.compile(r"\]:?(?:\n[ \t]{2,12}[A-Za-z][\w/. \-]{0,80}?(?:=|: )[^\s]{1,40})++")  # `name=value` under a step, one a line
PAIR = re.compile(
    r"(?<![\w.\-])([A-Za-z_][\w/.\-]{0,40}+(?: [A-Za-z_/\-]{1,20}+){0,3}?)(?: \((ms|s)\))?[\"']?(?: {0,8}+[:=] {0,8}+| {1,8}+)[\[\"'(`]?"
    rf"({NUMBER})(?: ?(ms|milliseconds|sec|seconds|s|%|MiB|GiB|MB|GB)(?![\w/])|(?!\w))"  # 16.8K is no number that is understood
)
_ANY_NUMBER = re.compile(rf"(?<![\w.]){NUMBER}(?![\w.])")
_SPACES = re.compile(r"(?:\\ )+")
_NOISE = frozenset("info debug warning train training trainer main rank at".split())
_BY_UNIT = {
    "took": {"ms": "took_ms", "milliseconds": "took_ms", "s": "took_s", "sec": "took_s", "seconds": "took_s"},
    "took_s": {"": "took_s", "s": "took_s", "sec": "took_s", "ms": "took_ms"},
    "took_ms": {"": "took_ms", "ms": "took_ms"},
    "mfu": {"%": "mfu_pct", "": "mfu"},
    "memory": {"MiB": "memory_mib", "GiB": "memory_gib", "MB": "memory_mb", "GB": "memory_gb"},
}
"""What a name means together with the unit printed behind its number; in another unit, or in none, it means nothing."""

SHORTEST, LONGEST = len("tep 1 loss 2"), 1000  # characters of a row
LOOKED_AT = 40  # rows that are taken apart to learn what rows look like
MOST_PATTERNS = 6


def find(source: Text) -> Found:
    found = table.split(find_table(source))
    if found and _has_blocks(source.text):
        spans = np.array([block.span() for block in BLOCK.finditer(source.text)], np.int64).reshape(-1, 2)
        first, last = source.lines_at(spans[:, 0]), source.lines_at(spans[:, 1])
        found.understood += (np.repeat(first, last - first + 1) + _counted(last - first + 1)).tolist()
    return found


def _counted(lengths: np.ndarray) -> np.ndarray:
    """0, 1, 2, … for each of the lengths, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)


def find_table(source: Text) -> Rows:
    """Every row with a step and a number that we have a column for."""
    text = source.text
    anchored = (*ANCHORS, *(pattern for sign, pattern in PLACES if sign in text))
    by_word = [found for anchor in anchored if (found := list(anchor.finditer(text)))]
    anchors = by_word[0] if len(by_word) == 1 else sorted(itertools.chain(*by_word), key=lambda match: match.start())
    starts = np.array([anchor.start() for anchor in anchors], np.int64)
    ends = np.append(source.piece_starts, len(text) + 1)[np.searchsorted(source.piece_starts, starts, side="right")] - 1
    ends = np.minimum(np.minimum(ends, np.append(starts[1:], len(text))), starts + LONGEST)
    ends = _with_blocks(text, starts, ends)
    alike = [_at_anchors(find_rows(pattern, source), starts + source.offset) for pattern in _learnt(text, anchors, ends)]
    digits = np.concatenate([[0], np.cumsum((source.codes >= ord("0")) & (source.codes <= ord("9")), dtype=np.int32)])
    behind = np.array([anchor.end() for anchor in anchors], np.int64)
    is_left = (ends - starts >= SHORTEST) & (digits[np.maximum(ends, behind)] > digits[behind])
    for rows in alike:
        is_left[np.searchsorted(starts, rows.at - source.offset)] = False
    left = np.flatnonzero(is_left)
    steps, records, places = [], [], []
    for index in left.tolist():
        record = numbers_in(text, anchors[index].end(), int(ends[index]))
        if record:
            steps.append(_step_of(anchors[index]))
            records.append(record)
            places.append(anchors[index].start())
    return joined([*alike, from_records(records, places, source, steps)])


def _step_of(anchor: re.Match[str]) -> int:
    """`[2][10/735]` is the tenth of 735 in the second epoch."""
    step = int(anchor["step"])
    return step + (int(anchor["epoch"]) - 1) * int(anchor["total"]) if "epoch" in anchor.re.groupindex else step


def _at_anchors(rows: Rows, starts: np.ndarray) -> Rows:
    """A pattern knows less than the anchor that it was learnt from, and may match elsewhere too."""
    is_one = np.isin(rows.at, starts)
    return rows if is_one.all() else rows.take(np.flatnonzero(is_one))


def _has_blocks(text: str) -> bool:
    return "]\n  " in text or "]:\n  " in text


def _with_blocks(text: str, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Ends of rows that go on below their line."""
    blocks = list(BLOCK.finditer(text)) if _has_blocks(text) else []
    if not blocks or not len(starts):
        return ends
    heads, tails = (np.array([getattr(block, side)() for block in blocks], np.int64) for side in ("start", "end"))
    of = np.minimum(np.searchsorted(heads, starts), len(blocks) - 1)
    is_head = (heads[of] >= starts) & (heads[of] <= ends)
    return np.where(is_head, tails[of], ends)


def numbers_in(text: str, start: int, end: int) -> dict[str, str | float]:
    """Numbers by our column names in a part of a line; of two by one name the first."""
    found: dict[str, str | float] = {}
    for name, unit_before, number, unit in PAIR.findall(text, start, end):
        column, scale = UNITS.get(meant := meaning(name, unit or unit_before), (meant, 1.0))
        if column and column not in found:
            found[column] = number if scale == 1.0 else float(number.replace(",", "")) * scale
    return found


@lru_cache(maxsize=4096)
def meaning(name: str, unit: str) -> str:
    """Our name for a number and its unit, as in `rows.UNITS`; "" where the meaning is not plain."""
    name = name.rpartition(" - ")[2]  # in `Adam - train loss: 2.1` it is `train loss`
    column = column_of(name)
    if not column and " " in name:
        first, _, last = name.partition(" ")
        column = column_of(last) if normalised(first) in _NOISE else ""
    if column in _BY_UNIT:
        return _BY_UNIT[column].get(unit, "")
    return "" if column == "step" else column


def pattern_like(text: str, start: int, end: int, meaning: Callable[[str, str], str] = meaning) -> str:
    """The source of a pattern for texts that differ from this part in their numbers only; "" where no number in it has a meaning."""
    meant = {match.start(3): meaning(match[1], match[4] or match[2] or "") for match in PAIR.finditer(text, start, end)}
    parts, at, named = [], start, set()
    for number in _ANY_NUMBER.finditer(text, start, end):
        name = meant.get(number.start(), "")
        parts.append(re.escape(text[at : number.start()]))
        parts.append(f"(?P<{name}>{NUMBER})" if name and name not in named else f"(?:{NUMBER})")
        named.add(name)
        at = number.end()
    return _SPACES.sub(" {1,20}+", "".join(parts)) if named - {""} else ""


def _learnt(text: str, anchors: list[re.Match[str]], ends: np.ndarray) -> list[re.Pattern[str]]:
    seen: Counter[str] = Counter()
    for index in range(0, len(anchors), max(1, len(anchors) // LOOKED_AT)):
        anchor = anchors[index]
        if "epoch" in anchor.re.groupindex:
            continue  # its step is more than a number that stands there
        rest = pattern_like(text, anchor.end(), int(ends[index]))
        if rest:
            name = re.escape(text[anchor.start() : anchor.start("step")])
            seen[_SPACES.sub(" {1,20}+", name) + r"(?P<step>\d{1,15}+)" + rest] += 1
    return [re.compile(source) for source, count in seen.most_common(MOST_PATTERNS) if count > 1]


DOOR = Door("key-value", WORDS, signs=("tep", "ter", "pdate", *(sign for sign, _ in PLACES)), find=find, is_general=True)
