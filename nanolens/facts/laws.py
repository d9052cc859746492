"""Published laws of how losses, batches and learning rates scale, as formulas with their sources. Ranges, not truths.

N is the total number of parameters, D the tokens seen, U the different tokens among them, C the FLOPs. Losses are nats
per token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LossLaw:
    """L = E + A / N^alpha + B / D^beta. Absolute values belong to the corpus and tokenizer it was fitted on: use
    differences."""

    name: str
    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, N: float, D: float) -> float:
        return self.E + self.A / N**self.alpha + self.B / D**self.beta

    def slope(self, D: float) -> float:
        """Nats that one e-fold of tokens is worth."""
        return self.beta * self.B / D**self.beta


LOSS_LAWS = (
    LossLaw("Besiroglu 2024 (arXiv 2404.10102)", 1.8172, 482.01, 2085.43, 0.3478, 0.3658),
    LossLaw("Muennighoff 2023 (arXiv 2305.16264)", 1.8691, 520.82, 1487.7, 0.35266, 0.35266),
    LossLaw("Hoffmann 2022 (arXiv 2203.15556)", 1.69, 406.4, 410.7, 0.34, 0.28),
)
"""The first is used where one value is wanted, the others give the range. The third is known to be biased."""

FRESH_EPOCHS = 4.0
"""Up to here repeated text is nearly as good as new text (Muennighoff 2023: 93% of its value at four epochs)."""
SPENT_EPOCHS = 24.0
"""From here on nothing more is gained: repeated tokens have half the value of new ones, and even with dropout val soon
rises. nanoGPT's GPU demo, 11 parameters per token, is best after 28 epochs."""
REPETITION_DECAY = 15.39  # R*_D of Muennighoff 2023, in epochs
MEMORISABLE_TOKENS = 5.0
"""Tokens per parameter up to which a model can memorise its text: about 3.6 bits fit in a parameter (arXiv 2505.24832),
and a token carries one to five. GPT-2 124M reads OpenWebText, 72 tokens per parameter, 33 times without overfitting."""


def value_of_tokens(epochs: float) -> float:
    """What a token seen is worth, as a share of a new one, after so many epochs (Muennighoff 2023). Knows of no
    overfitting."""
    if epochs <= 1:
        return 1.0
    return (1 + REPETITION_DECAY * (1 - math.exp(-(epochs - 1) / REPETITION_DECAY))) / epochs


def worth_of_tokens(seen: float, unique: float) -> float:
    """New tokens that would have taught as much as `seen` tokens of a corpus of `unique`."""
    return seen * value_of_tokens(seen / unique)


def step_law_rate(N: float, D: float) -> float:
    """Best peak learning rate of AdamW with a batch of `step_law_batch` (Step Law, arXiv 2503.04715, medians of its
    data)."""
    return 1.78 * N**-0.712 * D**0.307


def step_law_batch(D: float) -> float:
    """Best tokens per update (same source); an independent grid of 1,800 runs agrees within a factor of 1.6."""
    return 0.573 * D**0.571


STEP_LAW_RANGE = 2.0  # a factor either way: one notch of the grid that confirmed it

SMALLEST_FITTED_N, SMALLEST_FITTED_D = 40e6, 100e6
LARGEST_FITTED_D, MOST_FITTED_RATIO = 100e9, 600.0
"""Outside of these the two laws are extrapolated: the grids that they rest on begin and end there, with so many tokens
a parameter."""


def is_outside_step_law(N: float, D: float) -> bool:
    return N < SMALLEST_FITTED_N or not SMALLEST_FITTED_D <= D <= LARGEST_FITTED_D or D / N > MOST_FITTED_RATIO


def critical_batch(D: float) -> float:
    """Tokens per update beyond which a larger batch costs tokens (Zhang 2024, arXiv 2410.21676; the constant to within
    a factor of 2)."""
    return 22.9 * D**0.47


def tokens_wasted(batch: float, critical: float) -> float:
    """Tokens needed over the least possible, for a batch of that size (McCandlish 2018: 1 + B / B_crit)."""
    return 1 + batch / critical


def rate_for_batch(rate: float, batch: float, best_batch: float) -> float:
    """Adam's rate goes with the square root of the batch below the best one, and stays above it."""
    return rate * min(1.0, math.sqrt(batch / best_batch))


def suggested_rate(N: float, D: float, batch: float) -> float:
    """Step Law's rate for this size and length, less where the batch is smaller than its best."""
    return rate_for_batch(step_law_rate(N, D), batch, step_law_batch(D))


def two_digits(value: float) -> float:
    """As much of an estimate as is meant: 131,861.8 tokens are about 130,000."""
    return round(value, 1 - math.floor(math.log10(abs(value)))) if value else 0.0


COMMON_LRS = ((1e6, 3e-3), (1e7, 1.5e-3), (1.25e8, 6e-4), (3.5e8, 3e-4), (7.6e8, 2.5e-4), (1.3e9, 2e-4))
"""Usual peak rates of AdamW by parameters: GPT-3's table from 125M on; below it small public runs (1e-3 to 3e-3)."""


def usual_rate(parameters: float) -> float:
    sizes, rates = np.log([row[0] for row in COMMON_LRS]), np.log([row[1] for row in COMMON_LRS])
    return float(np.exp(np.interp(np.log(max(parameters, 1.0)), sizes, rates)))
