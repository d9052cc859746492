"""The link between machines, measured: what `nanolens plan --machines=2 --network=...` wants to know. On each of two:

    torchrun --nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=HOST:29500 \\
        -m nanolens.training.distributed.bandwidth
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
import torch.distributed as dist

BYTES = 32 << 20
REPEATS = 5


class Link(NamedTuple):
    bytes_per_s: float  # one way, per machine: what a ring that averages gradients gets through
    latency_s: float  # of the smallest message


def measure(size: int, group: dist.ProcessGroup | None = None, payload: int = BYTES) -> Link:
    """Called by all ranks together; the same answer on each."""
    large, small = torch.zeros(payload // 4), torch.zeros(1)
    large_s, small_s = (min(_seconds(tensor, group) for _ in range(REPEATS)) for tensor in (large, small))
    found = torch.tensor([large_s, small_s], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    large_s, small_s = found.tolist()
    return Link(2 * (size - 1) / size * payload / max(1e-9, large_s - small_s), small_s / (2 * (size - 1)))


def _seconds(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> float:
    dist.barrier(group)
    started_at_s = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    return time.perf_counter() - started_at_s


if __name__ == "__main__":
    dist.init_process_group("gloo")
    link = measure(dist.get_world_size())
    if dist.get_rank() == 0:
        print(f"--network={link.bytes_per_s / 1e6:.0f}MB  (a message takes {link.latency_s * 1e3:.2f} ms)")
    dist.destroy_process_group()
