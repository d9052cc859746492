"""What the printed MFU means, and how well the device is used."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, finding, rule
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import Evidence, Figure, Finding, NotChecked, known, see
from nanolens.facts.timing import EMA, follows, instant_mfu, ordinary
from nanolens.message import Message, msg

SMALLEST_SHOWN = 0.005  # an MFU of less may be printed as 0, or 0.00
_NAMED_GPU = re.compile(
    r"(?i)\b(?:titan|quadro|tesla|geforce|gtx|rtx|radeon|instinct|mi\d{2,3}x?|[pkm]\d{2,3}|[bh]\d00)\b"
)


@rule("mfu_unknown_peak")
def unknown_peak(case: Case) -> Answers:
    """An MFU of 0% or -100% that never becomes a number."""
    printed = case.rows("mfu_frac")
    is_placeholder = any("mfu" in mark.text.lower() for mark in case.marks("sentinel"))
    if case.steps.mfu_frac[printed].any() if len(printed) else not is_placeholder:
        return
    if len(printed) and (case.is_cpu or case.has_fixed_peak or _is_that_slow(case, len(printed))):
        return  # 0.00% of an A100 is a tiny model
    # nanoGPT prints -100% for its first five iterations; a log that never gets past them says nothing.
    if not len(printed) and len(case.steps) < (10 if case.has_fixed_peak else 3):
        return
    where, true = locations.row(case, printed[0] if len(printed) else 0), case.true_mfu
    shown = Seen(0.0 if len(printed) else -1.0, (0.1, 0.6), where)
    yield finding("mfu_unknown_peak", "likely", shown, *([] if true is None else [_true_mfu(true, where)]))


def _true_mfu(true: Figure, where: Message) -> Evidence:
    return see(msg("true MFU"), true.value, (0.3, 0.6), where, true.how, "share")


def _is_that_slow(case: Case, lines: int) -> bool:
    """Whether a true MFU may have been rounded to 0, by tokens/s x FLOPs per token; where these are unknown, a few
    lines prove nothing."""
    true = case.true_mfu
    return lines < 3 if true is None else true.value < SMALLEST_SHOWN


@rule("mfu_over_100", only=("mfu_frac",))
def over_100(case: Case) -> Answers:
    """An MFU above 100%."""
    mfu = case.steps.mfu_frac
    row = int(np.nanargmax(mfu))
    if mfu[row] <= 1.0:
        return
    highest, possible, count = float(mfu[row]), mfu[(mfu > 0) & (mfu <= 1)], case.devices
    shown = Seen(highest, msg("below {whole:share}", 1.0), *locations.at_row(case, row))
    if len(possible):
        yield finding("mfu_over_100.unlike_others", "certain", shown, ratio=highest / float(np.median(possible)))
    elif count and count > 1:
        yield finding("mfu_over_100.several_devices", "certain", shown, count=count, share=highest / count)
    else:
        yield finding("mfu_over_100", "certain", shown)


@rule("mfu_wrong_peak", only=("assumed_peak", "mfu_frac"), needs=("hardware",))
def wrong_peak(case: Case) -> Answers:
    """The printed MFU divides by the wrong peak."""
    assumed, hardware, rows = known(case.assumed_peak), known(case.hardware), case.rows("mfu_frac")
    if case.steps.mfu_frac[rows].max() > 1.0 and (not case.has_fixed_peak or case.has_several_devices):
        return  # the devices may have been counted wrongly; where there is one, the peak is
    if not case.steps.mfu_frac[rows].any() and any(unknown_peak.findings(case)):
        return
    if case.peak is not None:
        yield from _another_peak(case, assumed, rows)
    elif case.is_cpu or hardware.kind in ("cpu", "apple") or (case.has_fixed_peak and _is_other_gpu(case)):
        peak = Seen(assumed, msg("the peak of {hardware:code}", hardware.text), locations.row(case, rows[-1]))
        yield finding("mfu_wrong_peak", "likely", peak, assumed=assumed, option="--peak_flops=N")
    else:
        yield NotChecked("mfu_wrong_peak", msg("the peak of {hardware:code} is not known", hardware.text))


def _is_other_gpu(case: Case) -> bool:
    """A named GPU that is no A100, though its peak is not known here."""
    if case.device is not None:
        return case.device.kind == "gpu" and not case.device.name.startswith(("A100", "A800"))
    return _NAMED_GPU.search(known(case.hardware).text) is not None


def _another_peak(case: Case, assumed: float, rows: np.ndarray) -> Iterator[Finding]:
    peak, true, implied = known(case.peak), case.true_mfu, _implied_peak(case)
    if abs(assumed / peak.value - 1) < 0.03:
        return
    if implied is not None and implied[1] is not None and case.number("peak_flops") is not None:
        return  # the trainer was given this very peak
    plain = rows[ordinary(case)[rows]]
    row = plain[-1] if len(plain) else rows[-1]
    where, printed = locations.row(case, row), case.steps.mfu_frac[row]
    what, trainer = msg("peak assumed by the printed MFU"), msg("{trainer:code}", case.run.conventions.trainer)
    evidence = [see(what, assumed, peak.value, trainer, peak.how, "flops_per_s")]
    fits = None
    if implied is not None:
        total, fits = implied
        what, how = msg("peak implied by the printed MFU"), msg("tokens/s x FLOPs per token / printed MFU")
        evidence.append(see(what, total, assumed * (case.devices or 1), where, how, "flops_per_s"))
    elif true is not None:
        what = msg("MFU as printed, and relative to this device")
        evidence.append(see(what, printed, true.value, where, true.how, "share"))
    name = "mfu_wrong_peak.another_peak" if fits is None else "mfu_wrong_peak.patched"
    yield finding(name, "likely", *evidence, assumed=assumed, count=fits, peak=peak.value)


def _implied_peak(case: Case) -> tuple[float, int | None] | None:
    """What the printed share was divided by, from tokens/s; and how many of these devices that is, where it is a whole
    number."""
    shown, cost, took, tokens = instant_mfu(case), case.flops_per_token, case.step_time, case.tokens_per_update
    if case.is_nanogpt or shown is None or cost is None or took is None or tokens is None:
        return None
    total = tokens.value / took.value * cost.value / shown
    count, as_assumed = total / known(case.peak).value, total / (case.assumed_peak or 1.0)
    whole = round(count)
    fits = whole if whole >= 1 and abs(count / whole - 1) < 0.04 else None
    if fits is not None and round(as_assumed) >= 1 and abs(as_assumed / round(as_assumed) - 1) < abs(count / fits - 1):
        fits = None
    return total, fits


OFF = 0.06  # share of the true value by which the printed one must differ


@rule("mfu_ema_lag", only=("run.conventions.mfu_is_smoothed",), needs=("mfu_work", "step_time"))
def mfu_lag(case: Case) -> Answers:
    """The printed MFU lags behind: a moving average includes a slow line."""
    work, step, mfu, took = known(case.mfu_work), known(case.step_time), case.steps.mfu_frac, case.steps.took_s
    true = work / step.value
    now = np.flatnonzero(follows(case.steps.printed, np.isfinite(mfu) & np.isfinite(took) & (took > 0)))
    predicted = EMA * mfu[now - 1] + (1 - EMA) * work / took[now]
    explained = np.abs(predicted - mfu[now]) < np.maximum(0.02 * true, 0.0002)
    found = now[explained & (np.abs(mfu[now] / true - 1) > OFF)]
    if not len(found) or (len(now) >= 6 and explained.mean() < 0.6):
        return
    starts_low = mfu[case.rows("mfu_frac")[0]] < 0.7 * true  # seeded by a slow line
    if not starts_low and not (took[now] > 2 * step.value).any():
        return
    worst = int(found[np.argmax(np.abs(mfu[found] / true - 1))])
    yield finding("mfu_ema_lag", "likely", Seen(mfu[worst], true, *locations.at_row(case, worst)), count=len(now))


DECENT = 0.12  # MFU from which nobody should worry
WIDE, ENOUGH_TOKENS = 768, 8192  # below these the card cannot be filled, whatever one does
SLOW_FLOPS = 15e12  # cards before tensor cores, and float32 on a few after


@rule("low_mfu", needs=("true_mfu",))
def low_mfu(case: Case) -> Answers:
    """How well is the hardware used?"""
    true, shape, micro = known(case.true_mfu), case.shape, case.micro_batch_tokens
    if shape is None or shape.n_embd < WIDE or micro is None or micro < ENOUGH_TOKENS or case.is_cpu:
        return
    if not 0 < true.value < DECENT:
        return
    yield finding("low_mfu", "likely", _true_mfu(true, msg("normal iterations")), share=true.value)


@rule("slow_hardware", only=("hardware", "step_time"))
def slow_hardware(case: Case) -> Answers:
    """Is the machine simply slow?"""
    hardware, peak, mfu = known(case.hardware), case.peak, _own_mfu(case)
    is_slow = hardware.kind in ("cpu", "apple") or (peak is not None and peak.value < SLOW_FLOPS)
    is_idle = mfu is not None and mfu < 0.03 and hardware.kind != "apple"  # then it is not the machine
    if not is_slow or is_idle:
        return
    is_sure = peak is not None or hardware.kind == "cpu" or case.device is not None
    yield finding("slow_hardware", "likely" if is_sure else "possible", *_slowness(case, mfu))


def _slowness(case: Case, mfu: float | None) -> Iterator[Evidence]:
    step, tokens, peak = known(case.step_time), case.tokens_per_update, case.peak
    normal, machine = msg("normal iterations"), msg("{hardware:code}", known(case.hardware).text)
    if tokens is not None:
        how = msg("tokens per update / step time; for comparison, a single GPU")
        speed = tokens.value / step.value
        yield see(msg("tokens per second"), speed, (50_000.0, 500_000.0), normal, how, "tokens_per_s")
    if peak is not None:
        yield see(msg("device peak"), peak.value, (25e12, 165e12), machine, peak.how, "flops_per_s")
    if mfu is not None:
        expected = msg("above {least:share} on a CPU", 0.1)
        yield see(msg("MFU"), mfu, expected, normal, msg("of this device's own peak"), "share")
    if tokens is None and peak is None and mfu is None:
        yield see(msg("step time"), step.value, msg("a tenth of that on a GPU"), machine, step.how, "seconds")


def _own_mfu(case: Case) -> float | None:
    """Of this device's own peak: calculated, or printed where the peak was measured or given."""
    if case.true_mfu is not None:
        return case.true_mfu.value
    rows = case.rows("mfu_frac")
    return float(np.median(case.steps.mfu_frac[rows])) if case.number("peak_flops") is not None and len(rows) else None
