"""autoresearch, nanochat's training in one file with a budget of time.

    step 00953 (29.9%) | loss: 4.123456 | lrm: 0.71 | dt: 313ms | tok/sec: 1,675,034 | mfu: 39.8% | epoch: 1 | remaining: 210s
    ---
    val_bpb:          0.997900

- The rows are redrawn in place (`\\r`), each step once. The number counts the updates before this one, from 0.
- The loss is a debiased moving average (0.9) of the last micro-batch. `dt` is the update alone; progress and `remaining` leave out the
  first steps.
- MFU is against an H100's 989.5 TFLOP/s whatever the card, not smoothed. Forks for other machines put their own peak there: give
  `peak_flops`.
- The one evaluation comes at the end, in bits per byte; `FAIL` is printed when the loss is NaN or above 100.
"""

from __future__ import annotations

import re

from nanolens.interop.logs.door import Door, Found, Sign
from nanolens.interop.logs.rows import find_rows, num, whole
from nanolens.logs.text import Text
from nanolens.record.run import Words

WORDS = Words(trainer="autoresearch", loss="smoothed", time="step_only", updates_before_printed=1, peak_flops=989.5e12)

ROW = re.compile(
    rf"step {whole()} \({num('done_pct')}%\) *\| loss: {num('loss')} *\| lrm: {num('lrm')} *\| dt: {num('took_ms')}ms *"
    rf"\| tok/sec: {num('tokens_per_s')} *\| mfu: {num('mfu_pct')}%"
)
BITS = re.compile(rf"val_bpb: {{1,20}}{num('val_bits_per_byte')}")
SUMMARY = {
    "num_steps": re.compile(rf"^num_steps: +{whole()}", re.M),
    "total_tokens_M": re.compile(rf"^total_tokens_M: +{num('value')}", re.M),
    "num_params_M": re.compile(rf"^num_params_M: +{num('value')}", re.M),
    "total_seconds": re.compile(rf"^total_seconds: +{num('value')}", re.M),
}


def find(source: Text) -> Found:
    found = Found(find_rows(ROW, source), find_rows(BITS, source))
    for match in re.finditer(r"^FAIL$", source.text, re.M):
        found.sign(Sign("error", source.offset + match.start(), source.line_at(match.start()), "FAIL"))
    for name, pattern in SUMMARY.items():
        for match in pattern.finditer(source.text):
            value = float(match[1].replace(",", ""))
            line, at = source.line_at(match.start()), source.offset + match.start()
            if name == "num_params_M":
                found.tell("parameters_total", value * 1e6, line, at)
            elif name == "total_seconds":
                found.tell("wall_s", value, line, at)
            else:
                found.tell(name, value, line, at)
    return found


DOOR = Door("autoresearch", WORDS, signs=("| dt: ", "val_bpb: "), find=find)
