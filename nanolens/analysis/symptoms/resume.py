"""A jump where the run was resumed.

What it sees. The loss just before and just after a resume, against its scatter, and whether the learning rate jumped as well.

Why it matters. A jump that stays means that something was not restored: optimizer state, schedule, data order, or the best weights
were loaded in place of the newest.

When it is wrong. A schedule that begins anew raises the rate and with it the loss: that is the schedule, not breakage. A few noisy
lines after a resume are nothing.

What it looks like. 3.21 before, 3.48 after, and a thousand steps until it is back.

What to change. Resume from the newest checkpoint with its optimizer state; give the schedule its old length.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.statistics import noise_of
from nanolens.message import msg
from nanolens.record.run import Mark

CODES = ("resume_discontinuity",)

FEWEST = 2  # lines on either side; of fewer than four only a large jump counts


def look(case: Case) -> Iterator[Finding | NotChecked]:
    marks = [mark for mark in case.run.marks if mark.kind in ("resume", "attempt", "rollback") and mark.step]
    if not marks:
        return
    steps, losses = case.losses
    for mark in marks:
        assert mark.step is not None
        if np.isfinite(mark.was) and np.isfinite(mark.now):
            if _is_worse(case, mark):
                yield _not_as_before(mark)
                return
            if mark.is_eval:
                continue  # the same step, evaluated alike: nothing tells more
        before, after = np.flatnonzero(steps <= mark.step)[-12:], np.flatnonzero(steps > mark.step)[:12]
        if len(before) < FEWEST or len(after) < FEWEST:
            yield NotChecked("resume_discontinuity", msg("too few losses around the resume at step {step:count}", step=mark.step))
            continue
        noise = noise_of(steps, losses) or 0.0
        was, now = float(np.median(losses[before])), float(np.median(losses[after]))
        fewer = min(len(before), len(after))
        if now - was < max(0.05 if fewer >= 4 else 0.3, 6 * noise / np.sqrt(fewer), 2 * noise):
            continue
        rates = case.steps.rate
        row_before, row_after = np.flatnonzero(case.steps.step <= mark.step), np.flatnonzero(case.steps.step > mark.step)
        rate_before, rate_after = float(rates[row_before[-1]]), float(rates[row_after[0]])
        schedule = np.isfinite(rate_before) and np.isfinite(rate_after) and rate_after > 1.2 * rate_before
        evidence = [
            Evidence(
                msg("loss after the resume"),
                now,
                was,
                msg("step {step:count}", step=mark.step),
                msg("medians of {count:count} lines on either side; scatter {noise:nats}", count=len(after), noise=noise),
                "nats",
                mark.step,
            )
        ]
        if schedule:
            evidence.append(
                Evidence(
                    msg("learning rate after the resume"),
                    rate_after,
                    rate_before,
                    msg("step {step:count}", step=mark.step),
                    msg("the schedule began anew"),
                    "rate",
                )
            )
        claim = (
            msg("the loss jumped at a resume because the learning rate did")
            if schedule
            else msg("the loss jumped at a resume: something was not restored")
        )
        yield Finding(
            "resume_discontinuity",
            "likely",
            claim,
            tuple(evidence),
            Change(msg("resume from the newest checkpoint with optimizer, schedule and data position; keep lr_decay_iters as it was")),
            msg("the data changed with the resume on purpose"),
        )
        return


def _is_worse(case: Case, mark: Mark) -> bool:
    """One evaluation of each attempt, or one batch: a single pair must lie further apart than medians of many."""
    if mark.is_eval:
        noise = case.eval_noise.value if case.eval_noise is not None else 0.02
        return mark.now - mark.was > max(0.05, 4 * 1.41 * noise)
    noise = case.batch_noise.value if case.batch_noise is not None else 0.1
    return mark.now - mark.was > max(0.3, 6 * 1.41 * noise)


def _not_as_before(mark: Mark) -> Finding:
    evidence = Evidence(
        msg("val loss of the same step, after the resume") if mark.is_eval else msg("loss of the same step, after the resume"),
        mark.now,
        mark.was,
        msg("line {line:count} and what follows", line=mark.line),
        msg("both attempts tell of this step: the same weights give the same loss"),
        "nats",
        mark.step,
    )
    return Finding(
        "resume_discontinuity",
        "likely",
        msg("the loss jumped at a resume: something was not restored"),
        (evidence,),
        Change(msg("resume from the newest checkpoint with optimizer, schedule and data position; keep lr_decay_iters as it was")),
        msg("the data changed with the resume on purpose"),
    )
