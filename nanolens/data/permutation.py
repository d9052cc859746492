"""A shuffle that is never written down: the place of item i is computed from a key, at any size, at once.

A Feistel network mixes an index of `bits` bits one half at a time; whatever the mixing function, each round can be undone, so the whole
is a permutation of 0 .. 2**bits - 1. Results that fall outside 0 .. count - 1 are sent through again until they fall inside ("cycle
walking"), which keeps it a permutation of exactly `count` items and takes fewer than two rounds on average.
"""

from __future__ import annotations

import numpy as np

ROUNDS = 6  # even, so that halves of unequal width end where they began; 4 would do for looks, 6 cost nothing
MASK = (1 << 64) - 1


def permute(index: np.ndarray, count: int, key: int) -> np.ndarray:
    """Where each of `index` (all below `count`) stands in the shuffle named by `key`."""
    index = np.asarray(index, dtype=np.uint64)
    place = _mix_once(index, count, key)
    while len(outside := np.flatnonzero(place >= count)):
        place[outside] = _mix_once(place[outside], count, key)
    return place.astype(np.int64)


def keyed(*parts: int) -> int:
    """64 random-looking bits that depend on every bit of every part; parts may be of any size."""
    state = len(parts)
    for part in parts:
        while True:
            state = _scramble(state ^ (part & MASK))
            part >>= 64
            if part in (0, -1):
                break
    return state


def _mix_once(index: np.ndarray, count: int, key: int) -> np.ndarray:
    bits = max(2, (count - 1).bit_length())
    left_bits, right_bits = bits // 2, bits - bits // 2
    left, right = index >> np.uint64(right_bits), index & np.uint64((1 << right_bits) - 1)
    for turn in range(ROUNDS):
        mixed = _scramble_array(right ^ np.uint64(keyed(key, turn))) >> np.uint64(64 - left_bits)
        left, right = right, left ^ mixed
        left_bits, right_bits = right_bits, left_bits
    return (left << np.uint64(right_bits)) | right


def _scramble(word: int) -> int:
    """The finishing steps of splitmix64 (Steele, Lea, Flood 2014)."""
    word = (word + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def _scramble_array(words: np.ndarray) -> np.ndarray:
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
