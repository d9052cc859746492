"""Causes weighed against a sound run.

Each observable of a run adds a weight to each cause that it speaks for or against: the logarithm of how much likelier
it makes that cause than a sound run. What is not known adds nothing. The sums are odds, and the odds of all causes
together with a sound run become probabilities; those of causes with the same code add up. Weights and the thresholds
of certain, likely and possible were learned from recorded runs of known cause (`bench/zoo.py fit`)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec
import numpy as np

from nanolens.diagnosis.observables import OBSERVABLES, View, observed
from nanolens.diagnosis.rule import finding
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import Evidence, Finding, Sureness, see
from nanolens.message import msg

SOUND = "sound"
SHOWN = 3  # pieces of evidence
LEAST_SHOWN = 0.3  # weight of a piece of evidence that is worth showing
THRESHOLDS: Mapping[Sureness, float] = {"certain": 0.97, "likely": 0.7, "possible": 0.3}
"""Probability from which a cause is called so. On trainers and corpora left out of the fit 100% of those above 0.97
were right, 99% of those above 0.7 (docs/diagnosis.md)."""


class Cause(msgspec.Struct, frozen=True):
    code: str
    more: tuple[str, ...] = ()  # observables that speak for it the larger they are
    less: tuple[str, ...] = ()

    @property
    def observables(self) -> tuple[str, ...]:
        return (*self.more, *self.less)


class CauseWeights(msgspec.Struct):
    bias: float
    weights: dict[str, list[float]]  # by observable: for being known at all, then for each piece of its range


class Weights(msgspec.Struct):
    edges: dict[str, list[float]]  # of the pieces of each observable's range
    usual: dict[str, tuple[float, float]]  # where nine of ten sound runs lie
    causes: dict[str, CauseWeights]


@cache
def causes() -> Mapping[str, Cause]:
    text = files("nanolens.diagnosis").joinpath("causes.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Cause])


@cache
def recorded() -> Weights:
    return msgspec.json.decode(files("nanolens.diagnosis").joinpath("weights.json").read_bytes(), type=Weights)


def pieces(value: float, edges: Sequence[float], is_less: bool) -> np.ndarray:
    """How much of each piece of its range a value has passed, from below or from above."""
    low, high = np.asarray(edges[:-1]), np.asarray(edges[1:])
    passed = np.clip((value - low) / (high - low), 0.0, 1.0)
    return 1 - passed if is_less else passed


@dataclass(frozen=True)
class Weighed:
    code: str
    probability: float
    strongest: str  # the cause that weighs most among those of this code
    contributions: Mapping[str, float]  # of its observables


def weigh(seen: Mapping[str, float], weights: Weights | None = None) -> list[Weighed]:
    """The codes, the likeliest first."""
    weights = weights or recorded()
    parts = {name: _contributions(name, seen, weights) for name in weights.causes}
    odds = {name: weights.causes[name].bias + sum(part.values()) for name, part in parts.items()}
    top = max(0.0, *odds.values())
    whole = np.exp(-top) + sum(np.exp(each - top) for each in odds.values())
    share = {name: float(np.exp(each - top) / whole) for name, each in odds.items()}
    by_code: dict[str, list[str]] = {}
    for name in share:
        by_code.setdefault(causes()[name].code, []).append(name)
    found = []
    for code, names in by_code.items():
        strongest = max(names, key=lambda name: share[name])
        found.append(Weighed(code, sum(share[name] for name in names), strongest, parts[strongest]))
    return sorted(found, key=lambda each: -each.probability)


def _contributions(name: str, seen: Mapping[str, float], weights: Weights) -> dict[str, float]:
    own, cause = weights.causes[name].weights, causes()[name]
    return {
        each: parts[0] + float(pieces(seen[each], weights.edges[each], each in cause.less) @ np.array(parts[1:]))
        for each, parts in own.items()
        if each in seen
    }


def chance_of_sound(case: Case) -> float:
    """What the causes leave; 1 where they cannot be weighed."""
    seen = _observed(case)
    return 1.0 if seen is None else 1.0 - sum(each.probability for each in weigh(seen))


def _observed(case: Case) -> Mapping[str, float] | None:
    """Of a run that trains a model from random weights."""
    view = View(case)
    if case.is_ahead or case.is_pretrained or view.top is None or len(view.curve[0]) < 2:
        return None
    return observed(view)


def weighed_findings(case: Case) -> Iterator[Finding]:
    seen = _observed(case)
    for each in () if seen is None else weigh(seen):
        sureness = next((name for name, least in THRESHOLDS.items() if each.probability >= least), None)
        evidence = tuple(_evidence(each, seen or {}, case))
        if sureness is not None and evidence:
            yield finding(f"{each.code}.weighed", sureness, *evidence, odds=each.probability)


def _evidence(each: Weighed, seen: Mapping[str, float], case: Case) -> Iterator[Evidence]:
    """What weighed most, with where sound runs lie."""
    ranked = sorted(each.contributions, key=lambda name: -each.contributions[name])
    x = View(case).curve[0]
    for name in ranked[:SHOWN]:
        weight = each.contributions[name]
        if weight >= LEAST_SHOWN:
            usual, about = recorded().usual[name], OBSERVABLES[name]
            how = msg("speaks for it with a weight of {weight:number}; odds {odds:share}", weight, each.probability)
            yield see(about.what, seen[name], usual, locations.steps(x[0], x[-1]), how, about.kind)
