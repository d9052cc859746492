"""float16 overflowed.

What it sees. A NaN in a float16 run that comes without warning: loss and gradient norm kept their level up to the last line before
it. In our own runs also a loss scale that keeps falling.

Why it matters. float16 ends at 65,504. An activation or a scaled gradient beyond it is infinite, and a lower learning rate only
delays it; bfloat16 has float32's range.

When it is wrong. If the loss was already growing, the update exploded and float16 merely shows the same explosion earlier: see
grad_explosion. A float32 run of the same seed decides: if it fails at the same step, precision is not the cause.

What it looks like. The time of a step falls as well, because the scaler then skips every optimizer step:

    iter 1210: loss 3.9127, time 412.70ms
    iter 1220: loss nan, time 388.15ms

What to change. dtype=bfloat16 where the card has it (RTX 30 and later, A100 and later), else float32 for the attention or the whole
model. With PyTorch 2.0 and float16 switch fused AdamW off or upgrade: its fused AdamW ignored the scaler's verdict (pytorch issue
95781).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.analysis.symptoms.non_finite import grew_before, is_passing, not_finite_rows
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked, Sureness
from nanolens.message import msg

CODES = ("fp16_overflow", "fused_adamw_fp16_bug")

FIXED_AT_S = 1_696_000_000.0  # October 2023: PyTorch 2.1, which has the repair
SMALLEST_SOUND_SCALE = 1.0
FAR_ABOVE = 256.0


def look(case: Case) -> Iterator[Finding | NotChecked]:
    if case.stated_dtype is None:
        if len(not_finite_rows(case)):
            yield NotChecked("fp16_overflow", msg("the precision is not known; give --dtype=float16, bfloat16 or float32"))
        return
    if case.stated_dtype != "float16":
        return
    yield from _scale(case)
    yield from _skips(case)
    bad = not_finite_rows(case)
    if not len(bad) or int(bad[0]) < 3 or is_passing(case, bad):
        return
    first = int(bad[0])
    if grew_before(case, first):
        return
    evidence = [_level(case, first)]
    faster = _faster_after(case, first)
    if faster is not None:
        evidence.append(faster)
    # The last checkpoint's worth of steps is lost either way; the cure is the dtype.
    has_bf16 = case.device is None or "bfloat16" in case.device.peaks
    new = "bfloat16" if has_bf16 else "float32"
    yield Finding(
        "fp16_overflow",
        "likely",
        msg("float16 ran out of range: the loss turned into NaN without any growth before it"),
        tuple(evidence),
        Change(msg("train in {dtype:code}", dtype=new), key="dtype", old="float16", new=new),
        msg("a float32 run with the same seed fails at the same step, or the gradient norm was growing"),
    )
    yield from _fused(case, first, faster)


def _level(case: Case, first: int) -> Evidence:
    before = case.steps.loss[:first]
    before = before[np.isfinite(before)][-20:]
    return Evidence(
        msg("largest of the last losses before the NaN"),
        float(before[-5:].max()),
        (float(before.min()), float(before.max())),
        places.row(case, first),
        msg("against the range of the {count:count} losses before", count=len(before)),
        "nats",
        int(case.steps.step[first]),
    )


def _faster_after(case: Case, first: int) -> Evidence | None:
    """Skipped optimizer steps make the iterations after the NaN faster."""
    from nanolens.facts.timing import ordinary

    plain = ordinary(case)
    took = case.steps.took_s
    before, after = took[:first][plain[:first]], took[first:][plain[first:]]
    if len(before) < 3 or len(after) < 3:
        return None
    was, now = float(np.median(before[-20:])), float(np.median(after[:20]))
    if not now < was - max(0.015 * was, 3 * float(np.std(before[-20:]))):
        return None
    how = msg("median time of a step after the NaN and before it: a scaler that skips every update saves that much")
    return Evidence(msg("time of a step"), now, was, places.row(case, first), how, "seconds", int(case.steps.step[first]))


def _fused(case: Case, first: int, faster: Evidence | None) -> Iterator[Finding]:
    version = case.text("torch")
    at_s = case.steps.at_s[np.isfinite(case.steps.at_s)]
    is_old = version.startswith("2.0") or (not version and len(at_s) > 0 and float(at_s[0]) < FIXED_AT_S)
    fused = case.get("fused_adamw")
    if not is_old or fused is False or str(fused).lower() == "false":
        return
    evidence = Evidence(
        msg("PyTorch"),
        version or msg("of the log's date"),
        msg("2.1 or later"),
        places.row(case, first),
        msg("fused AdamW of PyTorch 2.0 ignored the scaler's verdict on float16 gradients (issue 95781)"),
        "text",
    )
    sure: Sureness = "likely" if fused is True or version.startswith("2.0") else "possible"
    yield Finding(
        "fused_adamw_fp16_bug",
        sure,
        msg("PyTorch of that time had a defect in fused AdamW with float16"),
        (evidence,) + ((faster,) if faster else ()),
        Change(msg("upgrade PyTorch, or pass fused=False to AdamW")),
        msg("AdamW was not fused, or the PyTorch is 2.1 or later"),
    )


def _skips(case: Case) -> Iterator[Finding]:
    """Updates that our own loop kept from the weights, at a level that had not moved."""
    at = [mark.step for mark in case.run.marks if mark.kind == "skip" and mark.step is not None and mark.step > 50]
    steps, losses = case.losses
    before = losses[steps <= at[0]] if at else losses[:0]
    if len(at) < 4 or len(before) < 5 or before[-5:].max() > 1.5 * before.min():
        return
    evidence = Evidence(
        msg("updates that were not finite"),
        len(at),
        0,
        msg("from step {step:count} on", step=at[0]),
        msg("kept from the weights; the loss before was {loss:nats}, and had not grown", loss=float(before[-1])),
        "count",
        at[0],
    )
    yield Finding(
        "fp16_overflow",
        "likely",
        msg("float16 ran out of range: updates stopped being finite without any growth before"),
        (evidence,),
        Change(msg("train in {dtype:code}", dtype="bfloat16"), key="dtype", old="float16", new="bfloat16"),
        msg("a float32 run with the same seed fails at the same step, or the gradient norm was growing"),
    )


def _scale(case: Case) -> Iterator[Finding]:
    scales = case.steps.loss_scale[np.isfinite(case.steps.loss_scale)]
    # Some scalers stop at 1: a scale that came down to it from far above has nowhere left to go.
    fell = len(scales) > 0 and scales[-1] == SMALLEST_SOUND_SCALE and scales.max() >= FAR_ABOVE and (scales[-3:] == scales[-1]).all()
    if len(scales) < 5 or (scales[-1] >= SMALLEST_SOUND_SCALE and not fell):
        return
    last = int(np.flatnonzero(np.isfinite(case.steps.loss_scale))[-1])
    evidence = Evidence(
        msg("loss scale"),
        float(scales[-1]),
        (FAR_ABOVE, float(scales.max())),
        places.row(case, last),
        msg("each overflow halves it; at 1 and below the gradients themselves do not fit"),
        "number",
        int(case.steps.step[last]),
    )
    yield Finding(
        "fp16_overflow",
        "likely" if fell else "certain",
        msg("the loss scale has fallen to {scale:number}: float16 cannot hold these gradients", scale=float(scales[-1])),
        (evidence,),
        Change(msg("train in {dtype:code}", dtype="bfloat16"), key="dtype", old="float16", new="bfloat16"),
        msg("the scale recovers within the next 2,000 steps"),
    )
