"""How well is the hardware used, and is it simply slow?

What it sees. The true MFU, against this device's own peak, next to what a model of this width can reach; and devices on which even
good use means few tokens per second (slow_hardware).

Why it matters. Low use can be cured (batch, compile, precision, data); a slow machine can only be given a smaller model.

When it is wrong. Narrow models cannot fill a large card: 15% is normal for a width of 384 on an A100. Without the right peak there
is no verdict.

What it looks like. 900 tokens/s at 30% of a laptop's measured 100 GFLOP/s: decent use of a slow machine.

What to change. For low use: larger micro-batch, torch.compile, bfloat16, fewer evaluations. For slow hardware: a smaller model or a
GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.message import msg

CODES = ("low_mfu", "slow_hardware")

DECENT = 0.12  # MFU from which nobody should worry
WIDE, ENOUGH_TOKENS = 768, 8192  # below these the card cannot be filled, whatever one does
SLOW_FLOPS = 15e12  # cards before tensor cores, and float32 on a few after


def look(case: Case) -> Iterator[Finding | NotChecked]:
    true = case.true_mfu
    printed = _trusted_mfu(case)
    yield from _slow(case, true.value if true is not None else printed)
    if true is None:
        yield NotChecked("low_mfu", msg("step time, FLOPs per token, tokens per update or the device's peak is not known"))
        return
    shape = case.shape
    micro = case.micro_batch_tokens
    if shape is None or shape.n_embd < WIDE or micro is None or micro < ENOUGH_TOKENS or case.is_cpu:
        return
    if true.value >= DECENT or true.value <= 0:
        return
    assert case.peak is not None
    evidence = Evidence(msg("true MFU"), true.value, (0.3, 0.6), msg("ordinary iterations"), true.how, "share")
    yield Finding(
        "low_mfu",
        "likely",
        msg("the device is used to {share:share} of its peak; a model of this width reaches 30% and more", share=true.value),
        (evidence,),
        Change(
            msg("try a larger micro-batch, torch.compile and bfloat16: {command:code}", command="nanolens tune"), command="nanolens tune"
        ),
        msg("the device is another one, or shared with other work"),
    )


def _trusted_mfu(case: Case) -> float | None:
    """A printed MFU whose peak was measured or given."""
    if case.number("peak_flops") is None:
        return None
    values = case.steps.mfu_frac[np.isfinite(case.steps.mfu_frac)]
    return float(np.median(values)) if len(values) else None


def _slow(case: Case, mfu: float | None) -> Iterator[Finding]:
    kind = case.hardware.kind if case.hardware is not None else None
    peak = case.peak.value if case.peak is not None else None
    is_slow = kind in ("cpu", "apple") or (peak is not None and peak < SLOW_FLOPS)
    if not is_slow or case.step_time is None or case.hardware is None:
        return
    if mfu is not None and mfu < 0.03 and kind != "apple":
        return  # then it is not the machine
    tokens = case.tokens_per_update
    speed = tokens.value / case.step_time.value if tokens is not None else None
    evidence = []
    if speed is not None:
        evidence.append(
            Evidence(
                msg("tokens per second"),
                speed,
                (50_000.0, 500_000.0),
                msg("ordinary iterations"),
                msg("tokens per update / time of a step; a single GPU does the usual"),
                "tokens_per_s",
            )
        )
    if peak is not None:
        evidence.append(
            Evidence(
                msg("peak of the device"),
                peak,
                (25e12, 165e12),
                msg("{hardware:code}", hardware=case.hardware.text),
                case.peak.how if case.peak else msg("given"),
                "flops_per_s",
            )
        )
    if mfu is not None:
        evidence.append(
            Evidence(
                msg("MFU"),
                mfu,
                msg("above {least:share} is decent on a CPU", least=0.1),
                msg("ordinary iterations"),
                msg("of this device's own peak"),
                "share",
            )
        )
    if not evidence:
        evidence.append(
            Evidence(
                msg("time of a step"),
                case.step_time.value,
                msg("a tenth of it on a GPU"),
                msg("{hardware:code}", hardware=case.hardware.text),
                case.step_time.how,
                "seconds",
            )
        )
    yield Finding(
        "slow_hardware",
        "likely" if peak is not None or kind == "cpu" or case.device is not None else "possible",
        msg("the machine is slow, not the code: only a smaller model or other hardware helps"),
        tuple(evidence),
        Change(
            msg("choose a model that fits the machine: {command:code}", command="nanolens plan --budget=1h"),
            command="nanolens plan --budget=1h",
        ),
        msg("a matrix product on this machine runs far faster than the peak given"),
    )
