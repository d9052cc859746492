"""Several processes that train one model: how they find each other, agree, and notice that one of them is gone.

`join()` reads what torchrun (or `nanolens train --devices=N`) says in the environment. Everything that is not a
gradient goes through a gloo group of its own, as a few numbers at a time: losses, times, the wish to stop."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanolens.config.fields import Config
from nanolens.errors import UserError, fault
from nanolens.message import Message, msg
from nanolens.training.distributed.heartbeat import Heartbeat, is_about_connection
from nanolens.training.distributed.parallel import Averaging, digest, shard, unsharded
from nanolens.training.distributed.ranks import Done, FailedElsewhere, Pace, RankLost, Ranks
from nanolens.training.stopping import Stopped, StopRequest

Value = TypeVar("Value")
JOIN_TIMEOUT = timedelta(minutes=5)  # for all to come: they were started at the same time
ASK_EVERY_S = 0.05
PATIENCE = timedelta(days=1)  # for what may take long before training starts: preparing a corpus, a download
SLOW_UPDATE_S = 5.0  # from here on, stopping is agreed upon before each micro-batch and not only after an update


def join(environment: Mapping[str, str] = os.environ, launcher: int | None = None) -> DistributedRanks | None:
    """The group that this process was started into by `launcher`; None where it was started alone."""
    if int(environment.get("WORLD_SIZE", "1")) < 2 and "TORCHELASTIC_RUN_ID" not in environment:
        return None
    stops: list[StopRequest] = []
    watch = (launcher or os.getppid(), stops)
    threading.Thread(target=_watch_launcher, args=watch, name="launcher-watch", daemon=True).start()
    if not dist.is_initialized():
        with rendezvous(environment) as store:
            rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=JOIN_TIMEOUT)
    launch = f"{environment.get('TORCHELASTIC_RUN_ID', '')}:{socket.gethostname()}:{os.getppid()}"
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    return DistributedRanks(dist.get_rank(), dist.get_world_size(), local_rank, launch, stops)


def _watch_launcher(launcher: int, stops: list[StopRequest]) -> None:
    """A launcher that was killed cannot end its processes: they notice within a second, and end by themselves."""
    while os.getppid() == launcher:
        time.sleep(1.0)
    if not stops:  # there is nothing to save yet
        os._exit(128 + signal.SIGTERM)
    stops[0].signal = stops[0].signal or signal.SIGTERM


class DistributedRanks(Ranks):
    _group: dist.ProcessGroup | None = None  # gradients
    _control: dist.ProcessGroup | None = None  # numbers
    _averaging: Averaging | None = None
    _waited_s = 0.0  # in this update
    _last_took_s = 0.0
    _is_stop_agreed = False
    first = 0

    def __init__(self, rank: int, size: int, local_rank: int, launch: str, stops: list[StopRequest]):
        self.rank, self.size, self.local_rank, self.launch = rank, size, local_rank, launch
        self._stops = stops  # the request that this process listens to, as soon as it does
        self._patient = dist.new_group(backend="gloo", timeout=PATIENCE)
        self.heartbeat = Heartbeat(rank, size)

    @property
    def is_first(self) -> bool:  # type: ignore[override]
        return self.rank == self.first

    def choose_first(self, step: int) -> None:
        """Makes that rank the first which has the newest checkpoint of this run on its disk (`step`; -1 where it has
        none). A rendezvous gives out numbers anew after each restart, and may give 0 to a machine that has nothing."""
        steps = [row[0] for row in self._gathered([float(step)], None)]
        self.first = steps.index(max(steps))

    def begin(self, config: Config, with_loss: nn.Module, device: torch.device, *, is_sharded: bool) -> None:
        if self.size == 1:
            return
        self.is_sharded, self._averaging = is_sharded, None
        patience = timedelta(seconds=config.rank_timeout)
        is_nccl = device.type == "cuda" and config.backend == "nccl"
        self._group = dist.new_group(backend="nccl" if is_nccl else "gloo", timeout=patience)
        self._control = dist.new_group(backend="gloo", timeout=patience) if is_nccl else self._group
        self.hosts = self._gathered_texts(socket.gethostname())
        self.heartbeat.start()
        if is_sharded:
            shard(with_loss, self._group, device)

    def end(self) -> None:
        self.heartbeat.end()
        if dist.is_initialized():
            dist.destroy_process_group()

    def first_does(self, work: Callable[[], Done]) -> Done:
        result: Done | None = None
        error: Exception | None = None
        if self.is_first:
            try:
                result = work()
            except (UserError, Stopped) as raised:
                error = raised
        with self._at("waiting for what the first rank has to say"):
            outcome = "stopped" if isinstance(error, Stopped) else "failed" if error else "done"
            outcome, result = broadcast_object((outcome, result), self.is_first, self.first, self._patient)
        if outcome != "done":
            raise error or (Stopped if outcome == "stopped" else FailedElsewhere)
        return result  # type: ignore[return-value]

    def each_does(self, work: Callable[[], Done]) -> Done:
        error: UserError | None = None
        result: Done | None = None
        for turn in (True, False):  # what the first of a machine leaves on its disk, the others find there
            if (self.local_rank == 0) == turn and error is None:
                try:
                    result = work()
                except UserError as found:
                    error = found
            if any(failed for (failed,) in self._gathered([float(error is not None)], None)):
                raise error or FailedElsewhere()
        return result  # type: ignore[return-value]

    def require_equal(self, what: Message, value: str) -> None:
        values, hosts = self._gathered_texts(value), self._gathered_texts(socket.gethostname())
        rank = next((rank for rank, other in enumerate(values) if other != values[self.first]), None)
        if rank is None:
            return
        if not self.is_first:
            raise FailedElsewhere
        at = {"what": what, "rank": rank, "host": hosts[rank], "first": self.first}
        text = msg("{what} of rank {rank:count} (on {host:code}) differs from that of rank {first:count}", **at)
        raise fault(text, fix=msg("copy it from the first machine to the others"))

    def wrap(self, module: nn.Module) -> nn.Module:
        if self.is_sharded or self.size == 1:
            return module
        if self._averaging is None:
            assert self._group is not None
            self._averaging = Averaging(module, self._group, self.size)
        else:
            self._averaging.call(module)
        return self._averaging

    def warm_up(self, run: nn.Module, warmup_pass: Callable[[], object]) -> None:
        """DDP orders its buckets of gradients by the first backward pass. Having that behind us before the first step
        makes the sums, which are taken bucket by bucket, the same in every step and after every restart."""
        if self._averaging is None:
            return
        for _ in range(2):
            with self.micro_batch(run, is_last=True):
                warmup_pass()
        self._waited_s = 0.0

    def listen(self, stop: StopRequest) -> None:
        stop.is_echo_ignored = True  # a launcher and the terminal both pass a Ctrl-C on
        self._stops[:] = [stop]

    @contextlib.contextmanager
    def micro_batch(self, run: nn.Module, *, is_last: bool) -> Iterator[None]:
        if self.is_sharded:
            run.set_requires_gradient_sync(is_last)  # type: ignore[operator]
            with self._at("gathering parameters and scattering gradients", is_waiting_counted=False):
                yield
        elif self._averaging is None:  # a group of one
            yield
        elif not is_last:
            with self._averaging.no_sync():
                yield
        else:
            with self._at("averaging the gradients", is_waiting_counted=False):
                yield
            self._waited_s += self._averaging.exposed_s()

    def stop_check(self, check: Callable[[], None]) -> Callable[[], None]:
        return self._agree_to_stop if self._last_took_s > SLOW_UPDATE_S else lambda: None

    def mean(self, number: float) -> float:
        return sum(value for (value,) in self._gathered([number], "adding up the loss")) / self.size

    def after_update(self, step: int, took_s: float, micro_norms: list[float]) -> Pace:
        waited_s, self._waited_s = self._waited_s, 0.0
        comm_s = self._averaging.comm_s if self._averaging is not None else 0.0
        own = [took_s, took_s - waited_s, comm_s, float(self._is_asked()), *micro_norms]
        of_all = self._gathered(own, "comparing notes after an update")
        self._waited_s = 0.0
        self._last_took_s = max(took for took, *_ in of_all)
        self.heartbeat.state["step"] = step
        took, busy, comm, stops, *norms = (list(column) for column in zip(*of_all, strict=True))
        self._is_stop_agreed = any(stops)
        all_norms = [norm for column in norms for norm in column] or None
        return Pace(took, busy, comm, all_norms) if self._averaging is not None else Pace(took, micro_norms=all_norms)

    def stop_if_agreed(self) -> None:
        if self._is_stop_agreed:
            raise Stopped

    def unwrap(self, run: nn.Module) -> nn.Module:
        return self._averaging.called if self._averaging is not None else run

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Also raises Stopped on all ranks where one of them was asked to stop."""
        of_all = self._gathered([*numbers, float(self._is_asked())], "gathering the losses of an evaluation")
        if any(row[-1] for row in of_all):
            raise Stopped
        return [row[:-1] for row in of_all]

    def largest(self, number: float) -> float:
        return max(value for (value,) in self._gathered([number], "agreeing on a number"))

    def realign(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[int]:
        if self.is_sharded:  # there is only one copy
            return []
        # A float holds 53 bits whole: the digest goes in two halves.
        own = digest(model)
        of_all = self._gathered([float(own >> 32), float(own & 0xFFFFFFFF)], "comparing the weights")
        drifted = [rank for rank, theirs in enumerate(of_all) if theirs != of_all[self.first]]
        if drifted:
            self._send_weights(model, optimizer)
        return drifted

    def _send_weights(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        tensors = [parameter.data for parameter in model.parameters()] + list(model.buffers())
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            state = optimizer.state.get(parameter, {})
            tensors += [state[key] for key in sorted(state) if isinstance(state[key], torch.Tensor)]
        with self._at("sending the first rank's weights"):
            for tensor in tensors:
                on_cpu = tensor.device.type == "cpu"
                dist.broadcast(tensor, self.first, group=self._control if on_cpu else self._group)

    def whole(self, with_loss: nn.Module) -> AbstractContextManager[object]:
        return unsharded(with_loss) if self.is_sharded else contextlib.nullcontext()

    def _is_asked(self) -> bool:
        return any(stop.is_asked() for stop in self._stops)

    def _agree_to_stop(self) -> None:
        if any(flag for (flag,) in self._gathered([float(self._is_asked())], "agreeing on whether to stop")):
            raise Stopped

    def _gathered(self, numbers: Sequence[float], call: str | None) -> list[list[float]]:
        """Every rank's numbers. Without a `call` it is before training, with a day to wait."""
        own = torch.tensor(numbers, dtype=torch.float64)
        of_all = [torch.empty_like(own) for _ in range(self.size)]
        if call is None:
            dist.all_gather(of_all, own, group=self._patient)
        else:
            with self._at(call):
                dist.all_gather(of_all, own, group=self._control)
        return [row.tolist() for row in of_all]

    def _gathered_texts(self, text: str) -> list[str]:
        """Every rank's, before training."""
        of_all = [""] * self.size
        dist.all_gather_object(of_all, text, group=self._patient)
        return of_all

    @contextlib.contextmanager
    def _at(self, call: str, *, is_waiting_counted: bool = True) -> Iterator[None]:
        """Records what this rank waits in; a connection that fails inside becomes RankLost, naming the missing rank."""
        started_at_s = time.perf_counter()
        self.heartbeat.wait_in(call)
        try:
            yield
        except RuntimeError as error:
            if not is_about_connection(error):
                raise
            waited_s = time.perf_counter() - started_at_s
            because, ranks = self.heartbeat.who_is_missing(call, waited_s, error)
            raise RankLost(because, ranks, call, waited_s) from None
        finally:
            self.heartbeat.go_on()
            if is_waiting_counted:
                self._waited_s += time.perf_counter() - started_at_s


@contextlib.contextmanager
def rendezvous(environment: Mapping[str, str]) -> Iterator[dist.Store]:
    """Where the ranks of one attempt meet, and nobody of an earlier one: the store under a name of this attempt.

    torchrun keeps its key-value store when it starts the processes again, with the addresses of the dead still in it: a
    rank that is quicker than the others would read those and wait in vain. So the first rank makes up a name for the
    attempt, and in the block gives it to every rank that asks under an id of its own."""
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    is_host = rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    store: Any = dist.TCPStore(address, port, size, is_host, timeout=JOIN_TIMEOUT, wait_for_workers=False)
    name = own = uuid.uuid4().hex
    done = threading.Event()
    if rank == 0:
        threading.Thread(target=_answer, args=(store.clone(), size, name, done), name="rendezvous", daemon=True).start()
    else:
        store.set(f"nanolens/question/{rank}", own)
        name = store.get(f"nanolens/answer/{own}").decode()
    try:
        yield dist.PrefixStore(f"nanolens/{name}", store)
    finally:
        done.set()


def _answer(store: dist.Store, size: int, name: str, done: threading.Event) -> None:
    """Answers every id that was asked under, also those of an earlier attempt, whose processes are gone."""
    answered: set[bytes] = set()
    while not done.is_set():
        with contextlib.suppress(Exception):  # the store goes when the launcher does
            for rank in range(1, size):
                key = f"nanolens/question/{rank}"
                if store.check([key]) and (asked := store.get(key)) not in answered:
                    store.set(f"nanolens/answer/{asked.decode()}", name)
                    answered.add(asked)
        time.sleep(ASK_EVERY_S)


def broadcast_object(value: Value, is_first: bool, first: int, group: dist.ProcessGroup) -> Value:
    """`value` of the first rank (whose number is `first`): any object, its tensors one after another, so that no second
    copy of them is held. The ranks of one run trust each other; nothing here is ever read from a disk."""
    stream, tensors = io.BytesIO(), list[Tensor]()

    def number_of(item: object) -> int | None:
        if not isinstance(item, Tensor):
            return None
        tensors.append(item.detach().contiguous().cpu())
        return len(tensors) - 1

    if is_first:
        packer = pickle.Pickler(stream)
        packer.persistent_id = number_of  # type: ignore[method-assign]
        packer.dump(value)
    head: list[Any] = [stream.getvalue(), [(tuple(t.shape), t.dtype) for t in tensors]]
    dist.broadcast_object_list(head, first, group=group)
    if not is_first:
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in head[1]]
    for tensor in tensors:
        dist.broadcast(tensor, first, group=group)
    if is_first:
        return value
    unpacker = pickle.Unpickler(io.BytesIO(head[0]))
    unpacker.persistent_load = tensors.__getitem__  # type: ignore[method-assign]
    return unpacker.load()
