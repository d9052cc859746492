"""Which tokens make up a batch.

`Shuffled` is a pure function of the tokens, the seed and the sample cursor, the number of windows taken since the run began:
resuming, rolling back, branching, and changing the micro-batch or the number of ranks are only another cursor. An epoch goes
through all windows in a fresh order and from a fresh offset; each position is a target once. `NanoGPTOrder` draws windows at random
as nanoGPT does, with a draw function that the trainer hands in, because the draws come from torch's generator.

Evaluations use sets of windows that are fixed once (`eval_windows`) or the whole split (`whole_split`), so that two evaluations, or
two runs, can be compared batch by batch whenever their fingerprints are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from nanolens.data.fingerprint import fingerprint_of_tokens
from nanolens.data.permutation import keyed, permute
from nanolens.errors import fault
from nanolens.message import msg

Batch = tuple[np.ndarray, np.ndarray]
"""Inputs and targets, int64, both (sequences, block_size); a target is the token after its input."""

ORDER, OFFSET, EVALUATION = 1, 2, 3  # what a random number is for, so that no two uses share one


class Shuffled:
    """Windows of block_size targets, each once per epoch, in an order that is computed and never stored.

    The tokens are read as a ring: of N tokens, N - 1 are targets, an epoch has (N - 1) // block_size windows that begin at a random
    target of the ring, and the fewer than block_size targets that do not fill a window are others in each epoch. The one window that runs
    over the end goes on at the beginning, as windows also run over the ends of documents.
    """

    def __init__(self, tokens: np.ndarray, block_size: int, seed: int):
        require_window(tokens, block_size, "train")
        self.tokens, self.block_size, self.seed = tokens, block_size, seed
        self.ring = len(tokens) - 1
        self.windows_per_epoch = self.ring // block_size

    def window(self, cursor: int) -> int:
        """Where in the tokens sample number `cursor` begins."""
        return int(self.windows(cursor, 1)[0])

    def windows(self, cursor: int, count: int) -> np.ndarray:
        """Where samples cursor .. cursor + count - 1 begin."""
        epochs, places = np.divmod(cursor + np.arange(count), self.windows_per_epoch)
        starts = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            order = permute(places[here], self.windows_per_epoch, keyed(self.seed, ORDER, epoch))
            starts[here] = (order * self.block_size + self.offset(epoch)) % self.ring
        return starts

    def offset(self, epoch: int) -> int:
        return keyed(self.seed, OFFSET, epoch) % self.ring

    def epoch(self, cursor: int) -> float:
        """Passes over the data that lie before `cursor`."""
        return cursor / self.windows_per_epoch

    def gather(self, cursor: int, count: int) -> Batch:
        """Samples cursor .. cursor + count - 1."""
        return gather(self.tokens, self.windows(cursor, count), self.block_size)


class NanoGPTOrder:
    """Windows drawn with replacement from anywhere, as nanoGPT draws them.

    `draw(high, count)` gives `count` integers below `high`; nanoGPT's are `torch.randint(high, (count,))`. The order lives in that
    generator, so the cursor is not used: whoever resumes must restore the generator.
    """

    def __init__(self, tokens: np.ndarray, block_size: int, draw: Callable[[int, int], np.ndarray]):
        require_window(tokens, block_size, "train")
        self.tokens, self.block_size, self.draw = tokens, block_size, draw
        self.windows_per_epoch = (len(tokens) - 1) // block_size

    def epoch(self, cursor: int) -> float:
        return cursor / self.windows_per_epoch

    def gather(self, cursor: int, count: int) -> Batch:
        return gather(self.tokens, np.asarray(self.draw(len(self.tokens) - self.block_size, count)), self.block_size)


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
        for number in range(len(self)):
            yield self.batch(number)

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


def eval_windows(split: np.ndarray, block_size: int, batch_size: int, count: int, seed: int, name: str = "val") -> EvalBatches:
    """`count` full batches of windows that do not overlap, chosen at random once; fewer where the split has no more.

    A split too small for one full batch gives one smaller batch of all its windows.
    """
    require_window(split, block_size, name)
    there_are = (len(split) - 1) // block_size
    batch_size = min(batch_size, there_are)
    count = max(1, min(count, there_are // batch_size))
    chosen = permute(np.arange(count * batch_size), there_are, keyed(seed, EVALUATION)) * block_size
    # In a batch the windows are in the order of the text: reading a memory-mapped file forwards is faster.
    starts = tuple(np.sort(part) for part in chosen.reshape(count, batch_size))
    return EvalBatches(split, block_size, starts, fingerprint=_fingerprint(split, block_size, starts))


def whole_split(split: np.ndarray, block_size: int, batch_size: int, name: str = "val") -> EvalBatches:
    """Every target of the split once, in order. The last batches are smaller: weigh a batch's mean loss by its targets."""
    require_window(split, block_size, name)
    there_are = (len(split) - 1) // block_size
    every = np.arange(there_are) * block_size
    starts = tuple(every[first : first + batch_size] for first in range(0, there_are, batch_size))
    rest = len(split) - 1 - there_are * block_size
    of_what = f"whole {fingerprint_of_tokens(split)} {block_size} {batch_size}"
    return EvalBatches(split, block_size, starts, rest, hashlib.sha256(of_what.encode()).hexdigest()[:16])


def require_window(tokens: np.ndarray, block_size: int, name: str) -> None:
    if len(tokens) <= block_size:
        raise fault(
            msg(
                "the {split} split has {tokens:count} tokens, and one window of block_size = {block_size:count} needs {needed:count}",
                split=name,
                tokens=len(tokens),
                block_size=block_size,
                needed=block_size + 1,
            ),
            fix=msg("use a smaller block_size, or prepare more text"),
        )


def _fingerprint(split: np.ndarray, block_size: int, starts: tuple[np.ndarray, ...]) -> str:
    """Of the tokens themselves and of how they are batched, whatever file they came from and whatever their width on disk."""
    digest = hashlib.sha256(f"windows {block_size} {[len(part) for part in starts]}".encode())
    for part in starts:
        for array in gather(split, part, block_size):
            digest.update(array.astype("<u4").tobytes())
    return digest.hexdigest()[:16]
