"""Batches for the loop, on the device, in an order that a checkpoint can continue.

`Feed.take(sample)` gives the batch that starts at that global sample; `Feed.prefetch(sample)` may gather it while the device computes.
Shuffled order is a pure function of (seed, sample). nanoGPT's order is a stream of random draws: `sample` is only counted there, and
the feed has a state (the draw that is pending, and torch's generator) which goes into the checkpoint.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from nanolens.config.fields import Config
from nanolens.data.batches import NanoGPTOrder, Shuffled, gather
from nanolens.train.share import Share

MASK = (1 << 64) - 1
PLACES_AHEAD = 64  # batches whose places are computed together
Batch = tuple[Tensor, Tensor]  # ids (B, T) and the ids that follow each of them


class Feed(Protocol):
    def take(self, sample: int) -> Batch: ...
    def prefetch(self, sample: int) -> None: ...
    def seed_dropout(self, sample: int) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


class ShuffledFeed:
    def __init__(self, tokens: np.ndarray, block_size: int, batch_size: int, seed: int, device: torch.device):
        self._order = Shuffled(tokens, block_size, seed)
        self._batch_size, self._seed, self._device = batch_size, seed, device
        self._places, self._places_from = np.zeros(0, dtype=np.int64), 0  # where the samples from a cursor on begin
        self._ahead: tuple[int, Batch] | None = None

    def take(self, sample: int) -> Batch:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == sample:
            return ahead[1]
        return self._gather(sample)

    def prefetch(self, sample: int) -> None:
        if self._device.type != "cpu":  # on a CPU there is nothing to overlap with
            self._ahead = (sample, self._gather(sample))

    def _gather(self, sample: int) -> Batch:
        first = sample - self._places_from
        if first < 0 or first + self._batch_size > len(self._places):
            # Shuffling costs as much for one sample as for a thousand.
            self._places, self._places_from, first = self._order.windows(sample, PLACES_AHEAD * self._batch_size), sample, 0
        places = self._places[first : first + self._batch_size]
        return on_device(gather(self._order.tokens, places, self._order.block_size), self._device)

    def seed_dropout(self, sample: int) -> None:
        """What is dropped is a function of (seed, sample), as the order is: to resume or to branch needs no generator's state."""
        seed_generators(_mixed(self._seed, sample), self._device)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        self._ahead = None


class NanoGPTFeed:
    """Draws as nanoGPT does: from torch's own generator, the next batch right after the forward pass of the one before."""

    def __init__(self, tokens: np.ndarray, block_size: int, batch_size: int, device: torch.device):
        self._batch_size, self._device = batch_size, device
        self._given: np.ndarray | None = None  # a draw that a checkpoint remembers, to be used instead of a new one
        self._drawn: np.ndarray | None = None
        self._order = NanoGPTOrder(tokens, block_size, self._draw)
        self._pending: Batch | None = None
        self._at_start: dict[str, Any] = {}

    def take(self, sample: int) -> Batch:
        if self._pending is None:
            self.prefetch(sample)
        batch, self._pending = self._pending, None
        assert batch is not None
        return batch

    def prefetch(self, sample: int) -> None:
        self._pending = on_device(self._order.gather(sample, self._batch_size), self._device)

    def seed_dropout(self, sample: int) -> None:
        """Nothing: nanoGPT drops from the stream that it draws batches from."""

    def state(self) -> dict[str, Any]:
        pending = [] if self._pending is None or self._drawn is None else self._drawn.tolist()
        state = {"pending": pending, "generator": torch.get_rng_state()}
        if self._device.type == "cuda":  # dropout draws from the device's own
            state["device_generator"] = torch.cuda.get_rng_state(self._device)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        self._pending = None
        if not state:
            return
        torch.set_rng_state(state["generator"])
        if self._device.type == "cuda" and "device_generator" in state:
            torch.cuda.set_rng_state(state["device_generator"], self._device)
        if state["pending"]:
            self._given = np.asarray(state["pending"], dtype=np.int64)
            self.prefetch(0)

    def _draw(self, high: int, count: int) -> np.ndarray:
        if self._given is not None:
            self._drawn, self._given = self._given, None
        else:
            self._drawn = torch.randint(high, (count,)).numpy()
        return self._drawn


class NanoGPTFeedTogether:
    """The same draws as one process would make, on every rank, from a generator that nothing else draws from; each rank reads only its own.

    Dropout is a function of (seed, sample), as it is for shuffled data: ranks that drop cannot all draw from one stream.
    """

    def __init__(self, tokens: np.ndarray, config: Config, share: Share, device: torch.device):
        self.generator = torch.Generator()
        self.generator.set_state(torch.get_rng_state())
        self._tokens, self._block, self._seed, self._device = tokens, config.block_size, config.seed, device
        self._batch_size, self._micro_batches, self._share = config.batch_size, config.gradient_accumulation_steps, share
        self._pending: np.ndarray | None = None  # the first micro-batch of the update that comes: nanoGPT draws it early
        self._starts = np.zeros(0, dtype=np.int64)  # of all sequences of this update
        self._taken = 0  # micro-batches of this rank in this update

    def take(self, sample: int) -> Batch:
        if self._taken == 0:
            first = self._draw() if self._pending is None else self._pending
            self._starts = np.concatenate([first, *(self._draw() for _ in range(self._micro_batches - 1))])
            self._pending = None
        place = self._share.first + self._taken * self._share.stride
        self._taken += 1
        return on_device(gather(self._tokens, self._starts[place : place + self._share.size], self._block), self._device)

    def prefetch(self, sample: int) -> None:
        if self._taken in (0, self._share.count) and self._pending is None:
            self._pending, self._taken = self._draw(), 0

    def seed_dropout(self, sample: int) -> None:
        seed_generators(_mixed(self._seed, sample), self._device)

    def state(self) -> dict[str, Any]:
        return {"pending": [] if self._pending is None else self._pending.tolist(), "generator": self.generator.get_state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._taken = 0
        if state:
            self.generator.set_state(state["generator"])
            self._pending = np.asarray(state["pending"], dtype=np.int64) if state["pending"] else None

    def _draw(self) -> np.ndarray:
        return torch.randint(len(self._tokens) - self._block, (self._batch_size,), generator=self.generator).numpy()


def seed_generators(seed: int, device: torch.device) -> None:
    # Not torch.manual_seed: for each device that is not in use it remembers the call, with a traceback, forever.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def _mixed(seed: int, sample: int) -> int:
    """splitmix64 of both numbers: neighbouring samples get unrelated seeds."""
    z = (seed * 0x9E3779B97F4A7C15 + (sample + 1) * 0xD1B54A32D192ED03) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return (z ^ (z >> 31)) >> 1  # torch takes 63 bits


def on_device(arrays: tuple[np.ndarray, np.ndarray], device: torch.device) -> Batch:
    x, y = (torch.from_numpy(array) for array in arrays)
    if device.type == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x.to(device), y.to(device)
