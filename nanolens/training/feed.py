"""Batches for the loop, on the device, in an order that a checkpoint can continue.

Shuffled order is a pure function of (seed, sample). nanoGPT's order is a stream of random draws: `sample` is only
counted there, and the feed has a state (the draw that is pending, and torch's generator) which goes into the
checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nanolens.config.fields import Config
from nanolens.data.batches import MASK, ShuffledWindows, gather, require_window, splitmix64
from nanolens.training.distributed.ranks import Partition

PLACES_AHEAD = 64  # batches whose places are computed together
FeedState = dict[str, Any]  # generators and pending draws; empty where the sample number says it all
Batch = tuple[Tensor, Tensor]  # ids (B, T) and the ids that follow each of them


class Feed:
    def __init__(self, tokens: np.ndarray, block_size: int, batch_size: int, seed: int, device: torch.device):
        require_window(tokens, block_size, "train")
        self._tokens, self._block, self._batch_size, self._seed = tokens, block_size, batch_size, seed
        self._device = device

    def take(self, sample: int) -> Batch:
        """The batch that starts at that global sample."""
        raise NotImplementedError

    def prefetch(self, sample: int) -> None:
        """May gather the batch while the device computes."""

    def seed_dropout(self, sample: int) -> None:
        """What is dropped is a function of (seed, sample), as the order is: resuming needs no generator's state, and
        ranks need not draw from one stream."""
        seed = _mixed(self._seed, sample)
        # Not torch.manual_seed: for each device that is not in use it remembers the call, with a traceback, forever.
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)
        elif self._device.type == "mps":
            torch.mps.manual_seed(seed)

    def state(self) -> FeedState:
        return {}

    def restore(self, state: FeedState) -> None:
        raise NotImplementedError

    def _gather(self, starts: np.ndarray) -> Batch:
        return on_device(gather(self._tokens, starts, self._block), self._device)


class ShuffledFeed(Feed):
    _places, _places_from = np.zeros(0, dtype=np.int64), 0  # where the samples from a cursor on begin
    _ahead: tuple[int, Batch] | None = None

    def take(self, sample: int) -> Batch:
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead is not None and ahead[0] == sample else self._read(sample)

    def prefetch(self, sample: int) -> None:
        if self._device.type != "cpu":  # on a CPU there is nothing to overlap with
            self._ahead = (sample, self._read(sample))

    def restore(self, state: FeedState) -> None:
        self._ahead = None

    def _read(self, sample: int) -> Batch:
        first = sample - self._places_from
        if first < 0 or first + self._batch_size > len(self._places):
            # Shuffling costs as much for one sample as for a thousand.
            order = ShuffledWindows(self._tokens, self._block, self._seed)
            self._places = order.windows(sample, PLACES_AHEAD * self._batch_size)
            self._places_from, first = sample, 0
        return self._gather(self._places[first : first + self._batch_size])


class NanoGPTFeed(Feed):
    """Draws as nanoGPT does: from torch's own generator, the next batch right after the forward pass of the last."""

    _pending: Batch | None = None  # the batch that was drawn ahead
    _starts = np.zeros(0, dtype=np.int64)  # where its sequences begin

    def take(self, sample: int) -> Batch:
        if self._pending is None:
            self.prefetch(sample)
        batch, self._pending = self._pending, None
        assert batch is not None
        return batch

    def prefetch(self, sample: int) -> None:
        self._read_ahead(draw_starts(self._tokens, self._block, self._batch_size))

    def seed_dropout(self, sample: int) -> None:
        """Nothing: nanoGPT drops from the stream that it draws batches from."""

    def state(self) -> FeedState:
        pending = [] if self._pending is None else self._starts.tolist()
        state = {"pending": pending, "generator": torch.get_rng_state()}
        if self._device.type == "cuda":  # dropout draws from the device's own
            state["device_generator"] = torch.cuda.get_rng_state(self._device)
        return state

    def restore(self, state: FeedState) -> None:
        self._pending = None
        if not state:
            return
        torch.set_rng_state(state["generator"])
        if self._device.type == "cuda" and "device_generator" in state:
            torch.cuda.set_rng_state(state["device_generator"], self._device)
        if state["pending"]:
            self._read_ahead(np.asarray(state["pending"], dtype=np.int64))

    def _read_ahead(self, starts: np.ndarray) -> None:
        self._starts, self._pending = starts, self._gather(starts)


class NanoGPTFeedTogether(Feed):
    """The same draws as one process would make, on every rank, from a generator that nothing else draws from; each rank
    reads only its own."""

    def __init__(self, tokens: np.ndarray, config: Config, part: Partition, device: torch.device):
        super().__init__(tokens, config.block_size, config.batch_size, config.seed, device)
        self.generator = torch.Generator()
        self.generator.set_state(torch.get_rng_state())
        self._part, self._micro_batches = part, config.gradient_accumulation_steps
        # the first micro-batch of the update that comes: nanoGPT draws it early
        self._pending: np.ndarray | None = None
        self._starts = np.zeros(0, dtype=np.int64)  # of all sequences of this update
        self._taken = 0  # micro-batches of this rank in this update

    def take(self, sample: int) -> Batch:
        if self._taken == 0:
            first = self._draw() if self._pending is None else self._pending
            self._starts = np.concatenate([first, *(self._draw() for _ in range(self._micro_batches - 1))])
            self._pending = None
        place = self._part.first + self._taken * self._part.stride
        self._taken += 1
        return self._gather(self._starts[place : place + self._part.size])

    def prefetch(self, sample: int) -> None:
        if self._taken in (0, self._part.count) and self._pending is None:
            self._pending, self._taken = self._draw(), 0

    def state(self) -> FeedState:
        pending = [] if self._pending is None else self._pending.tolist()
        return {"pending": pending, "generator": self.generator.get_state()}

    def restore(self, state: FeedState) -> None:
        self._taken = 0
        if state:
            self.generator.set_state(state["generator"])
            self._pending = np.asarray(state["pending"], dtype=np.int64) if state["pending"] else None

    def _draw(self) -> np.ndarray:
        return draw_starts(self._tokens, self._block, self._batch_size, self.generator)


def draw_starts(tokens: np.ndarray, block: int, count: int, generator: torch.Generator | None = None) -> np.ndarray:
    """Where `count` windows begin, as nanoGPT draws them: with replacement, from anywhere."""
    return torch.randint(len(tokens) - block, (count,), generator=generator).numpy()


def _mixed(seed: int, sample: int) -> int:
    """splitmix64 of both numbers: neighbouring samples get unrelated seeds."""
    return splitmix64((seed * 0x9E3779B97F4A7C15 + (sample + 1) * 0xD1B54A32D192ED03) & MASK) >> 1  # torch: 63 bits


def on_device(arrays: tuple[np.ndarray, np.ndarray], device: torch.device) -> Batch:
    x, y = (torch.from_numpy(array) for array in arrays)
    if device.type == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x.to(device), y.to(device)
