"""The loss or the gradient is not a number.

What it sees. The first step whose loss, gradient norm or evaluation is printed as nan or inf, whether it ever came back, and what
the loss did before.

Why it matters. Once a NaN is in the weights every later step is wasted; the last checkpoint before it is the last good one.

When it is wrong. Placeholders look the same: a z-score of too short a window, an average over no steps yet, an MFU of -100%. They
are named apart (nan_sentinel_benign) and never counted. A trainer that prints 0.0 for a NaN (the Hugging Face Trainer filters them
out) is seen by its gradient norm, or by zeros in a row after a loss that was none. A float16 scaler skips single steps whose gradient
norm is inf by design: beside a loss that is a number and does not rise, that is no more than possible.

What it looks like. A run that is sound, and from one line to the next is not:

    iter 1210: loss 3.9127, time 412.70ms, mfu 21.40%
    iter 1220: loss nan, time 388.15ms, mfu 21.62%

What to change. Go back to the last checkpoint before the first NaN. In float16 see fp16_overflow; after a growing loss or gradient
norm lower the learning rate or lengthen the warm-up; where everything is NaN from the first step, suspect the kernel, the port or
the data rather than the settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.statistics import noise_of
from nanolens.message import msg

CODES = ("nan_divergence", "hf_zero_loss_is_nan", "kernel_bug", "nan_sentinel_benign")


def look(case: Case) -> Iterator[Finding | NotChecked]:
    yield from _placeholders(case)
    bad = not_finite_rows(case)
    bad_evals = np.flatnonzero(np.nan_to_num(case.evals.not_finite) > 0)
    skips = [mark for mark in case.run.marks if mark.kind == "skip"]
    yield from _filtered(case)
    if not len(bad) and not len(bad_evals):
        if skips:
            yield _skipped(case, len(skips), skips[0].step or 0)
        yield from _said(case)
        return
    if not len(bad_evals) and is_passing(case, bad):
        yield _passing(case, bad)
        return
    yield _not_finite(case, bad, bad_evals)
    if _from_the_start(case, bad):
        yield _kernel(case, bad)


def _said(case: Case) -> Iterator[Finding]:
    """A trainer that stops at such a loss instead of printing it."""
    told = [mark for mark in case.run.marks if mark.kind == "error" and _SAID.search(mark.text)]
    if not told:
        return
    evidence = Evidence(
        msg("what the trainer says"),
        told[0].text,
        msg("nothing"),
        msg("line {line:count}", line=told[0].line),
        msg("it stopped where the loss was no number any more"),
        "text",
        told[0].step,
    )
    yield Finding(
        "nan_divergence",
        "certain",
        msg("the trainer stopped because the loss was not a number"),
        (evidence,),
        Change(
            msg("go back to the last checkpoint and continue with half the learning rate; float32 shows whether precision is the cause")
        ),
        msg("the sentence speaks of another loss than that of the training"),
    )


_SAID = re.compile(r"\bloss\b.{0,12}\bnan\b|\bnan\b.{0,12}\bloss\b", re.I)


def not_finite_rows(case: Case) -> np.ndarray:
    """Rows whose loss or gradient norm is said not to be a number."""
    return np.flatnonzero(np.nan_to_num(case.steps.not_finite) > 0)


def is_passing(case: Case, bad: np.ndarray) -> bool:
    """Gradient norms that are no numbers beside losses that are, and a loss that does not rise: what a float16 scaler, which skips such
    steps by design, leaves in a sound run. Norms later must be finite again; where none are told, the last one alone may be such."""
    steps = case.steps
    if not len(bad) or not np.isfinite(steps.loss[bad]).all():
        return False
    norms = np.isfinite(steps.grad_norm)
    later = norms[int(bad[-1]) + 1 :]
    if not later.any() and not (len(bad) == 1 and int(bad[0]) == len(steps) - 1):
        return False
    if len(bad) > max(2, 0.1 * len(steps)):
        return False
    first, last = int(bad[0]), int(bad[-1])
    before, after = steps.loss[: first + 1], steps.loss[last:]
    before, after = before[np.isfinite(before)], after[np.isfinite(after)]
    noise = noise_of(*case.losses) or 0.0
    return float(np.median(after[-12:])) <= float(np.median(before[-12:])) + max(2 * noise, 0.02)


def grew_before(case: Case, first_bad: int) -> bool:
    """Whether loss or gradient norm had left its level before the first NaN: an instability, not a sudden overflow."""
    from nanolens.facts.statistics import MAD_TO_SD

    for column, factor in ((case.steps.loss, 1.5), (case.steps.grad_norm, 5.0)):
        before = column[:first_bad]
        before = before[np.isfinite(before)]
        if len(before) < 3:
            continue
        recent = float(before[-3:].max())
        level = float(np.median(before[-40:]))
        spread = MAD_TO_SD * float(np.median(np.abs(before[-40:] - level)))
        lowest = float(before.min())
        if recent > factor * max(lowest, 1e-9) and recent > level + 6 * spread:
            return True
    return False


def _from_the_start(case: Case, bad: np.ndarray) -> bool:
    """Nothing but NaN, from the first row told, early in the run, at a harmless learning rate."""
    if not len(bad) or len(bad) < len(case.steps) or len(case.steps) < 3:
        return False
    rate = case.peak_rate
    return int(case.steps.step[0]) <= 100 and rate is not None and rate <= 1e-3


def _passing(case: Case, bad: np.ndarray) -> Finding:
    first = int(bad[0])
    evidence = Evidence(
        msg("gradient norms that are not finite"),
        len(bad),
        0,
        places.row(case, first),
        msg("their losses are numbers, and the loss did not rise after them"),
        "count",
        int(case.steps.step[first]),
    )
    return Finding(
        "nan_divergence",
        "possible",
        msg("a gradient norm is not a number beside a sound loss: a float16 scaler skips such a step, and nothing is lost"),
        (evidence,),
        Change(msg("nothing, unless such norms come again and again; then train in bfloat16 or float32")),
        msg("the loss rises, or the norm stays nan from here on"),
    )


def _not_finite(case: Case, bad: np.ndarray, bad_evals: np.ndarray) -> Finding:
    if len(bad):
        first = int(bad[0])
        what = msg("gradient norm") if np.isfinite(case.steps.loss[first]) else msg("loss")
        before = case.steps.loss[:first]
        sound = before[np.isfinite(before)]
        recovered = bool(np.isfinite(case.steps.loss[int(bad[-1]) + 1 :]).any())
        where = places.row(case, first)
        step = int(case.steps.step[first])
    else:
        what, sound, recovered = msg("evaluated loss"), case.losses[1], False
        where = places.evaluation(case, int(bad_evals[0]))
        step = int(case.evals.step[bad_evals[0]])
    usual: object = float(sound[-1]) if len(sound) else msg("a number")
    evidence = (
        Evidence(what, float("nan"), usual, where, msg("the value as printed, and the last finite one before it"), "nats", step),
        Evidence(msg("steps told of that are not finite"), len(bad), 0, msg("the whole run"), msg("count of the rows"), "count"),
    )
    saved = [mark for mark in case.run.marks if mark.kind == "checkpoint" and mark.step is not None and mark.step < step]
    if saved:
        back = msg("go back to the checkpoint of step {step:count}, the last before the first NaN", step=saved[-1].step)
    else:
        back = msg("go back to the last checkpoint before step {step:count}", step=step)
    claim = (
        msg("the {what} is not a number at step {step:count}, and later recovers", what=what, step=step)
        if recovered
        else msg("the {what} is not a number from step {step:count} on", what=what, step=step)
    )
    return Finding("nan_divergence", "certain", claim, evidence, Change(back), msg("the trainer prints nan as a placeholder there"))


def _filtered(case: Case) -> Iterator[Finding]:
    """A loss of exactly 0 is what the Hugging Face Trainer's filter leaves of a NaN: for certain beside a gradient norm that is none."""
    rows = np.flatnonzero(case.is_filtered_zero)
    if not len(rows):
        return
    first = int(rows[0])
    beside_nan = bool((np.nan_to_num(case.steps.not_finite[rows]) >= 2).any())
    evidence = Evidence(
        msg("loss printed beside a gradient norm of nan") if beside_nan else msg("loss printed on {count:count} lines", count=len(rows)),
        0.0,
        msg("above 0"),
        places.row(case, first),
        msg("the Hugging Face Trainer leaves NaN losses out of its mean (logging_nan_inf_filter)"),
        "nats",
        int(case.steps.step[first]),
    )
    yield Finding(
        "hf_zero_loss_is_nan",
        "certain" if beside_nan else "likely",
        msg("the loss of 0.0 is not success: it is NaN, filtered out before printing"),
        (evidence,),
        Change(
            msg(
                "set logging_nan_inf_filter=False to see the NaN, and find its cause: "
                "precision, learning rate or labels that are all masked"
            )
        ),
        msg("every label of these batches is masked on purpose"),
    )


