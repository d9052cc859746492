"""Why some iterations are slow: evaluations, checkpoints, compilation.

What it sees. The time of each line against an ordinary one, and what happened at that step: an evaluation (nanoGPT's line includes
it), a checkpoint, the first step with its compilation. And what share of all time the evaluations take.

Why it matters. These lines are not a fault and say nothing about speed; but evaluations that take a sixth of the time or more are
worth fewer of them.

When it is wrong. A slow line with nothing to explain it is left to slow_steps_unexplained.

What it looks like. Ordinary steps of 169 ms, and every 500th:

    step 500: train loss 5.9000, val loss 5.9000
    saving checkpoint to out
    iter 500: loss 5.9000, time 5985.00ms, mfu 7.22%

What to change. Nothing, or a larger eval_interval or smaller eval_iters.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked, Sureness
from nanolens.facts.timing import eval_seconds, eval_spacing, holds_eval, is_first, ordinary
from nanolens.message import Message, msg

CODES = ("eval_spike", "checkpoint_spike", "compile_warmup", "eval_dominates_time", "slow_steps_unexplained")

DOMINATES = 0.15
WORTH_FIXING_S = 180.0


def look(case: Case) -> Iterator[Finding | NotChecked]:
    if case.run.words.trainer == "nanolens":
        yield from _own_parts(case)
        return
    if not np.isfinite(case.steps.took_s).any():
        yield NotChecked("eval_spike", msg("no times are printed"))
        return
    if case.step_time is None:
        yield from _lone_eval_line(case)
        return
    yield from _evaluations(case)
    yield from _warm_up(case)
    yield from _unexplained(case)


def _lone_eval_line(case: Case) -> Iterator[Finding | NotChecked]:
    """Only lines that hold an evaluation are there: their time is known not to be a step's."""
    rows = np.flatnonzero(holds_eval(case) & np.isfinite(case.steps.took_s))
    if not len(rows) or case.run.words.time != "with_eval":
        yield NotChecked("eval_spike", msg("there are no ordinary iterations with a time"))
        return
    row = int(rows[-1])
    evidence = Evidence(
        msg("time of the line"),
        float(case.steps.took_s[row]),
        msg("less, by the evaluation"),
        places.row(case, row),
        msg("nanoGPT's time of an iteration holds the evaluation that was made at its start"),
        "seconds",
        int(case.steps.step[row]),
    )
    yield Finding(
        "eval_spike",
        "likely",
        msg("this line's time includes an evaluation; it is not the time of a step"),
        (evidence,),
        None,
        msg("the lines around it take as long"),
    )


def _evaluations(case: Case) -> Iterator[Finding | NotChecked]:
    assert case.step_time is not None
    rows, extra = eval_seconds(case)
    step = case.step_time.value
    slow = extra > 0.5 * step
    if not slow.any():
        return
    rows, extra = rows[slow], extra[slow]
    row = int(rows[-1])
    middle = float(np.median(extra))
    evidence = [
        Evidence(
            msg("time of the line"),
            float(case.steps.took_s[row]),
            step,
            places.row(case, row),
            case.step_time.how,
            "seconds",
            int(case.steps.step[row]),
        )
    ]
    batches = case.whole("eval_iters")
    if batches:
        one = middle / (2 * batches)
        evidence.append(
            Evidence(
                msg("time of one evaluation batch"),
                one,
                _forward(case),
                msg("{count:count} batches of each split", count=batches),
                msg("(line - ordinary step) / (2 x eval_iters); a forward pass is a third of a training step"),
                "seconds",
            )
        )
    spacing = eval_spacing(case)
    if spacing is not None:
        share = float(extra.mean()) / (float(extra.mean()) + spacing * step)
        evidence.append(
            Evidence(
                msg("share of the time that evaluations take"),
                share,
                (0.01, 0.1),
                msg("every {spacing:count} updates", spacing=spacing),
                msg("time of an evaluation / (evaluation + the steps between two)"),
                "share",
            )
        )
    yield Finding(
        "eval_spike",
        "certain" if len(case.evals) else "likely",
        msg("the slow lines hold an evaluation: {extra:seconds} each on top of the step", extra=middle),
        tuple(evidence),
        None,
        msg("a line without an evaluation is as slow"),
    )
    yield from _checkpoints(case, rows, extra)
    yield from _share(case, float(extra.mean()), step, len(extra))


