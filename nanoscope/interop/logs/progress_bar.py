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
from functools import lru_cache

import numpy as np

from nanoscope.interop.logs import keyvalue, table
from nanoscope.interop.logs.door import Door, Found
from nanoscope.interop.logs.rows import NUMBER, from_records
from nanoscope.interop.logs.text import Text
from nanoscope.record.run import Words

WORDS = Words(trainer="tqdm", loss="last_micro_batch", time="average", updates_before_printed=0)

BAR = re.compile(
    r"%\|[^|\r\n]{0,300}+\| {0,8}(?P<done>\d{1,12}+)/(?P<total>\d{1,12}+) \[[\d:]{1,20}<[\d:?]{1,20}, {0,4}"
    rf"(?P<speed>{NUMBER}|\?) ?(?P<unit>it/s|s/it)(?P<said>[^\]\r\n]{{0,600}}+\])?"
)
_BEFORE = re.compile(r"[^A-Za-z]{0,20}(?:([A-Za-z][\w ]{0,30}?):?(?: {1,4}(\d{1,6})(?:/\d{1,6})?)?: {0,4})?\d{0,3}\Z")
_EVALUATIONS = ("valid", "sanity", "test", "predict", "eval")
_WIDEST = 60  # characters before a bar: its name and its epoch
_BEHIND = 600


def find(source: Text) -> Found:
    text = source.text
    matches = list(BAR.finditer(text))
    begins = np.array([match.start() for match in matches], np.int64)
    pieces = source.piece_starts
    ends = np.append(pieces, len(text) + 1)[np.searchsorted(pieces, begins, side="right")] - 1
    ends = np.minimum(ends, np.append(begins[1:], len(text)))
    lows = np.maximum(pieces[np.searchsorted(pieces, begins, side="right") - 1], begins - _WIDEST)
    steps, records, starts = [], [], []
    for match, low, end in zip(matches, lows.tolist(), ends.tolist(), strict=True):
        if not match["said"]:
            continue
        record = keyvalue.numbers_in(text, match.start("said"), min(end, match.end() + _BEHIND))
        if not record:
            continue
        name, epoch = _named(text[low : match.start()])
        if name.lower().startswith(_EVALUATIONS):
            continue
        if match["speed"] != "?" and (speed := float(match["speed"].replace(",", ""))) > 0:
            record["took_s"] = 1.0 / speed if match["unit"] == "it/s" else speed
        steps.append(int(match["done"]) + epoch * int(match["total"]))
        records.append(record)
        starts.append(match.start())
    rows = from_records(records, starts, source, steps)
    done = rows.take(rows.printed > 0)
    found = table.split(done) if len(done) else Found()
    found.understood += rows.line[rows.printed == 0].tolist()  # a bar before its first batch
    return found


@lru_cache(maxsize=4096)
def _named(before: str) -> tuple[str, int]:
    """`Epoch 3:  10` before a bar says what it counts, and in which epoch."""
    match = _BEFORE.match(before)
    return (match[1] or "", int(match[2] or 0)) if match else ("", 0)


DOOR = Door("tqdm", WORDS, signs=("%|",), find=find, is_general=True)
