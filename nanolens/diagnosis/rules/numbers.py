"""Losses and gradients that are not finite, and float16."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, finding, rule
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, Sureness, see
from nanolens.facts.statistics import noise_of, spread_of
from nanolens.facts.timing import ordinary
from nanolens.message import Message, msg
from nanolens.record.run import Mark


@rule("nan_sentinel_benign", marks=("sentinel",))
def placeholders(case: Case) -> Answers:
    """Fields that are no numbers yet."""
    marks = case.marks("sentinel")
    where = msg("line {line:count} and others", marks[0].line)
    yield finding("nan_sentinel_benign", "certain", Seen(len(marks), msg("any number"), where), text=marks[0].text)


@rule("hf_zero_loss_is_nan", only=("filtered_zeros",))
def zero_loss(case: Case) -> Answers:
    """A loss of exactly 0 is what the Hugging Face Trainer's filter leaves of a NaN: for certain beside a gradient norm
    that is none."""
    rows = case.filtered_zeros
    beside_nan = bool((np.nan_to_num(case.steps.not_finite[rows]) >= 2).any())
    zero = Seen(0.0, msg("above 0"), *locations.at_row(case, rows[0]))
    if beside_nan:
        yield finding("hf_zero_loss_is_nan.beside_nan", "certain", zero)
    else:
        yield finding("hf_zero_loss_is_nan", "likely", zero, count=len(rows))


@rule("nan_divergence", marks=("skip",))
def skipped_updates(case: Case) -> Answers:
    """Updates that were kept from the weights, in a run whose printed losses are all finite."""
    if case.is_not_finite:
        return
    skips = case.marks("skip")
    count, first = len(skips), skips[0].step or 0
    settling = sum(scale is not None and scale > SMALLEST_SOUND_SCALE for scale in map(_scale_after, skips[:SETTLING]))
    sureness: Sureness = "certain" if count - settling >= max(4, 0.01 * len(case.steps)) else "possible"
    skipped = Seen(count, 0, locations.onwards(first), first)
    yield finding("nan_divergence.skipped_updates", sureness, skipped, count=count)


_LOSS_IS_NAN = re.compile(r"\bloss\b.{0,12}\bnan\b|\bnan\b.{0,12}\bloss\b", re.I)


@rule("nan_divergence", marks=("error",))
def error_message(case: Case) -> Answers:
    """A trainer that stops at such a loss instead of printing it."""
    errors = [mark for mark in case.marks("error") if _LOSS_IS_NAN.search(mark.text)]
    if not errors or case.is_not_finite:
        return
    message = Seen(errors[0].text, msg("nothing"), msg("line {line:count}", errors[0].line), errors[0].step)
    yield finding("nan_divergence.error_message", "certain", message)


@rule("nan_divergence", "kernel_bug", only=("is_not_finite",))
def non_finite(case: Case) -> Answers:
    """The loss or the gradient is not finite."""
    rows, rate = case.not_finite_rows, case.peak_lr
    if not len(rows) and _only_empty_evaluations(case):
        return
    if not len(case.not_finite_evals) and _is_passing(case):
        norms = Seen(len(rows), 0, *locations.at_row(case, rows[0]))
        yield finding("nan_divergence.passing_norms", "possible", norms)
        return
    yield _not_finite(case)
    # Nothing but NaN, from the first row on, early in the run, at a harmless learning rate.
    if len(rows) == len(case.steps) >= 3 and case.steps.step[0] <= 100 and rate is not None and rate <= 1e-3:
        all_rows = Seen(len(rows), 0, locations.rows(case, 0, len(rows) - 1))
        yield finding("kernel_bug", "possible", all_rows, step=int(case.steps.step[0]), rate=rate)


@rule("grad_nan", only=("not_finite_rows",))
def backward_pass(case: Case) -> Answers:
    """The gradient is not finite although the loss is."""
    bad = case.not_finite_rows
    alone = bad[np.isfinite(case.steps.loss[bad])]
    if not len(alone) or alone[0] != bad[0] or _is_passing(case):
        return  # after a loss that is no number, the gradient tells nothing more
    lines = Seen(len(alone), 0, *locations.at_row(case, alone[0]))
    yield finding("grad_nan", "certain", lines, count=len(alone))


NO_TIME_S = 0.01  # less than a batch takes to be put together, let alone evaluated


@rule("empty_validation", only=("not_finite_evals",))
def empty_evaluation(case: Case) -> Answers:
    """An evaluation over no tokens."""
    for index in case.not_finite_evals:
        why = _why_empty(case, index)
        if why is not None:
            where, step = locations.evaluation(case, index), int(case.evals.step[index])
            loss = Seen(float("nan"), msg("a finite number"), where, step)
            yield finding("empty_validation", "likely", loss, why=why)
            return


def _why_empty(case: Case, index: int) -> Message | None:
    """Why the NaN of this evaluation is none of the model: its val loss alone is one, no training loss up to there."""
    evals, step = case.evals, case.evals.step[index]
    before = case.not_finite_rows[case.steps.step[case.not_finite_rows] <= step]
    if evals.not_finite[index] != 2 or len(before) or len(case.filtered_zeros) or np.isinf(case.run.evals.val[index]):
        return None
    if evals.took_s[index] <= NO_TIME_S:
        return msg("which took {took:seconds}", float(evals.took_s[index]))
    if step <= 1 and not len(case.not_finite_rows):
        return msg("before the first update")
    return None


def _only_empty_evaluations(case: Case) -> bool:
    """Whether each NaN is that of an evaluation over no tokens."""
    return all(_why_empty(case, index) is not None for index in case.not_finite_evals)


def _is_passing(case: Case) -> bool:
    """Gradient norms that are no numbers beside losses that are, and a loss that does not rise: what a float16 scaler,
    which skips such steps by design, leaves in a healthy run. Norms later must be finite again; where none are
    printed, only the last one may be such."""
    steps, bad = case.steps, case.not_finite_rows
    if not len(bad) or not np.isfinite(steps.loss[bad]).all() or len(bad) > max(2, 0.1 * len(steps)):
        return False
    first, last = int(bad[0]), int(bad[-1])
    is_last_alone = first == len(steps) - 1
    if not np.isfinite(steps.grad_norm[last + 1 :]).any() and not is_last_alone:
        return False
    before, after = steps.loss[: first + 1], steps.loss[last:]
    was, now = np.median(before[np.isfinite(before)][-12:]), np.median(after[np.isfinite(after)][-12:])
    return bool(now <= was + max(2 * (noise_of(*case.losses) or 0.0), 0.02))


def _not_finite(case: Case) -> Finding:
    bad, loss = case.not_finite_rows, case.steps.loss
    if len(bad):
        first = int(bad[0])
        what = msg("gradient norm") if np.isfinite(loss[first]) else msg("loss")
        finite, recovered = loss[:first][np.isfinite(loss[:first])], np.isfinite(loss[int(bad[-1]) + 1 :]).any()
        where, step = locations.at_row(case, first)
    else:
        first = int(case.not_finite_evals[0])
        what, finite, recovered = msg("evaluated loss"), case.losses[1], False
        where, step = locations.evaluation(case, first), int(case.evals.step[first])
    usual = finite[-1] if len(finite) else msg("a finite number")
    how = msg("the value as printed, and the last finite one before it")
    value = see(what, float("nan"), usual, where, how, "nats", step)
    quantity = msg("logged steps that are not finite")
    count = see(quantity, len(bad), 0, msg("the whole run"), msg("number of rows"), "count")
    saved = [mark.step for mark in case.marks("checkpoint") if mark.step is not None and mark.step < step]
    back = msg("go back to the last checkpoint before step {step:count}", step)
    if saved:
        back = msg("go back to the checkpoint of step {step:count}, the last before the first NaN", saved[-1])
    name = "nan_divergence.recovered" if recovered else "nan_divergence.not_finite"
    return finding(name, "certain", value, count, change=Change(back), what=what, step=step)


# --- float16

FIXED_AT_S = 1_696_000_000.0  # October 2023: PyTorch 2.1, which has the repair
SMALLEST_SOUND_SCALE = 1.0
FAR_ABOVE = 256.0
SETTLING = 20  # halvings within which a scale finds its level: from DeepSpeed's 2^32 to below 2^13
_AT_MINIMUM = re.compile(r"loss scale already at minimum|minimum loss scale reached", re.I)
_NEW_SCALE = re.compile(
    r"(?:reducing (?:loss scale )?|setting loss scale )to:? {0,4}(\d{1,20}(?:\.\d{0,20})?(?:e[+-]?\d{1,2})?)", re.I
)


def _scale_after(mark: Mark) -> float | None:
    """The loss scale to which an overflow has led, where the trainer says so."""
    said = _NEW_SCALE.search(mark.text)
    return float(said[1]) if said else None


@rule("loss_scale_collapse", marks=("error",))
def scale_at_minimum(case: Case) -> Answers:
    """A trainer that stops because its loss scale has come down to its end."""
    said = [mark for mark in case.marks("error") if _AT_MINIMUM.search(mark.text)]
    if said:
        message = Seen(said[0].text, msg("nothing"), msg("line {line:count}", said[0].line), said[0].step)
        yield finding("loss_scale_collapse.message", "certain", message)


@rule("loss_scale_collapse", marks=("skip",))
def overflows(case: Case) -> Answers:
    """Overflow after overflow, in what the trainer says of them."""
    skips = case.marks("skip")
    scales = [scale for scale in map(_scale_after, skips) if scale is not None]
    where, step = msg("line {line:count}", skips[-1].line), skips[-1].step
    if scales and scales[-1] <= SMALLEST_SOUND_SCALE < scales[0]:
        yield finding("loss_scale_collapse", "likely", Seen(scales[-1], (FAR_ABOVE, max(scales)), where, step))
        return
    longest = _longest_row(case, skips)
    if len(scales) < len(skips) and longest > 2 * SETTLING:
        yield finding("loss_scale_collapse.overflows", "likely", Seen(longest, (0, SETTLING), where, step))


def _longest_row(case: Case, skips: list[Mark]) -> int:
    """Most overflows one after the other, with not one line of an update between them."""
    before = np.searchsorted(np.sort(case.steps.line), [mark.line for mark in skips])
    return int(np.unique(before, return_counts=True)[1].max())


@rule("loss_scale_collapse", "fp16_overflow", only=("loss_scale",))
def loss_scale(case: Case) -> Answers:
    """The scale of a float16 run falls until the gradients themselves do not fit."""
    rows = case.rows("loss_scale")
    scales = case.steps.loss_scale[rows]
    now, highest = float(scales[-1]), float(scales.max())
    # Some scalers stop at 1: a scale that came down to it from far above has nowhere left to go.
    fell = now == SMALLEST_SOUND_SCALE and highest >= FAR_ABOVE and (scales[-3:] == now).all()
    if len(scales) < 5 or now == highest or (now >= SMALLEST_SOUND_SCALE and not fell):
        return
    scale, sets = Seen(now, (FAR_ABOVE, highest), *locations.at_row(case, rows[-1])), ("dtype", "float16", "bfloat16")
    sureness: Sureness = "likely" if fell else "certain"
    yield finding("loss_scale_collapse", sureness, scale)
    if case.is_float16:
        yield finding("fp16_overflow.loss_scale", sureness, scale, sets=sets, dtype=sets[-1], scale=now)


@rule("fp16_overflow", only=("is_float16",), marks=("skip",))
def overflowing_updates(case: Case) -> Answers:
    """Updates that our own loop kept from the weights, at a level that had not moved."""
    at = [mark.step for mark in case.marks("skip") if mark.step is not None and mark.step > 50]
    steps, losses = case.losses
    before = losses[steps <= at[0]] if at else losses[:0]
    if len(at) < 4 or len(before) < 5 or before[-5:].max() > 1.5 * before.min():
        return
    updates, sets = Seen(len(at), 0, locations.onwards(at[0]), at[0]), ("dtype", "float16", "bfloat16")
    yield finding("fp16_overflow.updates", "likely", updates, sets=sets, dtype=sets[-1], loss=float(before[-1]))


@rule("fp16_overflow", "fused_adamw_fp16_bug", only=("not_finite_rows",), needs=("stated_dtype",))
def half_precision(case: Case) -> Answers:
    """float16 overflowed."""
    first = int(case.not_finite_rows[0])
    if not case.is_float16 or first < 3 or _is_passing(case) or _grew_before(case, first):
        return
    before = case.steps.loss[:first]
    before = before[np.isfinite(before)][-20:]
    level = Seen(before[-5:].max(), (before.min(), before.max()), *locations.at_row(case, first))
    faster = list(_faster_after(case, first))
    # The last checkpoint's worth of steps is lost either way; the cure is the dtype.
    has_bf16 = case.device is None or "bfloat16" in case.device.peaks
    sets = ("dtype", "float16", "bfloat16" if has_bf16 else "float32")
    yield finding("fp16_overflow", "likely", level, *faster, sets=sets, dtype=sets[-1], count=len(before))
    yield from _fused(case, first, faster)


def _grew_before(case: Case, first_bad: int) -> bool:
    """Whether loss or gradient norm had left its level before the first NaN: an instability, not a sudden overflow."""
    for column, factor in ((case.steps.loss, 1.5), (case.steps.grad_norm, 5.0)):
        before = column[:first_bad]
        before = before[np.isfinite(before)]
        if len(before) < 3:
            continue
        recent, level = float(before[-3:].max()), float(np.median(before[-40:]))
        if recent > factor * max(before.min(), 1e-9) and recent > level + 6 * spread_of(before[-40:]):
            return True
    return False


def _faster_after(case: Case, first: int) -> Iterator[Evidence]:
    """Skipped optimizer steps make the iterations after the NaN faster."""
    plain, took = ordinary(case), case.steps.took_s
    before, after = took[:first][plain[:first]], took[first:][plain[first:]]
    if len(before) < 3 or len(after) < 3:
        return
    was, now = float(np.median(before[-20:])), float(np.median(after[:20]))
    if now < was - max(0.015 * was, 3 * float(np.std(before[-20:]))):
        how = msg("median step time after the NaN and before it: a scaler that skips every update saves that much")
        yield see(msg("step time"), now, was, locations.row(case, first), how, "seconds", case.steps.step[first])


def _fused(case: Case, first: int, faster: list[Evidence]) -> Iterator[Finding]:
    version, fused = case.text("torch"), case.get("fused_adamw")
    at_s = case.steps.at_s[case.rows("at_s")]
    is_old = version.startswith("2.0") or (not version and len(at_s) > 0 and float(at_s[0]) < FIXED_AT_S)
    if not is_old or str(fused).lower() == "false":
        return
    torch = Seen(version or msg("at the log's date"), msg("2.1 or later"), locations.row(case, first))
    sureness: Sureness = "likely" if fused is True or version.startswith("2.0") else "possible"
    yield finding("fused_adamw_fp16_bug", sureness, torch, *faster)
