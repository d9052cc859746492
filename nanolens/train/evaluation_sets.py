"""Which tokens are evaluated: the same windows each time, so that two evaluations differ by the model and by nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from nanolens.config.fields import Config
from nanolens.data.batches import NanoGPTOrder, eval_windows, whole_split
from nanolens.training.feed import Batch, on_device

SPLITS = ("train", "val")
EVALUATION_SEED = 0  # not the run's own: repeats of a run with other seeds are compared batch by batch


class FixedSets:
    """`eval_iters` batches of each split, chosen once; or each token of the val split, window after window."""

    def __init__(self, config: Config, train: np.ndarray, val: np.ndarray, device: torch.device):
        block, size, count, seed = config.block_size, config.batch_size, config.eval_iters, EVALUATION_SEED
        self._device = device
        self._sets = {
            "train": eval_windows(train, block, size, count, seed, "train"),
            "val": whole_split(val, block, size) if config.eval_whole else eval_windows(val, block, size, count, seed),
        }

    def batches(self, split: str) -> Iterator[Batch]:
        for arrays in self._sets[split]:
            yield on_device(arrays, self._device)

    def batch(self, split: str, number: int) -> Batch:
        return on_device(self._sets[split].batch(number), self._device)

    def count(self, split: str) -> int:
        return len(self._sets[split])

    def fingerprint(self, split: str) -> str:
        return self._sets[split].fingerprint


class NanoGPTSets:
    """As nanoGPT's estimate_loss: random windows, drawn anew each time from the stream that training draws from."""

    def __init__(self, config: Config, train: np.ndarray, val: np.ndarray, device: torch.device, generator: torch.Generator | None = None):
        self._device, self._config = device, config
        self._orders = {
            split: NanoGPTOrder(tokens, config.block_size, lambda high, count: torch.randint(high, (count,), generator=generator).numpy())
            for split, tokens in (("train", train), ("val", val))
        }

    def batches(self, split: str) -> Iterator[Batch]:
        for _ in range(self._config.eval_iters):
            yield on_device(self._orders[split].gather(0, self._config.batch_size), self._device)

    def batch(self, split: str, number: int) -> Batch:
        """The next one: several ranks ask for all, and evaluate some."""
        return on_device(self._orders[split].gather(0, self._config.batch_size), self._device)

    def count(self, split: str) -> int:
        return self._config.eval_iters

    def fingerprint(self, split: str) -> str:
        return ""  # never the same tokens twice


EvaluationSets = FixedSets | NanoGPTSets


def evaluation_sets(
    config: Config, train: np.ndarray, val: np.ndarray, device: torch.device, generator: torch.Generator | None = None
) -> EvaluationSets:
    """`generator`: what nanoGPT's order draws from, where that is not torch's own."""
    if config.data_order == "nanogpt":
        return NanoGPTSets(config, train, val, device, generator)
    return FixedSets(config, train, val, device)
