"""The learning-rate schedule does not fit the length of the run.

What it sees. Where the decay ends against where the run ends, the share of the run that is warm-up, and an early blow-up of a run
without one.

Why it matters. A cosine that is cut off leaves the rate high, and the gain of the decay, some 0.1 nats, is never collected; a warm-
up longer than the run means that the rate meant was never reached.

When it is wrong. A run that is meant to be continued has a schedule longer than what is shown. A constant rate on purpose
(decay_lr=False) is not judged.

What it looks like. max_iters=10000 with nanoGPT's default of lr_decay_iters=600000.

What to change. Set lr_decay_iters to max_iters, and warm up over 1 to 5% of the run.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked, Sureness
from nanolens.message import msg
from nanolens.sizing import rate_of

CODES = ("lr_schedule_mismatch",)

WRONG = msg("the run is meant to be continued to the end of the schedule")


def look(case: Case) -> Iterator[Finding | NotChecked]:
    if case.get("decay_lr") is False:
        return
    planned, warm = case.whole("max_iters"), case.whole("warmup_iters")
    if planned is None or planned < 1:
        yield NotChecked("lr_schedule_mismatch", msg("the length of the run (max_iters) is not known"))
        return
    if warm is not None and planned > FEW and warm > 0.5 * planned:
        yield _long_warm_up(planned, warm, case)
    yield from _early_blow_up(case, warm)
    yield from _printed(case, planned)
    ends = case.whole("lr_decay_iters")
    if ends is None:
        return
    if ends > 1.5 * planned:
        yield _cut_off(case, planned, ends)
    elif ends < 0.6 * planned:
        yield _long_tail(case, planned, ends)


FEW = 200  # a shorter run is a test of speed, whose schedule does not matter


def _cut_off(case: Case, planned: int, ends: int) -> Finding:
    schedule = case.schedule
    left = rate_of(schedule, planned) / schedule.learning_rate if schedule is not None and schedule.learning_rate else None
    evidence = [
        Evidence(
            msg("lr_decay_iters / max_iters"),
            ends / planned,
            1.0,
            case.where("lr_decay_iters"),
            msg("{ends:count} / {planned:count}", ends=ends, planned=planned),
            "times",
        )
    ]
    if left is not None:
        evidence.append(
            Evidence(
                msg("learning rate at the end, of its peak"),
                left,
                (0.0, 0.1),
                msg("step {step:count}", step=planned),
                msg("the schedule's formula"),
                "share",
            )
        )
    sure: Sureness = "likely" if left is None or left > 0.5 else "possible"
    return Finding(
        "lr_schedule_mismatch",
        sure,
        msg("the learning rate hardly decays: the run ends long before its schedule does"),
        tuple(evidence),
        Change(msg("let the decay end with the run"), key="lr_decay_iters", old=ends, new=planned),
        WRONG,
    )


def _long_tail(case: Case, planned: int, ends: int) -> Finding:
    evidence = Evidence(
        msg("share of the run at the smallest rate"),
        1 - ends / planned,
        (0.0, 0.1),
        case.where("lr_decay_iters"),
        msg("1 - lr_decay_iters / max_iters"),
        "share",
    )
    return Finding(
        "lr_schedule_mismatch",
        "possible",
        msg("the decay ends long before the run: the rest is spent at the smallest rate"),
        (evidence,),
        Change(msg("let the decay end with the run"), key="lr_decay_iters", old=ends, new=planned),
        msg("the last part is meant as a cool-down"),
    )


def _long_warm_up(planned: int, warm: int, case: Case) -> Finding:
    evidence = Evidence(
        msg("share of the run that is warm-up"),
        warm / planned,
        (0.01, 0.1),
        case.where("warmup_iters"),
        msg("{warm:count} / {planned:count}", warm=warm, planned=planned),
        "share",
    )
    fit = max(10, planned // 50)
    return Finding(
        "lr_schedule_mismatch",
        "certain" if warm >= planned else "likely",
        msg("most of the run is warm-up: its learning rate is hardly reached"),
        (evidence,),
        Change(msg("warm up over 1 to 5% of the run"), key="warmup_iters", old=warm, new=fit),
        WRONG,
    )


def _printed(case: Case, planned: int) -> Iterator[Finding]:
    """A run at its end whose printed rate is still warming up, or has come down only a little."""
    rates, steps = case.steps.rate, case.steps.step
    known = np.flatnonzero(np.isfinite(rates) & (rates > 0))
    if len(known) < 8 or planned <= FEW or steps[known[-1]] < 0.9 * planned:
        return
    peak, last = float(rates[known].max()), float(rates[known[-1]])
    still_warming = last == peak and float(rates[known[len(known) // 2]]) < 0.9 * peak
    # Some schedules keep their fall for the last steps: where it leads counts, not where it is.
    recent = known[-max(3, len(known) // 20) :]
    fall = (rates[recent[-1]] - rates[recent[0]]) / max(1, steps[recent[-1]] - steps[recent[0]])
    hardly_decayed = last < 0.97 * peak and last + fall * max(0, planned - int(steps[known[-1]])) > 0.5 * peak
    if not still_warming and not hardly_decayed:
        return
    evidence = Evidence(
        msg("learning rate at the end, of its peak"),
        last / peak,
        (0.0, 0.1),
        msg("step {step:count} of {planned:count}", step=int(steps[known[-1]]), planned=planned),
        msg("as printed"),
        "share",
    )
    yield Finding(
        "lr_schedule_mismatch",
        "likely",
        msg("the run ends in its warm-up") if still_warming else msg("the run ends long before its schedule does"),
        (evidence,),
        Change(msg("let the decay end with the run"), key="lr_decay_iters", old=case.whole("lr_decay_iters"), new=planned),
        WRONG,
    )


def _early_blow_up(case: Case, warm: int | None) -> Iterator[Finding]:
    """Without warm-up, the first updates threw the model above chance and it had to come back."""
    if warm is None or warm > 10 or case.is_pretrained or case.ln_vocab is None:
        return
    steps, losses = case.losses
    early = steps <= 60
    if early.sum() < 8 or case.first_loss is None or case.first_loss > 1.1 * case.ln_vocab:
        return
    high = float(losses[early].max())
    if high < case.ln_vocab * 1.15 or high < case.first_loss * 1.15:
        return
    at = int(steps[early][np.argmax(losses[early])])
    evidence = Evidence(
        msg("highest loss of the first steps"),
        high,
        case.ln_vocab,
        msg("step {step:count}", step=at),
        msg("against ln of the vocabulary's size; the warm-up is {warm:count} updates", warm=warm),
        "nats",
        at,
    )
    yield Finding(
        "lr_schedule_mismatch",
        "likely",
        msg("without warm-up the first updates were too large: the loss rose above chance"),
        (evidence,),
        Change(msg("warm up over 100 updates or more"), key="warmup_iters", old=warm, new=100),
        msg("the same run with a warm-up rises as well"),
    )
