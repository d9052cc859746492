"""Evaluation: mean loss of given windows of tokens, in eval mode, with its standard error and every batch's loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nanoscope.model.loss import WithLoss
from nanoscope.train.feed import Batch
from nanoscope.train.machine import Machine


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
