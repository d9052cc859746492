"""litgpt: pre-training and fine-tuning.

    Epoch 1 | iter 128 step 16 | loss train: 6.104, val: n/a | iter time: 402.71 ms (step) remaining time: 1:02:03
    iter 800: val loss 5.2110, val time: 9020.11 ms

and before 2024, with or without the line between the two counts

    iter 128 step 16: loss 6.1042, iter time: 402.71ms (optimizer.step)

- `iter` counts micro-batches, `step` updates that are done: our step is `step`. The evaluation's number is a micro-batch: divided by
  iter/step.
- The loss is the mean over the accumulation window of rank 0. The `val` inside a row is the last evaluation repeated, not a new one.
- `iter time` is one micro-batch, the last of the window: the time of an update only where iter = step. No MFU on the console.
"""

from __future__ import annotations

import re

import numpy as np

from nanolens.interop.logs.door import Door, Found
from nanolens.interop.logs.rows import Rows, num, whole
from nanolens.record.run import Words

WORDS = Words(trainer="litgpt", loss="mean", time="step_only", updates_before_printed=0)

ROW = re.compile(
    rf"Epoch {whole('epoch')} \| iter {whole('micro_batches')} step {whole()} \| loss train: {num('loss')},"
    rf" val: (?:n/a|{num('last_val')}) \| iter time: {num('micro_ms')} ms"
)
OLD_ROW = re.compile(rf"iter {whole('micro_batches')} (?:\| )?step {whole()}: loss {num('loss')}, iter time: {num('micro_ms')} ?ms")
VAL = re.compile(rf"iter {whole()}: val loss {num('val')}, val time: {num('eval_ms')} ?ms")
FINAL = re.compile(rf"Final evaluation \| val loss: {num('val')}")


def place(found: Found) -> None:
    """Evaluations are numbered by micro-batch; rows tell how many of them make an update. Of the micro-batches of one update that are
    printed the last one stays: no other belongs to an update that is done."""
    rows = found.steps
    if len(rows) > 1:
        goes_on = (np.diff(rows.printed) == 0) & (np.diff(rows.column("micro_batches")) > 0)
        found.understood += rows.line[:-1][goes_on].tolist()
        found.steps = rows.take(np.flatnonzero(~np.append(goes_on, False)))
    numbered = found.evals.printed >= 0
    per_update = micro_batches_per_update(found.steps)
    found.evals.printed = np.where(numbered, np.round(found.evals.printed / per_update).astype(np.int64), -1)


def finish(steps: Rows, evals: Rows) -> Rows:
    if micro_batches_per_update(steps) == 1.0:
        steps.columns["took_s"] = steps.column("micro_ms") / 1e3
    return steps


def micro_batches_per_update(steps: Rows) -> float:
    done = steps.printed > 0
    if not done.any():
        return 1.0
    return max(1.0, float(np.max(steps.column("micro_batches")[done]) / np.max(steps.printed[done])))


DOOR = Door(
    "litgpt", WORDS, signs=("loss train: ", ", iter time: ", "val time: "), steps=(ROW, OLD_ROW), evals=(VAL, FINAL), place=place,
    finish=finish,
)  # fmt: skip
