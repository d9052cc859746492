"""The loss jumped and came back.

What it sees. Losses more than eight times the local scatter above their neighbourhood (the trend taken out), that return within a
hundred steps; and how many there are.

Why it matters. A single spike that heals is nothing. Many of them are the first sign of a learning rate or a warm-up at the edge.

When it is wrong. A rare batch of odd text does the same, at the same place in every run over that data.

What it looks like. 3.1, 3.1, 5.8, 3.4, 3.1.

What to change. Nothing for one. For many: a lower rate, a longer warm-up, beta2 of 0.95, gradients clipped at 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.statistics import spikes
from nanolens.message import msg

CODES = ("loss_spike",)

LEAST = 0.3  # nats, and a twentieth of the level


def look(case: Case) -> Iterator[Finding | NotChecked]:
    steps, losses = case.losses
    if len(losses) < 40:
        yield NotChecked("loss_spike", msg("there are fewer than 40 losses"))
        return
    early = steps <= max(50, (case.whole("warmup_iters") or 0))
    jumps = spikes(losses, floor=max(LEAST, 0.1 * float(np.median(losses))))
    jumps = jumps[~early[jumps]]
    if not len(jumps):
        return
    at = int(jumps[np.argmax(losses[jumps])])
    row = int(np.flatnonzero(case.steps.step == steps[at])[0])
    around = losses[max(0, at - 20) : at + 21]
    evidence = Evidence(
        msg("loss at the highest of {count:count} spikes", count=len(jumps)),
        float(losses[at]),
        float(np.median(around)),
        places.row(case, row),
        msg("more than 8 sigma (MAD, trend taken out) above its neighbourhood"),
        "nats",
        int(steps[at]),
    )
    yield Finding(
        "loss_spike",
        "possible",
        msg("the loss jumped {count:count} time(s) and came back", count=len(jumps)),
        (evidence,),
        Change(msg("nothing for a single one; for many lower the learning rate or lengthen the warm-up")),
        msg("the same batch has such a loss in every run"),
    )
