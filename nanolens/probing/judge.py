"""What probes found: each possible cause with what fixing it would gain, how sure that is, and which comes first.

A branch measures a **gain**: val loss of the unchanged branch less that of the changed one, on the same batches and the
same evaluation tokens, in nats per token. What counts is the **expected** gain: what the change would bring by the end
of the run, or for the rest of its budget, so that causes of different kinds can be ranked. A fault that is certain (a
leak, a layer that never moves) comes before all gains: as long as it is there, other numbers mean something else."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

import numpy as np

from nanolens.facts.statistics import CONFIDENCE, standard_error, t_quantile
from nanolens.message import Message

Triple = tuple[float, float, float]  # low, middle, high


@dataclass(frozen=True)
class Cause:
    title: Message
    question: str  # of QUESTIONS
    powers: Triple = (0.0, 0.0, 0.0)  # what becomes of a gain by the end of the run: see causes.toml
    share: Triple = (1.0, 1.0, 1.0)
    is_certain: bool = False


_TABLES = tomllib.loads(files("nanolens.probing").joinpath("causes.toml").read_text("utf-8"))
QUESTIONS = {key: Message(each["title"]) for key, each in _TABLES["questions"].items()}
TOKEN_KINDS = {key: Message(each["title"]) for key, each in _TABLES["kinds"].items()}
CAUSES = {key: Cause(**{**each, "title": Message(each["title"])}) for key, each in _TABLES["causes"].items()}

CLEAR = 2.5
"""Standard errors. Not two: some ten gains are measured of each run, and one of ten that are zero would pass that every
fourth time."""
SMALLEST_WORTH = 0.02
"""Nats. An expected gain below this is not called a cause, nor one that may turn out to be a loss of more: repeats of
such a run differ by as much."""
BRANCH_SPREAD = 0.0015
"""Nats by which two branches may differ that should be equal, beyond the error of the evaluation: a short branch ends
where its last batches leave it. Between branches that share their batches it is small; bench/probes.py shows whether
sound runs stay below."""


@dataclass(frozen=True)
class Effect:
    """One possible cause and what fixing it is worth. `gain` is None where it cannot be measured in nats."""

    cause: str  # of CAUSES
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
        return CAUSES[self.cause].title

    @property
    def question(self) -> str:
        return CAUSES[self.cause].question


def seen_fact(cause: str, change: Message, cost: float, branch: str = "") -> Effect:
    nan = math.nan
    return Effect(cause, change, None, nan, None, nan, nan, cost, branch=branch, is_fact=True)


@dataclass(frozen=True)
class Measurement:
    """Something measured that is no cause by itself."""

    question: str
    words: Message
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ProbeAnswer:
    run: str
    step: int
    rest: int  # updates that the expected gains are for
    is_over: bool  # the run had done its updates, and `rest` is what it might go on for
    effects: tuple[Effect, ...] = ()  # ranked
    readings: tuple[Measurement, ...] = ()
    not_asked: tuple[tuple[str, Message], ...] = ()
    costs: Mapping[str, float] = field(default_factory=dict)  # of each question, in updates of the run
    run_cost: float = 0.0  # of the whole run, likewise
    took_s: float = 0.0

    @property
    def cost(self) -> float:
        return sum(self.costs.values())

    @property
    def first(self) -> Effect | None:
        """The limiting cause; None where nothing is wrong that these probes can see."""
        return self.effects[0] if self.effects and self.effects[0].is_clear else None


def ranked(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """Certain faults, then clear gains by size, then the rest. A lower learning rate and a larger batch both take
    noise out of the updates, and the wider branch has a lower one, too: where these win no more, the lr is named first,
    as it costs nothing."""
    lower_lrs = [each for each in effects if each.cause.startswith("lr_too_high") and each.is_clear]
    quieter = max(lower_lrs, key=lambda each: each.expected or 0.0, default=None)

    def place(effect: Effect) -> tuple[int, float]:
        if effect.is_fact:
            return 0, list(CAUSES).index(effect.cause)
        expected = -math.inf if effect.expected is None else effect.expected
        if quieter and effect.cause in ("batch_too_small", "model_too_small") and not _wins_more(effect, quieter):
            expected = min(expected, math.nextafter(quieter.expected or 0.0, -math.inf))
        return 1 if effect.is_clear else 2, -expected

    return tuple(sorted(effects, key=place))


def _wins_more(effect: Effect, other: Effect) -> bool:
    return (effect.gain or 0.0) - (other.gain or 0.0) > 2 * math.hypot(effect.se, other.se)


def is_settled(effects: Sequence[Effect]) -> bool:
    """Whether to ask on makes no sense: a certain fault makes the other answers meaningless."""
    return any(CAUSES[effect.cause].is_certain and effect.is_clear for effect in effects)


def paired_gain(unchanged: np.ndarray, changed: np.ndarray) -> tuple[float, float]:
    """Gain and its standard error, from the losses of the same windows."""
    apart = np.asarray(unchanged, float) - np.asarray(changed, float)
    error = standard_error(apart)
    return float(np.mean(apart)), math.hypot(math.inf if error is None else error, BRANCH_SPREAD)


def extrapolated_gain(cause: str, gain: float, se: float, longer: float = 1.0) -> tuple[float, float, float]:
    """(expected gain by the end, low, high): the error of the measurement and the range of what becomes of such gains
    together. `longer`: the rest of the run over the length of the branch."""
    growth, z, ratio = CAUSES[cause], t_quantile(0.5 + CONFIDENCE / 2, math.inf), max(1.0, longer)
    least, middle, most = (part * ratio**power for part, power in zip(growth.share, growth.powers, strict=True))
    ends = [bound * factor for bound in (gain - z * se, gain + z * se) for factor in (least, most)]
    return gain * middle, min(ends), max(ends)


@dataclass(frozen=True)
class NoiseScale:
    """McCandlish 2018: the batch beyond which more tokens per update hardly make the gradient truer."""

    tokens: float
    low: float
    high: float  # from leaving out each batch in turn, two standard errors


def noise_scale(squares: np.ndarray, of_mean: float, with_mean: np.ndarray, tokens: int) -> NoiseScale | None:
    """From the squared norms of the gradients of n batches, of their mean, and the dot products of each with the mean:
    tr(S) / |G|^2, both estimated without bias from two batch sizes, one and all n. None where |G|^2 is not above 0."""
    n = len(squares)
    found = _scale(float(squares.mean()), of_mean, n, tokens)
    if found is None:
        return None
    others = []
    for left in range(n):
        # The mean without one batch, from numbers at hand: |m - g/n|^2 (n / (n - 1))^2.
        square = (of_mean - 2 * with_mean[left] / n + squares[left] / n**2) * (n / (n - 1)) ** 2
        others.append(_scale(float((squares.sum() - squares[left]) / (n - 1)), float(square), n - 1, tokens))
    logs = np.log([each for each in others if each is not None])
    if len(logs) < n:
        return NoiseScale(found, found / 3, float("inf"))
    error = float(np.sqrt((n - 1) / n * ((logs - logs.mean()) ** 2).sum()))
    return NoiseScale(found, found * np.exp(-2 * error), found * np.exp(2 * error))


def _scale(small: float, big: float, n: int, tokens: int) -> float | None:
    signal = (n * big - small) / (n - 1)
    noise = (small - big) / (1 / tokens - 1 / (n * tokens))
    return noise / signal if signal > 0 and noise > 0 else None
