"""Faults that are put into one rank, by name, for tests."""

from __future__ import annotations

import dataclasses
import time

import torch

import nanolens.training.step as step_module
from nanolens.training.distributed.ranks import Ranks

_gather = step_module.gather_gradients


def slow_rank_1(ranks: Ranks) -> None:
    """Rank 1 takes 60 ms longer for its gradients."""
    _before_gradients(ranks, 1, lambda step: time.sleep(0.06))


def drifting_rank_1(ranks: Ranks) -> None:
    """One weight of rank 1 changes by the smallest amount after step 7."""

    def gather(trainee, *rest):
        if ranks.rank == 1 and trainee.progress.step == 7:
            with torch.no_grad():
                weight = next(trainee.model.parameters()).view(-1)
                weight[3] = torch.nextafter(weight[3], torch.tensor(10.0, dtype=weight.dtype))
        return _gather(trainee, *rest)

    step_module.gather_gradients = gather


def hanging_rank_1(ranks: Ranks) -> None:
    """Rank 1 stays in step 5 for some minutes."""
    _before_gradients(ranks, 1, lambda step: time.sleep(300) if step == 5 else None)


def failing_rank_1(ranks: Ranks) -> None:
    def fail(step: int) -> None:
        if step == 3:
            raise ValueError("a fault of rank 1")

    _before_gradients(ranks, 1, fail)


def poisoned_rank_1(ranks: Ranks) -> None:
    """Rank 1 sees a loss that is not finite after step 3."""

    def gather(trainee, *rest):
        seen = _gather(trainee, *rest)
        if ranks.rank == 1 and trainee.progress.step == 3 and trainee.progress.tries == 3:
            return dataclasses.replace(seen, loss=seen.loss * float("nan"))
        return seen

    step_module.gather_gradients = gather


def paced(ranks: Ranks) -> None:
    """Every update takes at least 30 ms, so that there is time to kill somebody."""
    _before_gradients(ranks, None, lambda step: time.sleep(0.03))


def _before_gradients(ranks: Ranks, rank: int | None, work) -> None:
    def gather(trainee, *rest):
        if rank is None or ranks.rank == rank:
            work(trainee.progress.step)
        return _gather(trainee, *rest)

    step_module.gather_gradients = gather
