"""How surprising a text is to counts of n-grams: a yardstick that learns nothing by heart, for asking whether two texts are of one kind.

A part of the train split is kept from the counting. If the val split is more surprising than that part, the splits differ; what the
network's val loss is above its train loss beyond this, it has memorised."""

from __future__ import annotations

import numpy as np

DISCOUNT = 0.75
FEW_TOKENS_ORDER, MANY_TOKENS_ORDER = 5, 3  # of characters, and of a vocabulary of words
FEW_TOKENS = 1024


def surprisal(counted: np.ndarray, scored: np.ndarray, vocab_size: int) -> np.ndarray:
    """Nats of each token of `scored` (from the first that has enough before it) under absolute discounting, interpolated down to counts
    of single tokens and a uniform guess."""
    order = FEW_TOKENS_ORDER if vocab_size <= FEW_TOKENS else MANY_TOKENS_ORDER
    counted, scored = np.asarray(counted, np.uint64), np.asarray(scored, np.uint64)
    length = len(scored) - order + 1
    chance = np.full(length, 1.0 / vocab_size)
    for n in range(1, order + 1):
        seen, times = np.unique(_keys(counted, n, vocab_size), return_counts=True)
        asked = _keys(scored[order - n :], n, vocab_size)[:length]
        if n == 1:
            contexts, total, kinds = None, np.full(length, float(times.sum())), np.full(length, float(len(seen)))
        else:
            # A context is its n-gram without the last token; keys of one context lie next to each other only where no hash mixes them.
            contexts, where = np.unique(_keys(counted, n - 1, vocab_size)[: len(counted) - n + 1], return_inverse=True)
            totals = np.bincount(where).astype(float)
            firsts = np.unique(np.stack([where.astype(np.uint64), _keys(counted, n, vocab_size)]), axis=1)[0].astype(np.int64)
            different = np.bincount(firsts, minlength=len(contexts)).astype(float)
            context = _keys(scored[order - n :], n - 1, vocab_size)[:length]
            total, kinds = _looked_up(contexts, totals, context), _looked_up(contexts, different, context)
        found = _looked_up(seen, times.astype(float), asked)
        known = total > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            mixed = np.maximum(found - DISCOUNT, 0) / total + DISCOUNT * kinds / total * chance
        chance = np.where(known, mixed, chance)
    return -np.log(chance)


def _keys(tokens: np.ndarray, n: int, vocab_size: int) -> np.ndarray:
    """A number for the n-gram that begins at each token; exact while vocab_size ** n fits into 64 bits, a hash beyond."""
    count = len(tokens) - n + 1
    keys = np.zeros(max(count, 0), np.uint64)
    for place in range(n):
        keys = keys * np.uint64(vocab_size) + tokens[place : place + count]
    return keys


def _looked_up(keys: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
    at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[at] == asked, values[at], 0.0)
