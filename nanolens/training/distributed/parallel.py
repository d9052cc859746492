"""Data parallelism: each rank has the whole model, and gradients are averaged while the backward pass still goes on (torch's DDP)."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

BUCKETS = 8  # gradients are sent in about so many pieces: fewer leave nothing to do meanwhile, more cost a round trip each
SMALLEST_BUCKET_MB, LARGEST_BUCKET_MB = 0.25, 25.0
WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


# Buffers are never changed by a forward pass. torch has renamed the switch.
BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in signature(DistributedDataParallel).parameters else "broadcast_buffers"


class Averaging:
    """A module whose backward pass ends with the mean gradient of all ranks, and a clock on what that costs."""

    def __init__(self, with_loss: nn.Module, group: dist.ProcessGroup, size: int):
        self._size = size
        self._caller = _Caller(with_loss)
        size_mb = sum(p.numel() * p.element_size() for p in with_loss.parameters() if p.requires_grad) / 2**20
        device = next(with_loss.parameters()).device
        is_own_model = not type(getattr(with_loss, "model", with_loss)).__module__.startswith("nanolens.")
        options: dict[str, Any] = {
            "find_unused_parameters": is_own_model,  # a user's model may have some; ours have none, and looking for them takes time
            BUFFERS: False, "gradient_as_bucket_view": True, "device_ids": [device.index] if device.type == "cuda" else None,
            "bucket_cap_mb": min(LARGEST_BUCKET_MB, max(SMALLEST_BUCKET_MB, size_mb / BUCKETS)),
        }  # fmt: skip
        self.run = DistributedDataParallel(self._caller, process_group=group, **options)
        self.run.register_comm_hook(group, self._average)
        self._clock = _CudaClock() if device.type == "cuda" else _Clock()

    @property
    def called(self) -> nn.Module:
        """What is called without any averaging, for evaluations."""
        return self._caller.called[0]

    def call(self, module: nn.Module) -> None:
        """Another form of the same model, with the same parameters (a compiled one)."""
        self._caller.called = (module,)

    def only_adding(self) -> AbstractContextManager[None]:
        return self.run.no_sync()

    def exposed_s(self) -> float:
        """Since the last backward pass: how long this rank, its own gradients ready, waited for the mean."""
        return self._clock.end()

    def comm_s(self) -> float:
        """How long gradients were on their way in the last update, whether or not anybody waited."""
        return self._clock.in_flight_s()

    def _average(self, group, bucket):  # torch reads the annotations of such a hook, and understands none that are strings
        buffer = bucket.buffer().div_(self._size)
        self._clock.ready()
        sent: Any = dist.all_reduce(buffer, group=group, async_op=True)
        return sent.get_future().then(self._clock.arrived)


class _Caller(nn.Module):
    def __init__(self, with_loss: nn.Module):
        super().__init__()
        self.with_loss = with_loss
        self.called: tuple[nn.Module] = (with_loss,)  # in a tuple, for a second module with the same parameters would be registered too

    def forward(self, idx: Tensor, targets: Tensor) -> Any:
        return self.called[0](idx, targets)


class _Clock:
    def __init__(self) -> None:
        self._ready_at_s = 0.0
        self._sent: list[float] = []
        self._came: list[float] = []
        self._last_in_flight_s = 0.0

    def ready(self) -> None:
        self._ready_at_s = time.perf_counter()
        self._sent.append(self._ready_at_s)

    def arrived(self, future: torch.futures.Future) -> Tensor:
        self._came.append(time.perf_counter())
        return future.value()[0]

    def end(self) -> float:
        now_s = time.perf_counter()
        exposed_s = now_s - self._ready_at_s if self._sent else 0.0
        self._last_in_flight_s = _union(self._sent, self._came)
        self._sent, self._came = [], []
        return exposed_s

    def in_flight_s(self) -> float:
        return self._last_in_flight_s


def _union(sent: list[float], came: list[float]) -> float:
    """Time during which at least one of them was on its way. They come in the order in which they were sent."""
    total_s, until_s = 0.0, 0.0
    for start_s, end_s in zip(sorted(sent), sorted(came), strict=False):
        total_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


class _CudaClock(_Clock):
    """The device runs behind the program: events in its queue tell when it got there."""

    def __init__(self) -> None:
        super().__init__()
        self._marks: list[torch.cuda.Event] = []

    def ready(self) -> None:
        self._marks.append(torch.cuda.Event(enable_timing=True))
        self._marks[-1].record()

    def arrived(self, future: torch.futures.Future) -> Tensor:
        return future.value()[0]

    def end(self) -> float:
        marks, self._marks = self._marks, []
        end = torch.cuda.Event(enable_timing=True)
        end.record()
        end.synchronize()  # the loss is read right after this anyway
        self._last_in_flight_s = marks[0].elapsed_time(end) / 1000 if marks else 0.0
        return marks[-1].elapsed_time(end) / 1000 if marks else 0.0


@torch.no_grad()
def digest(model: nn.Module) -> int:
    """64 bits that any changed bit of any weight changes: a sum of all weights, taken as whole numbers, each tensor times an odd factor."""
    total, factor = 0, 1
    for parameter in model.parameters():
        bits = parameter.detach().contiguous().view(WHOLE[parameter.element_size()])
        factor = (factor * 0x9E3779B97F4A7C15 + 2) & 0xFFFFFFFFFFFFFFFF | 1
        total = (total + int(bits.sum(dtype=torch.int64)) * factor) & 0xFFFFFFFFFFFFFFFF
    return total
