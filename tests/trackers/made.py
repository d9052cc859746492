"""A run folder made of events, without a training: every kind of number, a NaN, samples, a checkpoint, and a resume
where asked for."""

from __future__ import annotations

import math
from pathlib import Path

from nanolens.record import events as e
from nanolens.record.write import Recorder, write_run_file

FLOPS, PEAK, TOKENS = 1e6, 1e9, 64
FACTS = {
    "config": {
        "batch_size": 4,
        "block_size": 16,
        "learning_rate": 0.01,
        "max_iters": 30,
        "dataset": "tiny",
        "vocab_size": None,
    },
    "machine": {
        "hardware": "a laptop",
        "device": "cpu",
        "dtype": "float32",
        "peak_flops": PEAK,
        "peak_origin": "measured",
    },
    "sizes": {"flops_per_token": FLOPS, "parameters_total": 3568, "tokens_per_update": TOKENS},
    "versions": {"nanolens": "0.1.0"},
    "data": {"fingerprint": "abc", "facts": {"train_tokens": 3600}},
}


def step(k: int, shift: float = 0.0) -> e.StepTaken:
    loss = "nan" if k == 7 else 2.5 / k + shift
    return e.StepTaken(
        step=k,
        loss=loss,
        lr=0.01 / k,
        grad_norm=1.0 + k / 10,
        clipped=k % 2 == 0,
        tokens=TOKENS,
        took_s=0.01 + k / 1000,
        data_s=k / 1e5,
        memory_bytes=1000 * k if k % 16 == 1 else None,
        at_s=1000.0 + k,
    )


def evaluation(k: int, split: str) -> e.Evaluated:
    loss = 3.0 - k / 20 + (0.1 if split == "val" else 0.0)
    return e.Evaluated(
        step=k,
        split=split,
        loss=loss,
        standard_error=0.01 + k / 1000,
        batch_losses=[loss, loss],
        batches="fp",
        tokens=128,
        bits_per_byte=loss * 1.5,
        took_s=0.25,
        at_s=1000.5 + k,
    )


def around(k: int) -> list[e.Event]:
    """What is told at an evaluation."""
    sample = e.SampleWritten(
        step=k, text=f"sample of step {k}\n```\nwith a fence, <b> and & in it", took_s=0.1, at_s=1000.6 + k
    )
    return [evaluation(k, "train"), evaluation(k, "val"), sample]


def events(first: int, last: int, every: int = 10, shift: float = 0.0) -> list[e.Event]:
    found: list[e.Event] = []
    for k in range(first, last + 1):
        found.append(step(k, shift))
        if k % every == 0:
            found += around(k)
            found.append(e.CheckpointSaved(step=k, bytes=1234, stall_s=0.002, write_s=0.2, at_s=1000.7 + k))
    return found


def ended(k: int, why: str = "finished") -> e.RunEnded:
    return e.RunEnded(step=k, why=why, parts={"train": 1.5, "eval": 0.5}, wall_s=2.0, at_s=2000.0)


def write(folder: Path, told: list[e.Event]) -> None:
    """Appends as a training process would: each call is an attempt."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "run.json").exists():
        write_run_file(folder, FACTS)
    recorder = Recorder(folder)
    for event in told:
        recorder(event)
    recorder.close()


def made_run(folder: Path, last: int = 30) -> Path:
    write(folder, [e.RunStarted(step=0, pid=1), *around(0), *events(1, last), ended(last)])
    return folder


def expected(last: int = 30, shift: float = 0.0) -> dict[tuple[int, str], float]:
    """Every number of such a run, by step and tag, computed here from the events and not by the code under test."""
    found: dict[tuple[int, str], float] = {}
    for event in [*around(0), *events(1, last, shift=shift)]:
        match event:
            case e.StepTaken():
                k, speed = event.step, event.tokens / event.took_s
                found |= {
                    (k, "batch/loss"): float(event.loss),
                    (k, "lr"): event.lr,
                    (k, "batch/grad_norm"): float(event.grad_norm),
                    (k, "batch/clipped"): float(event.clipped),
                    (k, "batch/tokens"): event.tokens,
                    (k, "speed/step_s"): event.took_s,
                    (k, "speed/data_s"): event.data_s,
                    (k, "speed/tokens_per_s"): speed,
                    (k, "mfu"): 100 * speed * FLOPS / PEAK,
                }
                if event.memory_bytes is not None:
                    found[k, "speed/memory_bytes"] = event.memory_bytes
            case e.Evaluated():
                k, split = event.step, event.split
                found |= {
                    (k, f"{split}/loss"): float(event.loss),
                    (k, f"{split}/loss_se"): float(event.standard_error),
                    (k, f"{split}/bits_per_byte"): float(event.bits_per_byte or math.nan),
                    (k, "speed/eval_s"): 0.5,
                }
            case e.CheckpointSaved():
                k = event.step
                found |= {
                    (k, "checkpoint/bytes"): 1234,
                    (k, "checkpoint/stall_s"): 0.002,
                    (k, "checkpoint/write_s"): 0.2,
                    (k, "checkpoint/step"): k,
                }
    return found


def same(found: dict[tuple[int, str], float], wanted: dict[tuple[int, str], float], close: float = 1e-15) -> None:
    """Every number of `wanted` is in `found`, and `found` has no other."""
    assert set(wanted) == set(found), sorted(set(wanted) ^ set(found))[:10]
    for key, value in wanted.items():
        if math.isnan(value):
            assert math.isnan(found[key]), key
        else:
            assert abs(found[key] - value) <= close * abs(value), (key, found[key], value)
