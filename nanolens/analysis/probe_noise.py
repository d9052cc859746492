"""The gradient noise scale (McCandlish 2018): the batch from which on more tokens per update stop making the gradient much truer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scale:
    tokens: float
    low: float
    high: float  # from leaving out each batch in turn, two standard errors


def noise_scale(squares: np.ndarray, of_mean: float, with_mean: np.ndarray, tokens: int) -> Scale | None:
    """From the squared norms of the gradients of n batches of `tokens` tokens, of their mean, and the dot products of each with the mean.

    tr(S) / |G|^2, where both are estimated without bias from two batch sizes, one batch and all n. None where |G|^2 is not above 0."""
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
        return Scale(found, found / 3, float("inf"))
    error = float(np.sqrt((n - 1) / n * ((logs - logs.mean()) ** 2).sum()))
    return Scale(found, found * np.exp(-2 * error), found * np.exp(2 * error))


def _scale(small: float, big: float, n: int, tokens: int) -> float | None:
    signal = (n * big - small) / (n - 1)
    noise = (small - big) / (1 / tokens - 1 / (n * tokens))
    return noise / signal if signal > 0 and noise > 0 else None
