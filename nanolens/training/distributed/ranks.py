"""One process, or several that train one model together (ranks): all that differs between the two, in one place.

The loop calls the methods of `Ranks`, which for a single process do nothing; `DistributedRanks` in group.py is the form
for several. Every rank takes the same decisions from the same numbers, so all call the same methods in the same order;
what only one can know (a file, a clock, a signal) is asked of the first rank, or gathered from all, before any acts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor, nn

from nanolens.config.fields import Config
from nanolens.errors import UserError, fault
from nanolens.message import Message, msg
from nanolens.record.events import RanksPaced, StepTaken
from nanolens.training.stopping import StopRequest

Done = TypeVar("Done")


class RankLost(Exception):
    """Another rank died, hangs, or cannot be reached."""

    def __init__(self, because: Message, ranks: Sequence[int], call: str, waited_s: float):
        self.because, self.ranks, self.call, self.waited_s = because, list(ranks), call, waited_s
        super().__init__(str(because))


class FailedElsewhere(UserError):
    """The first rank has said what is wrong; this one has nothing to add."""

    def __init__(self) -> None:
        self.faults = ()
        Exception.__init__(self, "another rank failed")


@dataclass(frozen=True)
class Pace:
    """How long each rank took for an update."""

    rank_s: list[float] | None = None
    busy_s: list[float] | None = None  # without waiting for the others' gradients
    comm_s: list[float] | None = None  # how long gradients were on their way, whether or not somebody waited
    micro_norms: list[float] | None = None


class Ranks:
    rank, size, local_rank = 0, 1, 0
    is_first: bool = True
    hosts: Sequence[str] = ()  # the machine of each rank
    launch = ""  # what the processes that were started together, and started again, have in common
    is_sharded = False  # each rank holds a part of every parameter (FSDP2) in place of a copy of all (DDP)

    @property
    def takes_part(self) -> bool:
        """Whether this rank is needed where the whole model is: for a checkpoint or a sample text."""
        return self.is_first or self.is_sharded

    # --- at the start

    def first_does(self, work: Callable[[], Done]) -> Done:
        """What the first rank gets from `work`, on every rank; its UserError stops them all."""
        return work()

    def each_does(self, work: Callable[[], Done]) -> Done:
        """Each rank does the work, the first of each machine before the others; a UserError of one stops them all."""
        return work()

    def require_equal(self, what: Message, value: str) -> None:
        """Refuses where ranks have something that must be the same on all and is not."""

    def listen(self, stop: StopRequest) -> None:
        """From now on a stop that any rank is asked for stops all of them."""

    def begin(self, config: Config, with_loss: nn.Module, device: torch.device, *, is_sharded: bool) -> None:
        """Opens the connections for training, and shards the model where that was chosen; before the optimizer."""

    def wrap(self, module: nn.Module) -> nn.Module:
        """What the loop calls in updates, so that gradients are averaged. Called again with the compiled model."""
        return module

    def warm_up(self, run: nn.Module, warmup_pass: Callable[[], object]) -> None:
        """Before the first update: brings what depends on the first backward pass into its final state."""

    # --- in an update

    def micro_batch(self, run: nn.Module, *, is_last: bool) -> AbstractContextManager[object]:
        """Around forward and backward: gradients are exchanged in the last micro-batch only."""
        return contextlib.nullcontext()

    def stop_check(self, check: Callable[[], None]) -> Callable[[], None]:
        """What is called before each micro-batch: raises Stopped where a stop was asked for."""
        return check

    def mean(self, number: float) -> float:
        return number

    def after_update(self, step: int, took_s: float, micro_norms: list[float]) -> Pace:
        return Pace()

    def stop_if_agreed(self) -> None:
        """Raises Stopped on all ranks where one of them was asked to stop before `after_update`."""

    # --- around evaluations

    def unwrap(self, run: nn.Module) -> nn.Module:
        """What `wrap` wrapped, for evaluations."""
        return run

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of each rank, by rank."""
        return [list(numbers)]

    def largest(self, number: float) -> float:
        return number

    def realign(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[int]:
        """Ranks whose weights were not the first rank's any more; now they are again."""
        return []

    def whole(self, with_loss: nn.Module) -> AbstractContextManager[object]:
        """In the block, parameters that are not inside a block of the model can be used outside of its forward pass."""
        return contextlib.nullcontext()


SINGLE_PROCESS = Ranks()


@dataclass(frozen=True)
class Partition:
    """Which sequences of an update one process computes.

    Micro-batches are dealt out in turn: 0 to rank 0, 1 to rank 1, and so on. So the tokens of an update, and their
    order, do not depend on the number of ranks."""

    count: int  # micro-batches of this rank in one update
    size: int  # sequences in each of them
    first: int  # sequences of the update that lie before this rank's first micro-batch
    stride: int  # sequences from one of its micro-batches to the next


def partition_of(config: Config, rank: int = 0, ranks: int = 1) -> Partition:
    """Equal parts. Micro-batches keep their size where their number divides by `ranks`; else they are made smaller."""
    count, size = config.gradient_accumulation_steps, config.batch_size
    if count % ranks == 0:
        return Partition(count // ranks, size, rank * size, ranks * size)
    sequences = count * size
    if sequences % ranks:
        given = {"sequences": sequences, "accumulation": count, "size": size, "ranks": ranks}
        what = msg(
            "an update of {sequences:count sequence|sequences} ({accumulation:count micro-batch|micro-batches} "
            "of {size:count}) cannot be divided equally among {ranks:count rank|ranks}",
            **given,
        )
        more = f"--gradient_accumulation_steps={-(-count // ranks) * ranks}"
        fix = msg("choose {option:code} (or any multiple of {ranks:count}), or another number of ranks", more, ranks)
        raise fault(what, fix=fix)
    each = sequences // ranks
    smaller = max(divisor for divisor in range(1, min(size, each) + 1) if each % divisor == 0)
    return Partition(each // smaller, smaller, rank * smaller, ranks * smaller)


def ranks_paced(updates: Sequence[StepTaken], step: int, hosts: Sequence[str]) -> RanksPaced | None:
    """How long each rank took: medians say who is slow, single updates only that something happened. None where nobody
    was timed."""
    timed = [(each.took_s, each.rank_busy_s, each.rank_comm_s) for each in updates if each.rank_busy_s is not None]
    if not timed:
        return None
    took, busy, comm = zip(*timed, strict=True)
    return RanksPaced(
        step=step,
        updates=len(timed),
        took_s=median(took),
        hosts=list(hosts),
        rank_busy_s=[median(column) for column in zip(*busy, strict=True)],
        rank_slowest=[sum(row.index(max(row)) == rank for row in busy) for rank in range(len(busy[0]))],
        rank_comm_s=[median(column) for column in zip(*comm, strict=True)],
    )


# Tensors of which each rank holds a part (DTensor) are recognised by their methods: a single process need not import
# what makes them. In a checkpoint they are whole: so it loads on any number of ranks, and on one.


def whole(tensor: Tensor) -> Tensor:
    """All of the tensor. All ranks must call this together; each gets it."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def spread_like(like: Tensor, full: Tensor) -> Tensor:
    """The part of `full`, which every rank has whole, that this rank holds of `like`."""
    mesh = getattr(like, "device_mesh", None)
    if mesh is None:
        return full
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full.to(like.device), mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def own_part(tensor: Tensor) -> Tensor:
    """The part that this rank holds, sharing memory with it: for arithmetic that goes element by element."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def each_own_part(tensors: list[Tensor]) -> list[Tensor]:
    return [own_part(tensor) for tensor in tensors] if tensors and hasattr(tensors[0], "to_local") else tensors
