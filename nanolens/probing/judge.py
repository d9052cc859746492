"""What probes found: each possible cause with what mending it would win, how sure that is, and which comes first.

A branch measures a **gain**: val loss of the unchanged branch less that of the changed one, on the same batches and the same evaluation
tokens, in nats per token. What counts is the **expected** gain: what the change would bring by the end of the run, or for the rest of its
budget, so that causes of different kinds can be ranked. A fault that is certain (a leak, a layer that never moves) comes before all gains:
as long as it is there, the other numbers mean something else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanolens.facts.statistics import standard_error, t_quantile
from nanolens.message import Message, msg

QUESTIONS = ("numbers", "where", "data", "regularisation", "rate", "batch", "size")
"""In the order in which they are asked: the cheapest first."""

TITLES: dict[str, Message] = {
    "mask_leak": msg("the model sees the tokens that it is to predict"),
    "frozen_parameters": msg("a part of the model never changes"),
    "not_reproducible": msg("the same step twice gives two results"),
    "precision": msg("the run's precision spoils its numbers"),
    "val_in_train": msg("text of the val split stands in the train split"),
    "val_differs": msg("the val split is another kind of text than the train split"),
    "data_too_little": msg("too little data: the model learns it by heart"),
    "dropout_too_high": msg("dropout is too strong"),
    "dropout_too_low": msg("dropout is too weak"),
    "decay_too_high": msg("weight decay is too strong"),
    "decay_too_low": msg("weight decay is too weak"),
    "rate_too_high": msg("the learning rate is too high at the end"),
    "rate_too_high_all_along": msg("the learning rate is too high all along"),
    "rate_too_low": msg("the learning rate is too low"),
    "batch_too_small": msg("the batch is too small"),
    "batch_too_large": msg("the batch is too large"),
    "model_too_small": msg("the model is too small"),
}
CERTAIN = frozenset(("mask_leak", "frozen_parameters", "not_reproducible"))

CONFIDENCE = 0.95
CLEAR = 2.5
"""Standard errors. Not two: some ten gains are measured of each run, and one of ten that are zero would pass that every fourth time."""
SMALLEST_WORTH = 0.02
"""Nats. An expected gain below this is not called a cause, nor one that may turn out to be a loss of more: repeats of such a run differ
by as much."""
BRANCH_SPREAD = 0.0015
"""Nats by which two branches may differ that should be equal, beyond the error of the evaluation: a short branch ends where its last
batches leave it. Between branches that share their batches it is small; bench/probes.py shows whether sound runs stay below."""


@dataclass(frozen=True)
class Effect:
    """One possible cause and what mending it is worth. `gain` is None where it cannot be measured in nats."""

    cause: str  # of TITLES
    question: str  # of QUESTIONS
    change: Message  # what was changed, or compared with what
    gain: float | None  # in the branch
    se: float
    expected: float | None  # by the end
    low: float
    high: float  # 95 % interval of `expected`
    cost: float  # of this measurement, in updates of the run
    took_s: float = 0.0
    next: str = ""  # the command that makes the change
    branch: str = ""  # its folder
    is_fact: bool = False  # seen, not inferred: no noise can explain it

    @property
    def is_clear(self) -> bool:
        if self.is_fact:
            return True
        if self.gain is None or self.expected is None:
            return False
        return self.gain > CLEAR * self.se and self.expected >= SMALLEST_WORTH and self.low > -SMALLEST_WORTH

    @property
    def title(self) -> Message:
        return TITLES[self.cause]


@dataclass(frozen=True)
class Reading:
    """Something measured that is no cause by itself."""

    question: str
    words: Message
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    run: str
    step: int
    rest: int  # updates that the expected gains are for
    is_over: bool  # the run had done its updates, and `rest` is what it might go on for
    effects: tuple[Effect, ...] = ()  # ranked
    readings: tuple[Reading, ...] = ()
    not_asked: tuple[tuple[str, Message], ...] = ()
    costs: dict[str, float] = field(default_factory=dict)  # of each question, in updates of the run
    run_cost: float = 0.0  # of the whole run, likewise
    took_s: float = 0.0

    @property
    def cost(self) -> float:
        return sum(self.costs.values())

    @property
    def first(self) -> Effect | None:
        """The limiting cause; None where nothing is wrong that these probes can see."""
        return self.effects[0] if self.effects and self.effects[0].is_clear else None


def ranked(effects: Iterable[Effect]) -> tuple[Effect, ...]:
    """Certain faults, then clear gains by size, then the rest.

    A lower rate and a larger batch both take noise out of the updates, and the wider branch has a lower rate, too. Where these do not win
    clearly more than the lower rate does, the rate is named first: it costs nothing."""
    effects = list(effects)
    quieter = max((e for e in effects if e.cause.startswith("rate_too_high") and e.is_clear), key=lambda e: e.expected or 0.0, default=None)

    def place(effect: Effect) -> tuple[int, float]:
        expected = -math.inf if effect.expected is None else effect.expected
        if quieter is not None and effect.cause in ("batch_too_small", "model_too_small") and not _wins_more(effect, quieter):
            expected = min(expected, math.nextafter(quieter.expected or 0.0, -math.inf))
        if effect.is_fact:
            return (0, -float(len(TITLES)) + list(TITLES).index(effect.cause))
        return (1 if effect.is_clear else 2, -expected)

    return tuple(sorted(effects, key=place))


def _wins_more(effect: Effect, other: Effect) -> bool:
    return (effect.gain or 0.0) - (other.gain or 0.0) > 2 * math.hypot(effect.se, other.se)


def is_settled(effects: Sequence[Effect]) -> bool:
    """Whether to ask on makes no sense: a certain fault makes the other answers meaningless."""
    return any(effect.cause in CERTAIN and effect.is_clear for effect in effects)


def paired_gain(unchanged: np.ndarray, changed: np.ndarray) -> tuple[float, float]:
    """Gain and its standard error, from the losses of the same batches. A side with k times as many batches (of 1/k the size) is gathered
    first; sides that do not fit are compared by their means."""
    a, b = np.asarray(unchanged, float), np.asarray(changed, float)
    short = min(len(a), len(b))
    if short and len(a) % short == 0 and len(b) % short == 0:
        a, b = (x.reshape(short, -1).mean(axis=1) for x in (a, b))
        error = standard_error(a - b)
        gain = float(np.mean(a - b))
    else:
        one, other = standard_error(a), standard_error(b)
        error = None if one is None or other is None else math.hypot(one, other)
        gain = float(np.mean(a) - np.mean(b))
    return gain, math.hypot(error if error is not None else math.inf, BRANCH_SPREAD)


@dataclass(frozen=True)
class Growth:
    """What becomes of a gain by the end of a rest that is r times as long as the branch: times `share` x r ** middle, and between the
    powers `low` and `high` of it. A gain that is only noise taken away stays about what it is; one that is faster learning goes on growing.
    Whether the intervals hold is measured by bench/probes.py, where the changes are really made."""

    low: float
    middle: float
    high: float
    share: tuple[float, float, float] = (1.0, 1.0, 1.0)


GROWTH: dict[str, Growth] = {
    "rate_too_high": Growth(-0.1, 0.3, 0.8),
    "rate_lower": Growth(-0.2, 0.1, 0.5),
    "rate_too_low": Growth(0.2, 0.7, 1.0),
    "dropout": Growth(-0.1, 0.35, 0.6),
    "decay": Growth(-0.2, 0.1, 0.6),
    "batch": Growth(0.0, 0.6, 1.0),
    "batch_smaller": Growth(-0.2, 0.1, 0.5),  # more updates for the same tokens: a head start
    "size": Growth(0.6, 1.5, 2.0),  # new room is of no use at first
    "data": Growth(0.0, 0.0, 0.0, (0.15, 0.4, 0.9)),  # of what is memorised, fresh data wins back a part
    "as_seen": Growth(0.0, 0.0, 0.0),
}


def foretold(gain: float, se: float, kind: str, longer: float = 1.0) -> tuple[float, float, float]:
    """(expected gain by the end, low, high): the error of the measurement and the range of what becomes of such gains together. `longer`:
    the rest of the run over the length of the branch."""
    grows, z, ratio = GROWTH[kind], t_quantile(0.5 + CONFIDENCE / 2, math.inf), max(1.0, longer)
    powers = (grows.low, grows.middle, grows.high)
    least, middle, most = (share * ratio**power for share, power in zip(grows.share, powers, strict=True))
    low, high = gain - z * se, gain + z * se
    ends = [bound * factor for bound in (low, high) for factor in (least, most)]
    return gain * middle, min(ends), max(ends)
