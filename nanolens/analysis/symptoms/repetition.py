"""The same text is read many times.

What it sees. Tokens seen over tokens of the training split, and what repeated tokens are still worth (Muennighoff et al. 2023).

Why it matters. Up to four passes a repeated token is worth nearly as much as a new one; at 16 two thirds, at 64 a quarter, and then
val begins to rise.

When it is wrong. The number of tokens in the split must be right: a folder may hold more files than the one that was counted.

What it looks like. 5,000 updates of 16,384 characters over a split of 1,003,854: 81.6 passes.

What to change. More text, fewer updates, or a smaller batch per update; dropout of 0.1 to 0.2 helps when many passes are meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.message import msg

CODES = ("data_repeated",)

WORTH = 15.39  # R*_D of Muennighoff et al., arXiv 2305.16264
MANY = 4.0


def look(case: Case) -> Iterator[Finding | NotChecked]:
    yield from _few_batches(case)
    if case.dataset_tokens is None or case.tokens_per_update is None:
        stated = [value for key in ("epochs", "num_epochs", "num_train_epochs", "n_epochs") if (value := case.stated(key)) is not None]
        if stated and stated[0] >= MANY:
            yield _stated(case, stated[0])
            return
    unique = case.need("dataset_tokens")
    per_update = case.need("tokens_per_update")
    step = case.last_step
    epochs = per_update.value * step / unique.value
    if epochs < MANY:
        return
    where = msg("{step:count} updates of {tokens:tokens} tokens", step=step, tokens=per_update.value)
    evidence = (
        Evidence(
            msg("passes over the data"),
            epochs,
            msg("up to {many:number}", many=MANY),
            where,
            msg("tokens seen / {unique:tokens} tokens of the split ({how})", unique=unique.value, how=unique.how),
            "number",
        ),
        Evidence(
            msg("worth of a token seen"),
            worth(epochs),
            msg("above {limit:share}", limit=worth(MANY)),
            where,
            msg("unique + unique*15.4*(1 - exp(-(passes - 1)/15.4)), over tokens seen (arXiv 2305.16264)"),
            "share",
        ),
    )
    yield Finding(
        "data_repeated",
        "certain" if "inferred" not in (unique.origin, per_update.origin) else "likely",
        msg("the training text has been read {epochs:number} times", epochs=epochs),
        evidence,
        Change(msg("get more text; with this much, watch val, keep its best weights, and use dropout of 0.1 to 0.2")),
        msg("the training split holds more than {unique:tokens} tokens", unique=unique.value),
    )


def _few_batches(case: Case) -> Iterator[Finding]:
    """The batches trained on are known by heart while the rest of the same split is not: the updates do not see the whole split."""
    evals = np.flatnonzero(np.isfinite(case.evals.train) & (case.evals.step > 0))
    steps, losses = case.losses
    if len(evals) < 2 or len(losses) < 20:
        return
    last = int(evals[-1])
    near = losses[(steps <= case.evals.step[last]) & (steps > case.evals.step[evals[-2]])]
    seen, level = float(np.median(near)) if len(near) >= 5 else float("nan"), float(case.evals.train[last])
    if not seen < 0.7 * level:
        return
    evidence = Evidence(
        msg("loss of the batches trained on"),
        seen,
        level,
        msg("before step {step:count}", step=int(case.evals.step[last])),
        msg("median, against the evaluated loss of the same split: both should be alike"),
        "nats",
        int(case.evals.step[last]),
    )
    yield Finding(
        "data_repeated",
        "likely",
        msg("the updates see the same few batches again and again, not the whole training split"),
        (evidence,),
        Change(msg("look at the order of the data: sampler, seed of each step, and position after a resume")),
        msg("the evaluation's train batches come from another text"),
    )


def _stated(case: Case, epochs: float) -> Finding:
    evidence = Evidence(
        msg("passes over the data"), epochs, msg("up to {many:number}", many=MANY), msg("the config"), msg("as stated there"), "number"
    )
    return Finding(
        "data_repeated",
        "likely",
        msg("the training text is read {epochs:number} times", epochs=epochs),
        (evidence,),
        Change(msg("get more text; with this much, watch val, keep its best weights, and use dropout of 0.1 to 0.2")),
        msg("the run ends before so many passes are made"),
    )


def worth(epochs: float) -> float:
    """Value of what was seen, as a share of as many fresh tokens."""
    if epochs <= 1:
        return 1.0
    return (1 + WORTH * (1 - math.exp(-(epochs - 1) / WORTH))) / epochs
