"""The device waits for data, or the gradients are always clipped.

What it sees. In our own runs: the share of a step that is waiting for its batch (input_bound), and the share of updates whose
gradient was clipped (clipping_saturated).

Why it matters. Waiting is speed thrown away. A gradient that is clipped at each update makes the learning rate a step length, and
hides how large it really is.

When it is wrong. During warm-up clipping is normal. The very first batches are read from a cold disk.

What it looks like. 40% of each step spent in data_s; 95% of the updates clipped long after the warm-up.

What to change. A faster disk or prepared token files; grad_clip=1 with a lower learning rate.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.message import msg

CODES = ("input_bound", "clipping_saturated")


def look(case: Case) -> Iterator[Finding | NotChecked]:
    known = np.isfinite(case.steps.data_s) & np.isfinite(case.steps.took_s) & (case.steps.took_s > 0)
    if known.sum() >= 20:
        share = float(case.steps.data_s[known].sum() / case.steps.took_s[known].sum())
        if share > 0.2:
            evidence = Evidence(
                msg("share of a step spent waiting for data"),
                share,
                (0.0, 0.05),
                msg("{rows:count} steps", rows=int(known.sum())),
                msg("recorded: data_s / took_s"),
                "share",
            )
            yield Finding(
                "input_bound",
                "likely",
                msg("the device waits for its batches"),
                (evidence,),
                Change(msg("put the token files on a faster disk, or prepare them anew")),
                msg("the disk was cold only at the start"),
            )
    warm = case.whole("warmup_iters") or 0
    clipped = case.steps.clipped[(case.steps.step > 2 * warm + 50) & np.isfinite(case.steps.clipped)]
    if len(clipped) >= 100 and float(clipped.mean()) > 0.9:
        evidence = Evidence(
            msg("share of updates that were clipped"),
            float(clipped.mean()),
            (0.0, 0.3),
            msg("after the warm-up"),
            msg("gradient norm above grad_clip"),
            "share",
        )
        yield Finding(
            "clipping_saturated",
            "possible",
            msg("nearly every update is clipped: the clip decides the step, not the gradient"),
            (evidence,),
            Change(msg("raise grad_clip, or lower the learning rate"), key="grad_clip", old=case.number("grad_clip"), new=None),
            msg("the optimizer is invariant to the gradient's scale"),
        )
