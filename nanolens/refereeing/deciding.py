"""Is a candidate better than its base? Decided from pairs of runs as they come, with an error rate that holds however
often one looks.

The mean gain of the pairs gets a confidence sequence (Robbins' normal mixture): with the stated confidence the true
gain lies inside it after every pair at once. So a candidate is kept as soon as the whole sequence is above zero, and
discarded as soon as it is below the smallest gain worth having. The spread between pairs is that of the pairs, steadied
by the one known of such runs, as `compare` does it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from nanolens.comparison.verdict import PRIOR_WEIGHT, SMALLEST_DIFFERENCE
from nanolens.facts.statistics import CONFIDENCE, t_quantile

FEWEST_SEED_PAIRS = 3  # the spread of fewer says nothing
MIXTURE = 1.0
"""Pairs that the prior counts for: it expects gains of about one spread, and is sharpest after a few pairs."""

TryResult = Literal["keep", "discard", "undecided"]


@dataclass(frozen=True)
class PairVerdict:
    result: TryResult
    pairs: int
    gain: float  # mean over the pairs, shrunk towards none
    low: float
    high: float  # of the confidence sequence
    odds: float  # chance that the candidate is better
    spread: float  # of one pair


def decide(gains: Sequence[float], spread: float, worth: float = SMALLEST_DIFFERENCE) -> PairVerdict:
    """`gains`: base less candidate, pair by pair; `spread`: between repeats of one run, as known beforehand."""
    n = len(gains)
    sd, freedom = _spread_of_pairs(gains, math.sqrt(2) * spread)
    if not n or not all(map(math.isfinite, gains)):
        is_worse = n > 0 and any(gain == -math.inf for gain in gains)  # the candidate diverged
        return PairVerdict(
            "discard" if is_worse else "undecided", n, math.nan, -math.inf, math.inf, 0.0 if is_worse else 0.5, sd
        )
    total, weight = math.fsum(gains), n + MIXTURE
    half = _half_width(n) * sd * t_quantile(CONFIDENCE, freedom) / t_quantile(CONFIDENCE, math.inf)
    low, high = total / n - half, total / n + half
    odds = NormalDist().cdf(total / (sd * math.sqrt(weight)))
    result: TryResult = "undecided"
    if n >= FEWEST_SEED_PAIRS:
        result = "keep" if low > 0 else "discard" if high < worth else "undecided"
    return PairVerdict(result, n, total / weight, low, high, odds, sd)


def _half_width(n: int) -> float:
    """In spreads of one pair; either end is passed with at most 1 - CONFIDENCE, after any number of pairs."""
    alpha, weight = 2 * (1 - CONFIDENCE), n + MIXTURE
    return math.sqrt(weight * math.log(weight / (MIXTURE * alpha**2))) / n


def _spread_of_pairs(gains: Sequence[float], known: float) -> tuple[float, float]:
    """(standard deviation of one pair's gain, degrees of freedom). Only pairs count as degrees of freedom: the known
    spread may be half of what these runs have, and a candidate would be kept for that."""
    seen = np.asarray([gain for gain in gains if math.isfinite(gain)], float)
    freedom = max(0, len(seen) - 1)
    squares = float(((seen - seen.mean()) ** 2).sum()) if freedom else 0.0
    return math.sqrt((squares + PRIOR_WEIGHT * known**2) / (freedom + PRIOR_WEIGHT)), max(1, freedom)


def pairs_needed(verdict: PairVerdict, worth: float = SMALLEST_DIFFERENCE) -> int | None:
    """Pairs after which the gain as it stands would be decided; None beyond a thousand."""
    apart = max(verdict.gain, worth - verdict.gain)
    return next(
        (n for n in range(max(FEWEST_SEED_PAIRS, verdict.pairs + 1), 1000) if _half_width(n) * verdict.spread < apart),
        None,
    )
