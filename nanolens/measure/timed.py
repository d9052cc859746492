"""The one engine that measures a model on this machine, built and updated as training does it: single updates of a
model that is kept (`TimedModel`), or a short training with all that belongs to one (`short_run`), whose events say what
each part took. Peak memory is that of a process, which only grows: what must not see another peak runs `alone`.

`Tuner` tries micro-batch sizes from the smallest up, so that what the smaller ones took says beforehand what the next
one will take: a size that would not fit, or would take too long to try, is reported and not tried."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil
import torch

from nanolens.config.fields import Config
from nanolens.data.store import Dataset, open_folder
from nanolens.measure import SizeTrial, Values
from nanolens.model.loss import WithLoss
from nanolens.planning.memory import memory_of
from nanolens.record import STOP_FILE
from nanolens.record import events as e
from nanolens.record.write import Recorder
from nanolens.sizing.memory import is_head_chunked
from nanolens.sizing.shape import shape_of
from nanolens.training.begin import Beginning
from nanolens.training.compiling import SpeedTrial
from nanolens.training.loop import TrainingOutcome, train
from nanolens.training.machine import Machine, most_resident, relative_error, repeated, seconds_of
from nanolens.training.setup import make_feed, set_up
from nanolens.training.state import Clock
from nanolens.training.step import clip, global_norm, take_update

Result = TypeVar("Result")
Emit = Callable[[e.Event], None]
OPTIMIZER_UPDATES = 4  # the first is not counted: it allocates the moments
WARM_UP_PART = 4  # the first quarter of the updates is not counted: memory is still being found, caches are cold
ROOM_USED_FRAC = 0.9  # the rest is for whatever else the machine does meanwhile

TRIAL_S, UPDATES_AT_LEAST, UPDATES_AT_MOST = 0.8, 2, 20  # of timed work for one size
LONGEST_TRIED_UPDATE_S = 20.0
SLOWER_FRAC, SLOWER_SIZES = 0.03, 2  # so many sizes in a row so much slower than the best: larger ones will be, too
CONTENDERS, TIMED_ROUNDS = 3, 3  # the fastest are timed again, in turns
DOUBT_AT_FIRST, DOUBT_LATER = 1.4, 1.15  # how far off an expectation of memory may be: by formula, from what was seen


class TimedModel:
    """The model of a config as training builds it, for single updates with micro-batches of any size."""

    def __init__(self, config: Config, dataset: Dataset):
        beginning, config = Beginning(None, False, None, ()), dataclasses.replace(config, init_from="scratch")
        workshop = set_up(config, dataset, beginning, lambda event: None, None)
        self._dataset, self._trainee = dataset, workshop.trainee
        self.machine, self.vocab_size = workshop.machine, workshop.vocab_size

    def update_s(self, config: Config) -> float:
        """Seconds of one update; `config` says how many micro-batches it has."""
        trainee = self._trainee
        return seconds_of(self.machine, lambda: take_update(trainee, config, self.machine, Clock(), lambda: None))

    def optimizer_s(self) -> float:
        """Seconds of norm, clipping and update without the gradients."""
        trainee, times = self._trainee, []
        for _ in range(OPTIMIZER_UPDATES):
            for parameter in trainee.parameters:
                parameter.grad = torch.full_like(parameter, 1e-4)
            times.append(seconds_of(self.machine, self._optimize))
        return statistics.median(times[1:])

    def _optimize(self) -> None:
        gradients = [parameter.grad for parameter in self._trainee.parameters if parameter.grad is not None]
        clip(gradients, global_norm(gradients).item(), 1.0)
        self._trainee.optimizer.step()
        self._trainee.optimizer.zero_grad(set_to_none=True)

    def use_micro_batch(self, config: Config) -> None:
        """From now on updates of this config's size, not compiled."""
        trainee, chunked = self._trainee, is_head_chunked(config, self.vocab_size)
        if trainee.micro_batch == config.batch_size and trainee.run is trainee.with_loss:
            return
        smoothing = config.label_smoothing
        trainee.with_loss = WithLoss(trainee.model, label_smoothing=smoothing, chunked=chunked)
        trainee.run = trainee.with_loss.train()
        trainee.feed = make_feed(config, self._dataset.train, self.machine.device)
        trainee.micro_batch = config.batch_size

    def compile(self, config: Config) -> None:
        """As training does it, evaluations included."""
        trainee, shape = self._trainee, (config.batch_size, config.block_size)
        trainee.run, _ = SpeedTrial(trainee.with_loss, self.machine, self.vocab_size, shape).compile(Clock())


