"""A document's hash says whether two are equal and which split they belong to.

64 bits of sha256: among 100 million documents the chance that any two different ones share a hash is 1 in 3,700. The split looks at
the first megabyte only, so that a document of many gigabytes need not be read before it is known where it goes; for all others the two
are the same. Equal documents therefore always fall into the same split.
"""

from __future__ import annotations

import hashlib
import itertools

import numpy as np

KEY_BYTES = 1 << 20


def hashes_of(text: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    view, edges = text.data, bounds.tolist()
    digests = b"".join(hashlib.sha256(view[start:end]).digest()[:8] for start, end in itertools.pairwise(edges))
    return np.frombuffer(digests, dtype="<u8")


def split_keys(text: np.ndarray, bounds: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """What the split is decided by: a document's hash, or that of its beginning where it is long."""
    long = np.flatnonzero(np.diff(bounds) > KEY_BYTES)
    if not len(long):
        return hashes
    keys = hashes.copy()
    for place in long:
        start = int(bounds[place])
        keys[place] = hash_of(text[start : start + KEY_BYTES])
    return keys


def hash_of(text: np.ndarray) -> int:
    return from_digest(hashlib.sha256(text.data).digest())


def from_digest(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little")