def _kernel(case: Case, bad: np.ndarray) -> Finding:
    evidence = Evidence(
        msg("rows that are not finite"),
        len(bad),
        0,
        places.rows(case, 0, len(case.steps) - 1),
        msg("all rows, from step {step:count} on, at a learning rate of {rate:rate}", step=int(case.steps.step[0]), rate=case.peak_rate),
        "count",
    )
    return Finding(
        "kernel_bug",
        "possible",
        msg("NaN from the start at a harmless learning rate points to a kernel, a port or the data, not to the settings"),
        (evidence,),
        Change(msg("run ten steps in float32 on a CPU with the same data; if they are finite, the kernel or its precision is at fault")),
        msg("a float32 run on another device is NaN as well"),
    )


def _skipped(case: Case, count: int, first: int) -> Finding:
    many = count >= max(4, 0.01 * len(case.steps))
    evidence = Evidence(
        msg("steps kept from the weights"),
        count,
        0,
        msg("from step {step:count} on", step=first),
        msg("steps whose loss or gradient was not finite"),
        "count",
        first,
    )
    return Finding(
        "nan_divergence",
        "certain" if many else "possible",
        msg("{count:count} updates were not finite and were kept from the weights", count=count),
        (evidence,),
        Change(msg("lower the learning rate, or train in bfloat16 or float32")),
        msg("these are the first updates of a float16 run, whose loss scale is being found"),
    )


def _placeholders(case: Case) -> Iterator[Finding]:
    marks = [mark for mark in case.run.marks if mark.kind == "sentinel"]
    if not marks:
        return
    evidence = Evidence(
        msg("kinds of placeholder"),
        len(marks),
        msg("any number"),
        msg("line {line:count} and others", line=marks[0].line),
        msg("fields that are undefined until enough steps are seen: {text:code}", text=marks[0].text),
        "count",
    )
    yield Finding(
        "nan_sentinel_benign",
        "certain",
        msg("some fields hold a placeholder because they are not defined yet; this is no fault"),
        (evidence,),
        None,
        msg("the loss or the gradient norm itself is nan"),
    )
