"""modded-nanogpt, the speed run.

    step:125/1770 val_loss:4.6560 train_time:10907ms step_avg:94.84ms
    step:126/1770 train_loss:4.4012 train_time:11002ms step_avg:94.85ms          (the train loss until December 2024)

- `step:k` of a row with a train loss is update k, counted from 1; with a val loss, the weights after k updates. Both are our step k.
- The train loss is the last micro-batch of rank 0; many versions print none.
- `train_time` is a clock that stands still during evaluations. Until 2025 it starts anew after ten warm-up steps, and `step_avg` is `nan`
  until then: a placeholder. The time of a step is taken from the clock: its difference to the row before, over the steps between them; in
  the first row after the clock's start `step_avg` itself.
- No MFU and no learning rate. The validation set is fixed.
"""

from __future__ import annotations

import re

import numpy as np

from nanolens.interop.logs.door import Door
from nanolens.interop.logs.rows import Rows, joined, num, whole
from nanolens.record.run import Words

WORDS = Words(trainer="modded-nanogpt", loss="last_micro_batch", time="average", updates_before_printed=0)

_CLOCK = rf"train_time:{num('clock_ms')}ms(?: step_avg:{num('average_ms')}ms)?"
TRAIN = re.compile(rf"step:{whole()}/{whole('total')} (?:train_loss:{num('loss')} )?{_CLOCK}")
VAL = re.compile(rf"step:{whole()}/{whole('total')} val_loss:{num('val')}(?: {_CLOCK})?")


def finish(steps: Rows, evals: Rows) -> Rows:
    """Step times from the clock. An evaluation's row tells the time of a step that has no row of its own."""
    told = evals.take(np.flatnonzero(~np.isin(evals.printed, steps.printed)))
    told.columns = {name: told.column(name) for name in ("clock_ms", "average_ms", "total")}
    told.not_finite = {}
    rows = joined((steps, told))
    rows = rows.take(np.argsort(rows.printed, kind="stable"))
    rows.columns["took_s"] = _times(rows)
    return rows.take(np.flatnonzero(rows.printed > 0))


def _times(rows: Rows) -> np.ndarray:
    clock, average = rows.column("clock_ms") / 1e3, rows.column("average_ms") / 1e3
    took = np.full(len(rows), np.nan)
    for i in range(1, len(rows)):
        steps, passed = rows.printed[i] - rows.printed[i - 1], clock[i] - clock[i - 1]
        if np.isnan(average[i - 1]) and np.isfinite(average[i]):
            took[i] = average[i]
        elif steps > 0 and passed >= 0:
            took[i] = passed / steps
    if len(rows) and np.isfinite(average[0]) and rows.printed[0] > 0:
        took[0] = average[0]
    return took


DOOR = Door("modded-nanogpt", WORDS, signs=("train_time:", "val_loss:"), steps=(TRAIN,), evals=(VAL,), finish=finish)
