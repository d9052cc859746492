"""One process, or several that train one model together (ranks): all that differs between the two, in one place.

The loop calls the methods of `Ranks`, which is the form for a process alone: it does nothing, and costs nothing.
`training/distributed/group.py` has the form for many. Their rules: every rank takes the same decisions from the same
numbers, so all of them call the same methods in the same order; what only one can know (a file, a clock, a signal)
is asked of the first rank, or gathered from all, before anybody acts on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from nanolens.config.fields import Config
from nanolens.errors import UserError
from nanolens.message import Message
from nanolens.train.share import Share, share_of

if TYPE_CHECKING:
    import torch

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
    """How long each rank took for an update, and whether anybody wants to stop."""

    rank_s: list[float] | None = None
    busy_s: list[float] | None = None  # without waiting for the others' gradients
    comm_s: list[float] | None = None  # how long gradients were on their way, whether or not somebody waited
    micro_norms: list[float] | None = None
    is_stopping: bool = False


class Ranks:
    rank, size, local_rank = 0, 1, 0
    is_first: bool = True
    hosts: list[str] = []  # noqa: RUF012  the machine of each rank
    launch = ""  # what the processes that were started together, and started again, have in common
    is_sharded = False  # each rank holds a part of every parameter (FSDP2) in place of a copy of all (DDP)

    @property
    def saves(self) -> bool:
        """Whether this rank has to take part in a checkpoint."""
        return self.is_first or self.is_sharded

    @property
    def samples(self) -> bool:
        return self.is_first or self.is_sharded

    def share(self, config: Config) -> Share:
        return share_of(config, self.rank, self.size)

    # --- at the start

    def choose_first(self, step: int) -> None:
        """Makes that rank the first which has the newest checkpoint of this run on its disk (`step`; -1: none)."""

    def first_does(self, work: Callable[[], Done]) -> Done:
        """What the first rank gets from `work`, on every rank; its UserError stops them all."""
        return work()

    def each_does(self, work: Callable[[], Done]) -> Done:
        """Each rank does the work, the first of each machine before the others; a UserError of one stops them all."""
        return work()

    def require_equal(self, what: Message, value: str) -> None:
        """Refuses where ranks have something that must be the same on all and is not."""

    def begin(self, config: Config, device: torch.device, *, is_sharded: bool) -> None:
        """Opens the connections for training."""

    def end(self) -> None: ...

    def spread(self, with_loss: nn.Module, device: torch.device) -> None:
        """Shards the model where that was chosen; before the optimizer is made."""

    def wrapped(self, with_loss: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        """What the loop calls."""
        return with_loss

    def use(self, run: nn.Module, module: nn.Module) -> nn.Module:
        """`module` (compiled, say) in place of what `run` calls now."""
        return module

    def warm_up(self, run: nn.Module, pass_through: Callable[[], None]) -> None: ...

    def listen(self, stop: StopRequest) -> None: ...

    # --- in an update

    def micro_batch(self, run: nn.Module, *, is_last: bool) -> AbstractContextManager[object]:
        """Around forward and backward: gradients are exchanged in the last micro-batch only."""
        return contextlib.nullcontext()

    def check(self, check: Callable[[], None]) -> Callable[[], None]:
        """Before each micro-batch: raises Stopped where a stop was asked for."""
        return check

    def mean(self, number: float) -> float:
        return number

    def after_update(self, step: int, took_s: float, micro_norms: list[float]) -> Pace:
        return Pace()

    def same_everywhere(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        """Lets all ranks know of a gradient that overflowed in the part of one."""

    # --- around evaluations

    def evaluated_by(self, run: nn.Module) -> nn.Module:
        return run

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of each rank, by rank."""
        return [list(numbers)]

    def largest(self, number: float) -> float:
        return number

    def drifted(self, model: nn.Module) -> list[int]:
        """Ranks whose weights are not the first rank's."""
        return []

    def realign(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None: ...

    def whole(self, with_loss: nn.Module) -> AbstractContextManager[object]:
        """In the block, parameters that are not inside a block of the model can be used outside of its forward pass."""
        return contextlib.nullcontext()


ALONE = Ranks()
