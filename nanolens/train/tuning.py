"""How fast one update is with each micro-batch size, measured with the trainer's own update, and how much memory it takes.

Sizes are tried from the smallest up, so that what the smaller ones took says beforehand what the next one will take: a size that would not
fit, or would take too long to try, is told of and not tried.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nanolens.config.fields import Config
from nanolens.model.loss import WithLoss
from nanolens.sizing import shape_of
from nanolens.sizing.memory import CHUNK_TOKENS, is_head_chunked, memory
from nanolens.train.clock import Clock
from nanolens.train.guards import clip, global_norm
from nanolens.train.step import take_update
from nanolens.training.begin import Beginning
from nanolens.training.machine import Machine
from nanolens.training.setup import Workshop, make_feed, set_up

if TYPE_CHECKING:
    from nanolens.data.store import Dataset

TRIAL_S, UPDATES_AT_LEAST, UPDATES_AT_MOST = 0.8, 2, 20  # of timed work for one size
LONGEST_UPDATE_S = 20.0  # one that would take longer is not tried
SLOWER_FRAC, SLOWER_SIZES = 0.03, 2  # so many sizes in a row that are so much slower than the best: larger ones will be, too
CONTENDERS, ROUNDS = 3, 3  # the fastest are timed again, in turns
DOUBT_AT_FIRST, DOUBT_LATER = 1.4, 1.15  # how far an expectation of memory may be off: from a formula, from what was seen
ROOM_USED_FRAC = 0.9  # the rest is for whatever else the machine does meanwhile


@dataclass(frozen=True)
class Probe:
    """One micro-batch size: what was measured, or why it was not tried."""

    size: int  # sequences in the micro-batch
    accumulation: int  # micro-batches in an update
    memory_bytes: float  # peak of the process; where it was not tried, what was expected
    update_s: float | None = None
    scatter: float = 0.0  # relative standard error of update_s
    skipped: str = ""  # "", "memory", "time" or "slower"
    is_again: bool = False  # a contender, timed in turns with the others


@dataclass(frozen=True)
class CompiledProbe:
    size: int
    update_s: float | None
    compiled_in_s: float
    failed: str = ""


class Tuner:
    """A model that is trained on for a few updates at a time, with micro-batches of any size."""

    def __init__(self, config: Config, dataset: Dataset, peak_bytes: Callable[[Machine], float]):
        self._config = dataclasses.replace(config, init_from="scratch", data_order="shuffled", compile=False)
        self._dataset, self._peak_bytes = dataset, peak_bytes
        self._sequences = config.batch_size * config.gradient_accumulation_steps
        self._workshop: Workshop = set_up(
            dataclasses.replace(self._config, batch_size=1), dataset, Beginning(None, False, None, ()), lambda event: None, None
        )
        self.machine = self._workshop.machine
        self._base = peak_bytes(self.machine)
        self._optimizer_s = self._time_optimizer()
        self._seen: list[Probe] = []

    def probes(self, sizes: Sequence[int], limit_bytes: float | None = None) -> Iterator[Probe]:
        """Each size once, then the fastest again. `limit_bytes`: as much memory as may be used, where that is less than what is free."""
        for size in sorted(sizes):
            expected = self._expected_bytes(size)
            room = min(room_bytes(self.machine), limit_bytes or float("inf"))
            reason = "memory" if expected > room else self._reason_to_skip(size)
            probe = Probe(size, self._sequences // size, expected, skipped=reason) if reason else self._measured(size)
            if not reason:
                self._seen.append(probe)
            yield probe
        yield from self._again(sorted(self._seen, key=lambda probe: probe.update_s or 0.0)[:CONTENDERS])

    def compiled(self, size: int) -> CompiledProbe:
        config = self._prepare(size)
        started_at_s = time.perf_counter()
        try:
            self._workshop.trainee.run = torch.compile(self._workshop.trainee.with_loss)  # type: ignore[assignment]
            self._update(config)
            self._update(config)
        except Exception as error:  # no compiler, an unknown operator: training works without
            return CompiledProbe(size, None, time.perf_counter() - started_at_s, type(error).__name__)
        compiled_in_s = time.perf_counter() - started_at_s
        return CompiledProbe(size, self._whole_update_s(size, self._timed(config)), compiled_in_s)

    def _measured(self, size: int) -> Probe:
        config = self._prepare(size)
        self._update(config)
        times = self._timed(config)
        return Probe(
            size, self._sequences // size, self._peak_bytes(self.machine), self._whole_update_s(size, times), relative_error(times)
        )

    def _again(self, contenders: Sequence[Probe]) -> Iterator[Probe]:
        if len(contenders) < 2:
            return
        times: dict[int, list[float]] = {probe.size: [] for probe in contenders}
        for _ in range(ROUNDS):  # in turns, so that whatever else the machine does falls on all of them
            for probe in contenders:
                times[probe.size].append(statistics.median(self._timed(self._prepare(probe.size))))
        for probe in contenders:
            seen = times[probe.size]
            yield dataclasses.replace(probe, update_s=self._whole_update_s(probe.size, seen), scatter=relative_error(seen), is_again=True)

    def _prepare(self, size: int) -> Config:
        """A config of this size. Two micro-batches show what any number takes: from two on, gradients wait in memory."""
        config = dataclasses.replace(self._config, batch_size=size, gradient_accumulation_steps=min(2, self._sequences // size))
        chunked = is_head_chunked(config, self._workshop.vocab_size)
        trainee = self._workshop.trainee
        if trainee.micro_batch != size or trainee.run is not trainee.with_loss:
            trainee.with_loss = WithLoss(trainee.model, label_smoothing=config.label_smoothing, chunked=chunked, chunk=CHUNK_TOKENS).train()
            trainee.run = trainee.with_loss
            trainee.feed = make_feed(config, self._dataset.train, self.machine.device)
            trainee.micro_batch = size
        return config

    def _timed(self, config: Config) -> list[float]:
        times: list[float] = []
        until_s = time.perf_counter() + TRIAL_S
        while len(times) < UPDATES_AT_LEAST or (time.perf_counter() < until_s and len(times) < UPDATES_AT_MOST):
            times.append(self._update(config))
        return times

    def _update(self, config: Config) -> float:
        self.machine.synchronize()
        started_at_s = time.perf_counter()
        take_update(self._workshop.trainee, config, self.machine, Clock(), lambda: None)
        self.machine.synchronize()
        return time.perf_counter() - started_at_s

    def _whole_update_s(self, size: int, times: Sequence[float]) -> float:
        """Of an update with all its micro-batches, from one with two."""
        count = self._sequences // size
        micro_s = max(1e-9, statistics.median(times) - self._optimizer_s) / min(2, count)
        return self._optimizer_s + count * micro_s

    def _time_optimizer(self) -> float:
        trainee, took = self._workshop.trainee, []
        for _ in range(4):
            for parameter in trainee.parameters:
                parameter.grad = torch.full_like(parameter, 1e-4)
            self.machine.synchronize()
            started_at_s = time.perf_counter()
            gradients = [parameter.grad for parameter in trainee.parameters if parameter.grad is not None]
            clip(gradients, global_norm(gradients).item(), 1.0)
            trainee.optimizer.step()
            trainee.optimizer.zero_grad(set_to_none=True)
            self.machine.synchronize()
            took.append(time.perf_counter() - started_at_s)
        return statistics.median(took[1:])

    # --- what is expected of a size before it is tried

    def _expected_bytes(self, size: int) -> float:
        if not self._seen:
            state, activations = self._formula(size)
            return self._base + DOUBT_AT_FIRST * (state + activations)
        last = self._seen[-1]
        if len(self._seen) == 1:
            return last.memory_bytes + DOUBT_AT_FIRST * (self._formula(size)[1] - self._formula(last.size)[1])
        before = self._seen[-2]
        each = max(0.0, last.memory_bytes - before.memory_bytes) / (last.size - before.size)
        formula = (self._formula(size)[1] - self._formula(last.size)[1]) / (size - last.size)
        # A peak that hardly grew says little of a size: then the formula holds, which knows of logits that begin to be held whole.
        return last.memory_bytes + DOUBT_LATER * max(each, formula) * (size - last.size)

    def _formula(self, size: int) -> tuple[float, float]:
        """(gradients and what autocast copies, activations and logits): weights and moments are in the base already."""
        config = dataclasses.replace(self._config, batch_size=size)
        vocab_size = self._workshop.vocab_size
        found = memory(
            shape_of(config, vocab_size), batch_size=size, dtype=self.machine.dtype, dropout=config.dropout,
            chunked_head=is_head_chunked(config, vocab_size), on_gpu=self.machine.device.type == "cuda", optimizer=config.optimizer,
        )  # fmt: skip
        return found.gradients + found.low_precision_copies + found.overhead, found.activations + found.logits

    def _reason_to_skip(self, size: int) -> str:
        if not self._seen:
            return ""
        last = self._seen[-1]
        assert last.update_s is not None
        micro_s = (last.update_s - self._optimizer_s) / last.accumulation * size / last.size
        if min(2, self._sequences // size) * micro_s > LONGEST_UPDATE_S:
            return "time"
        best = min(probe.update_s or 0.0 for probe in self._seen)
        recent = self._seen[-SLOWER_SIZES:]
        if len(recent) == SLOWER_SIZES and all((probe.update_s or 0.0) > best * (1 + SLOWER_FRAC) for probe in recent):
            return "slower"
        return ""


def room_bytes(machine: Machine) -> float:
    """As much memory as this process may come to hold without anybody running out of it."""
    if machine.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(machine.device)
        return ROOM_USED_FRAC * (free + torch.cuda.memory_reserved(machine.device))
    if machine.device.type == "mps":
        return ROOM_USED_FRAC * torch.mps.recommended_max_memory()
    import psutil

    own = psutil.Process().memory_info().rss
    return ROOM_USED_FRAC * min(psutil.virtual_memory().available + own, _container_room(own))


def _container_room(own: int) -> float:
    """What the container's limit leaves; endless where there is none."""
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
        return float("inf") if limit == "max" else int(limit) - int(used) + own
    except (OSError, ValueError):
        return float("inf")


def relative_error(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    spread: Any = 1.4826 * 1.2533 * statistics.median(abs(each - middle) for each in values)
    return spread / middle / len(values) ** 0.5
