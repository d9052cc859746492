"""What a sound run shows: its loss after so many updates, with the spread of sound runs about it.

A loss is taken as a share of ln(vocabulary), so that texts and tokenizers compare, and regressed on what is known of a
run: updates weighed by their learning rate, tokens of an update, size of the model, vocabulary, the levels of the text.
expectation.json holds the moments of these over recorded sound runs (`bench/zoo.py fit`), not the regression itself: it
is solved for whatever is known, so that it says less, with a wider band, where less is known, or where a run lies far
from those recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

import msgspec
import numpy as np

from nanolens.facts.case import Case
from nanolens.sizing.schedule import lr_of

EARLIEST = 10  # updates: before them the warm-up rules
INPUTS: Mapping[str, tuple[str, ...]] = {
    "one": (),
    "progress": (),
    "progress^2": (),
    "progress^3": (),
    "tokens": ("tokens",),
    "tokens x progress": ("tokens",),
    "size": ("size",),
    "size x progress": ("size",),
    "vocab": (),
    "unigram": ("levels",),
    "bigram": ("levels",),
    "bigram x progress": ("levels",),
    "decay": ("schedule",),
    "updates": ("schedule",),
}
"""Terms of the regression, and what has to be known for each."""
LEAST_VARIANCE = 1e-6
FAR = 10.0  # times: what lies beyond the recorded runs follows no straight line either
RIDGE = 1e-6  # of the moments' own diagonal


class Moments(msgspec.Struct, frozen=True, eq=False):
    """Of the terms and the loss over recorded runs, each run with a weight of one in all."""

    terms: list[str]
    products: list[list[float]]  # mean of term x term
    with_loss: list[float]  # mean of term x loss
    loss_squared: float
    runs: float


@lru_cache(maxsize=256)
def _solved(moments: Moments, used: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, float]:
    """The regression on these terms: its weights, the inverse of the products, and what it leaves of the loss."""
    products = np.array(moments.products)[np.ix_(used, used)]
    products = products + RIDGE * np.diag(np.diag(products))
    inverse, target = np.linalg.inv(products), np.array(moments.with_loss)[list(used)]
    weights = inverse @ target
    left = moments.loss_squared - 2 * weights @ target + weights @ products @ weights
    return weights, inverse, max(float(left), LEAST_VARIANCE)


@dataclass(frozen=True)
class Expected:
    """Nats of a sound run at a step."""

    loss: float
    spread: float  # one standard deviation, between sound runs


@cache
def recorded() -> Moments:
    text = files("nanolens.facts").joinpath("expectation.json").read_bytes()
    return msgspec.json.decode(text, type=Moments)


def expected_loss(case: Case, step: float, moments: Moments | None = None) -> Expected | None:
    """None for a run that starts from trained weights, whose vocabulary is not known, or before its first updates."""
    terms = terms_at(case, step)
    return None if terms is None else expected_from(terms, moments or recorded())


def expected_from(terms: Mapping[str, float], moments: Moments) -> Expected:
    used = tuple(place for place, name in enumerate(moments.terms) if name in terms)
    weights, inverse, left = _solved(moments, used)
    values = np.array([terms[moments.terms[place]] for place in used])
    far = float(values @ inverse @ values) / moments.runs
    top = math.exp(terms["vocab"])
    return Expected(float(weights @ values) * top, math.sqrt(left * (1 + FAR * far)) * top)


def terms_at(case: Case, step: float) -> dict[str, float] | None:
    top = top_of(case)
    if case.is_pretrained or top is None or step < EARLIEST or case.counts_epochs:
        return None
    progress = math.log(step)
    terms = {"one": 1.0, "vocab": math.log(top)}
    tokens, size, schedule = case.tokens_per_update, case.parameters, case.schedule
    if schedule is not None and schedule.learning_rate > 0:
        rates = np.array([lr_of(schedule, at) for at in np.linspace(0, step, 64)]) / schedule.learning_rate
        progress = math.log(max(1.0, step * float(rates.mean())))
        terms |= {"decay": float(rates[-1]), "updates": math.log(step)}
    terms |= {"progress": progress, "progress^2": progress**2, "progress^3": progress**3 / 10}
    if tokens is not None:
        terms |= {"tokens": math.log(tokens.value), "tokens x progress": math.log(tokens.value) * progress}
    if size is not None:
        terms |= {"size": math.log(size.value), "size x progress": math.log(size.value) * progress}
    if case.unigram_nats is not None and case.bigram_nats is not None:
        pairs = case.bigram_nats / top
        terms |= {"unigram": case.unigram_nats / top, "bigram": pairs, "bigram x progress": pairs * progress}
    return terms


def top_of(case: Case) -> float | None:
    """ln(vocabulary): where the vocabulary is not known, the loss before the first update stands for it."""
    vocab = case.vocab_size
    if vocab is not None and not case.is_vocab_guessed:
        return math.log(vocab.value)
    first = case.first_loss
    return first if first is not None and 1.0 < first < 15.0 else case.ln_vocab


def moments_of(curves: Sequence[Sequence[tuple[Mapping[str, float], float]]]) -> Moments:
    """Of recorded sound runs, each as places on its curve: all terms, and the loss as a share of ln(vocabulary)."""
    names = list(INPUTS)
    products, with_loss, squared = np.zeros((len(names), len(names))), np.zeros(len(names)), 0.0
    for curve in curves:
        for terms, loss in curve:
            values, share = np.array([terms[name] for name in names]), 1 / len(curve)
            products += np.outer(values, values) * share
            with_loss += values * loss * share
            squared += loss * loss * share
    count = len(curves)
    return Moments(
        names, (products / count).tolist(), (with_loss / count).tolist(), float(squared / count), float(count)
    )
