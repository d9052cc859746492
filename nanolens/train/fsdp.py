"""Sharding: each rank holds a part of every parameter, gradient and moment, and gathers a block's parameters when it needs them (FSDP2)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def shard(with_loss: nn.Module, group: dist.ProcessGroup, device: torch.device) -> None:
    """Block by block, so that never more than one block is whole on a device; head, embedding and loss stay together in the root."""
    mesh = DeviceMesh.from_group(group, device.type)
    for block in blocks_of(with_loss):
        fully_shard(block, mesh=mesh)
    fully_shard(with_loss, mesh=mesh)


def blocks_of(module: nn.Module) -> list[nn.Module]:
    return [block for found in module.modules() if isinstance(found, nn.ModuleList) for block in found]


@contextlib.contextmanager
def unsharded(with_loss: nn.Module) -> Iterator[None]:
    """In the block, the root's parameters are whole. Its blocks gather theirs when they are called."""
    fully_shard.state(with_loss)._lazy_init()  # type: ignore[attr-defined]  # which else its first forward pass would do
    with_loss.unshard()  # type: ignore[operator]
    try:
        yield
    finally:
        with_loss.reshard()  # type: ignore[operator]
