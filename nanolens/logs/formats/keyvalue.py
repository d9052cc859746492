"""Trainers that nobody knows: lines of names and numbers, lines per epoch, and progress bars.

    step 10 | loss 3.2011 | lr 1.0e-03 | 210.5 ms
    [43000] | gnorm 0.38 lr 0.000196 | loss 7.93
    25/21150 (epoch 0.059), train_loss = 2.91823
    [step=100/739328,epoch=0]
        train/CrossEntropyLoss=6.031

    Epoch 3/6, Train Loss: 2.31, Val Loss: 2.89

    Epoch 0:   0%|          | 5/17935 [00:02<2:31:46,  1.86it/s, v_num=12, train_loss=10.90]

Rows of one program look alike: a few are taken apart and made into patterns, which find the rest. What the numbers mean
is not known, and `Conventions` says so.

Of an epoch the train loss is the mean and the val loss that of its end: an evaluation of both. Our step is then the
epoch, which `steps_are_epochs` says; where the numbers go by more than one at a time, or into the thousands, what is
called an epoch there is an iteration.

A bar counts batches of its epoch (micro-batches under gradient accumulation; it does not say): our step is epoch x
batches + batch. Its loss is what the last batch logged, rounded to three digits by Lightning; its time the inverse of
the bar's moving average of the speed."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import numpy as np

from nanolens.config.names import column_of, normalised
from nanolens.logs.rows import NUMBER, UNITS, Found, LogFormat, Rows, find_rows, from_records, joined, split_table
from nanolens.logs.text import LogText
from nanolens.record.run import Conventions

# An anchor begins with a plain part of the word, found many times faster than a choice: a row begins at its 2nd letter.
_NUMBERED = r"[\"']?(?: {0,8}+[:=#] {0,8}+| {1,8}+)(?P<step>\d{1,15}+)(?![.\d])(?=[^\r\n]{0,40}?[A-Za-z])"
ANCHORS = tuple(
    re.compile(rf"{rest}(?<=[{first}]{rest})(?:(?<![\w.\-].{rest})|(?<=lobal[_ ].{rest})){more}s?{_NUMBERED}")
    for first, rest, more in (("Ss", "tep", ""), ("Ii", "ter", "(?:ation)?"), ("Uu", "pdate", ""))
)
_OF_TOTAL = r" {0,8}+(?P<step>\d{1,12}+)(?=/ {0,8}+(?P<total>\d{1,12}+)\])"
PLACES = (
    ("] | ", re.compile(r"\[(?P<step>\d{1,15}+)(?=\] \| )")),
    ("[batch=", re.compile(r"\[batch=(?P<step>\d{1,15}+)(?=/\d{1,15}+\])")),
    ("ter(train) [", re.compile(rf"ter\(train\) {{1,4}}+\[{_OF_TOTAL}")),
    ("poch(train) [", re.compile(rf"poch\(train\) {{1,4}}+\[(?P<epoch>\d{{1,6}}+)\]\[{_OF_TOTAL}")),
    (" (epoch ", re.compile(r"(?<![\w./:\-])(?P<step>\d{1,15}+)(?=/\d{1,15}+ \(epoch [\d.]{1,20}+\))")),
)
"""Rows that do not name their step; each with a part without which a text is not searched."""
OPEN_BLOCK = re.compile(
    r"\[(?:step|batch)=[^\n]{0,80}\]:?\n(?:[ \t]{2,12}[A-Za-z][\w/. \-]{0,80}(?:=|: )[^\n]{0,60}\n)*+"
)
# `name=value` under a step, one a line
BLOCK = re.compile(r"\]:?(?:\n[ \t]{2,12}[A-Za-z][\w/. \-]{0,80}?(?:=|: )[^\s]{1,40})++")
PAIR = re.compile(
    r"(?<![\w.\-])([A-Za-z_][\w/.\-]{0,40}+(?: [A-Za-z_/\-]{1,20}+){0,3}?)(?: \((ms|s)\))?[\"']?(?: {0,8}+[:=] "
    r"{0,8}+| {1,8}+)[\[\"'(`]?"
    # 16.8K is no number that is understood
    rf"({NUMBER})(?: ?(ms|milliseconds|sec|seconds|s|%|MiB|GiB|MB|GB)(?![\w/])|(?!\w))"
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

SHORTEST, LONGEST_ROW = len("tep 1 loss 2"), 1000  # characters of a row
ROWS_LOOKED_AT = 40  # rows, or bars, that are taken apart to learn what they look like
MOST_PATTERNS = 6


def find_key_value(source: LogText) -> Found:
    found = split_table(find_table(source))
    if found and _has_blocks(source.text):
        spans = np.array([block.span() for block in BLOCK.finditer(source.text)], np.int64).reshape(-1, 2)
        for first, last in source.lines_at(spans).tolist():
            found.understood += range(first, last + 1)
    return found


def find_table(source: LogText) -> Rows:
    """Every row with a step and a number that we have a column for."""
    text = source.text
    anchored = (*ANCHORS, *(pattern for word, pattern in PLACES if word in text))
    by_word = [found for anchor in anchored if (found := list(anchor.finditer(text)))]
    anchors = by_word[0] if len(by_word) == 1 else sorted(itertools.chain(*by_word), key=lambda match: match.start())
    starts = np.array([anchor.start() for anchor in anchors], np.int64)
    _, line_ends = source.pieces_at(starts)
    ends = np.minimum(np.minimum(line_ends, np.append(starts[1:], len(text))), starts + LONGEST_ROW)
    ends = _with_blocks(text, starts, ends)
    patterns = patterns_of(_shapes(text, anchors, ends))
    alike = [find_rows(pattern, source) for pattern in patterns]
    # A pattern knows less than the anchor that it was learnt from, and may match elsewhere too.
    alike = [rows.take(np.flatnonzero(np.isin(rows.at, starts + source.offset))) for rows in alike]
    digits = np.concatenate([[0], np.cumsum((source.codes >= ord("0")) & (source.codes <= ord("9")), dtype=np.int32)])
    behind = np.array([anchor.end() for anchor in anchors], np.int64)
    is_left = (ends - starts >= SHORTEST) & (digits[np.maximum(ends, behind)] > digits[behind])
    for rows in alike:
        is_left[np.searchsorted(starts, rows.at - source.offset)] = False
    records = [
        (anchors[index].start(), _step_of(anchors[index]), record)
        for index in np.flatnonzero(is_left).tolist()
        if (record := numbers_in(text, anchors[index].end(), int(ends[index])))
    ]
    return joined([*alike, from_records(records, source)])


def _step_of(anchor: re.Match[str]) -> int:
    """`[2][10/735]` is the tenth of 735 in the second epoch."""
    step = int(anchor["step"])
    return step + (int(anchor["epoch"]) - 1) * int(anchor["total"]) if "epoch" in anchor.re.groupindex else step


def _has_blocks(text: str) -> bool:
    return "]\n  " in text or "]:\n  " in text


def _with_blocks(text: str, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
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
    """A pattern for texts that differ from this part in their numbers only; "" where no number has a meaning."""
    meant = {match.start(3): meaning(match[1], match[4] or match[2] or "") for match in PAIR.finditer(text, start, end)}
    parts, at, named = [], start, set()
    for number in _ANY_NUMBER.finditer(text, start, end):
        name = meant.get(number.start(), "")
        parts.append(re.escape(text[at : number.start()]))
        parts.append(f"(?P<{name}>{NUMBER})" if name and name not in named else f"(?:{NUMBER})")
        named.add(name)
        at = number.end()
    return _SPACES.sub(" {1,20}+", "".join(parts)) if named - {""} else ""


def _shapes(text: str, anchors: list[re.Match[str]], ends: np.ndarray) -> Iterator[str]:
    for index in looked_at(len(anchors)):
        anchor = anchors[index]
        if "epoch" in anchor.re.groupindex:
            continue  # its step is more than a number that stands there
        if rest := pattern_like(text, anchor.end(), int(ends[index])):
            name = re.escape(text[anchor.start() : anchor.start("step")])
            yield _SPACES.sub(" {1,20}+", name) + r"(?P<step>\d{1,15}+)" + rest


def looked_at(count: int) -> range:
    """Which of so many are taken apart to learn what all of them look like."""
    return range(0, count, max(1, count // ROWS_LOOKED_AT))


def patterns_of(shapes: Iterable[str]) -> list[re.Pattern[str]]:
    """Of the shapes that occur more than once, the most frequent ones."""
    seen = Counter(shape for shape in shapes if shape)
    return [re.compile(shape) for shape, count in seen.most_common(MOST_PATTERNS) if count > 1]


_UNKNOWN, _WORDS = Conventions(trainer="unknown"), ("tep", "ter", "pdate", *(word for word, _ in PLACES))
KEY_VALUE = LogFormat("key-value", _UNKNOWN, _WORDS, find=find_key_value, is_general=True)

ANCHOR = re.compile(
    r"poch(?<=[Ee]poch)(?<![\w.\-].poch)[\"']?(?: {0,4}+[:=#] {0,4}+| "
    r"{1,4}+)\[?(?P<step>\d{1,9}+)(?![.\d])(?:/\d{1,9}+)?"
)
_PIECES = re.compile(r"(?:(?! - )[^|\n])++")  # a name goes across none of these: in `6ms/step - loss: 1.4` it is `loss`
LONGEST_EPOCH_ROW = 400  # characters of a row; the bar of a progress display may stand between
MOST_EPOCHS = 1000


def find_epochs(source: LogText) -> Found:
    text = source.text
    anchors = list(ANCHOR.finditer(text))
    records = []
    for anchor, behind in zip(anchors, [*(each.start() for each in anchors[1:]), len(text)], strict=False):
        record: dict[str, str | float] = {}
        for piece in _PIECES.finditer(text, anchor.end(), min(behind, anchor.end() + LONGEST_EPOCH_ROW)):
            record = numbers_in(text, piece.start(), piece.end()) | record
        if "loss" in record or "val" in record:
            records.append((anchor.start(), int(anchor["step"]), record))
    found = split_table(from_records(records, source))
    steps = [step for _, step, _ in records]
    if steps and max(steps) <= MOST_EPOCHS and set(np.diff(steps).tolist()) <= {0, 1}:
        found.tell("steps_are_epochs", True, *source.place(records[0][0]))
    return found


EPOCHS = LogFormat("epochs", _UNKNOWN, ("poch ", "poch:", "poch=", "poch["), find=find_epochs, is_general=True)


# --- progress bars

BAR = re.compile(
    r"%\|[^|\r\n]{0,300}+\| {0,8}(?P<done>\d{1,12}+)/(?P<total>\d{1,12}+) \[[\d:]{1,20}<[\d:?]{1,20}, {0,4}"
    rf"(?P<speed>{NUMBER}|\?) ?(?P<unit>it/s|s/it)(?P<said>[^\]\r\n]{{0,600}}+\])?"
)
_BEFORE = re.compile(r"[^A-Za-z]{0,20}(?:([A-Za-z][\w ]{0,30}?):?(?: {1,4}(\d{1,6})(?:/\d{1,6})?)?: {0,4})?\d{0,3}\Z")
_EVALUATIONS = ("valid", "sanity", "test", "predict", "eval")
_WIDEST = 60  # characters before a bar: its name and its epoch
_BEHIND = 600


def find_bars(source: LogText) -> Found:
    text = source.text
    matches = [match for match in BAR.finditer(text) if match["said"]]
    begins = np.array([match.start() for match in matches], np.int64)
    behind = np.array([match.end() for match in matches], np.int64)
    lines, line_ends = source.pieces_at(begins)
    is_glued = np.append(begins[1:], len(text)) < line_ends  # what follows is the next one's
    ends = np.where(is_glued, behind, np.minimum(line_ends, behind + _BEHIND)).tolist()
    shapes = (pattern_like(text, matches[bar].start("said"), ends[bar]) for bar in looked_at(len(matches)))
    patterns = patterns_of(shape and shape + "[^A-Za-z0-9]*+" for shape in shapes)
    records = []
    for match, low, end in zip(matches, np.maximum(lines, begins - _WIDEST).tolist(), ends, strict=True):
        name, epoch = _named(text[low : match.start()])
        if not name.lower().startswith(_EVALUATIONS) and (record := _said_by_bar(match, end, patterns)):
            records.append((match.start(), int(match["done"]) + epoch * int(match["total"]), record))
    rows = from_records(records, source)
    done = rows.take(np.flatnonzero(rows.printed > 0))
    found = split_table(done) if len(done) else Found()
    found.understood += rows.line[rows.printed == 0].tolist()  # a bar before its first batch
    return found


def _said_by_bar(match: re.Match[str], end: int, patterns: Iterable[re.Pattern[str]]) -> dict[str, str | float]:
    """Its numbers, and the time of a step. Bars of one program look alike: most are read by patterns."""
    start = match.start("said")
    for pattern in patterns:
        if said := pattern.fullmatch(match.string, start, end):
            record: dict[str, str | float] = said.groupdict()
            break
    else:
        record = numbers_in(match.string, start, end)
    speed, unit = match.group("speed", "unit")
    if record and speed != "?" and (value := float(speed.replace(",", ""))) > 0:
        record.pop("took_ms", None)
        record["took_s"] = 1.0 / value if unit == "it/s" else value
    return record


@lru_cache(maxsize=4096)
def _named(before: str) -> tuple[str, int]:
    """`Epoch 3:  10` before a bar says what it counts, and in which epoch."""
    match = _BEFORE.match(before)
    return (match[1] or "", int(match[2] or 0)) if match else ("", 0)


_OF_BARS = Conventions(trainer="tqdm", loss="last_micro_batch", time="average")
PROGRESS_BAR = LogFormat("tqdm", _OF_BARS, ("%|",), find=find_bars, is_general=True)
