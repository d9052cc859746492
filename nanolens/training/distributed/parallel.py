"""How a model is spread over ranks. Data parallelism: each rank has the whole model, and gradients are averaged while
the backward pass still goes on (torch's DDP). Sharding: each rank holds a part of every parameter, gradient and moment,
and gathers a block's parameters when it needs them (FSDP2)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from inspect import signature

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nanolens.sizing.memory import GRADIENT_BUCKETS

SMALLEST_BUCKET_MB, LARGEST_BUCKET_MB = 0.25, 25.0
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Buffers are never changed by a forward pass. torch has renamed the switch.
HAS_NEW_SWITCH = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
BUFFERS = {"forward_sync_buffers" if HAS_NEW_SWITCH else "broadcast_buffers": False}


class Averaging(DistributedDataParallel):
    """A module whose backward pass ends with the mean gradient of all ranks, and a clock on what that costs."""

    def __init__(self, with_loss: nn.Module, group: dist.ProcessGroup, size: int):
        size_mb = sum(p.numel() * p.element_size() for p in with_loss.parameters() if p.requires_grad) / 2**20
        device = next(with_loss.parameters()).device
        is_own_model = not type(getattr(with_loss, "model", with_loss)).__module__.startswith("nanolens.")
        super().__init__(
            _Caller(with_loss),
            process_group=group,
            # a user's model may have some; ours have none, and looking for them takes time
            find_unused_parameters=is_own_model,
            gradient_as_bucket_view=True,
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=min(LARGEST_BUCKET_MB, max(SMALLEST_BUCKET_MB, size_mb / GRADIENT_BUCKETS)),
            **BUFFERS,  # type: ignore[arg-type]
        )
        self._ranks = size
        self._clock = _CudaClock() if device.type == "cuda" else _Clock()
        self.comm_s = 0.0  # how long gradients were on their way in the last update, whether or not anybody waited
        # in a lambda: torch reads the annotations of a hook, and does not understand strings
        self.register_comm_hook(group, lambda group, bucket: self._average(group, bucket))

    @property
    def called(self) -> nn.Module:
        """What is called without any averaging, for evaluations."""
        return self.module.called[0]

    def call(self, module: nn.Module) -> None:
        """Another form of the same model, with the same parameters (a compiled one)."""
        self.module.called = (module,)

    def exposed_s(self) -> float:
        """Since the last backward pass: how long this rank, its own gradients ready, waited for the mean."""
        exposed_s, self.comm_s = self._clock.end()
        return exposed_s

    def _average(self, group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer().div_(self._ranks)
        self._clock.ready()
        sent = dist.all_reduce(buffer, group=group, async_op=True)
        assert sent is not None
        return sent.get_future().then(self._clock.arrived)


class _Caller(nn.Module):
    def __init__(self, with_loss: nn.Module):
        super().__init__()
        self.with_loss = with_loss
        # in a tuple: a second module with the same parameters would be registered too
        self.called: tuple[nn.Module] = (with_loss,)

    def forward(self, idx: Tensor, targets: Tensor) -> object:
        return self.called[0](idx, targets)


class _Clock:
    def __init__(self) -> None:
        self._sent_at_s: list[float] = []
        self._came_at_s: list[float] = []

    def ready(self) -> None:
        self._sent_at_s.append(time.perf_counter())

    def arrived(self, future: torch.futures.Future) -> Tensor:
        self._came_at_s.append(time.perf_counter())
        return future.value()[0]

    def end(self) -> tuple[float, float]:
        """Seconds since the last gradient was ready, and those during which at least one was on its way."""
        sent, came = self._sent_at_s, self._came_at_s
        self._sent_at_s, self._came_at_s = [], []
        total_s, until_s = 0.0, 0.0
        for start_s, end_s in zip(sorted(sent), sorted(came), strict=False):  # they come in the order they were sent
            total_s += max(0.0, end_s - max(start_s, until_s))
            until_s = max(until_s, end_s)
        return time.perf_counter() - sent[-1] if sent else 0.0, total_s


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

    def end(self) -> tuple[float, float]:
        marks, self._marks = self._marks, []
        end = torch.cuda.Event(enable_timing=True)
        end.record()
        end.synchronize()  # the loss is read right after this anyway
        if not marks:
            return 0.0, 0.0
        return marks[-1].elapsed_time(end) / 1000, marks[0].elapsed_time(end) / 1000


@torch.no_grad()
def digest(model: nn.Module) -> int:
    """64 bits that any changed bit of a weight changes: the sum of all as integers, each tensor times an odd factor."""
    total, factor = 0, 1
    for parameter in model.parameters():
        bits = parameter.detach().contiguous().view(_INTEGERS[parameter.element_size()])
        factor = (factor * 0x9E3779B97F4A7C15 + 2) & 0xFFFFFFFFFFFFFFFF | 1
        total = (total + int(bits.sum(dtype=torch.int64)) * factor) & 0xFFFFFFFFFFFFFFFF
    return total


def shard(with_loss: nn.Module, group: dist.ProcessGroup, device: torch.device) -> None:
    """Block by block, so that only one at a time is whole on a device; head, embedding and loss stay in the root."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, device.type)
    for blocks in (module for module in list(with_loss.modules()) if isinstance(module, nn.ModuleList)):
        for block in blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(with_loss, mesh=mesh)


@contextlib.contextmanager
def unsharded(with_loss: nn.Module) -> Iterator[None]:
    """In the block, the root's parameters are whole. Its blocks gather theirs when they are called."""
    from torch.distributed.fsdp import fully_shard

    fully_shard.state(with_loss)._lazy_init()  # type: ignore[attr-defined]  # which else its first forward pass would do
    with_loss.unshard()  # type: ignore[operator]
    try:
        yield
    finally:
        with_loss.reshard()  # type: ignore[operator]
