"""Short names for data: equal names mean equal tokens, whatever file, folder or number width they came in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from nanolens.data.sidecar import TokensOnDisk

WHOLE = 1 << 22  # up to this many tokens each one counts; beyond, evenly spaced blocks do, so that 10 B tokens take no time either
BLOCK, BLOCKS = 1 << 14, 256


def fingerprint_of_tokens(tokens: np.ndarray | TokensOnDisk) -> str:
    """Of a split. A dataset that was prepared otherwise differs; to find a flipped bit in a large file, use the folder's manifest."""
    digest = hashlib.sha256(f"tokens {len(tokens)}".encode())
    for block in _blocks(tokens):
        digest.update(block.astype("<u4").tobytes())
    return digest.hexdigest()[:16]


def combined(*fingerprints: str) -> str:
    return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:16]


def _blocks(tokens: np.ndarray | TokensOnDisk) -> Iterator[np.ndarray]:
    if len(tokens) <= WHOLE:
        starts = np.arange(0, len(tokens), BLOCK)
    else:
        starts = np.linspace(0, len(tokens) - BLOCK, BLOCKS).astype(np.int64)
    for start in starts:
        yield tokens[start : start + BLOCK]
