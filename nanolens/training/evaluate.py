"""Evaluation: mean loss of given windows of tokens, in eval mode, with its standard error and every batch's loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nanolens.model.loss import WithLoss
from nanolens.train.evaluation_sets import EvaluationSets, NanoGPTSets
from nanolens.training.distributed.ranks import Ranks
from nanolens.training.feed import Batch
from nanolens.training.machine import Machine


@dataclass(frozen=True)
class Evaluation:
    loss: float  # mean nats per token
    standard_error: float  # of `loss`, over batches; NaN for a single batch
    batch_losses: tuple[float, ...]
    tokens: int
    took_s: float

    def bits_per_byte(self, bytes_per_token: float | None) -> float | None:
        return self.loss / math.log(2) / bytes_per_token if bytes_per_token else None


def evaluate(
    model: nn.Module, batches: Iterable[Batch], machine: Machine, check: Callable[[], None] = lambda: None, at_once: int | None = None
) -> Evaluation:
    """`model` is a WithLoss (compiled or not). `check` is called before each batch: it may raise to end the evaluation. At most `at_once`
    sequences go through the model together; a batch stays a batch in the result."""
    started_at_s = time.perf_counter()
    was_training = model.training
    model.eval()
    losses, weights = [], []
    try:
        with torch.no_grad(), machine.autocast():
            for x, y in batches:
                check()
                losses.append(_loss_of(model, x, y, at_once or len(x)))
                weights.append(y.numel())
    finally:
        model.train(was_training)
    return summary(losses, weights, time.perf_counter() - started_at_s)


def evaluate_together(
    model: nn.Module, sets: EvaluationSets, split: str, machine: Machine, ranks: Ranks, at_once: int | None = None
) -> Evaluation:
    """As `evaluate` of all batches of the split, each rank doing every n-th; the same numbers on all ranks. Ends with Stopped on all ranks
    where one was asked to stop."""
    started_at_s = time.perf_counter()
    count = sets.count(split)
    model.eval()
    losses: list[float] = []
    weights: list[int] = []
    try:
        with torch.no_grad(), machine.autocast():
            for first in range(0, count, ranks.size):
                in_round = min(ranks.size, count - first)
                # Nobody may stay behind where a forward pass gathers parameters: ranks without a batch of their own go through one again.
                wanted = first + (ranks.rank if ranks.rank < in_round else 0)
                batches = {number: sets.batch(split, number) for number in _asked_for(sets, first, in_round, wanted)}
                x, y = batches[wanted]
                is_own = ranks.rank < in_round
                loss = _loss_of(model, x, y, at_once or len(x)) if is_own or ranks.is_sharded else 0.0
                for seen, weight in ranks.gather([loss, float(y.numel())])[:in_round]:
                    losses.append(seen)
                    weights.append(int(weight))
    finally:
        model.train()
    return summary(losses, weights, time.perf_counter() - started_at_s)


def _asked_for(sets: EvaluationSets, first: int, in_round: int, wanted: int) -> range:
    """Random draws have to be made by all ranks alike; fixed sets are only read where they are needed."""
    return range(first, first + in_round) if isinstance(sets, NanoGPTSets) else range(wanted, wanted + 1)


def _loss_of(model: nn.Module, x: Tensor, y: Tensor, at_once: int) -> float:
    if at_once >= len(x):
        return model(x, y).plain.float().item()
    pieces = zip(x.split(at_once), y.split(at_once), strict=True)
    return sum(model(idx, targets).plain.float().item() * len(idx) for idx, targets in pieces) / len(x)


def summary(losses: list[float], weights: list[int], took_s: float) -> Evaluation:
    """Weighted by tokens: the last batch of a whole split is shorter than the others."""
    tokens, count = sum(weights), len(losses)
    if len(set(weights)) == 1:
        mean = torch.tensor(losses).mean().item()  # in float32 and torch's order, as nanoGPT takes it
    else:
        mean = sum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / tokens
    with np.errstate(all="ignore"):  # losses may be infinite, and are reported so
        error = float(np.std(losses, ddof=1) / math.sqrt(count)) if count > 1 else math.nan
    return Evaluation(mean, error, tuple(losses), tokens, took_s)


def evaluate_model(model: nn.Module, batches: Iterable[Batch], machine: Machine) -> Evaluation:
    """For a bare model: comparison and probes hand in their own windows."""
    return evaluate(WithLoss(model), batches, machine)
