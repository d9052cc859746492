"""Val is lower than train, and that is all right.

What it sees. A val loss below the train loss by a stable amount beyond noise, with both evaluated the same way.

Why it matters. It is often taken for a leak or for dropout. Where both splits are evaluated with dropout off, as nanoGPT and
nanolens do, it only means that the val text is a little easier.

When it is wrong. If the gap opens while the losses become impossible, see val_leak. If the train loss is that of the training
batches, with dropout on and averaged over older weights, it lies above val by itself.

What it looks like. Present before the first update:

    step 0: train loss 2.7105, val loss 2.5010

What to change. Nothing. Judge each split by its own change.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Evidence, Finding, NotChecked
from nanolens.message import msg

CODES = ("val_below_train_ok",)


def look(case: Case) -> Iterator[Finding | NotChecked]:
    both = np.flatnonzero(np.isfinite(case.evals.val) & np.isfinite(case.evals.train))
    if not len(both):
        yield NotChecked("val_below_train_ok", msg("there are no evaluations of both splits"))
        return
    noise = case.eval_noise.value if case.eval_noise is not None else 0.02
    trained = both if _knows_something(case) else both[case.evals.step[both] > 0]
    gaps = (case.evals.train - case.evals.val)[trained]
    if len(gaps) < 2 or float(np.median(gaps)) < 3 * 1.41 * noise or (gaps > 0).mean() < 0.8:
        return
    evidence = Evidence(
        msg("train loss minus val loss"),
        float(np.median(gaps)),
        msg("within {noise:nats} of 0 for splits alike", noise=2 * 1.41 * noise),
        places.evaluations(case, int(trained[0]), int(trained[-1])),
        msg("median of {count:count} evaluations, dropout off in both", count=len(gaps)),
        "nats",
    )
    yield Finding(
        "val_below_train_ok",
        "likely",
        msg("val is below train because its text is easier; this is no fault"),
        (evidence,),
        None,
        msg("the gap grows from evaluation to evaluation"),
    )


def _knows_something(case: Case) -> bool:
    """Whether the model at step 0 is a trained one: an untrained one finds every text equally hard, and says nothing of the splits."""
    first, chance = case.first_loss, case.ln_vocab
    return case.is_pretrained or (first is not None and chance is not None and first < 0.8 * chance)
