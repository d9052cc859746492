"""fairseq.

    2021-05-01 10:00:00 | INFO | train_inner | epoch 001:    100 / 3000 loss=14.921, nll_loss=14.8, ppl=28527, wps=120345, ups=3.41,
        wpb=35112, bsz=1100, num_updates=100, lr=1.25e-05, gnorm=3.512, clip=0, loss_scale=128, train_wall=29, wall=31
    2021-05-01 11:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 4.912 | nll_loss 3.351 | … | num_updates 3000

- `num_updates` counts updates that are done: our step. The rows of other places (`epoch 001: 100 / 3000`) count within an epoch.
- The loss is the mean since the row before, in bits: ours is that times ln 2. With label smoothing `nll_loss` is the one without it.
- `wps` is tokens/s of all devices.
"""

from __future__ import annotations

import math
import re

from nanolens.interop.logs.door import Door, Found
from nanolens.interop.logs.rows import Rows, num, whole
from nanolens.record.run import Words

WORDS = Words(trainer="fairseq", loss="mean", time="unknown", updates_before_printed=0)

_REST = r"[^\r\n|\[\]]{0,200}?"
ROW = re.compile(
    rf"(?<!_)loss=(?:{num('smoothed')}, nll_loss=)?{num('bits')},{_REST} wps={num('tokens_per_s')},{_REST} num_updates={whole()},"
    rf" lr={num('rate')}"
    rf"(?:, gnorm={num('grad_norm')})?(?:, clip=[\d.]{{1,12}})?(?:, oom=[\d.]{{1,12}})?(?:, loss_scale={num('loss_scale')})?"
)
VAL = re.compile(rf"subset \| loss {num('smoothed')}(?: \| nll_loss {num('bits')})?[^\r\n]{{0,300}}? \| num_updates {whole()}")


def place(found: Found) -> None:
    """Bits become nats, before anything is made of the rows."""
    _in_nats(found.steps, "loss")
    _in_nats(found.evals, "val")


def _in_nats(rows: Rows, name: str) -> None:
    if name in rows.columns or not len(rows):
        return
    bits, smoothed = rows.column("bits"), rows.column("smoothed")
    rows.columns[name] = math.log(2) * (smoothed if (bits != bits).all() else bits)
    if "bits" in rows.not_finite:
        rows.not_finite[name] = rows.not_finite["bits"]


DOOR = Door("fairseq", WORDS, signs=("num_updates",), steps=(ROW,), evals=(VAL,), place=place)
