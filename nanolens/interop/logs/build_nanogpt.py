"""build-nanogpt, the lecture "Let's reproduce GPT-2": its console and its log.txt.

    validation loss: 3.2931
    step   250 | loss: 6.128294 | lr 2.1063e-04 | norm: 0.9431 | dt: 402.55ms | tok/sec: 1302418.33
    250 val 6.1631          250 hella 0.2434          250 train 6.128294                                  log.txt

- The number counts the updates before this one, from 0: our step is one more. `val` at k is of the weights after k updates; on the
  console it has no number and stands before the row of its step.
- The loss is the mean over micro-batches and ranks. `dt` starts before the evaluation, so evaluations and samples are inside.
- `tok/sec` counts all ranks. There is no MFU. `hella` is HellaSwag, 0.25 by chance.
"""

from __future__ import annotations

import re

from nanolens.interop.logs.door import Door, Found
from nanolens.interop.logs.rows import find_rows, joined, num, whole
from nanolens.logs.text import Text
from nanolens.record.run import Words

WORDS = Words(trainer="build-nanogpt", loss="mean", time="with_eval", updates_before_printed=1)

ROW = re.compile(
    rf"step +{whole()} ?\| loss: {num('loss')} ?\| lr:? {num('rate')} ?\| norm: {num('grad_norm')} ?"
    rf"\| dt: {num('took_ms')}ms ?\| tok/sec: {num('tokens_per_s')}"
)
LOG_TRAIN = re.compile(rf"^[> \t]{{0,8}}{whole()} train {num('loss')}", re.M)
LOG_VAL = re.compile(rf"^[> \t]{{0,8}}{whole()} val {num('val')}", re.M)
LOG_HELLA = re.compile(rf"^[> \t]{{0,8}}{whole()} hella {num('hella')}", re.M)
CONSOLE_VAL = re.compile(rf"^[> \t]{{0,8}}validation loss: {num('val')}", re.M)


def find(source: Text) -> Found:
    found = Found(
        joined((find_rows(ROW, source), find_rows(LOG_TRAIN, source))), joined((find_rows(LOG_VAL, source), find_rows(CONSOLE_VAL, source)))
    )
    if found:
        found.understood += find_rows(LOG_HELLA, source).line.tolist()
    return found


DOOR = Door("build-nanogpt", WORDS, signs=("| norm: ", " train ", " val ", "validation loss: "), find=find)
