"""Documents that were there before, exactly or nearly.

Exactly: by hash, 8 bytes a document. Nearly: by MinHash of the document's runs of five words, where an estimated 80 % or more are
shared; about 1 kB a document, so this is the one thing here whose memory grows with the corpus. The first of its kind stays, later
ones go.
"""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np

from nanolens.errors import require

Dedup = Literal["none", "exact", "near"]

RUN = 5  # words
SEED = 42  # the one that rensa's deduplicator expects
SIGNATURE, BANDS, ALIKE = 128, 32, 0.8  # 32 bands of 4: a pair that is 80 % alike becomes a candidate in all but 1 of 10 million cases


class SeenHashes:
    """A growing set of hashes, in sorted arrays that are merged as they pile up: no Python object per document."""

    def __init__(self) -> None:
        self._sorted: list[np.ndarray] = []

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Which of these were there before, in earlier calls or earlier in this one."""
        _, first, place = np.unique(hashes, return_index=True, return_inverse=True)
        repeated = first[place] != np.arange(len(hashes))
        for known in self._sorted:
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            repeated |= known[at] == hashes
        fresh = np.sort(hashes[~repeated])
        if len(fresh):
            self._sorted.append(fresh)
        while len(self._sorted) > 1 and len(self._sorted[-2]) <= 2 * len(self._sorted[-1]):
            merged = np.concatenate([self._sorted.pop(), self._sorted.pop()])
            merged.sort()
            self._sorted.append(merged)
        return repeated


class NearDuplicates:
    """Finds documents that share most of their runs of words with an earlier one."""

    def __init__(self) -> None:
        self._rensa = require("rensa", "data")
        self._known = self._rensa.RMinHashDeduplicator(threshold=ALIKE, num_perm=SIGNATURE, use_lsh=True, num_bands=BANDS)
        self._count = 0

    def signatures(self, text: np.ndarray, bounds: np.ndarray) -> list:
        """Of each document; may run in several threads."""
        runs = [run_hashes(text[start:end]).view("V8").tolist() for start, end in itertools.pairwise(bounds.tolist())]
        return self._rensa.RMinHash.from_token_sets(runs, num_perm=SIGNATURE, seed=SEED)

    def add(self, signatures: list) -> np.ndarray:
        """Which of these are near an earlier one."""
        numbered = [(str(self._count + place), signature) for place, signature in enumerate(signatures)]
        self._count += len(signatures)
        return ~np.array(self._known.add_pairs(numbered), dtype=bool)


_MULTIPLIER = 0x9E3779B97F4A7C15 | 1  # odd, so that it has an inverse modulo 2**64
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)
_SPACES = np.zeros(256, dtype=bool)
_SPACES[[9, 10, 11, 12, 13, 32]] = True


def run_hashes(text: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each run of RUN words; of all words where there are fewer.

    A word is hashed as a polynomial in a fixed odd number modulo 2**64, so that all of them come from one running sum.
    """
    space = _SPACES[text]
    edges = np.flatnonzero(np.diff(space, prepend=True, append=True))
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        powers = _powers(_MULTIPLIER, len(text))
        summed = np.concatenate([np.zeros(1, np.uint64), np.cumsum((text.astype(np.uint64) + np.uint64(1)) * powers)])
        words = (summed[ends] - summed[starts]) * _powers(_INVERSE, len(text) + 1)[starts]
        width = min(RUN, len(words))
        runs = np.zeros(len(words) - width + 1, dtype=np.uint64)
        for place in range(width):
            runs = (runs ^ words[place : place + len(runs)]) * np.uint64(0xBF58476D1CE4E5B9)
            runs ^= runs >> np.uint64(29)
    return runs


_tables: dict[int, np.ndarray] = {}


def _powers(base: int, count: int) -> np.ndarray:
    table = _tables.get(base)
    if table is None or len(table) < count:
        table = np.full(max(count, 1 << 16), base, dtype=np.uint64)
        table[0] = 1
        table = _tables[base] = np.cumprod(table, dtype=np.uint64)
    return table[:count]
