"""Sending what the first rank has to all others: any object, its tensors one after another, so that no second copy of them is held."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def broadcast_object(value: Any, is_first: bool, first: int, group: dist.ProcessGroup) -> Any:
    """`value` of the first rank (whose number is `first`). The ranks of one run trust each other; nothing here is ever read from a disk."""
    if is_first:
        packed, tensors = _packed(value)
        head: list[Any] = [packed, [(tuple(t.shape), t.dtype) for t in tensors]]
    else:
        head, tensors = [None, None], []
    dist.broadcast_object_list(head, first, group=group)
    if not is_first:
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in head[1]]
    for tensor in tensors:
        dist.broadcast(tensor, first, group=group)
    return value if is_first else _Unpacker(io.BytesIO(head[0]), tensors).load()


def _packed(value: Any) -> tuple[bytes, list[Tensor]]:
    stream = io.BytesIO()
    packer = _Packer(stream)
    packer.dump(value)
    return stream.getvalue(), packer.tensors


class _Packer(pickle.Pickler):
    def __init__(self, stream: io.BytesIO):
        super().__init__(stream)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        self.tensors.append(value.detach().contiguous().cpu())
        return len(self.tensors) - 1


class _Unpacker(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, tensors: list[Tensor]):
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]
