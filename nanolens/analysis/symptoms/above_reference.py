"""Worse than the known run of the same model and data.

What it sees. The val loss at a step where a published run of the same corpus, shape and tokens per update stands in the table, the
distance between the two, and whether that is more than seeds and evaluation noise can explain.

Why it matters. A gap of 0.05 at 124M parameters is 25 times the spread between seeds: it is a mistake somewhere, even where the
curve looks sound.

When it is wrong. Another val split, another context length, another version of the data or a schedule of another length break the
comparison.

What it looks like. GPT-2 124M on OpenWebText at 400,000 iterations: val 2.95 where 2.905 is known.

What to change. Compare settings one by one with those of the known run: learning rate, warm-up, weight decay, betas, batch, data
order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.references import Reference
from nanolens.message import msg

CODES = ("above_reference",)


def look(case: Case) -> Iterator[Finding | NotChecked]:
    known = case.reference
    if known is None:
        yield NotChecked("above_reference", msg("no known run has this corpus and this shape"))
        return
    at = np.flatnonzero(np.isfinite(case.evals.val))
    if not len(at):
        yield NotChecked("above_reference", msg("there is no val loss"))
        return
    per_update = case.tokens_per_update
    if per_update is None or known.tokens_per_update is None or abs(per_update.value / known.tokens_per_update - 1) > 0.1:
        yield NotChecked(
            "above_reference", msg("the known run has other tokens per update ({tokens:tokens})", tokens=known.tokens_per_update or 0)
        )
        return
    planned = case.whole("max_iters")
    if planned is not None and known.end_step is not None and abs(planned / known.end_step - 1) > 0.1:
        yield NotChecked("above_reference", msg("the known run was {length:count} updates long: another schedule", length=known.end_step))
        return
    found = _compared(case, known, at)
    if found is None:
        return
    index, seen, expected = found
    noise = math.hypot(known.spread, case.eval_noise.value if case.eval_noise is not None else known.spread)
    if seen - expected <= max(3.5 * noise, 0.02):
        return
    evidence = Evidence(
        msg("val loss"),
        seen,
        expected,
        places.evaluation(case, index),
        msg("{name} at this step ({source}); seeds and evaluation explain {noise:nats}", name=known.name, source=known.source, noise=noise),
        "nats",
        int(case.evals.step[index]),
    )
    yield Finding(
        "above_reference",
        "possible" if planned is None and known.val_by_step else "likely",
        msg("val is {gap:nats} above the known run of this model and data, more than noise can do", gap=seen - expected),
        (evidence,),
        Change(msg("compare learning rate, warm-up, weight decay, betas, batch and data with those of {name}", name=known.name)),
        msg("the val split, the context length or the schedule's length differ from the known run's"),
    )


def _compared(case: Case, known: Reference, at: np.ndarray) -> tuple[int, float, float] | None:
    steps = case.evals.step[at]
    if known.val_by_step:
        table = np.array(known.val_by_step)
        inside = at[(steps >= table[0, 0]) & (steps <= table[-1, 0] * 1.02)]
        if not len(inside):
            return None
        last = int(inside[-1])
        expected = float(np.interp(math.log(max(1, case.evals.step[last])), np.log(table[:, 0]), table[:, 1]))
        return last, float(case.evals.val[last]), expected
    if known.best_val is not None and known.best_step is not None:
        if len(at) < 4 or steps[-1] < 1.5 * known.best_step:
            return None
        best = int(at[np.argmin(case.evals.val[at])])
        return best, float(case.evals.val[best]), known.best_val
    if known.end_val is not None and known.end_step is not None and abs(steps[-1] / known.end_step - 1) < 0.05:
        return int(at[-1]), float(case.evals.val[at[-1]]), known.end_val
    return None
