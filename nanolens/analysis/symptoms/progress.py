"""Is it still improving, and is there enough of it to judge?

What it sees. The slope of the last third of the curve with an interval that allows for noise, the learning rate that is left, and
the number of updates.

Why it matters. A run that still falls is not at its end, and a flat stretch at a high constant rate is no reason to stop: the decay
that follows brings 0.08 to 0.12 nats by itself. From a handful of updates nothing can be concluded at all.

When it is wrong. A slope says nothing about the steps after the schedule's end.

What it looks like. 25 updates of 8,192 tokens, and a loss between 7.5 and 8.2: it means nothing yet.

What to change. Nothing; go on, or run for longer before comparing settings.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.statistics import trend
from nanolens.message import msg

CODES = ("still_improving", "run_too_short")

FEW_UPDATES = 100


def look(case: Case) -> Iterator[Finding | NotChecked]:
    yield from _too_short(case)
    x, y = case.curve
    if len(y) < 6:
        left = _rate_left(case)
        if left is not None:
            yield left
            return
        yield NotChecked("still_improving", msg("there are too few losses"))
        return
    recent = x >= x[-1] - max((x[-1] - x[0]) / 3, 1)
    if recent.sum() < 4:
        recent = np.arange(len(x)) >= len(x) - max(4, len(x) // 3)
    slope = trend(x[recent], y[recent])
    if slope is None or not slope.is_falling:
        left = _rate_left(case)
        if left is not None:
            yield left
        return
    fall = -slope.slope * (x[recent][-1] - x[recent][0])
    evidence = Evidence(
        msg("fall of the loss over the last third"),
        fall,
        msg("0 for a run at its end"),
        places.steps(x[recent][0], x[-1]),
        msg(
            "Theil-Sen slope on {points:count} points; 95% of slopes between {low:rate} and {high:rate} a step",
            points=slope.points,
            low=slope.low,
            high=slope.high,
        ),
        "nats",
        int(x[recent][0]),
    )
    planned = case.whole("max_iters")
    change = (
        Change(msg("let it run on"))
        if planned is None or case.last_step < planned
        else Change(
            msg("a longer run would go lower: plan it anew, with the schedule as long as the run"),
            key="max_iters",
            old=planned,
            new=2 * planned,
        )
    )
    yield Finding(
        "still_improving", "likely", msg("the loss is still falling"), (evidence,), change, msg("the slope of the next stretch is zero")
    )


def _rate_left(case: Case) -> Finding | None:
    """A flat curve in the middle of a schedule: the decay that is still to come brings the loss down by itself."""
    schedule, step = case.schedule, case.last_step
    if (
        schedule is None
        or not schedule.decay_lr
        or not 0.2 * schedule.decay_ends < step < 0.9 * schedule.decay_ends
        or not len(case.curve[1])
    ):
        return None
    rate = case.rate_at(step)
    if rate is None or schedule.learning_rate <= 0 or rate < 1.5 * max(schedule.min_lr, 0.02 * schedule.learning_rate):
        return None
    evidence = Evidence(
        msg("learning rate"),
        rate,
        schedule.min_lr,
        msg("step {step:count} of {ends:count}", step=step, ends=schedule.decay_ends),
        msg("the schedule's formula, against the rate at its end: decay brings about 0.1 nats by itself (arXiv 2503.12811)"),
        "rate",
        step,
    )
    return Finding(
        "still_improving",
        "likely",
        msg("the learning rate has not decayed yet: the rest of the schedule will still lower the loss"),
        (evidence,),
        Change(msg("let it run to the end of its schedule before judging")),
        msg("the loss does not fall while the rate decays"),
    )


def _too_short(case: Case) -> Iterator[Finding]:
    planned = case.whole("max_iters")
    budget, step_time = case.number("time_budget_s"), case.step_time
    if planned is None and budget is not None and step_time is not None:
        planned = int(budget / step_time.value)
    first = int(case.steps.step[0]) if len(case.steps) else case.last_step
    has_ended = planned is not None and case.last_step >= 0.5 * planned
    length = planned if planned is not None else case.last_step if first <= 2 and has_ended else None
    if length is None or length > FEW_UPDATES or not (len(case.steps) or len(case.evals)):
        return
    evidence = Evidence(
        msg("updates in the whole run"),
        length,
        msg("above {few:count}", few=FEW_UPDATES),
        msg("the whole run"),
        msg("the warm-up of a usual run alone takes 100 to 2,000"),
        "count",
    )
    yield Finding(
        "run_too_short",
        "likely",
        msg("{length:count} updates are too few to conclude anything about settings", length=length),
        (evidence,),
        Change(
            msg("use it as a test of speed and memory only; compare settings over 1,000 updates or more"),
            key="max_iters",
            old=length,
            new=1000,
        ),
        msg("the run continues a trained model"),
    )
