"""The measuring process behind `nanoscope plan`: one question as JSON on stdin, one answer on stdout.

It trains the very model on made-up tokens with the trainer's own functions, at two micro-batch sizes. A model whose micro-batch takes
seconds is timed with one and with a few layers, and the rest follows from the difference: blocks are alike. Peak memory is that of the
process, which only grows: the smaller size is measured first."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from nanoscope.config.fields import Config
from nanoscope.sizing import flops_per_token, parameters, shape_of

ASSUMED_EFFICIENCY = 0.5  # of the fastest matrix product, for guessing what a measurement will take
LONGEST_POINT_S = 2.0  # one update of the whole model; above, fewer layers are timed
REPEATS = 7
DISK_TRIAL_BYTES = 32 << 20


@dataclass(frozen=True)
class Point:
    layers: int
    size: int  # sequences in the micro-batch
    micro_s: float
    forward_s: float
    optimizer_s: float
    copy_s: float
    first_s: float  # the first update, with all that happens only once
    set_up_s: float
    scatter: float
    parameters: int
    memory_bytes: float


def main() -> None:
    question = json.loads(sys.stdin.read())
    config = Config(**question["config"])
    print(json.dumps(answer(config, question["vocab_size"], question["budget_s"], question["started_at_s"])))


def answer(config: Config, vocab_size: int, budget_s: float, started_at_s: float) -> dict[str, Any]:
    from nanoscope.train.machine import choose_machine, measured_peak, with_peak

    machine = choose_machine(config, lambda event: None)
    peak = measured_peak(machine)
    imported_s = time.time() - started_at_s
    base = peak_bytes(machine)
    config = dataclasses.replace(config, init_from="scratch", vocab_size=vocab_size, out_dir="auto")
    points = measured_points(config, vocab_size, peak, budget_s)
    whole = extended(points, config, vocab_size, base)
    achieved = flops_per_token(shape_of(config, vocab_size)).training * config.block_size
    micro_s = dict(whole["micro_s"])
    size = max(micro_s)
    last = points[-1]
    depth = config.n_layer / last.layers
    return {
        **whole, "base_bytes": base, "write_bytes_per_s": write_speed(), "peak_flops": with_peak(machine).peak_flops,
        "achieved_flops": achieved * size / micro_s[size],
        "start_s": imported_s + last.set_up_s * depth + max(0.0, last.first_s - last.micro_s - last.optimizer_s) * depth,
        "sample_token_s": sampling_time(config, vocab_size, machine) * (1 if config.n_layer == last.layers else depth),
        "scatter": max(point.scatter for point in points), "layers_timed": sorted({point.layers for point in points}),
    }  # fmt: skip


def measured_points(config: Config, vocab_size: int, peak: float, budget_s: float) -> list[Point]:
    """In the order of growing memory."""

    def cost_s(layers: int, size: int) -> float:
        shape = shape_of(dataclasses.replace(config, n_layer=layers), vocab_size)
        return flops_per_token(shape).training * size * config.block_size / (ASSUMED_EFFICIENCY * peak)

    size = config.batch_size
    if cost_s(config.n_layer, size) <= LONGEST_POINT_S:
        sizes = sorted({max(1, size // 2), size if size > 1 else 2})
        each_s = budget_s / len(sizes)
        return [measured_point(config, vocab_size, config.n_layer, each, each_s) for each in sizes]
    while size > 1 and cost_s(2, size) > LONGEST_POINT_S:
        size //= 2
    deep = 2
    while deep < min(4, config.n_layer) and cost_s(deep + 1, size) <= LONGEST_POINT_S:
        deep += 1
    deep = min(deep, config.n_layer)
    plan = sorted({(1, size), (deep, size)})
    if size > 1:
        plan = [(1, max(1, size // 2)), *plan]
    return [measured_point(config, vocab_size, layers, each, budget_s / len(plan)) for layers, each in plan]


def measured_point(config: Config, vocab_size: int, layers: int, size: int, budget_s: float) -> Point:
    from nanoscope.train.begin import Beginning
    from nanoscope.train.clock import Clock
    from nanoscope.train.evaluate import evaluate
    from nanoscope.train.setup import set_up
    from nanoscope.train.step import take_update

    accumulation = min(2, config.gradient_accumulation_steps)  # from two on, the norms of the micro-batches are taken too
    config = dataclasses.replace(
        config,
        n_layer=layers,
        batch_size=size,
        gradient_accumulation_steps=accumulation,
        chunked_head=config.chunked_head,
        max_iters=10**6,
        lr_decay_iters=10**6,
        warmup_iters=0,
    )
    before_s = time.perf_counter()
    workshop = set_up(config, made_up_data(config, vocab_size), Beginning(None, False, None, ()), lambda event: None, None)
    set_up_s = time.perf_counter() - before_s
    trainee, machine, clock = workshop.trainee, workshop.machine, Clock()
    took: list[float] = []
    until_s = time.perf_counter() + budget_s
    while len(took) < 3 or (len(took) <= REPEATS and time.perf_counter() < until_s):
        took.append(take_update(trainee, config, machine, clock, lambda: None).took_s)
        if len(took) == 2 and time.perf_counter() > until_s:
            break  # a large model: one ordinary update must do
    ordinary = took[1:]
    optimizer_s = optimizer_time(trainee, machine)
    batch = trainee.feed.take(0)
    forward = [evaluate(trainee.run, [batch], machine).took_s for _ in range(3 if statistics.median(ordinary) < 1 else 1)]
    copy_before_s = time.perf_counter()
    snapshot = trainee.snapshot({})
    copy_s = time.perf_counter() - copy_before_s
    if statistics.median(ordinary) < 1:
        take_update(trainee, config, machine, clock, lambda: None)  # with the copy held, as while a checkpoint is written
    del snapshot
    update_s = statistics.median(ordinary)
    scatter = 1.4826 * statistics.median(abs(each - update_s) for each in ordinary) / update_s / math.sqrt(len(ordinary))
    return Point(
        layers=layers, size=size, micro_s=max(1e-9, (update_s - optimizer_s) / accumulation), forward_s=statistics.median(forward),
        optimizer_s=optimizer_s, copy_s=copy_s, first_s=took[0] / accumulation, set_up_s=set_up_s, scatter=scatter,
        parameters=sum(parameter.numel() for parameter in trainee.model.parameters()), memory_bytes=peak_bytes(machine),
    )  # fmt: skip


def optimizer_time(trainee: Any, machine: Any) -> float:
    """Norm, clipping and update, without the gradients."""
    import torch

    from nanoscope.train.guards import clip, global_norm

    took = []
    for _ in range(3):
        for parameter in trainee.parameters:
            parameter.grad = torch.full_like(parameter, 1e-4)
        machine.synchronize()
        before_s = time.perf_counter()
        gradients = [parameter.grad for parameter in trainee.parameters]
        clip(gradients, global_norm(gradients).item(), 1.0)
        trainee.optimizer.step()
        trainee.optimizer.zero_grad(set_to_none=True)
        machine.synchronize()
        took.append(time.perf_counter() - before_s)
    return statistics.median(took)


def extended(points: list[Point], config: Config, vocab_size: int, base: float) -> dict[str, Any]:
    """The measured points as figures of the whole model."""
    deepest = max(point.layers for point in points)
    if deepest == config.n_layer:
        whole = [point for point in points if point.layers == deepest]
        return {
            "micro_s": [(point.size, point.micro_s) for point in whole],
            "forward_s": [(point.size, point.forward_s) for point in whole],
            "memory_bytes": [(point.size, point.memory_bytes) for point in whole],
            "optimizer_s": whole[-1].optimizer_s,
            "copy_s": whole[-1].copy_s,
        }
    few = next(point for point in points if point.layers == 1 and point.size == points[-1].size)
    many = points[-1]
    total = parameters(shape_of(config, vocab_size)).total
    size = many.size

    def at_depth(one: float, other: float) -> float:
        return one + (config.n_layer - few.layers) * max(0.0, other - one) / (many.layers - few.layers)

    return {
        "micro_s": [(size, at_depth(few.micro_s, many.micro_s))],
        "forward_s": [(size, at_depth(few.forward_s, many.forward_s))],
        "memory_bytes": _memory_line(few, many, at_depth(few.memory_bytes, many.memory_bytes), total, base),
        "optimizer_s": many.optimizer_s * total / many.parameters,
        "copy_s": many.copy_s * total / many.parameters,
    }


STATE_BYTES = 28.0  # per parameter: weight, gradient, two moments, and the copy for a checkpoint


def _memory_line(few: Point, many: Point, whole: float, total: int, base: float) -> list[tuple[int, float]]:
    """Two points of M(b) = M0 + m1 b: the measured size, and the state alone for none."""
    return [(0, base + STATE_BYTES * total), (many.size, max(whole, base + STATE_BYTES * total))]


def made_up_data(config: Config, vocab_size: int) -> Any:
    tokens = np.random.default_rng(0).integers(0, vocab_size, max(4 * config.block_size * config.batch_size, 4096) + 1, dtype=np.int64)
    tokens = tokens.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
    return SimpleNamespace(train=tokens, val=tokens, vocab_size=vocab_size, tokenizer=None, fingerprint="", facts={}, folder="")


def sampling_time(config: Config, vocab_size: int, machine: Any) -> float:
    return 0.0


def peak_bytes(machine: Any) -> float:
    """The most memory that this process has held: on a GPU allocated there, else resident."""
    if machine.device.type == "cuda":
        import torch

        return float(torch.cuda.max_memory_reserved(machine.device))
    if machine.device.type == "mps":
        return float(machine.memory_in_use())
    if sys.platform == "win32":
        import psutil

        return float(psutil.Process().memory_info().peak_wset)
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(size if sys.platform == "darwin" else size * 1024)


def write_speed() -> float:
    """Bytes per second to the current folder's disk, synced."""
    payload = os.urandom(1 << 20)
    try:
        with tempfile.TemporaryFile(dir=Path.cwd()) as file:
            before_s = time.perf_counter()
            for _ in range(DISK_TRIAL_BYTES >> 20):
                file.write(payload)
            file.flush()
            os.fsync(file.fileno())
            return DISK_TRIAL_BYTES / (time.perf_counter() - before_s)
    except OSError:
        return 0.0


if __name__ == "__main__":
    main()
