"""Two ranks with one thread each against one process with two threads, the plan's prediction beside the measurement,
and the overlap.

    python bench/scaling.py [--updates=60] [--accumulation=2]

The plan's inputs are measured first: a micro-batch on one thread while the other core is busy with the same (as it will
be), and the link between two processes (`nanolens.training.distributed.bandwidth`). The same is done for the given
model with 1, 2 and 8
micro-batches in an update."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

SIZE = {"n_layer": 4, "n_head": 4, "n_embd": 256, "block_size": 128, "batch_size": 8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--accumulation", default="2,8")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(json.loads(given.worker))
        return
    folder = Path(tempfile.mkdtemp(prefix="scaling-"))
    try:
        table(folder, [int(each) for each in given.accumulation.split(",")], given.updates)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(folder: Path, accumulations: list[int], updates: int) -> None:
    from nanolens.message import msg
    from nanolens.planning.figures import Cluster
    from nanolens.planning.time import together

    link = json.loads(started([{"kind": "link"}] * 2, 1, together=True)[0])
    print(
        f"link between two processes: {link['bytes_per_s'] / 1e6:.0f} MB/s, {link['latency_s'] * 1e3:.2f} ms a message"
    )
    asked = Cluster(2, link["bytes_per_s"], link["latency_s"], (1.0, 1.0), msg("measured"))
    heads = {
        "micro-batches": 13,
        "1 x 2 threads": 14,
        "2 x 1 thread": 13,
        "plan": 9,
        "plan/seen": 9,
        "faster": 7,
        "comm": 8,
        "hidden": 7,
    }
    print(" ".join(head.rjust(width) for head, width in heads.items()))
    for count in accumulations:
        job = {"kind": "train", "accumulation": count, "updates": updates}
        half = {**job, "accumulation": max(1, count // 2)}
        both = [{**half, "run": str(folder / f"half{count}-{number}")} for number in range(2)]
        alone = [json.loads(line) for line in started(both, 1, together=False)]
        one = json.loads(started([{**job, "run": str(folder / f"one{count}")}], 2, together=False)[0])
        two = json.loads(started([{**job, "run": str(folder / f"two{count}")}] * 2, 1, together=True)[0])
        optimizer_s = statistics.mean(each["optimizer_s"] for each in alone)
        micro_s = (statistics.mean(each["update_s"] for each in alone) - optimizer_s) / half["accumulation"]
        plan = together(micro_s, count, optimizer_s, 4 * one["parameters"], asked)
        exposed_s = two["update_s"] - max(two["busy_s"])
        hidden = 1 - exposed_s / two["comm_s"] if two["comm_s"] else 0.0
        print(
            f"{count:>13} {one['update_s'] * 1e3:>11.1f} ms {two['update_s'] * 1e3:>10.1f} ms "
            f"{plan.update_s * 1e3:>6.1f} ms "
            f"{plan.update_s / two['update_s']:>9.2f} {one['update_s'] / two['update_s']:>6.2f}x "
            f"{two['comm_s'] * 1e3:>5.1f} ms "
            f"{hidden:>6.0%}",
            flush=True,
        )


def started(jobs: list[dict[str, Any]], threads: int, *, together: bool) -> list[str]:
    """Runs the jobs side by side, as ranks of one group or each for itself; what each printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for number, job in enumerate(jobs):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        if together:
            environment |= {
                "RANK": str(number),
                "LOCAL_RANK": str(number),
                "WORLD_SIZE": str(len(jobs)),
                "MASTER_ADDR": "127.0.0.1",
            }
            environment |= {"MASTER_PORT": str(port)}
        processes.append(
            subprocess.Popen(
                [sys.executable, __file__, "--worker", json.dumps(job)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    said = [process.communicate()[0] for process in processes]
    assert not any(process.returncode for process in processes), said
    return said


def worker(job: dict[str, Any]) -> None:
    from nanolens.training.distributed.group import join
    from nanolens.training.distributed.ranks import SINGLE_PROCESS

    group = join()
    ranks = group or SINGLE_PROCESS
    found = measured_link(ranks.size) if job["kind"] == "link" else trained(job, ranks)
    if group is not None:
        group.end()
    print(json.dumps(found))


def measured_link(size: int) -> dict[str, float]:
    from nanolens.training.distributed.bandwidth import measure

    link = measure(size)
    return {"bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s}


def trained(job: dict[str, Any], ranks: Any) -> dict[str, Any]:
    from nanolens.config.fields import Config
    from nanolens.data.store import Dataset
    from nanolens.record.events import Event, StepTaken
    from nanolens.training.loop import train

    config = Config(
        **SIZE,
        gradient_accumulation_steps=job["accumulation"],
        max_iters=job["updates"],
        lr_decay_iters=job["updates"],
        warmup_iters=5,
        eval_interval=10**6,
        eval_iters=1,
        device="cpu",
        dtype="float32",
        compile=False,
        sample_interval=0,
        checkpoint_interval=10**6,
        rank_timeout=120,
    )
    tokens = np.random.default_rng(0).integers(0, 256, 200_000).astype(np.uint16)
    data = Dataset("random", Path("random"), tokens[:180_000], tokens[180_000:], 256, None, {})
    seen: list[StepTaken] = []

    def listen(event: Event) -> None:
        if isinstance(event, StepTaken):
            seen.append(event)

    train(config, data, Path(job["run"]), listen, ranks=ranks)
    late = seen[len(seen) // 4 :]
    found: dict[str, Any] = {
        "optimizer_s": optimizer_s(config, data) if ranks.size == 1 else 0.0,
        "parameters": parameters(config),
    }
    if late:
        found["update_s"] = statistics.median(event.took_s for event in late)
        rows = [event.rank_busy_s or [event.took_s] for event in late]
        found["busy_s"] = [statistics.median(column) for column in zip(*rows, strict=True)]
        found["comm_s"] = statistics.median(max(event.rank_comm_s or [0.0]) for event in late)
    return found


def parameters(config: Any) -> int:
    from nanolens.sizing.shape import parameters as counted
    from nanolens.sizing.shape import shape_of

    return counted(shape_of(config, 256)).total


def optimizer_s(config: Any, data: Any) -> float:
    """Norm, clipping and the update itself, without gradients."""
    import torch

    from nanolens.training.begin import Beginning
    from nanolens.training.setup import set_up
    from nanolens.training.step import clip, global_norm

    trainee = set_up(
        replace(config, max_iters=10), data, Beginning(None, False, None, ()), lambda event: None, None
    ).trainee
    took = []
    for _ in range(8):
        for parameter in trainee.parameters:
            parameter.grad = torch.full_like(parameter, 1e-4)
        started_at_s = time.perf_counter()
        gradients = [parameter.grad for parameter in trainee.parameters if parameter.grad is not None]
        clip(gradients, global_norm(gradients).item(), 1.0)
        trainee.optimizer.step()
        trainee.optimizer.zero_grad(set_to_none=True)
        took.append(time.perf_counter() - started_at_s)
    return statistics.median(took[2:])


if __name__ == "__main__":
    main()
