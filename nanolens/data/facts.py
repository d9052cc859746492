"""What later explanations need to know of a corpus, in numbers: how surprising its tokens are by themselves, and after one another.

`unigram_nats` is the loss of a model that knows how frequent each token is and nothing else; `bigram_nats` of one that also sees
the token before. A training that stays at one of them has not learnt to look further back. The first is counted exactly. The second
is counted exactly where each pair was seen often enough (characters); else counting would flatter the model with pairs that occur
once, and it is the loss, on held-out windows of the same text, of a bigram model that was fitted to a sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nanolens.data.sidecar import TokensOnDisk

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


def pair_facts(tokens: Tokens, counts: np.ndarray) -> dict[str, Any]:
    """`bigram_nats`, how it was found, and from how many pairs. `counts` are the tokens' own."""
    windows = sample_windows(tokens)
    total = sum(len(window) - 1 for window in windows)
    if total < 1:
        return {"bigram_nats": None, "bigram_how": "too few tokens", "bigram_pairs": 0}
    fitted = [window for place, window in enumerate(windows) if place % 5 != 4]
    pairs, seen = _counted(fitted, len(counts))
    if seen.sum() < ENOUGH_PER_PAIR * len(pairs):
        return {
            "bigram_nats": _held_out_nats(pairs, seen, windows[4::5] or windows, counts),
            "bigram_how": "held out",
            "bigram_pairs": total,
        }
    pairs, seen = _counted(windows, len(counts))
    firsts = np.bincount((pairs // len(counts)).astype(np.int64), weights=seen)
    return {"bigram_nats": entropy_nats(seen) - entropy_nats(firsts), "bigram_how": "counted", "bigram_pairs": total}


def sample_windows(tokens: Tokens, at_most: int = SAMPLE_TOKENS) -> list[np.ndarray]:
    """All tokens where they are few, else evenly spaced windows of them."""
    if len(tokens) <= at_most:
        starts = np.arange(0, len(tokens), WINDOW)
    else:
        starts = np.linspace(0, len(tokens) - WINDOW, at_most // WINDOW).astype(np.int64)
    return [np.asarray(tokens[start : start + WINDOW + 1]) for start in starts]


def length_facts(ends: np.ndarray) -> dict[str, Any]:
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
    dtype = np.dtype(np.uint32 if vocab_size <= 1 << 16 else np.uint64)
    size = np.array(vocab_size, dtype=dtype)
    return np.concatenate([window[:-1].astype(dtype) * size + window[1:].astype(dtype) for window in windows])


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
    """Loss on `windows` of a bigram model with absolute discounting (Ney, Essen and Kneser 1994), fitted to the pairs seen elsewhere."""
    vocab_size = len(counts)
    firsts = (pairs // vocab_size).astype(np.int64)
    after = np.bincount(firsts, weights=seen, minlength=vocab_size)  # pairs that begin with each token
    kinds = np.bincount(firsts, minlength=vocab_size)  # different ones among them
    once, twice = np.count_nonzero(seen == 1), np.count_nonzero(seen == 2)
    discount = once / (once + 2 * twice) if once else 0.0
    alone = (counts + 1) / (counts.sum() + vocab_size)

    asked = _keys(windows, vocab_size)
    first, second = (asked // vocab_size).astype(np.int64), (asked % vocab_size).astype(np.int64)
    place = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
    found = np.where(pairs[place] == asked, seen[place], 0)
    known = np.maximum(after[first], 1)
    left_over = np.where(after[first] > 0, discount * kinds[first] / known, 1.0)
    chance = np.maximum(found - discount, 0) / known + left_over * alone[second]
    # Where the token before says little, a model that trusts it less does better.
    return min(float(-np.log(trust * chance + (1 - trust) * alone[second]).mean()) for trust in (1.0, 0.8, 0.5, 0.0))
