"""The measuring process behind `nanolens plan`: one question as JSON on stdin, one answer on stdout.

It trains the very model for a few updates with the trainer's own loop, in a folder that is thrown away, and reads the events: what an
update, an evaluation, a checkpoint, a sample and the start take here. Two micro-batch sizes give time and memory of any other. A model
whose update takes seconds is tried with one and with a few layers, and the rest follows from the difference: blocks are alike. Peak memory
is that of a process, which only grows: so each trial has a process of its own where that costs nothing (see `alone`), and elsewhere the
smaller trial comes first."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from nanolens.config.fields import Config
from nanolens.record import events as e
from nanolens.record.layout import STOP_FILE
from nanolens.sizing import flops_per_token, parameters, shape_of

Done = TypeVar("Done")
ASSUMED_EFFICIENCY = 0.5  # of the fastest matrix product, for guessing what a measurement will take
LONGEST_UPDATE_S = 2.0  # of the whole model at the configured micro-batch; above, fewer layers are tried
FEWEST_UPDATES, MOST_UPDATES = 4, 300  # with fewer, the one that a checkpoint is written beside would count for half
WARMING_UP = 4  # the first quarter of the updates is not counted: memory is still being found, caches are cold
QUICK_S = 0.1  # an update that takes less has its forward pass timed more often


@dataclass(frozen=True)
class Point:
    """What a miniature run showed."""

    layers: int
    size: int  # sequences in the micro-batch
    micro_s: float  # forward and backward of one micro-batch
    forward_s: float  # of one evaluation batch
    optimizer_s: float
    stall_s: float  # the loop standing still for a checkpoint
    write_s: float  # of that checkpoint, in the background
    sample_s: float
    begin_s: float  # from the call to the first update: model, checks, first checkpoint
    end_s: float  # from the last update to the return
    scatter: float
    parameters: int
    memory_bytes: float


def main() -> None:
    question = json.loads(sys.stdin.read())
    config = Config(**question["config"])
    print(json.dumps(answer(config, question["vocab_size"], question["dataset"], question["budget_s"], question["started_at_s"])))


def answer(config: Config, vocab_size: int, dataset: str, budget_s: float, started_at_s: float) -> dict[str, Any]:
    from nanolens.training import loop
    from nanolens.training.machine import choose_machine, measured_peak, with_peak

    assert loop
    machine = choose_machine(config, lambda event: None)
    imported_s = time.time() - started_at_s
    peak = alone(machine, lambda: measured_peak(machine))
    base = peak_bytes(machine)
    config = dataclasses.replace(
        config, init_from="scratch", vocab_size=vocab_size, compile=False if machine.device.type == "cpu" else config.compile
    )
    data = opened(dataset, config, vocab_size)
    with tempfile.TemporaryDirectory(prefix="nanolens-plan-") as folder:
        trials = what_to_try(config, vocab_size, peak, budget_s)
        libraries = library_bytes()
        points = [
            alone(machine, partial(measured_point, config, trial, data, machine, Path(folder) / str(i), libraries))
            for i, trial in enumerate(trials)
        ]
    whole = extended(points, config, vocab_size, base)
    size, micro_s = whole["micro_s"][-1]
    return {
        **whole,
        "base_bytes": base,
        "peak_flops": peak if machine.device.type == "cpu" else with_peak(machine).peak_flops,
        "achieved_flops": flops_per_token(shape_of(config, vocab_size)).training * config.block_size * size / micro_s,
        "start_s": imported_s + whole.pop("begin_s"),
        "scatter": max(point.scatter for point in points),
        "layers_timed": sorted({point.layers for point in points}),
    }


def alone(machine: Any, work: Callable[[], Done]) -> Done:
    """Done in a copy of this process, whose libraries are loaded and whose memory nothing has touched yet. Not with a GPU, which cannot be
    copied, nor where processes are not copied but started afresh."""
    if machine.device.type != "cpu" or sys.platform != "linux":
        return work()
    copied = multiprocessing.get_context("fork")
    here, there = copied.Pipe(duplex=False)
    child = copied.Process(target=lambda: there.send(work()))
    child.start()
    there.close()
    try:
        found: Done = here.recv()
    except EOFError:
        child.join()
        # It has said why on stderr, unless the system ended it: for lack of memory, in all likelihood.
        sys.exit("MemoryError" if (child.exitcode or 0) < 0 else 1)
    child.join()
    return found


def what_to_try(config: Config, vocab_size: int, peak: float, budget_s: float) -> list[Trial]:
    """In the order of growing memory."""

    def cost_s(layers: int, size: int) -> float:
        shape = shape_of(dataclasses.replace(config, n_layer=layers), vocab_size)
        return flops_per_token(shape).training * size * config.block_size / (ASSUMED_EFFICIENCY * peak)

    def trial(layers: int, each: int, budget: float, is_main: bool) -> Trial:
        update_s = cost_s(layers, each) * min(2, config.gradient_accumulation_steps)
        updates = min(MOST_UPDATES, max(FEWEST_UPDATES, int(budget / update_s)))
        return Trial(layers, each, budget, updates, is_main, is_quick=update_s < QUICK_S)

    size = config.batch_size
    if cost_s(config.n_layer, size) <= LONGEST_UPDATE_S:
        tried = sorted({max(1, size // 2), size if size > 1 else 2})
        # The configured size is what the plan rests on; the other one only says how time and memory go with it.
        return [trial(config.n_layer, each, budget_s * (0.7 if each == size else 0.3), each == size) for each in tried]
    while size > 1 and cost_s(2, size) > LONGEST_UPDATE_S:
        size //= 2
    # The more layers, the less the scatter of the two counts when all layers are reckoned from them. Beside a large head they cost little.
    deep, most_s = min(2, config.n_layer), max(LONGEST_UPDATE_S, 2 * cost_s(1, size))
    while deep < config.n_layer and cost_s(deep + 1, size) <= most_s:
        deep += 1
    return [trial(layers, size, budget_s / 2, layers == deep) for layers in sorted({1, deep})]


@dataclass(frozen=True)
class Trial:
    layers: int
    size: int
    budget_s: float
    updates: int  # that should fit into it
    is_main: bool  # the one at the configured size, or nearest to it: it also writes a sample
    is_quick: bool

    @property
    def checkpoint_interval(self) -> int:
        """One halfway, so that its writing is in the peak of memory and not in the median of the times, and one at the end."""
        return max(2, self.updates // 2)

    @property
    def eval_iters(self) -> int:
        return 10 if self.is_quick else 3


def measured_point(config: Config, trial: Trial, data: Any, machine: Any, folder: Path, libraries: float) -> Point:
    """`libraries`: bytes of their pages that were in memory before the trial had its own process."""
    from nanolens.training.loop import train

    accumulation = min(
        2, config.gradient_accumulation_steps
    )  # from two on, gradients wait in memory and the micro-batches' norms are taken
    small = dataclasses.replace(
        config, n_layer=trial.layers, batch_size=trial.size, gradient_accumulation_steps=accumulation, max_iters=trial.updates,
        lr_decay_iters=trial.updates, warmup_iters=0, eval_interval=trial.updates,
        eval_iters=1 if trial.layers < config.n_layer else trial.eval_iters, eval_whole=False,
        checkpoint_interval=trial.checkpoint_interval, keep_checkpoints=1, out_dir=str(folder), overwrite=False,
        sample_interval=None if config.sample_interval != 0 and trial.is_main else 0,
    )  # fmt: skip
    watch = Watch(folder, trial.budget_s, fewest=trial.checkpoint_interval + 2)
    began_at_s = time.time()
    train(small, data, folder, watch, may_refuse=False)
    ended_at_s, peak = time.time(), peak_bytes(machine) + not_counted(libraries)
    return point_of(watch.seen, small, began_at_s, ended_at_s, optimizer_time(small, data), peak)


class Watch:
    """Keeps the events, and asks the loop to stop when the time is up and enough was seen."""

    def __init__(self, folder: Path, budget_s: float, fewest: int):
        self.seen: list[e.Event] = []
        self._stop, self._budget_s, self._until_s = folder / STOP_FILE, budget_s, float("inf")
        self._updates, self._fewest = 0, fewest

    def __call__(self, event: e.Event) -> None:
        self.seen.append(event)
        if not isinstance(event, e.StepTaken):
            return
        self._updates += 1
        if self._updates == 1:
            self._until_s = time.monotonic() + self._budget_s
        if self._updates >= self._fewest and time.monotonic() > self._until_s:
            self._stop.touch()


def point_of(
    seen: list[e.Event], config: Config, began_at_s: float, ended_at_s: float, optimizer: tuple[float, int], memory_bytes: float
) -> Point:
    steps = [event for event in seen if isinstance(event, e.StepTaken)]
    evals = [event for event in seen if isinstance(event, e.Evaluated)]
    is_whole = len(evals) > 2  # not stopped before the last evaluation
    saved = [event for event in seen if isinstance(event, e.CheckpointSaved) and event.step]
    samples = [event.took_s for event in seen if isinstance(event, e.SampleWritten)]
    ordinary = [event.took_s for event in steps[max(1, len(steps) // WARMING_UP) :]]
    update_s = statistics.median(ordinary)
    batches = max(1, len(evals[0].batch_losses))
    spent_before_s = sum(event.took_s for event in evals[:2]) + sum(samples[:1])
    optimizer_s, count = optimizer
    return Point(
        layers=config.n_layer,
        size=config.batch_size,
        micro_s=max(1e-6, (update_s - optimizer_s) / config.gradient_accumulation_steps),
        forward_s=statistics.median(event.took_s / batches for event in evals),
        optimizer_s=optimizer_s,
        stall_s=statistics.median([event.stall_s for event in saved] or [0.0]),
        write_s=statistics.median([event.write_s for event in saved] or [0.0]),
        sample_s=statistics.median(samples or [0.0]),
        begin_s=max(0.0, steps[0].at_s - steps[0].took_s - began_at_s - spent_before_s),
        end_s=max(0.0, ended_at_s - steps[-1].at_s - (sum(event.took_s for event in evals[2:]) + sum(samples[1:]) if is_whole else 0.0)),
        scatter=spread(ordinary),
        parameters=count,
        memory_bytes=memory_bytes,
    )


def spread(values: list[float]) -> float:
    """Relative standard error of the median."""
    middle = statistics.median(values)
    return 1.4826 * 1.2533 * statistics.median(abs(each - middle) for each in values) / middle / len(values) ** 0.5


def optimizer_time(config: Config, data: Any) -> tuple[float, int]:
    """(seconds of norm, clipping and update without the gradients, parameters)."""
    import torch

    from nanolens.train.guards import clip, global_norm
    from nanolens.training.begin import Beginning
    from nanolens.training.setup import set_up

    workshop = set_up(config, data, Beginning(None, False, None, ()), lambda event: None, None)
    trainee, machine, took = workshop.trainee, workshop.machine, []
    for _ in range(4):
        for parameter in trainee.parameters:
            parameter.grad = torch.full_like(parameter, 1e-4)
        machine.synchronize()
        before_s = time.perf_counter()
        gradients = [parameter.grad for parameter in trainee.parameters if parameter.grad is not None]
        clip(gradients, global_norm(gradients).item(), 1.0)
        trainee.optimizer.step()
        trainee.optimizer.zero_grad(set_to_none=True)
        machine.synchronize()
        took.append(time.perf_counter() - before_s)
    return statistics.median(took[1:]), sum(parameter.numel() for parameter in trainee.parameters)


def extended(points: list[Point], config: Config, vocab_size: int, base: float) -> dict[str, Any]:
    """The measured points as figures of the whole model."""
    last = points[-1]
    if last.layers == config.n_layer:
        chosen = (
            next(point for point in points if point.size == config.batch_size) if any(p.size == config.batch_size for p in points) else last
        )
        return {
            "micro_s": [(point.size, point.micro_s) for point in points],
            "forward_s": [(point.size, point.forward_s) for point in points],
            "memory_bytes": [(point.size, point.memory_bytes) for point in points],
            **{name: getattr(chosen, name) for name in ("optimizer_s", "stall_s", "write_s", "sample_s", "begin_s", "end_s")},
        }
    return _deepened(points[0], last, config, vocab_size, base)


def _deepened(few: Point, many: Point, config: Config, vocab_size: int, base: float) -> dict[str, Any]:
    """From one layer and a few to all of them."""
    total = parameters(shape_of(config, vocab_size)).total

    def at_depth(name: str) -> float:
        one, other = getattr(few, name), getattr(many, name)
        each = max(0.0, other - one) / (many.layers - few.layers) if many.layers > few.layers else 0.0
        return one + (config.n_layer - few.layers) * each

    by_depth = {name: at_depth(name) for name in ("micro_s", "forward_s", "sample_s")}
    by_parameters = {
        name: getattr(many, name) * total / many.parameters for name in ("optimizer_s", "stall_s", "write_s", "begin_s", "end_s")
    }
    memory, none = at_depth("memory_bytes"), base + STATE_BYTES * total
    return {
        "micro_s": [(many.size, by_depth["micro_s"])],
        "forward_s": [(many.size, by_depth["forward_s"])],
        "memory_bytes": [(0, min(none, memory)), (many.size, memory)],
        "sample_s": by_depth["sample_s"],
        **by_parameters,
    }


STATE_BYTES = 28.0  # per parameter: weight, gradient, two moments, and the copy for a checkpoint


def opened(dataset: str, config: Config, vocab_size: int) -> Any:
    """The prepared data where there is some, so that the checks before the first update take as long as they will; else made-up tokens."""
    if not dataset:
        return made_up(config, vocab_size)
    from nanolens.data.store import open_folder

    return open_folder(Path(dataset))


def made_up(config: Config, vocab_size: int) -> Any:
    count = max(8 * config.block_size * config.batch_size, 1 << 14) + 1
    draw = np.random.default_rng(0)
    kind = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    train, val = (draw.integers(0, vocab_size, count, dtype=np.int64).astype(kind) for _ in range(2))
    return SimpleNamespace(
        name="made up",
        folder=Path(),
        train=train,
        val=val,
        vocab_size=vocab_size,
        tokenizer=None,
        fingerprint="",
        tokenizer_fingerprint="",
        text_fingerprint="",
        facts={},
        chosen=(),
        about={},
        document_ends=lambda split: None,
    )


def not_counted(libraries: float) -> float:
    """Bytes that a training has and a copied process lacks: it does not count the pages of libraries until it touches them itself. About
    half of those that it touches had been touched by loading them (94 MB instead of 76 + 41 in a small training)."""
    own = library_bytes()
    return max(libraries, own) + min(libraries, own) / 2 - own if own < libraries else 0.0


def library_bytes() -> float:
    """Resident pages that are files: libraries, and the data."""
    if sys.platform != "linux":
        return 0.0
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile:"))
    return float(line.split()[1]) * 1024


def peak_bytes(machine: Any) -> float:
    """The most memory that this process has held: on a GPU reserved there, else resident."""
    if machine.device.type == "cuda":
        import torch

        return float(torch.cuda.max_memory_reserved(machine.device))
    if machine.device.type == "mps":
        return float(machine.memory_in_use())
    from nanolens.training.machine import most_resident

    return float(most_resident())


if __name__ == "__main__":
    main()
