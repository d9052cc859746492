"""Evaluation: the mean loss of given windows of tokens, in eval mode, with its standard error and every batch's loss.
The windows are the same each time, so that two evaluations differ by the model and by nothing else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nanolens.config.fields import Config
from nanolens.data.batches import EvalBatches, eval_windows, gather, require_window, whole_split
from nanolens.model.loss import WithLoss
from nanolens.training.distributed.ranks import SINGLE_PROCESS, Ranks
from nanolens.training.feed import Batch, draw_starts, on_device
from nanolens.training.machine import Machine

EVALUATION_SEED = 0  # not the run's own: repeats of a run with other seeds are compared batch by batch


@dataclass(frozen=True)
class EvaluationSet:
    """What a split is evaluated on."""

    count: int
    batch: Callable[[int], Batch]  # by its number; of random draws always the next one
    fingerprint: str  # empty where the tokens are drawn anew each time


def evaluation_sets(
    config: Config, train: np.ndarray, val: np.ndarray, device: torch.device, generator: torch.Generator | None = None
) -> dict[str, EvaluationSet]:
    """By split. `generator`: what nanoGPT's order draws from, where that is not torch's own."""
    block, size, count, seed = config.block_size, config.batch_size, config.eval_iters, EVALUATION_SEED

    def fixed(windows: EvalBatches) -> EvaluationSet:
        """`eval_iters` batches of the split, chosen once; or each token of the val split, window after window."""
        return EvaluationSet(len(windows), lambda number: on_device(windows.batch(number), device), windows.fingerprint)

    def drawn(tokens: np.ndarray) -> EvaluationSet:
        """As nanoGPT's estimate_loss: random windows, drawn anew each time from the stream that training draws from."""
        require_window(tokens, block, "train")

        def batch(number: int) -> Batch:
            return on_device(gather(tokens, draw_starts(tokens, block, size, generator), block), device)

        return EvaluationSet(count, batch, "")

    if config.data_order == "nanogpt":
        return {"train": drawn(train), "val": drawn(val)}
    of_val = whole_split(val, block, size) if config.eval_whole else eval_windows(val, block, size, count, seed)
    return {"train": fixed(eval_windows(train, block, size, count, seed, "train")), "val": fixed(of_val)}


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
    model: nn.Module,
    windows: EvaluationSet,
    machine: Machine,
    check: Callable[[], None] = lambda: None,
    at_once: int | None = None,
    ranks: Ranks = SINGLE_PROCESS,
) -> Evaluation:
    """`model` is a WithLoss (compiled or not). `check` is called before each batch: it may raise to end the evaluation.
    At most `at_once` sequences go through the model together; a batch stays a batch in the result. Of several ranks
    each does every n-th batch, all get the same numbers, and all end with Stopped where one was asked to stop."""
    started_at_s, was_training = time.perf_counter(), model.training
    rows: list[list[float]] = []  # the loss of each batch, and its tokens
    model.eval()
    try:
        with torch.no_grad(), machine.autocast():
            for first in range(0, windows.count, ranks.size):
                in_round = min(ranks.size, windows.count - first)
                is_own = ranks.rank < in_round
                # Where a forward pass gathers parameters all take part: ranks without a batch of their own repeat one.
                wanted = first + (ranks.rank if is_own else 0)
                # Random draws have to be made by all ranks alike; fixed windows are only read where they are needed.
                needed = [wanted] if windows.fingerprint else range(first, first + in_round)
                x, y = {number: windows.batch(number) for number in needed}[wanted]
                check()
                loss = _loss_of(model, x, y, at_once) if is_own or ranks.is_sharded else 0.0
                rows += ranks.gather([loss, float(y.numel())])[:in_round]
    finally:
        model.train(was_training)
    losses, weights = [loss for loss, _ in rows], [int(tokens) for _, tokens in rows]
    return summary(losses, weights, time.perf_counter() - started_at_s)


def _loss_of(model: nn.Module, x: Tensor, y: Tensor, at_once: int | None) -> float:
    if at_once is None or at_once >= len(x):
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


def evaluate_model(model: nn.Module, batches: Sequence[Batch], machine: Machine) -> Evaluation:
    """For a bare model: comparison and probes hand in their own windows."""
    return evaluate(WithLoss(model), EvaluationSet(len(batches), batches.__getitem__, "given"), machine)
