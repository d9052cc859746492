"""Which tokens make up a batch, in a shuffle that is never written down.

`ShuffledWindows` is a pure function of the tokens, the seed and the sample cursor, the number of windows taken so far:
resuming, rolling back, branching, and changing the micro-batch or the number of ranks are only another cursor.
nanoGPT's order, which is drawn from torch's generator, is in training/feed.py. Evaluations use windows that are fixed
once or the whole split: two of them can be compared batch by batch whenever their fingerprints are equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from nanolens.data.token_files import fingerprint_of_tokens
from nanolens.errors import fault
from nanolens.message import msg

CIPHER_ROUNDS = 6  # even, so that halves of unequal width end where they began; 4 would do for looks, 6 cost nothing
MASK = (1 << 64) - 1


def permute(index: np.ndarray, count: int, key: int) -> np.ndarray:
    """Where each of `index` (all below `count`) stands in the shuffle named by `key`, at any size, at once.

    A Feistel network mixes an index of `bits` bits one half at a time; whatever the mixing function, each round can be
    undone, so the whole is a permutation of 0 .. 2**bits - 1. Results outside 0 .. count - 1 are sent through again
    until they fall inside ("cycle walking"): still a permutation, in fewer than two passes on average."""
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
    left, right = index >> right_bits, index & ((1 << right_bits) - 1)
    for turn in range(CIPHER_ROUNDS):
        left, right = right, left ^ (_scramble(right ^ keyed(key, turn)) >> (64 - left_bits))
        left_bits, right_bits = right_bits, left_bits
    return (left << right_bits) | right


Words = TypeVar("Words", int, np.ndarray)  # of 64 bits; an array wraps around by itself


def _scramble(words: Words) -> Words:
    return splitmix64((words + 0x9E3779B97F4A7C15) & MASK)


def splitmix64(words: Words) -> Words:
    """Its finishing steps (Steele, Lea, Flood 2014)."""
    words = ((words ^ (words >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    words = ((words ^ (words >> 27)) * 0x94D049BB133111EB) & MASK
    return words ^ (words >> 31)


Batch = tuple[np.ndarray, np.ndarray]
"""Inputs and targets, int64, both (sequences, block_size); a target is the token after its input."""

ORDER, OFFSET, EVALUATION = 1, 2, 3  # what a random number is for, so that no two uses share one


class ShuffledWindows:
    """Windows of block_size targets, each once per epoch, in an order that is computed and never stored.

    The tokens are read as a ring: of N tokens, N - 1 are targets, an epoch has (N - 1) // block_size windows that begin
    at a random target of the ring, and the fewer than block_size targets that do not fill a window are others in each
    epoch. The one window that runs over the end goes on at the beginning."""

    def __init__(self, tokens: np.ndarray, block_size: int, seed: int):
        require_window(tokens, block_size, "train")
        self.tokens, self.block_size, self.seed = tokens, block_size, seed
        self.ring = len(tokens) - 1
        self.windows_per_epoch = self.ring // block_size

    def windows(self, cursor: int, count: int) -> np.ndarray:
        """Where samples cursor .. cursor + count - 1 begin."""
        epochs, places = np.divmod(cursor + np.arange(count), self.windows_per_epoch)
        starts = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            order = permute(places[here], self.windows_per_epoch, keyed(self.seed, ORDER, epoch))
            starts[here] = (order * self.block_size + keyed(self.seed, OFFSET, epoch) % self.ring) % self.ring
        return starts

    def gather(self, cursor: int, count: int) -> Batch:
        return gather(self.tokens, self.windows(cursor, count), self.block_size)


def gather(tokens: np.ndarray, starts: np.ndarray, block_size: int) -> Batch:
    """Windows that begin at `starts`; one that runs over the end of the tokens goes on at their beginning."""
    tokens = np.asarray(tokens)  # a plain view: slices of a memmap would be memmaps, and slow
    last = len(tokens) - 1 - block_size
    every = np.lib.stride_tricks.sliding_window_view(tokens, block_size + 1)
    rows = every[np.minimum(starts, last)].astype(np.int64)
    inputs, targets = rows[:, :-1].copy(), rows[:, 1:].copy()
    for row in np.flatnonzero(starts > last):
        place = (starts[row] + np.arange(block_size)) % (len(tokens) - 1)
        inputs[row], targets[row] = tokens[place], tokens[place + 1]
    return inputs, targets


@dataclass(frozen=True)
class EvalBatches:
    """A fixed set of evaluation batches. Equal fingerprints: the same tokens in the same batches."""

    tokens: np.ndarray
    block_size: int
    starts: tuple[np.ndarray, ...]  # where the windows of each batch begin
    rest: int = 0  # targets of one last, shorter window that ends with the split; only a whole split has it
    fingerprint: str = ""

    def __iter__(self) -> Iterator[Batch]:
        return map(self.batch, range(len(self)))

    def batch(self, number: int) -> Batch:
        """One of them, without gathering those before it."""
        if number < len(self.starts):
            return gather(self.tokens, self.starts[number], self.block_size)
        tail = np.asarray(self.tokens[-self.rest - 1 :], dtype=np.int64)
        return tail[None, :-1], tail[None, 1:]

    def __len__(self) -> int:
        return len(self.starts) + (self.rest > 0)

    @property
    def targets(self) -> int:
        """Tokens that are predicted in one evaluation."""
        return sum(len(starts) for starts in self.starts) * self.block_size + self.rest


def eval_windows(
    split: np.ndarray, block_size: int, batch_size: int, count: int, seed: int, name: str = "val"
) -> EvalBatches:
    """`count` full batches of windows that do not overlap, chosen at random once; fewer where the split has no more,
    and one smaller batch where it has not enough for a full one."""
    require_window(split, block_size, name)
    there_are = (len(split) - 1) // block_size
    batch_size = min(batch_size, there_are)
    count = max(1, min(count, there_are // batch_size))
    chosen = permute(np.arange(count * batch_size), there_are, keyed(seed, EVALUATION)) * block_size
    # In a batch the windows are in the order of the text: reading a memory-mapped file forwards is faster.
    starts = tuple(np.sort(part) for part in chosen.reshape(count, batch_size))
    # Of the tokens themselves and of how they are batched, whatever file they came from and their width on disk
    digest = hashlib.sha256(f"windows {block_size} {[len(part) for part in starts]}".encode())
    for array in (array for part in starts for array in gather(split, part, block_size)):
        digest.update(array.astype("<u4").tobytes())
    return EvalBatches(split, block_size, starts, fingerprint=digest.hexdigest()[:16])


def whole_split(split: np.ndarray, block_size: int, batch_size: int, name: str = "val") -> EvalBatches:
    """Every target of the split once, in order. The last batches are smaller: weigh a mean loss by its targets."""
    require_window(split, block_size, name)
    there_are = (len(split) - 1) // block_size
    every = np.arange(there_are) * block_size
    starts = tuple(every[first : first + batch_size] for first in range(0, there_are, batch_size))
    rest = len(split) - 1 - there_are * block_size
    of_what = f"whole {fingerprint_of_tokens(split)} {block_size} {batch_size}"
    return EvalBatches(split, block_size, starts, rest, hashlib.sha256(of_what.encode()).hexdigest()[:16])


def require_window(tokens: np.ndarray, block_size: int, name: str) -> None:
    if len(tokens) <= block_size:
        what = msg(
            "the {split} split has {tokens:count} tokens, and one window of block_size = {block_size:count} "
            "needs {needed:count}",
            name,
            len(tokens),
            block_size,
            block_size + 1,
        )
        raise fault(what, fix=msg("use a smaller block_size, or prepare more text"))
