"""llm.c: the CUDA program, its C and PyTorch siblings, and the `main.log` that they write.

    step   10/74 | loss 4.012345 (+1.20z)| norm 2.3456 (-0.31z)| lr 3.00e-04 | 36.58 ms | 52.1% bf16 MFU | 112241 tok/s      CUDA
    step   10/74 | train loss 4.012345 | norm 2.3456 | lr 3.00e-04 | (36.58 ms | 112241 tok/s)                               PyTorch
    step 9: train loss 4.012345 (took 36.58 ms)                                                                              C
    val loss 4.112345
    s:9 trl:4.0123 lr:0.000300 norm:2.35          s:250 tel:4.1123          s:250 eval:0.2731                                main.log

- On the CUDA and PyTorch consoles `step k/N` is update k, counted from 1: our step k. The C program and `main.log` count from 0: our step
  k+1.
- `val loss` on the console has no number: it is of the weights between the rows around it. `tel` at k is of the weights after k updates.
- The loss is the mean over micro-batches and ranks. The time is the update alone. `tok/s` counts all processes, smoothed (0.95).
- MFU is that of this device and precision, from the clock and the kind of card, of one GPU, not smoothed; -100.0% where the card is
  unknown. The form of May 2024, `% A100 fp16 MFU`, was always against 312 TFLOP/s.
- `(+nanz)` is the z-score of a window of 128 that is not yet full: it says nothing about the loss. `eval` is HellaSwag.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from nanolens.interop.logs.door import Door, Found
from nanolens.interop.logs.rows import find_rows, joined, num, whole
from nanolens.logs.text import Text
from nanolens.record.run import Words

WORDS = Words(trainer="llm.c", loss="mean", time="step_only", updates_before_printed=0)

_Z = r"(?: \([-+]?(?:\d{1,9}\.\d{1,9}|nan|inf)z\))?+"
CUDA = re.compile(
    rf"step +{whole()}/{whole('total')} \| (?:train )?loss +{num('loss')}{_Z} ?\| norm +{num('grad_norm')}{_Z} ?\| lr {num('rate')}"
    rf"(?: \| {num('took_ms')} ms(?: \| {num('mfu_pct')}% [\w ]{{1,12}} ?MFU)?(?: \| {num('tokens_per_s')} tok/s)?)?"
)
TORCH = re.compile(
    rf"step +{whole()}/{whole('total')} \| train loss {num('loss')} \| norm {num('grad_norm')} \| lr {num('rate')} "
    rf"\| \({num('took_ms')} ms \| {num('tokens_per_s')} tok/s\)"
)
EARLY_CUDA = re.compile(
    rf"step +{whole()}/{whole('total')}: train loss {num('loss')} \(acc {num('accumulated')}\) "
    rf"\({num('took_ms')} ms, {num('tokens_per_s')} tok/s\)"
)
EARLY_C = re.compile(rf"step {whole()}: train loss {num('loss')} \(took {num('took_ms')} ms\)")
MAIN_LOG = re.compile(rf"s:{whole()} trl:{num('loss')}(?: lr:{num('rate')}(?: norm:{num('grad_norm')})?)?")

MAIN_LOG_VAL = re.compile(rf"s:{whole()} tel:{num('val')}")
MAIN_LOG_HELLA = re.compile(rf"s:{whole()} eval:{num('hella')}")
CONSOLE_VAL = re.compile(rf"^[> \t]{{0,8}}val loss:? {num('val')}", re.M)


def find(source: Text) -> Found:
    from_one = [find_rows(pattern, source) for pattern in (TORCH, CUDA, EARLY_CUDA)]
    from_zero = [find_rows(pattern, source) for pattern in (EARLY_C, MAIN_LOG)]
    for rows in from_zero:
        # These count the updates before the row. The door's words are those of the console, so the difference is made good here.
        rows.columns["updates"] = rows.printed + 1.0
    steps = joined([*from_one, *from_zero])
    if "updates" in steps.columns:
        steps.columns["updates"] = np.where(np.isnan(steps.columns["updates"]), steps.printed, steps.columns["updates"])
    found = Found(steps, joined((find_rows(MAIN_LOG_VAL, source), find_rows(CONSOLE_VAL, source))))
    if found:
        found.understood += find_rows(MAIN_LOG_HELLA, source).line.tolist()
    return found


def words_in(text: str, words: Words) -> Words:
    words = replace(words, peak_flops=312e12) if "A100 fp16 MFU" in text else words
    if ("trl:" in text or "(took " in text) and " tok/s" not in text:
        return replace(words, updates_before_printed=1)
    return words


DOOR = Door("llm.c", WORDS, signs=("trl:", "tel:", " tok/s", "(took "), find=find, words_in=words_in)
