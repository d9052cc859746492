"""The printed MFU divides by the wrong peak.

What it sees. The peak that the trainer's MFU assumes (nanoGPT: an A100's 312 TFLOP/s on any card; nanochat of 2025: an H100's 989)
against the peak of this device at this precision; an MFU of 0% or -100% that never becomes a number; and an MFU above 100%.

Why it matters. 11% of an A100 may be 44% of the card at hand: what looks like waste is decent use. Decisions about kernels and
batch sizes made with the wrong denominator go the wrong way.

When it is wrong. A patched trainer divides by the right peak. The device must be named rightly; laptop cards share names with
faster desktop ones.

What it looks like. On an RTX 4070 Ti (80.2 TFLOP/s), 35 TFLOP/s achieved:

    iter 4980: loss 0.8010, time 33.22ms, mfu 11.07%

What to change. Nothing in the run: read the true figure. To have it printed right, give the trainer the card's own peak.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.timing import instant_mfu, ordinary
from nanolens.message import msg

CODES = ("mfu_wrong_peak", "mfu_unknown_peak", "mfu_over_100")

FIXED_PEAK = ("nanogpt", "llama2.c")  # their MFU is of an A100, whatever the card
SMALLEST_SHOWN = 0.005  # an MFU of less may be printed as 0, or 0.00
_NAMED_GPU = re.compile(r"(?i)\b(?:titan|quadro|tesla|geforce|gtx|rtx|radeon|instinct|mi\d{2,3}x?|[pkm]\d{2,3}|[bh]\d00)\b")


def look(case: Case) -> Iterator[Finding | NotChecked]:
    printed = np.flatnonzero(np.isfinite(case.steps.mfu_frac))
    unknown = list(_unknown(case, printed))
    yield from unknown
    if not len(printed) or unknown:
        return
    over = printed[case.steps.mfu_frac[printed] > 1.0]
    if len(over):
        yield _over(case, over)
        if case.run.words.trainer not in FIXED_PEAK or (case.devices or 1) > 1:
            return  # the devices may have been counted wrongly; where there is one, the peak is
    yield from _wrong(case, printed)


def _over(case: Case, over: np.ndarray) -> Finding:
    row = int(over[np.argmax(case.steps.mfu_frac[over])])
    seen = float(case.steps.mfu_frac[row])
    sound = case.steps.mfu_frac[(case.steps.mfu_frac > 0) & (case.steps.mfu_frac <= 1)]
    how = msg("achieved FLOP/s over peak cannot exceed 1")
    if len(sound):
        how = msg(
            "{ratio:times} another line of this log: the number of devices that was left out of the peak",
            ratio=seen / float(np.median(sound)),
        )
    elif case.devices and case.devices > 1:
        how = msg("over {count:count} devices it would be {share:share}", count=case.devices, share=seen / case.devices)
    evidence = Evidence(
        msg("MFU as printed"), seen, msg("below {whole:share}", whole=1.0), places.row(case, row), how, "share", int(case.steps.step[row])
    )
    return Finding(
        "mfu_over_100",
        "certain",
        msg("an MFU above 100% is an accounting error: tokens of all devices over the peak of one, or a wrong peak"),
        (evidence,),
        Change(msg("divide by the peak of all devices, at the precision used")),
        msg("the field is not an MFU"),
    )


def _unknown(case: Case, printed: np.ndarray) -> Iterator[Finding]:
    zeros = printed[case.steps.mfu_frac[printed] == 0] if len(printed) else printed
    marks = [mark for mark in case.run.marks if mark.kind == "sentinel" and "mfu" in mark.text.lower()]
    is_nanogpt = case.run.words.trainer in FIXED_PEAK  # 0.00% there is a tiny model
    all_zero = len(zeros) > 0 and len(zeros) == len(printed) and not case.is_cpu and not is_nanogpt and not _is_that_slow(case, len(zeros))
    # nanoGPT prints -100% for its first five iterations; a log that never gets past them says nothing.
    never = not len(printed) and len(marks) > 0 and len(case.steps) >= (10 if is_nanogpt else 3)
    if not all_zero and not never:
        return
    row = int(zeros[0]) if all_zero else 0
    evidence = Evidence(
        msg("MFU as printed"),
        0.0 if all_zero else -1.0,
        (0.1, 0.6),
        places.row(case, row),
        msg("a trainer whose table lacks the device divides by infinity or prints a placeholder"),
        "share",
    )
    true = case.true_mfu
    yield Finding(
        "mfu_unknown_peak",
        "likely",
        msg("the trainer does not know this device's peak: its MFU is a placeholder"),
        (
            evidence,
            *(() if true is None else (Evidence(msg("true MFU"), true.value, (0.3, 0.6), places.row(case, row), true.how, "share"),)),
        ),
        Change(msg("add the device's peak to the trainer's table")),
        msg("the device really does nothing"),
    )


def _is_that_slow(case: Case, lines: int) -> bool:
    """Whether a true MFU may have been rounded to 0, by tokens/s x FLOPs per token; where these are unknown, a few lines prove nothing."""
    true = case.true_mfu
    return lines < 3 if true is None else true.value < SMALLEST_SHOWN


def _is_other_gpu(case: Case) -> bool:
    """A named GPU that is no A100, though its peak is not known here."""
    assert case.hardware is not None
    if case.device is not None:
        return case.device.kind == "gpu" and not case.device.name.startswith(("A100", "A800"))
    return _NAMED_GPU.search(case.hardware.text) is not None


def _wrong(case: Case, printed: np.ndarray) -> Iterator[Finding | NotChecked]:
    assumed = case.run.words.peak_flops
    if assumed is None:
        return
    if case.hardware is None:
        yield NotChecked("mfu_wrong_peak", msg("the device is not known; give --hardware=NAME"))
        return
    row = int(printed[-1])
    if case.peak is None:
        if case.is_cpu or case.hardware.kind in ("cpu", "apple") or (case.run.words.trainer in FIXED_PEAK and _is_other_gpu(case)):
            yield _no_meaning(case, assumed, row)
        else:
            yield NotChecked("mfu_wrong_peak", msg("the peak of {hardware:code} is not known", hardware=case.hardware.text))
        return
    if abs(assumed / case.peak.value - 1) < 0.03:
        return
    evidence = [
        Evidence(
            msg("peak that the printed MFU assumes"),
            assumed,
            case.peak.value,
            msg("{trainer:code}", trainer=case.run.words.trainer),
            case.peak.how,
            "flops_per_s",
        )
    ]
    implied = _implied_peak(case, instant_mfu(case))
    if implied is not None and implied[1] is not None and case.number("peak_flops") is not None:
        return  # the trainer was told this very peak
    plain = printed[ordinary(case)[printed]]
    row = int(plain[-1]) if len(plain) else row
    true = case.true_mfu
    if true is not None and implied is None:
        evidence.append(
            Evidence(
                msg("MFU as printed, and of this device"),
                float(case.steps.mfu_frac[row]),
                true.value,
                places.row(case, row),
                true.how,
                "share",
            )
        )
    claim = msg(
        "the printed MFU is against {assumed:flops_per_s}, not this device's {peak:flops_per_s}", assumed=assumed, peak=case.peak.value
    )
    if implied is not None:
        total, fits = implied
        if fits is not None:
            claim = msg(
                "this trainer's MFU is of {assumed:flops_per_s} whatever the card; "
                "the share printed here fits {count:count} x {peak:flops_per_s}, so this copy was mended",
                assumed=assumed,
                count=fits,
                peak=case.peak.value,
            )
        evidence.append(
            Evidence(
                msg("peak that the printed share implies"),
                total,
                assumed * (case.devices or 1),
                places.row(case, row),
                msg("tokens/s x FLOPs per token / printed MFU"),
                "flops_per_s",
            )
        )
    yield Finding(
        "mfu_wrong_peak",
        "likely",
        claim,
        tuple(evidence),
        Change(msg("read the true figure; in the trainer's source put the card's own peak, {peak:flops_per_s}", peak=case.peak.value)),
        msg("this copy of the trainer was changed to know the device"),
    )


def _implied_peak(case: Case, shown: float | None) -> tuple[float, int | None] | None:
    """What the printed share was divided by, from tokens/s; and how many of these devices that is, where it is a whole number."""
    if (
        case.run.words.trainer == "nanogpt"
        or shown is None
        or case.flops_per_token is None
        or case.step_time is None
        or case.tokens_per_update is None
    ):
        return None
    assert case.peak is not None
    total = case.tokens_per_update.value / case.step_time.value * case.flops_per_token.value / shown
    count = total / case.peak.value
    whole = round(count)
    fits = whole if whole >= 1 and abs(count / whole - 1) < 0.04 else None
    assumed = case.run.words.peak_flops or 1.0
    as_assumed = total / assumed
    if fits is not None and round(as_assumed) >= 1 and abs(as_assumed / round(as_assumed) - 1) < abs(count / fits - 1):
        fits = None
    return total, fits


def _no_meaning(case: Case, assumed: float, row: int) -> Finding:
    assert case.hardware is not None
    evidence = Evidence(
        msg("peak that the printed MFU assumes"),
        assumed,
        msg("the peak of {hardware:code}", hardware=case.hardware.text),
        places.row(case, row),
        msg("an A100's, on whatever device"),
        "flops_per_s",
    )
    return Finding(
        "mfu_wrong_peak",
        "likely",
        msg("the printed MFU is against {assumed:flops_per_s}, which this device has nothing to do with", assumed=assumed),
        (evidence,),
        Change(msg("give the measured peak of the device with {option:code}", option="--peak_flops=N")),
        msg("the trainer was changed to know the device"),
    )
