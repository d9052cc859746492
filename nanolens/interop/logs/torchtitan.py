"""torchtitan.

    step: 10  loss:  7.12345  grad_norm:  1.2345  memory: 30.12GiB(38.01%)  tps: 7,012  tflops: 40.60  mfu: 13.01%
    validate step: 10  loss:  7.0123  memory: 30.12GiB(38.01%)  tps: 9,001

- `step k` is update k, counted from 1: our step k. The loss is the mean per token over micro-batches and ranks.
- `tps` is tokens/s of one device: it is not taken as the run's speed. MFU is of the card by a table, an A100 where the table lacks it;
  not smoothed.
"""

from __future__ import annotations

import re

from nanolens.interop.logs.door import Door
from nanolens.interop.logs.rows import num, whole
from nanolens.record.run import Words

WORDS = Words(trainer="torchtitan", loss="mean", time="unknown", updates_before_printed=0)

_MEMORY = rf"memory: +{num('memory_gib')}GiB\({num('memory_pct')}%\)"
ROW = re.compile(
    rf"step: +(?<!validate step: )(?<!validate step:  ){whole()} +loss: +{num('loss')} +(?:grad_norm: +{num('grad_norm')} +)?{_MEMORY}"
    rf" +tps: +{num('device_tokens_per_s')}(?: +tflops: +{num('device_tflops')})?(?: +mfu: +{num('mfu_pct')}%)?"
)
VAL = re.compile(rf"validate step: +{whole()} +loss: +{num('val')} +{_MEMORY}")

DOOR = Door("torchtitan", WORDS, signs=(" tps: ",), steps=(ROW,), evals=(VAL,))
