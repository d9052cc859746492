"""One line an epoch, by whatever trainer: for texts that give no step numbers.

    Epoch 3/6, Train Loss: 2.31, Val Loss: 2.89
    epoch 3 | train_loss 2.31 | val_loss 2.89

    Epoch 3/10
    1875/1875 [==============================] - 11s 6ms/step - loss: 1.4410 - val_loss: 1.6210

A row is the word with its number, and a loss by a name with one meaning before the next such word. The train loss is a mean over the
epoch, the val loss that of its end: an evaluation of both. Our step is then the epoch, which `steps_are_epochs` says; where the numbers
go by more than one at a time, or into the thousands, what is called an epoch there is an iteration.
"""

from __future__ import annotations

import re

import numpy as np

from nanolens.interop.logs import table
from nanolens.interop.logs.door import Door, Found
from nanolens.interop.logs.keyvalue import numbers_in
from nanolens.interop.logs.rows import from_records
from nanolens.logs.text import Text
from nanolens.record.run import Words

# It begins with a plain part of the word, which is found many times faster than a choice; so a row "begins" at its second letter.
ANCHOR = re.compile(r"poch(?<=[Ee]poch)(?<![\w.\-].poch)[\"']?(?: {0,4}+[:=#] {0,4}+| {1,4}+)\[?(?P<step>\d{1,9}+)(?![.\d])(?:/\d{1,9}+)?")
_PIECES = re.compile(r"(?:(?! - )[^|\n])++")  # a name goes across none of these: in `6ms/step - loss: 1.4` it is `loss`
LONGEST = 400  # characters of a row; the bar of a progress display may stand between
MOST_EPOCHS = 1000


def find(source: Text) -> Found:
    text = source.text
    anchors = list(ANCHOR.finditer(text))
    steps, records, places = [], [], []
    for anchor, behind in zip(anchors, [*(each.start() for each in anchors[1:]), len(text)], strict=False):
        record: dict[str, str | float] = {}
        for piece in _PIECES.finditer(text, anchor.end(), min(behind, anchor.end() + LONGEST)):
            record = numbers_in(text, piece.start(), piece.end()) | record
        if "loss" in record or "val" in record:
            steps.append(int(anchor["step"]))
            records.append(record)
            places.append(anchor.start())
    found = table.split(from_records(records, places, source, steps))
    if len(steps) and max(steps) <= MOST_EPOCHS and set(np.diff(steps).tolist()) <= {0, 1}:
        found.tell("steps_are_epochs", True, source.line_at(places[0]), source.offset + places[0])
    return found


DOOR = Door("epochs", Words(trainer="unknown"), signs=("poch ", "poch:", "poch=", "poch["), find=find, is_general=True)
