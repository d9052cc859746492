"""What explanations need to know of a corpus: how surprising its tokens are by themselves, and after one another.

`unigram_nats` is the loss of a model that knows how frequent each token is and nothing else; `bigram_nats` of one that
also sees the token before. A training that stays at one of them has not learnt to look further back. Both are counted,
the second only where each pair was seen often enough (characters); else counting would flatter the model with pairs
that occur once, and it is the loss, on held-out windows, of a bigram model that was fitted to a sample.

Counts of longer n-grams memorise nothing and can tell whether two texts are of one kind. A part of the train split is
kept from the counting. If the val split is more surprising than that part, the splits differ; what the network's val
loss is above its train loss beyond this, it has memorised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nanolens.data.token_files import TokensOnDisk

Tokens = np.ndarray | TokensOnDisk

SAMPLE_TOKENS = 1 << 22
WINDOW = 1 << 12
ENOUGH_PER_PAIR = 100  # the bias of a counted entropy is about pairs / (2 x tokens): half a hundredth of a nat


def entropy_nats(counts: np.ndarray) -> float:
    """Of the distribution that `counts` shows."""
    counts = counts[counts > 0].astype(np.float64)
    total = counts.sum()
    return float(np.log(total) - (counts * np.log(counts)).sum() / total) if total else 0.0


def count_tokens(tokens: np.ndarray, vocab_size: int, at_once: int = 1 << 21) -> np.ndarray:
    counts = np.zeros(vocab_size, dtype=np.int64)
    for start in range(0, len(tokens), at_once):
        counts += np.bincount(tokens[start : start + at_once], minlength=vocab_size)
    return counts


def pair_facts(tokens: Tokens, counts: np.ndarray) -> dict[str, object]:
    """`bigram_nats`, how it was found, and from how many pairs. `counts` are the tokens' own."""
    windows = sample_windows(tokens)
    total = sum(len(window) - 1 for window in windows)
    if total < 1:
        return {"bigram_nats": None, "bigram_how": "too few tokens", "bigram_pairs": 0}
    fitted = [window for place, window in enumerate(windows) if place % 5 != 4]
    pairs, seen = _counted(fitted, len(counts))
    how = "counted" if seen.sum() >= ENOUGH_PER_PAIR * len(pairs) else "held out"
    if how == "held out":
        nats = _held_out_nats(pairs, seen, windows[4::5] or windows, counts)
    else:
        pairs, seen = _counted(windows, len(counts))
        nats = entropy_nats(seen) - entropy_nats(np.bincount((pairs // len(counts)).astype(np.int64), weights=seen))
    return {"bigram_nats": nats, "bigram_how": how, "bigram_pairs": total}


def sample_windows(tokens: Tokens, at_most: int = SAMPLE_TOKENS) -> list[np.ndarray]:
    """All tokens where they are few, else evenly spaced windows of them."""
    if len(tokens) <= at_most:
        starts = np.arange(0, len(tokens), WINDOW)
    else:
        starts = np.linspace(0, len(tokens) - WINDOW, at_most // WINDOW).astype(np.int64)
    return [np.asarray(tokens[start : start + WINDOW + 1]) for start in starts]


def length_facts(ends: np.ndarray) -> dict[str, float]:
    """Lengths of documents in tokens, from where they end."""
    lengths = np.diff(ends, prepend=0)
    if not len(lengths):
        return {}
    low, middle, high = (int(value) for value in np.quantile(lengths, (0.1, 0.5, 0.9)))
    return {
        "document_tokens_mean": float(lengths.mean()),
        "document_tokens_p10": low,
        "document_tokens_median": middle,
        "document_tokens_p90": high,
        "document_tokens_longest": int(lengths.max()),
    }


def _keys(windows: list[np.ndarray], vocab_size: int) -> np.ndarray:
    """Each pair as one number; 32 bits are enough for 65,536 tokens, and sort several times as fast."""
    dtype = np.uint32 if vocab_size <= 1 << 16 else np.uint64
    return np.concatenate([window[:-1].astype(dtype) * vocab_size + window[1:].astype(dtype) for window in windows])


def _counted(windows: list[np.ndarray], vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    if not windows:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    if vocab_size**2 <= 1 << 22:
        counts = np.zeros(vocab_size**2, dtype=np.int64)
        for start in range(0, len(windows), 256):
            counts += np.bincount(_keys(windows[start : start + 256], vocab_size), minlength=vocab_size**2)
        pairs = np.flatnonzero(counts)
        return pairs, counts[pairs]
    return np.unique(_keys(windows, vocab_size), return_counts=True)


def _held_out_nats(pairs: np.ndarray, seen: np.ndarray, windows: list[np.ndarray], counts: np.ndarray) -> float:
    """Loss on `windows` of a bigram model of pairs seen elsewhere, with absolute discounting (Ney et al. 1994)."""
    vocab_size = len(counts)
    firsts = (pairs // vocab_size).astype(np.int64)
    after = np.bincount(firsts, weights=seen, minlength=vocab_size)  # pairs that begin with each token
    kinds = np.bincount(firsts, minlength=vocab_size)  # different ones among them
    once, twice = np.count_nonzero(seen == 1), np.count_nonzero(seen == 2)
    discount = once / (once + 2 * twice) if once else 0.0
    alone = (counts + 1) / (counts.sum() + vocab_size)

    asked = _keys(windows, vocab_size)
    first, second = (asked // vocab_size).astype(np.int64), (asked % vocab_size).astype(np.int64)
    found = _looked_up(pairs, seen, asked)
    known = np.maximum(after[first], 1)
    left_over = np.where(after[first] > 0, discount * kinds[first] / known, 1.0)
    chance = np.maximum(found - discount, 0) / known + left_over * alone[second]
    # Where the token before says little, a model that trusts it less does better.
    return min(float(-np.log(trust * chance + (1 - trust) * alone[second]).mean()) for trust in (1.0, 0.8, 0.5, 0.0))


DISCOUNT = 0.75
FEW_TOKENS, FEW_TOKENS_ORDER, MANY_TOKENS_ORDER = 1024, 5, 3  # orders of characters, and of a vocabulary of words


@dataclass(frozen=True, eq=False)
class NgramCounts:
    """Of all n-grams up to an order and of their contexts: how often each was seen."""

    vocab_size: int
    grams: tuple[tuple[np.ndarray, np.ndarray], ...]  # (keys, times) of 1-grams, 2-grams, …
    contexts: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]  # (keys, times, different tokens after it)


def counts_of(tokens: np.ndarray, vocab_size: int) -> NgramCounts:
    order = FEW_TOKENS_ORDER if vocab_size <= FEW_TOKENS else MANY_TOKENS_ORDER
    tokens = np.asarray(tokens, np.uint64)
    grams, contexts = [], []
    for n in range(1, order + 1):
        keys, first, times = np.unique(_ngram_keys(tokens, n, vocab_size), return_index=True, return_counts=True)
        before, where = np.unique(_ngram_keys(tokens, n - 1, vocab_size)[: len(tokens) - n + 1], return_inverse=True)
        different = np.bincount(where[first], minlength=len(before))  # each n-gram counts once for its context
        grams.append((keys, times.astype(float)))
        contexts.append((before, np.bincount(where).astype(float), different.astype(float)))
    return NgramCounts(vocab_size, tuple(grams), tuple(contexts))


def surprisal(counts: NgramCounts, scored: np.ndarray) -> np.ndarray:
    """Nats of each token of `scored` (from the first that has enough before it) under absolute discounting,
    interpolated down to counts of single tokens and a uniform guess."""
    scored, order = np.asarray(scored, np.uint64), len(counts.grams)
    length = len(scored) - order + 1
    chance = np.full(length, 1.0 / counts.vocab_size)
    for n, ((keys, times), (before, seen, different)) in enumerate(zip(counts.grams, counts.contexts, strict=True), 1):
        text = scored[order - n :]
        found = _looked_up(keys, times, _ngram_keys(text, n, counts.vocab_size)[:length])
        context = _ngram_keys(text, n - 1, counts.vocab_size)[:length]
        total, kinds = _looked_up(before, seen, context), _looked_up(before, different, context)
        known = np.maximum(total, 1.0)
        mixed = np.maximum(found - DISCOUNT, 0) / known + DISCOUNT * kinds / known * chance
        chance = np.where(total > 0, mixed, chance)
    return -np.log(chance)


def _ngram_keys(tokens: np.ndarray, n: int, vocab_size: int) -> np.ndarray:
    """A number for the n-gram that begins at each token; a hash where vocab_size ** n does not fit into 64 bits."""
    count = len(tokens) - n + 1
    keys = np.zeros(max(count, 0), np.uint64)
    for place in range(n):
        keys = keys * np.uint64(vocab_size) + tokens[place : place + count]
    return keys


def _looked_up(keys: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
    at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[at] == asked, values[at], 0.0)
