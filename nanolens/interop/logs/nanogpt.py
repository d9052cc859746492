"""nanoGPT, and the many scripts that print as it does.

    step 250: train loss 1.9612, val loss 2.0508
    saving checkpoint to out-shakespeare-char
    iter 250: loss 2.0154, time 4102.55ms, mfu 10.80%

- `step k` is an evaluation after k updates, both splits in eval mode: our evaluation at step k.
- `iter k` is the update from step k to k+1, counted from 0: our step k+1.
- Its loss is that of the last micro-batch, of rank 0, scaled back up: with gradient accumulation a sample of the batch and not its mean.
- Its time runs from the end of the update before, so that an evaluation, a checkpoint or a compilation in between is inside.
- Its MFU is a moving average (0.9 old, 0.1 new, seeded by the sixth iteration of the process), of one GPU, against the 312 TFLOP/s of an
  A100 in bfloat16, whatever the device is. `-100.00%` is printed before there is one.

Forks put a time stamp before the line, a learning rate into it, or more fields behind it; the order of the fields may differ.
"""

from __future__ import annotations

import itertools
import re

from nanolens.interop.logs import keyvalue
from nanolens.interop.logs.door import Door, Found
from nanolens.interop.logs.rows import find_rows, num, whole
from nanolens.logs.text import Text
from nanolens.record.run import Words

A100_BF16_FLOPS = 312e12

WORDS = Words(
    trainer="nanogpt", loss="last_micro_batch", time="with_eval", updates_before_printed=1, peak_flops=A100_BF16_FLOPS, mfu_is_smoothed=True
)

# The patterns begin with a plain word, which the regular expression engine looks for many times faster than for a choice.
ITER = re.compile(
    rf"iter {whole()}[:,] (?:lr:? {num('rate')}, )?(?:train )?loss:? {num('loss')}"
    rf"(?:, time:? {num('took_ms')} ?ms)?(?:, mfu:? {{1,4}}{num('mfu_pct')}%)?"
)
STEP = re.compile(rf"step {whole()}: train(?: loss)? {num('train')}, val(?:idation)?(?: loss)? {num('val')}")
_MORE = re.compile(r"[,;|] {0,4}[A-Za-z]")
_LINE = re.compile(r"[^\r\n]{0,300}+")
LOOKED_AT = 12  # rows


def find(source: Text) -> Found:
    pattern = _with_more_fields(source.text)
    return Found(find_rows(pattern, source), find_rows(STEP, source))


def _with_more_fields(text: str) -> re.Pattern[str]:
    """Forks add fields behind the usual ones (`, lr 1e-3, grad_norm 0.52`): what a few rows show, all rows are searched for."""
    for match in itertools.islice(ITER.finditer(text), LOOKED_AT):
        if _MORE.match(text, match.end()):
            behind = _LINE.match(text, match.end())
            assert behind is not None, "the pattern matches nothing as well"
            more = keyvalue.pattern_like(text, match.end(), behind.end())
            taken = {name for name in ITER.groupindex if match[name] is not None}
            named = re.findall(r"\(\?P<(\w+)>", more)
            if more and not taken & set(named):
                return re.compile(f"{_without(ITER.pattern, named)}(?:{more})?")
    return ITER


def _without(pattern: str, names: list[str]) -> str:
    """The pattern with groups of these names made nameless: a name may stand in a pattern once."""
    for name in names:
        pattern = pattern.replace(f"(?P<{name}>", "(?:")
    return pattern


DOOR = Door("nanogpt", WORDS, signs=("iter ", ": train "), find=find)
