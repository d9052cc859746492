"""Progress bars that carry the numbers: Lightning, and any loop around tqdm.

    Epoch 0:   0%|          | 5/17935 [00:02<2:31:46,  1.86it/s, v_num=12, train_loss=10.90]
     10%|█         | 50/500 [00:10<01:30,  5.00it/s, loss=3.21, lr=0.001]

- The bar counts batches of its epoch: our step is epoch x batches + batch. With gradient accumulation these are micro-batches; the bar
  does not say.
- The loss is what the last batch logged, rounded to three digits by Lightning. A time is the inverse of the bar's own moving average of
  the speed.
- A bar is drawn again and again; a row that says the same is one row. What a script prints behind a bar stands in the same line, and is
  read with it.
- Bars of an evaluation (`Validation DataLoader 0: …`) are passed over.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

import numpy as np

from nanolens.interop.logs import keyvalue, table
from nanolens.interop.logs.door import Door, Found
from nanolens.interop.logs.rows import NUMBER, Rows, from_records, joined, rows_at, to_columns
from nanolens.logs.text import Text
from nanolens.record.run import Words

WORDS = Words(trainer="tqdm", loss="last_micro_batch", time="average", updates_before_printed=0)

BAR = re.compile(
    r"%\|[^|\r\n]{0,300}+\| {0,8}(?P<done>\d{1,12}+)/(?P<total>\d{1,12}+) \[[\d:]{1,20}<[\d:?]{1,20}, {0,4}"
    rf"(?P<speed>{NUMBER}|\?) ?(?P<unit>it/s|s/it)(?P<said>[^\]\r\n]{{0,600}}+\])?"
)
_BEFORE = re.compile(r"[^A-Za-z]{0,20}(?:([A-Za-z][\w ]{0,30}?):?(?: {1,4}(\d{1,6})(?:/\d{1,6})?)?: {0,4})?\d{0,3}\Z")
_EVALUATIONS = ("valid", "sanity", "test", "predict", "eval")
_WIDEST = 60  # characters before a bar: its name and its epoch
_BEHIND = 600
LOOKED_AT, MOST_PATTERNS = 40, 6  # bars that are taken apart to learn what bars look like


def find(source: Text) -> Found:
    text = source.text
    matches = [match for match in BAR.finditer(text) if match["said"]]
    begins = np.array([match.start() for match in matches], np.int64)
    pieces = source.piece_starts
    ends = np.append(pieces, len(text) + 1)[np.searchsorted(pieces, begins, side="right")] - 1
    behind = np.array([match.end() for match in matches], np.int64)
    is_glued = np.append(begins[1:], len(text)) < ends  # what follows is the next one's
    ends = np.where(is_glued, behind, np.minimum(ends, behind + _BEHIND))
    lows = np.maximum(pieces[np.searchsorted(pieces, begins, side="right") - 1], begins - _WIDEST)
    rows = _of_training(text, matches, lows.tolist(), _numbers(source, matches, ends.tolist()))
    done = rows.take(np.flatnonzero(rows.printed > 0))
    found = table.split(done) if len(done) else Found()
    found.understood += rows.line[rows.printed == 0].tolist()  # a bar before its first batch
    return found


def _numbers(source: Text, matches: list[re.Match[str]], ends: list[int]) -> Rows:
    """What bars say, one row each; `bar` tells which. Bars of one program look alike: most are read by patterns made from a few."""
    text = source.text
    patterns = _learnt(text, matches, ends)
    read: list[list[tuple[str, ...]]] = [[] for _ in patterns]
    which: list[list[int]] = [[] for _ in patterns]
    records: list[dict[str, str | float]] = []
    others: list[int] = []
    for bar, (match, end) in enumerate(zip(matches, ends, strict=True)):
        start = match.start("said")
        for index, pattern in enumerate(patterns):
            if said := pattern.fullmatch(text, start, end):
                read[index].append(said.groups())
                which[index].append(bar)
                break
        else:
            record = keyvalue.numbers_in(text, start, end)
            if record:
                records.append({**record, "bar": float(bar)})
                others.append(match.start())
    parts = [from_records(records, others, source)]
    for pattern, groups, bars in zip(patterns, read, which, strict=True):
        if bars:
            columns, not_finite = to_columns(dict(zip(pattern.groupindex, zip(*groups, strict=True), strict=True)))
            starts = np.array([matches[bar].start() for bar in bars], np.int64)
            parts.append(rows_at(starts, source, {**columns, "bar": np.array(bars, float)}, not_finite))
    return joined(parts)


def _learnt(text: str, matches: list[re.Match[str]], ends: list[int]) -> list[re.Pattern[str]]:
    seen: Counter[str] = Counter()
    for index in range(0, len(matches), max(1, len(matches) // LOOKED_AT)):
        seen[keyvalue.pattern_like(text, matches[index].start("said"), ends[index])] += 1
    return [re.compile(source + "[^A-Za-z0-9]*+") for source, count in seen.most_common(MOST_PATTERNS) if source and count > 1]


def _of_training(text: str, matches: list[re.Match[str]], lows: list[int], rows: Rows) -> Rows:
    """The rows of bars that count training, with their steps and the time of one."""
    bars = rows.column("bar").astype(np.int64).tolist()
    steps, took_s = np.full(len(bars), -1), np.full(len(bars), np.nan)
    for row, bar in enumerate(bars):
        match = matches[bar]
        done, total, speed, unit = match.group("done", "total", "speed", "unit")
        name, epoch = _named(text[lows[bar] : match.start()])
        if name.lower().startswith(_EVALUATIONS):
            continue
        steps[row] = int(done) + epoch * int(total)
        if speed != "?" and (value := float(speed.replace(",", ""))) > 0:
            took_s[row] = 1.0 / value if unit == "it/s" else value
    rows.printed = steps
    rows.columns.pop("bar", None)
    said = rows.columns.get("took_s", np.full(len(bars), np.nan))
    rows.columns["took_s"] = np.where(np.isnan(took_s), said, took_s)
    return rows.take(np.flatnonzero(steps >= 0))


@lru_cache(maxsize=4096)
def _named(before: str) -> tuple[str, int]:
    """`Epoch 3:  10` before a bar says what it counts, and in which epoch."""
    match = _BEFORE.match(before)
    return (match[1] or "", int(match[2] or 0)) if match else ("", 0)


DOOR = Door("tqdm", WORDS, signs=("%|",), find=find, is_general=True)
