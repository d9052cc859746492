"""llama2.c's training script, a child of nanoGPT.

    step 2000: train loss 1.6203, val loss 1.6291
    2000 | loss 1.6117 | lr 4.999971e-04 | 12051.33ms | mfu 12.31%

Everything means what it means in nanoGPT: the row's number counts the updates before it, its loss is one micro-batch, its time includes
an evaluation, its MFU is a moving average against an A100's 312 TFLOP/s.
"""

from __future__ import annotations

import re
from dataclasses import replace

from nanolens.interop.logs import nanogpt
from nanolens.interop.logs.door import Door
from nanolens.interop.logs.rows import num, whole

ROW = re.compile(
    rf"(?<![A-Za-z:=] )(?<![\w/.]){whole()} \| loss {num('loss')}"
    rf"(?: \| lr {num('rate')}(?: \| {num('took_ms')}ms(?: \| mfu {{1,4}}{num('mfu_pct')}%)?)?)?"
)

DOOR = Door("llama2c", replace(nanogpt.WORDS, trainer="llama2.c"), signs=(" | loss ",), steps=(ROW,), evals=(nanogpt.STEP,))
