"""What keeps a bad number or a full memory from ruining a run.

A non-finite loss or gradient is noticed before the optimizer is called, so weights and moments stay bit for bit what they were. The update
is skipped; more than `skip_budget` skips within 100 tries mean that the weights or the data are bad: the run goes back to its newest good
checkpoint and on with data that it has not met. If that does not help either, it stops and says what it saw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from nanolens.checkpoint.sharded import each_own_part, whole

WINDOW_TRIES = 100
ROLLBACKS_ALLOWED = 1


def global_norm(gradients: list[Tensor]) -> Tensor:
    return whole(torch.nn.utils.get_total_norm(gradients))


def clip(gradients: list[Tensor], norm: float, limit: float) -> bool:
    """Shortens the gradients to `limit` (0: never); True where that changed them."""
    factor = limit / (norm + 1e-6)
    if not limit or factor >= 1.0:
        return False
    torch._foreach_mul_(each_own_part(gradients), factor)
    return True


def first_bad_layer(named: Iterable[tuple[str, nn.Parameter]]) -> str:
    """Name of the first parameter whose gradient is not finite; empty where all are."""
    for name, parameter in named:
        if parameter.grad is not None and not bool(torch.isfinite(whole(parameter.grad)).all()):
            return name
    return ""


def is_over_budget(skipped: list[int], tries: int, budget: int) -> bool:
    """Whether more than `budget` of the last tries were skipped; forgets the older ones."""
    skipped[:] = [number for number in skipped if number > tries - WINDOW_TRIES]
    return len(skipped) > budget


def is_out_of_memory(error: BaseException) -> bool:
    """torch has one exception for CUDA and plain RuntimeErrors for CPUs and Apple GPUs."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)


def is_finite(*numbers: float) -> bool:
    return all(math.isfinite(number) for number in numbers)
