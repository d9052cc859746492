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

from nanoscope.analysis.case import Case
from nanoscope.analysis.finding import Change, Evidence, Finding, NotChecked
from nanoscope.analysis.statistics import noise_of
from nanoscope.message import msg

CODES = ("resume_discontinuity",)


def look(case: Case) -> Iterator[Finding | NotChecked]:
    marks = [mark for mark in case.run.marks if mark.kind in ("resume", "attempt", "rollback") and mark.step]
    if not marks:
        return
    steps, losses = case.losses
    for mark in marks:
        assert mark.step is not None
        before, after = np.flatnonzero(steps <= mark.step)[-12:], np.flatnonzero(steps > mark.step)[:12]
        if len(before) < 4 or len(after) < 4:
            yield NotChecked("resume_discontinuity", msg("too few losses around the resume at step {step:count}", step=mark.step))
            continue
        noise = noise_of(steps, losses) or 0.0
        was, now = float(np.median(losses[before])), float(np.median(losses[after]))
        if now - was < max(0.05, 4 * noise / np.sqrt(len(after)) * 1.5, 2 * noise):
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