def _forward(case: Case) -> object:
    assert case.step_time is not None
    accumulation = case.whole("gradient_accumulation_steps")
    if accumulation is None:
        return msg("a third of a micro-batch's time")
    return case.step_time.value / max(1, accumulation // (case.devices or 1)) / 3


def _checkpoints(case: Case, rows: np.ndarray, extra: np.ndarray) -> Iterator[Finding]:
    """Evaluations with a save take longer than those without."""
    saved = {mark.step for mark in case.run.marks if mark.kind == "checkpoint" and mark.step is not None}
    at = case.steps.step[rows] - case.run.words.updates_before_printed
    with_save = np.isin(at, list(saved)) if saved else _improved(case, at)
    if not with_save.any():
        return
    if with_save.all():
        if not saved:
            return
        row = int(rows[-1])
        evidence = Evidence(
            msg("time beyond an ordinary step"),
            float(extra[-1]),
            0.0,
            places.row(case, row),
            msg("an evaluation and a checkpoint, which this log does not tell apart"),
            "seconds",
            int(case.steps.step[row]),
        )
        yield Finding(
            "checkpoint_spike",
            "likely",
            msg("the slow lines also hold the writing of a checkpoint"),
            (evidence,),
            None,
            msg("a line with a checkpoint is no slower than one without"),
        )
        return
    more, less = float(np.median(extra[with_save])), float(np.median(extra[~with_save]))
    if more < 1.3 * less or with_save.sum() < 2 or (~with_save).sum() < 2:
        return
    if extra[with_save].min() < 1.1 * float(np.median(extra[~with_save])):
        return
    row = int(rows[np.flatnonzero(with_save)[0]])
    evidence = Evidence(
        msg("time beyond an ordinary step"),
        more,
        less,
        places.row(case, row),
        msg("evaluations at which val improved, so that weights were saved, against the others"),
        "seconds",
        int(case.steps.step[row]),
    )
    yield Finding(
        "checkpoint_spike",
        "certain" if saved else "likely",
        msg("the slowest lines also write a checkpoint: {took:seconds} more", took=more - less),
        (evidence,),
        None,
        msg("evaluations without a save are as slow"),
    )


def _improved(case: Case, at: np.ndarray) -> np.ndarray:
    """nanoGPT saves where val is the lowest so far; at step 0 it does not."""
    if case.run.words.trainer != "nanogpt":
        return np.zeros(len(at), bool)
    best, improved = np.inf, set()
    for step, val in zip(case.evals.step, case.evals.val, strict=True):
        if np.isfinite(val) and val < best:
            best = val
            improved.add(int(step))
    return np.isin(at, list(improved))


def _share(case: Case, extra: float, step: float, count: int) -> Iterator[Finding | NotChecked]:
    spacing = eval_spacing(case)
    if spacing is None:
        yield NotChecked("eval_dominates_time", msg("the interval between evaluations is not known"))
        return
    share = extra / (extra + spacing * step)
    if share <= DOMINATES:
        return
    length = max(case.whole("max_iters") or 0, case.last_step)
    total = extra * max(count, length / spacing)
    yield _dominates(case, share, total, spacing, msg("every {spacing:count} updates", spacing=spacing))


def _dominates(case: Case, share: float, total: float, spacing: int | None, where: Message) -> Finding:
    evidence = Evidence(
        msg("share of the time that evaluations take"),
        share,
        (0.01, 0.1),
        where,
        msg("time of an evaluation / (evaluation + the steps between two)"),
        "share",
    )
    new = int(spacing * share / 0.05) if spacing else None
    sure: Sureness = "likely" if total > WORTH_FIXING_S or share > 0.5 else "possible"
    return Finding(
        "eval_dominates_time",
        sure,
        msg("evaluations take {share:share} of the time, {total:seconds} in all", share=share, total=total),
        (evidence,),
        Change(msg("evaluate less often, or fewer batches"), key="eval_interval", old=spacing, new=new),
        msg("the evaluations are what the run is for"),
    )


def _what_is_in_it(case: Case, row: int, inside: float) -> Message:
    if inside > 0:
        return msg("of it {inside:seconds} for an evaluation; the rest is compilation, allocation and warming up", inside=inside)
    if holds_eval(case)[row]:
        return msg("an evaluation, compilation, allocation and warming up; how long the evaluation took cannot be told")
    return msg("compilation, allocation and warming up")


def _warm_up(case: Case) -> Iterator[Finding]:
    assert case.step_time is not None
    rows = np.flatnonzero(is_first(case) & np.isfinite(case.steps.took_s))
    if not len(rows):
        return
    row, step = int(rows[0]), case.step_time.value
    took = float(case.steps.took_s[row])
    inside = _first_eval(case, row)
    excess = took - step - inside
    if excess < max(1.0 * step, 0.15 * took, 0.05) or took < 2 * step:
        return
    evidence = Evidence(
        msg("time of the first iteration"),
        took,
        step,
        places.row(case, row),
        _what_is_in_it(case, row, inside),
        "seconds",
        int(case.steps.step[row]),
    )
    yield Finding(
        "compile_warmup",
        "likely",
        msg("the first iteration is slow because it compiles and warms up"),
        (evidence,),
        None,
        msg("the second iteration is as slow"),
    )


def _first_eval(case: Case, row: int) -> float:
    """How much of the first line is an evaluation: as long as the others take, or as its batches should."""
    assert case.step_time is not None
    if case.run.words.time != "with_eval" and not holds_eval(case)[row]:
        return 0.0
    extra = eval_seconds(case)[1]
    if len(extra):
        return float(np.min(extra))
    batches, accumulation = case.whole("eval_iters"), case.whole("gradient_accumulation_steps")
    tokens, micro = case.tokens_from_mfu, case.micro_batch_tokens
    if tokens is not None and micro is not None:
        accumulation = max(1, round(tokens.value / micro))
    if batches is None:
        return 0.0
    return 2 * batches * case.step_time.value / (accumulation or 1) / 3


def _unexplained(case: Case) -> Iterator[Finding]:
    """Slow lines that hold neither an evaluation nor a first step."""
    assert case.step_time is not None
    plain = np.flatnonzero(ordinary(case))
    if len(plain) < 20:
        return
    saved = {mark.step for mark in case.run.marks if mark.kind in ("checkpoint", "sample") and mark.step is not None}
    slow = plain[case.steps.took_s[plain] > 3 * case.step_time.value]
    near = np.isin(case.steps.step[slow], list(saved | {s + 1 for s in saved})) if saved else np.zeros(len(slow), bool)
    slow = slow[~near]
    if len(slow) < 2:
        return
    lost = float((case.steps.took_s[slow] - case.step_time.value).sum() / case.steps.took_s[plain].sum())
    row = int(slow[np.argmax(case.steps.took_s[slow])])
    evidence = Evidence(
        msg("time of the slowest"),
        float(case.steps.took_s[row]),
        case.step_time.value,
        places.row(case, row),
        msg("{count:count} lines above three times the median; {share:share} of the time", count=len(slow), share=lost),
        "seconds",
        int(case.steps.step[row]),
    )
    yield Finding(
        "slow_steps_unexplained",
        "possible",
        msg("some iterations are slow for no reason that the log shows"),
        (evidence,),
        Change(msg("look for other programs, swapping, a data loader that waits, and recompilation")),
        msg("the trainer does something at these steps that it does not print"),
    )


def _own_parts(case: Case) -> Iterator[Finding]:
    """Our own runs know where each second went."""
    parts = case.run.time_parts
    total = sum(seconds for part, seconds in parts.items() if part not in ("compile", "other"))  # starting up is not what recurs
    if total <= 0:
        return
    evals = parts.get("eval", 0.0)
    if evals / total > DOMINATES:
        yield _dominates(case, evals / total, evals, case.whole("eval_interval"), msg("the whole run"))
    compiled = parts.get("compile", 0.0)
    if compiled > 0.02 * total and compiled > 1:
        evidence = Evidence(msg("time of compilation"), compiled, 0.0, msg("the whole run"), msg("recorded"), "seconds")
        yield Finding(
            "compile_warmup",
            "certain",
            msg("compilation took {took:seconds} at the start", took=compiled),
            (evidence,),
            None,
            msg("later steps were compiled again"),
        )
