"""Several processes that train one model: how they find each other, agree, and notice that one of them is gone.

`join()` reads what torchrun (or `nanolens train --devices=N`) says in the environment. Everything that is not a gradient goes through a
gloo group of its own, as a few numbers at a time: losses, times, and whether anybody wants to stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from nanolens.config.fields import Config
from nanolens.errors import UserError, fault
from nanolens.message import Message, msg
from nanolens.train.meeting import meeting
from nanolens.train.share import share_of
from nanolens.train.shipping import broadcast_object
from nanolens.training.distributed.heartbeat import Presence, is_about_connection
from nanolens.training.distributed.parallel import Averaging
from nanolens.training.distributed.ranks import Done, FailedElsewhere, Pace, RankLost, Ranks
from nanolens.training.stopping import Stopped, StopRequest

MEETING = timedelta(minutes=5)
PATIENCE = timedelta(days=1)  # for what may take long before training starts: preparing a corpus, a download
SLOW_UPDATE_S = 5.0  # from here on, stopping is agreed upon before each micro-batch and not only after an update


def join(environment: Mapping[str, str] = os.environ, launcher: int | None = None) -> Together | None:
    """The group that this process was started into; None where it was started alone. `launcher`: the process that did it."""
    if int(environment.get("WORLD_SIZE", "1")) < 2 and "TORCHELASTIC_RUN_ID" not in environment:
        return None
    watch = LauncherWatch(launcher or os.getppid())
    if not dist.is_initialized():
        with meeting(environment) as store:
            rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=MEETING)
    launch = f"{environment.get('TORCHELASTIC_RUN_ID', '')}:{socket.gethostname()}:{os.getppid()}"
    return Together(dist.get_rank(), dist.get_world_size(), int(environment.get("LOCAL_RANK", "0")), launch, watch)


class LauncherWatch:
    """A launcher that was killed cannot end its processes: they notice within a second, and end by themselves."""

    def __init__(self, launcher: int):
        self._launcher = launcher
        self.stop: StopRequest | None = None  # once there is something to save
        threading.Thread(target=self._watch, name="launcher-watch", daemon=True).start()

    def _watch(self) -> None:
        while os.getppid() == self._launcher:
            time.sleep(1.0)
        if self.stop is None:
            os._exit(128 + signal.SIGTERM)
        self.stop.signal = self.stop.signal or signal.SIGTERM


class Together(Ranks):
    def __init__(self, rank: int, size: int, local_rank: int, launch: str, watch: LauncherWatch):
        self.rank, self.size, self.local_rank, self.launch, self._watch = rank, size, local_rank, launch, watch
        self.first = 0
        self._patient = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._group: dist.ProcessGroup | None = None  # gradients
        self._control: dist.ProcessGroup | None = None  # numbers
        self._averaging: Averaging | None = None
        self._stop: StopRequest | None = None
        self._waited_s = 0.0  # in this update
        self._last_took_s = 0.0
        self.presence = Presence(rank, size)

    @property
    def is_first(self) -> bool:  # type: ignore[override]
        return self.rank == self.first

    # --- at the start

    def choose_first(self, step: int) -> None:
        """Makes that rank the first which has the newest checkpoint of this run on its disk (`step`; -1 where it has none). A rendezvous
        gives out numbers anew after each restart, and may give 0 to a machine that has nothing."""
        steps = [row[0] for row in self._gathered([float(step)], None)]
        self.first = steps.index(max(steps))

    def begin(self, config: Config, device: torch.device, *, is_sharded: bool) -> None:
        """Opens the connections for training, with the patience that the config has."""
        self.is_sharded, self._averaging = is_sharded, None
        patience = timedelta(seconds=config.rank_timeout)
        is_nccl = device.type == "cuda" and config.backend == "nccl"
        self._group = dist.new_group(backend="nccl" if is_nccl else "gloo", timeout=patience)
        self._control = dist.new_group(backend="gloo", timeout=patience) if is_nccl else self._group
        hosts: list[Any] = [None] * self.size
        dist.all_gather_object(hosts, socket.gethostname(), group=self._patient)
        self.hosts = hosts
        self.presence.start()

    def end(self) -> None:
        self.presence.end()
        if dist.is_initialized():
            dist.destroy_process_group()

    def first_does(self, work: Callable[[], Done]) -> Done:
        answer: Any = None
        if self.is_first:
            try:
                answer = ("done", work())
            except UserError as error:
                self._ship(("failed", None))
                raise error
            except Stopped:
                self._ship(("stopped", None))
                raise
        how, value = self._ship(answer)
        if how == "failed":
            raise FailedElsewhere
        if how == "stopped":
            raise Stopped
        return value

    def each_does(self, work: Callable[[], Done]) -> Done:
        error: UserError | None = None
        result: Any = None
        for turn in (True, False):  # what the first of a machine leaves on its disk, the others find there
            if (self.local_rank == 0) == turn and error is None:
                try:
                    result = work()
                except UserError as found:
                    error = found
            failed = [bool(flag) for (flag,) in self._gathered([float(error is not None)], None)]
            if any(failed):
                raise error or FailedElsewhere()
        return result

    def require_equal(self, what: Message, value: str) -> None:
        everybody: list[Any] = [None] * self.size
        dist.all_gather_object(everybody, (value, socket.gethostname()), group=self._patient)
        differing = [rank for rank, (other, _) in enumerate(everybody) if other != everybody[self.first][0]]
        if not differing:
            return
        if not self.is_first:
            raise FailedElsewhere
        raise fault(
            msg(
                "{what} of rank {rank:count} (on {host:code}) differs from that of rank {first:count}",
                what=what, first=self.first, rank=differing[0], host=everybody[differing[0]][1],
            ),
            fix=msg("copy it from the first machine to the others"),
        )  # fmt: skip

    def spread(self, with_loss: nn.Module, device: torch.device) -> None:
        if self.is_sharded:
            from nanolens.train.fsdp import shard

            assert self._group is not None
            shard(with_loss, self._group, device)

    def wrapped(self, with_loss: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
        if self.is_sharded or self.size == 1:
            return with_loss
        assert self._group is not None
        self._averaging = Averaging(with_loss, self._group, self.size)
        return self._averaging.run

    def warm_up(self, run: nn.Module, pass_through: Callable[[], None]) -> None:
        """DDP orders its buckets of gradients by the first backward pass. Having that behind us before the first step makes the sums, which
        are taken bucket by bucket, the same in every step and after every restart."""
        if self._averaging is None:
            return
        for _ in range(2):
            with self.micro_batch(run, is_last=True):
                pass_through()
        self._waited_s = 0.0

    def use(self, run: nn.Module, module: nn.Module) -> nn.Module:
        if self._averaging is None:
            return module
        self._averaging.call(module)
        return run

    def listen(self, stop: StopRequest) -> None:
        self._stop = stop
        stop.is_echo_ignored = True  # a launcher and the terminal both pass a Ctrl-C on
        self._watch.stop = stop

    # --- in an update

    @contextlib.contextmanager
    def micro_batch(self, run: nn.Module, *, is_last: bool) -> Iterator[None]:
        if self._averaging is not None:
            if not is_last:
                with self._averaging.only_adding():
                    yield
                return
            with self._at("averaging the gradients", is_waiting_counted=False):
                yield
            self._waited_s += self._averaging.exposed_s()
            return
        if self.is_sharded:
            run.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        with self._at("gathering parameters and scattering gradients", is_waiting_counted=False):
            yield

    def check(self, check: Callable[[], None]) -> Callable[[], None]:
        return self._agree_to_stop if self._last_took_s > SLOW_UPDATE_S else lambda: None

    def mean(self, number: float) -> float:
        return sum(value for (value,) in self._gathered([number], "adding up the loss")) / self.size

    def after_update(self, step: int, took_s: float, micro_norms: list[float]) -> Pace:
        waited_s, self._waited_s = self._waited_s, 0.0
        comm_s = self._averaging.comm_s() if self._averaging else 0.0
        everybody = self._gathered(
            [took_s, took_s - waited_s, comm_s, float(self._is_asked()), *micro_norms], "comparing notes after an update"
        )
        self._waited_s = 0.0
        self._last_took_s = max(took for took, *_ in everybody)
        self.presence.step = step
        took, busy, comm, stops, *norms = (list(column) for column in zip(*everybody, strict=True))
        return Pace(
            rank_s=took,
            busy_s=busy if self._averaging else None,
            comm_s=comm if self._averaging else None,
            micro_norms=[norm for column in norms for norm in column] or None,
            is_stopping=any(stops),
        )

    def same_everywhere(self, scaler: Any, optimizer: torch.optim.Optimizer) -> None:
        if not self.is_sharded:
            return  # gradients are the same on all ranks
        for found in scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            value = found.full_tensor() if hasattr(found, "full_tensor") else found
            found.fill_(self.largest(float(value)))

    # --- around evaluations

    def evaluated_by(self, run: nn.Module) -> nn.Module:
        return self._averaging.called if self._averaging else run

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Also raises Stopped on all ranks where one of them was asked to stop."""
        everybody = self._gathered([*numbers, float(self._is_asked())], "gathering the losses of an evaluation")
        if any(row[-1] for row in everybody):
            raise Stopped
        return [row[:-1] for row in everybody]

    def largest(self, number: float) -> float:
        return max(value for (value,) in self._gathered([number], "agreeing on a number"))

    def drifted(self, model: nn.Module) -> list[int]:
        if self.is_sharded:
            return []  # there is only one copy
        from nanolens.training.distributed.parallel import digest

        # A float holds 53 bits whole: the digest goes in two halves.
        own = digest(model)
        everybody = self._gathered([float(own >> 32), float(own & 0xFFFFFFFF)], "comparing the weights")
        return [rank for rank, theirs in enumerate(everybody) if theirs != everybody[self.first]]

    def realign(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        tensors = [parameter.data for parameter in model.parameters()] + list(model.buffers())
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            state = optimizer.state.get(parameter, {})
            tensors += [state[key] for key in sorted(state) if isinstance(state[key], torch.Tensor)]
        with self._at("sending the first rank's weights"):
            for tensor in tensors:
                on_cpu = tensor.device.type == "cpu"
                dist.broadcast(tensor, self.first, group=self._control if on_cpu else self._group)

    def whole(self, with_loss: nn.Module) -> AbstractContextManager[object]:
        if not self.is_sharded:
            return contextlib.nullcontext()
        from nanolens.train.fsdp import unsharded

        return unsharded(with_loss)

    # --- speaking with the others

    def share(self, config: Config) -> Any:
        return share_of(config, self.rank, self.size)

    def _is_asked(self) -> bool:
        return self._stop is not None and self._stop.is_asked()

    def _agree_to_stop(self) -> None:
        if any(flag for (flag,) in self._gathered([float(self._is_asked())], "agreeing on whether to stop")):
            raise Stopped

    def _gathered(self, numbers: Sequence[float], call: str | None) -> list[list[float]]:
        """Every rank's numbers. Without a `call` it is before training, with all the time in the world."""
        own = torch.tensor(numbers, dtype=torch.float64)
        everybody = [torch.empty_like(own) for _ in range(self.size)]
        if call is None:
            dist.all_gather(everybody, own, group=self._patient)
        else:
            with self._at(call):
                dist.all_gather(everybody, own, group=self._control)
        return [row.tolist() for row in everybody]

    def _ship(self, value: Any) -> Any:
        with self._at("waiting for what the first rank has to say"):
            return broadcast_object(value, self.is_first, self.first, self._patient)

    @contextlib.contextmanager
    def _at(self, call: str, *, is_waiting_counted: bool = True) -> Iterator[None]:
        """What this rank is waiting in; a connection that fails inside becomes RankLost, with the name of the rank that is to blame."""
        started_at_s = time.perf_counter()
        self.presence.wait_in(call)
        try:
            yield
        except RuntimeError as error:
            if not is_about_connection(error):
                raise
            waited_s = time.perf_counter() - started_at_s
            because, ranks = self.presence.who_is_missing(call, waited_s, error)
            raise RankLost(because, ranks, call, waited_s) from None
        finally:
            self.presence.go_on()
            if is_waiting_counted:
                self._waited_s += time.perf_counter() - started_at_s
