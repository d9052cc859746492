"""nanochat: base training, mid-training and fine-tuning.

    step 00100/21400 (0.47%) | loss: 5.912345 | lrm: 1.00 | dt: 1010.22ms | tok/sec: 518,985 | mfu: 47.10 | total time: 1.52m        2025
    step 00100/21400 (0.47%) | loss: 5.912345 | lrm: 1.00 | dt: 1010.22ms | tok/sec: 518,985 | bf16_mfu: 47.10 | epoch: 1 | …        2026
    Step 00250 | Validation bpb: 1.0123

- The number counts the updates before this one, from 0: our step is one more. An evaluation at k is of the weights after k updates.
- The loss is a debiased moving average (0.9) of the last micro-batch's loss on rank 0: smoothed twice over, and late after a jump.
- `dt` is the update alone. `tok/sec` counts all ranks (before 26 October 2025 it forgot gradient accumulation: compare it with tokens per
  update / dt).
- `mfu` of 2025 is against an H100's 989 TFLOP/s, times the number of GPUs, whatever the card; since 17 January 2026 (`bf16_mfu` since 10
  February) against a table by card, 0 for one that is not in it. It is not smoothed.
- `lrm` multiplies the learning rates; it is no rate. Validation is in bits per byte. `total time` leaves the first steps out.
"""

from __future__ import annotations

import re
from dataclasses import replace

from nanolens.interop.logs.door import Door
from nanolens.interop.logs.rows import num, whole
from nanolens.record.run import Words

H100_BF16_FLOPS = 989e12
WORDS = Words(trainer="nanochat", loss="smoothed", time="step_only", updates_before_printed=1, peak_flops=H100_BF16_FLOPS)

ROW = re.compile(
    rf"step {whole()}(?:/{whole('total')})? \({num('done_pct')}%\) *\| loss: {num('loss')} *\| lrm: {num('lrm')} *"
    rf"\| dt: {num('took_ms')}ms *\| tok/sec: {num('tokens_per_s')} *\| (?:bf16_)?mfu: {num('mfu_pct')}(?!\d|%)"
)
FINE_TUNING = re.compile(rf"Step {whole()}/{whole('total')} \| Training loss: {num('loss')} ?\| lrm: {num('lrm')}")
BITS = re.compile(rf"Step {whole()} \| Validation bpb: {num('val_bits_per_byte')}")
LOSS = re.compile(rf"Step {whole()} \| Validation loss: {num('val')}")


def words_in(text: str, words: Words) -> Words:
    """Only the form of 2025 divides by a fixed peak."""
    return replace(words, peak_flops=None) if "bf16_mfu:" in text or "Peak FLOPS (BF16)" in text else words


DOOR = Door(
    "nanochat",
    WORDS,
    signs=("tok/sec: ", "Validation bpb: ", "| Training loss: "),
    steps=(ROW, FINE_TUNING),
    evals=(BITS, LOSS),
    words_in=words_in,
)
