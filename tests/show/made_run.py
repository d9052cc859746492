"""A training that never happened: events with round numbers, for looking at what the views make of them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from nanolens.record import events as e
from nanolens.record.progress import Progress, about_run

KNOWN = {
    "max_iters": 2000,
    "eval_interval": 250,
    "parameters_total": 804096,
    "arch": "gpt2",
    "device": "cpu",
    "dtype": "float32",
    "dataset": "pydocs",
    "flops_per_token": 5.16e6,
    "peak_flops": 2.1e11,
    "peak_origin": "measured: a matmul",
    "tokens_per_update": 768,
}
STARTED_AT_S = 1_000_000_000.0
STEP_S, EVAL_S = 0.025, 0.4
SAMPLE = (
    "def the(self):\n    Return the value of the first line of the object that is the same as the string of the "
    "class, or None.\n"
)


def made_run(steps: int = 2000, ends: bool = True, seed: int = 1) -> Iterator[e.Event]:
    noise = random.Random(seed)
    now_s = STARTED_AT_S
    yield e.RunStarted(step=0, pid=12, at_s=now_s)
    yield e.Chosen(what="dtype", value="float32", because="16-bit arithmetic is not faster on most CPUs", at_s=now_s)
    yield e.CheckPassed(check="initial loss", seen=4.18, usual=4.1744, at_s=now_s)
    for k in range(steps + 1):
        if k % 250 == 0:
            now_s += 2 * EVAL_S
            yield evaluated(k, "train", 1.5 + 2.67 * math.exp(-k / 300) - 0.03, now_s)
            yield evaluated(k, "val", 1.5 + 2.67 * math.exp(-k / 300) + 0.05 * k / 2000, now_s)
            if k:
                now_s += 0.02
                yield e.CheckpointSaved(step=k, bytes=10, stall_s=0.02, at_s=now_s)
            now_s += 0.3
            yield e.SampleWritten(step=k, text=SAMPLE if k else "q;Zx#\nv)Q", took_s=0.3, at_s=now_s)
        if k < steps:
            now_s += STEP_S
            loss = 1.5 + 2.67 * math.exp(-k / 300) + noise.gauss(0, 0.05)
            yield e.StepTaken(
                step=k + 1, loss=loss, lr=1e-3, grad_norm=1.0, tokens=768, took_s=STEP_S, data_s=0.001, at_s=now_s
            )
    if ends:
        parts = {
            "train": 24 * steps / 1000,
            "data": steps / 1000,
            "eval": 7.2,
            "checkpoint": 0.16,
            "sample": 2.7,
            "other": 0.5,
        }
        yield e.RunEnded(step=steps, why="finished", parts=parts, wall_s=sum(parts.values()), at_s=now_s)


def evaluated(step: int, split: str, loss: float, at_s: float) -> e.Evaluated:
    return e.Evaluated(
        step=step,
        split=split,
        loss=loss,
        standard_error=0.0051,
        batch_losses=[loss],
        batches="b",
        tokens=15360,
        took_s=EVAL_S,
        at_s=at_s,
        bits_per_byte=loss / math.log(2) if split == "val" else None,
    )


def made_progress(steps: int = 2000, ends: bool = True) -> Progress:
    progress = Progress(about_run("quickstart-1", KNOWN))
    for event in made_run(steps, ends):
        progress.take(event)
    return progress
