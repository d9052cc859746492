"""How surprising a text is to counts of n-grams: a yardstick that learns nothing by heart, for asking whether two texts are of one kind.

A part of the train split is kept from the counting. If the val split is more surprising than that part, the splits differ; what the
network's val loss is above its train loss beyond this, it has memorised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DISCOUNT = 0.75
FEW_TOKENS_ORDER, MANY_TOKENS_ORDER = 5, 3  # of characters, and of a vocabulary of words
FEW_TOKENS = 1024


@dataclass(frozen=True, eq=False)
class Counts:
    """Of all n-grams up to an order: how often each was seen, and for each context how often, and before how many different tokens."""

    vocab_size: int
    grams: tuple[tuple[np.ndarray, np.ndarray], ...]  # (keys, times) of 1-grams, 2-grams, …
    contexts: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]  # (keys, times, different tokens after it), likewise

    @property
    def order(self) -> int:
        return len(self.grams)


def counts_of(tokens: np.ndarray, vocab_size: int) -> Counts:
    order = FEW_TOKENS_ORDER if vocab_size <= FEW_TOKENS else MANY_TOKENS_ORDER
    tokens = np.asarray(tokens, np.uint64)
    grams, contexts = [], []
    for n in range(1, order + 1):
        keys, first, times = np.unique(_keys(tokens, n, vocab_size), return_index=True, return_counts=True)
        before, where = np.unique(_keys(tokens, n - 1, vocab_size)[: len(tokens) - n + 1], return_inverse=True)
        different = np.bincount(where[first], minlength=len(before))  # each n-gram counts once for its context
        grams.append((keys, times.astype(float)))
        contexts.append((before, np.bincount(where).astype(float), different.astype(float)))
    return Counts(vocab_size, tuple(grams), tuple(contexts))


def surprisal(counts: Counts, scored: np.ndarray) -> np.ndarray:
    """Nats of each token of `scored` (from the first that has enough before it) under absolute discounting, interpolated down to counts
    of single tokens and a uniform guess."""
    scored, order = np.asarray(scored, np.uint64), counts.order
    length = len(scored) - order + 1
    chance = np.full(length, 1.0 / counts.vocab_size)
    for n, ((keys, times), (before, seen, different)) in enumerate(zip(counts.grams, counts.contexts, strict=True), 1):
        text = scored[order - n :]
        found = _looked_up(keys, times, _keys(text, n, counts.vocab_size)[:length])
        context = _keys(text, n - 1, counts.vocab_size)[:length]
        total, kinds = _looked_up(before, seen, context), _looked_up(before, different, context)
        known = np.maximum(total, 1.0)
        mixed = np.maximum(found - DISCOUNT, 0) / known + DISCOUNT * kinds / known * chance
        chance = np.where(total > 0, mixed, chance)
    return -np.log(chance)


def _keys(tokens: np.ndarray, n: int, vocab_size: int) -> np.ndarray:
    """A number for the n-gram that begins at each token; exact while vocab_size ** n fits into 64 bits, a hash beyond. One for all empty
    ones."""
    count = len(tokens) - n + 1
    keys = np.zeros(max(count, 0), np.uint64)
    for place in range(n):
        keys = keys * np.uint64(vocab_size) + tokens[place : place + count]
    return keys


def _looked_up(keys: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
    at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[at] == asked, values[at], 0.0)