def short_run(
    config: Config,
    dataset: Dataset,
    folder: Path | None = None,
    emit: Emit = lambda event: None,
    *,
    budget_s: float = float("inf"),
    at_least: int = 0,
    may_refuse: bool = True,
) -> tuple[list[e.Event], TrainingOutcome]:
    """The events of a training that is stopped `budget_s` after its first update, but not before update `at_least`.
    Without a folder, in one that is thrown away."""
    events: list[e.Event] = []
    updates, until_s = 0, float("inf")

    def watch(event: e.Event) -> None:
        nonlocal updates, until_s
        events.append(recorder(event))
        emit(events[-1])
        if isinstance(event, e.StepTaken):
            updates += 1
            until_s = time.monotonic() + budget_s if updates == 1 else until_s
            if updates >= at_least and time.monotonic() > until_s:
                (run / STOP_FILE).touch()

    with contextlib.ExitStack() as stack:
        run = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nanolens-measure-")))
        recorder = Recorder(run)  # which stamps each event with its time
        stack.callback(recorder.close)
        return events, train(config, dataset, run, watch, may_refuse=may_refuse)


def steps_of(events: Sequence[e.Event]) -> list[e.StepTaken]:
    return [event for event in events if isinstance(event, e.StepTaken)]


def update_times(events: Sequence[e.Event]) -> list[float]:
    """Seconds of each update, without those of the warm-up."""
    steps = steps_of(events)
    return [event.took_s for event in steps[max(1, len(steps) // WARM_UP_PART) :]]


def alone(machine: Machine, work: Callable[[], Result]) -> Result:
    """Done in a copy of this process, whose memory nothing has touched yet; not with a GPU, which cannot be copied."""
    if machine.device.type != "cpu" or sys.platform != "linux":
        return work()
    forked = multiprocessing.get_context("fork")
    here, there = forked.Pipe(duplex=False)
    child = forked.Process(target=lambda: there.send(work()))
    child.start()
    there.close()
    try:
        result: Result = here.recv()
    except EOFError:
        child.join()
        # It has said why on stderr, unless the system ended it: for lack of memory, in all likelihood.
        sys.exit("MemoryError" if (child.exitcode or 0) < 0 else 1)
    child.join()
    return result


def peak_bytes(machine: Machine) -> float:
    """The most memory that this process has held: on a GPU reserved there, else resident."""
    if machine.device.type == "cuda":
        return float(torch.cuda.max_memory_reserved(machine.device))
    return float((machine.memory_in_use() or 0) if machine.device.type == "mps" else most_resident())


def library_bytes() -> float:
    """Resident pages that are files: libraries, and the data. Only Linux tells."""
    return float(getattr(psutil.Process().memory_info(), "shared", 0))


def not_counted(libraries: float) -> float:
    """Bytes that a training has and a copied process lacks, which counts the pages of libraries only once it touches
    them. About half of these had been touched by loading (94 MB instead of 76 + 41 in a small training)."""
    own = library_bytes()
    return libraries - own / 2 if own < libraries else 0.0


def room_bytes(machine: Machine) -> float:
    """As much memory as this process may come to hold without anybody running out of it."""
    if machine.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(machine.device)
        return ROOM_USED_FRAC * (free + torch.cuda.memory_reserved(machine.device))
    if machine.device.type == "mps":
        return ROOM_USED_FRAC * torch.mps.recommended_max_memory()
    own = psutil.Process().memory_info().rss
    return ROOM_USED_FRAC * min(psutil.virtual_memory().available + own, _container_room(own))


def _container_room(own: int) -> float:
    """What the container's limit leaves; endless where there is none."""
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text().strip() for name in ("memory.max", "memory.current"))
        return float("inf") if limit == "max" else int(limit) - int(used) + own
    except (OSError, ValueError):
        return float("inf")


def opened(folder: str, config: Config, vocab_size: int) -> Dataset:
    """The prepared data where there is some, since the checks before the first update read it; else made-up tokens."""
    return open_folder(Path(folder)) if folder else made_up(config, vocab_size)


def made_up(config: Config, vocab_size: int) -> Dataset:
    count = max(8 * config.block_size * config.batch_size, 1 << 14) + 1
    draw = np.random.default_rng(0)
    kind = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    train, val = (draw.integers(0, vocab_size, count, dtype=np.int64).astype(kind) for _ in range(2))
    return Dataset("made up", Path("made-up-tokens"), train, val, vocab_size, None, {})


# --- micro-batch sizes


def measured(config: Config, question: Values) -> Iterator[tuple[str, Values]]:
    """The worker's half of `tune`."""
    sizes, vocab_size = question["sizes"], question["vocab_size"]
    data = opened(question["dataset"], dataclasses.replace(config, batch_size=max(sizes)), vocab_size)
    tuner = Tuner(dataclasses.replace(config, vocab_size=vocab_size), data)
    machine = {key: getattr(tuner.machine, key) for key in ("hardware", "dtype", "threads")}
    yield "machine", {**machine, "device": str(tuner.machine.device)}
    timed: list[tuple[float, int]] = []
    for trial in tuner.trials(sizes, question["limit_bytes"]):
        yield "size", dataclasses.asdict(trial)
        timed += [(trial.update_s, trial.size)] if trial.update_s is not None else []
    is_wanted = question["try_compile"] or (tuner.machine.device.type == "cuda" and config.compile is None)
    if is_wanted and timed:
        yield "compiled", tuner.compiled(min(timed)[1])


class Tuner:
    """A model that is trained on for a few updates at a time, with micro-batches of any size."""

    def __init__(self, config: Config, dataset: Dataset, peak: Callable[[Machine], float] = peak_bytes):
        self._config = dataclasses.replace(config, data_order="shuffled", compile=False)
        self._sequences = config.batch_size * config.gradient_accumulation_steps
        self._model = TimedModel(dataclasses.replace(self._config, batch_size=1), dataset)
        self.machine, self._peak = self._model.machine, peak
        self._base = peak(self.machine)
        self._optimizer_s = self._model.optimizer_s()
        self._seen: list[SizeTrial] = []

    def trials(self, sizes: Sequence[int], limit_bytes: float | None = None) -> Iterator[SizeTrial]:
        """Each size once, then the fastest again, with no more memory than is free and than `limit_bytes`."""
        for size in sorted(sizes):
            expected = self._expected_bytes(size)
            room = min(room_bytes(self.machine), limit_bytes or float("inf"))
            reason = "memory" if expected > room else self._reason_to_skip(size)
            if reason:
                yield SizeTrial(size, self._sequences // size, expected, skipped=reason)
            else:
                self._seen.append(self._measured(size))
                yield self._seen[-1]
        yield from self._again(sorted(self._seen, key=lambda trial: trial.update_s or 0.0)[:CONTENDERS])

    def compiled(self, size: int) -> Values:
        config, failed = self._prepare(size), ""
        started_at_s = time.perf_counter()
        try:
            self._model.compile(config)
            self._update(config)
        except Exception as error:  # no compiler, an unknown operator: training works without
            failed = type(error).__name__
        compiled_in_s = time.perf_counter() - started_at_s
        update_s = None if failed else self._whole_update_s(size, self._timed(config))
        return {"size": size, "update_s": update_s, "compiled_in_s": compiled_in_s, "failed": failed}

    def _measured(self, size: int) -> SizeTrial:
        config = self._prepare(size)
        self._update(config)
        times = self._timed(config)
        update_s, peak = self._whole_update_s(size, times), self._peak(self.machine)
        return SizeTrial(size, self._sequences // size, peak, update_s, relative_error(times))

    def _again(self, contenders: Sequence[SizeTrial]) -> Iterator[SizeTrial]:
        if len(contenders) < 2:
            return
        times: dict[int, list[float]] = {trial.size: [] for trial in contenders}
        for _ in range(TIMED_ROUNDS):  # in turns, so that whatever else the machine does falls on all of them
            for trial in contenders:
                times[trial.size].append(statistics.median(self._timed(self._prepare(trial.size))))
        for trial in contenders:
            seen = times[trial.size]
            update_s = self._whole_update_s(trial.size, seen)
            yield dataclasses.replace(trial, update_s=update_s, scatter=relative_error(seen), is_again=True)

    def _prepare(self, size: int) -> Config:
        """A config of this size. Two micro-batches show what any number takes: gradients wait in memory."""
        accumulation = min(2, self._sequences // size)
        config = dataclasses.replace(self._config, batch_size=size, gradient_accumulation_steps=accumulation)
        self._model.use_micro_batch(config)
        return config

    def _timed(self, config: Config) -> list[float]:
        return repeated(lambda: self._update(config), TRIAL_S, UPDATES_AT_LEAST, UPDATES_AT_MOST)

    def _update(self, config: Config) -> float:
        return self._model.update_s(config)

    def _whole_update_s(self, size: int, times: Sequence[float]) -> float:
        """Of an update with all its micro-batches, from one with two."""
        count = self._sequences // size
        micro_s = max(1e-9, statistics.median(times) - self._optimizer_s) / min(2, count)
        return self._optimizer_s + count * micro_s

    # --- what is expected of a size before it is tried

    def _expected_bytes(self, size: int) -> float:
        state, activations = self._formula(size)
        if not self._seen:
            return self._base + DOUBT_AT_FIRST * (state + activations)
        last = self._seen[-1]
        more = activations - self._formula(last.size)[1]
        if len(self._seen) == 1:
            return last.memory_bytes + DOUBT_AT_FIRST * more
        before = self._seen[-2]
        each = max(0.0, last.memory_bytes - before.memory_bytes) / (last.size - before.size)
        # A peak that hardly grew says little of a size: then the formula holds, which knows of logits that begin to be
        # held whole.
        return last.memory_bytes + DOUBT_LATER * max(each * (size - last.size), more)

    def _formula(self, size: int) -> tuple[float, float]:
        """(gradients and what autocast copies, activations and logits): weights and moments are in the base already."""
        config, on_gpu = dataclasses.replace(self._config, batch_size=size), self.machine.device.type == "cuda"
        shape, chunked = shape_of(config, self._model.vocab_size), is_head_chunked(config, self._model.vocab_size)
        parts = memory_of(config, shape, self.machine.dtype, on_gpu=on_gpu, chunked=chunked)
        return parts.gradients + parts.low_precision_copies + parts.overhead, parts.activations + parts.logits

    def _reason_to_skip(self, size: int) -> str:
        if not self._seen:
            return ""
        last = self._seen[-1]
        assert last.update_s is not None
        micro_s = (last.update_s - self._optimizer_s) / last.accumulation * size / last.size
        if min(2, self._sequences // size) * micro_s > LONGEST_TRIED_UPDATE_S:
            return "time"
        best = min(trial.update_s or 0.0 for trial in self._seen)
        recent = self._seen[-SLOWER_SIZES:]
        if len(recent) == SLOWER_SIZES and all((trial.update_s or 0.0) > best * (1 + SLOWER_FRAC) for trial in recent):
            return "slower"
        return ""
