"""Tensors of which each rank holds a part (DTensor), whole in a checkpoint: so it loads on any number of ranks, and on one.

They are told by their method `full_tensor`: a process alone need not import what makes them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """All of the tensor. All ranks must call this together; each gets it."""
    gather: Any = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def spread_like(like: Tensor, full: Tensor) -> Tensor:
    """The part of `full`, which every rank has whole, that this rank holds of `like`."""
    mesh: Any = getattr(like, "device_mesh", None)
    if mesh is None:
        return full
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full.to(like.device), mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def own_part(tensor: Tensor) -> Tensor:
    """The part that this rank holds, sharing memory with it: for arithmetic that goes element by element."""
    to_local: Any = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def each_own_part(tensors: list[Tensor]) -> list[Tensor]:
    return [own_part(tensor) for tensor in tensors] if tensors and hasattr(tensors[0], "to_local") else tensors


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(whole(one).cpu(), other)
