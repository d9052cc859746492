"""Run folders with round numbers, made in milliseconds, for the page to show."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from nanolens.record import events as e
from nanolens.record.write import Recorder, write_run_file

STARTED_AT_S = 1_700_000_000.0
CONFIG = {
    "dataset": "shakespeare_char",
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "block_size": 64,
    "batch_size": 12,
    "gradient_accumulation_steps": 1,
    "max_iters": 400,
    "lr_decay_iters": 400,
    "learning_rate": 1e-3,
    "min_lr": 1e-4,
    "warmup_iters": 20,
    "eval_interval": 50,
    "eval_iters": 20,
    "grad_clip": 1.0,
    "device": "cpu",
    "dtype": "float32",
    "arch": "gpt2",
    "seed": 1,
}


def write_run(
    folder: Path,
    *,
    steps: int = 400,
    seed: int = 1,
    nan_from: int | None = None,
    ends: bool = True,
    sample: str = "To be, or not",
    **config: object,
) -> Path:
    """A run as `train` would have recorded it; from `nan_from` on its losses are NaN."""
    noise = random.Random(seed)
    settings = {**CONFIG, "seed": seed, **config}
    about = {
        "format": 1,
        "name": folder.name,
        "created_at_s": STARTED_AT_S,
        "config": settings,
        "came_from": {},
        "preset": "",
        "data": {
            "fingerprint": "d",
            "tokenizer_fingerprint": "t",
            "facts": {"train_tokens": 1_003_854, "val_tokens": 111_540},
        },
        "machine": {
            "hardware": "a CPU",
            "device": "cpu",
            "dtype": "float32",
            "peak_flops": 1e11,
            "peak_origin": "measured",
        },
        "versions": {"nanolens": "0", "torch": "2"},
        "sizes": {"vocab_size": 65, "parameters_total": 804096, "flops_per_token": 5e6, "tokens_per_update": 768},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_run_file(folder, about)
    record = Recorder(folder)
    now_s = STARTED_AT_S
    record(e.RunStarted(step=0, pid=1, at_s=now_s))
    for k in range(steps + 1):
        level = 1.9 + 2.27 * math.exp(-k / 60)
        if k % 50 == 0:
            now_s += 0.4
            for split in ("train", "val"):
                losses = [level + noise.gauss(0, 0.02) for _ in range(4)]
                record(
                    e.Evaluated(
                        step=k,
                        split=split,
                        loss=sum(losses) / 4,
                        standard_error=0.01,
                        batch_losses=losses,
                        batches="b",
                        tokens=3072,
                        took_s=0.2,
                        at_s=now_s,
                    )
                )
            record(e.CheckpointSaved(step=k, bytes=10, stall_s=0.02, at_s=now_s))
            record(e.SampleWritten(step=k, text=f"{sample} ({k})", took_s=0.1, at_s=now_s))
        if k < steps:
            now_s += 0.02
            is_bad = nan_from is not None and k + 1 >= nan_from
            record(
                e.StepTaken(
                    step=k + 1,
                    loss="nan" if is_bad else level + noise.gauss(0, 0.05),
                    lr=1e-3,
                    grad_norm="nan" if is_bad else 0.5 + noise.random(),
                    clipped=k % 3 == 0,
                    tokens=768,
                    took_s=0.02,
                    data_s=0.001,
                    memory_bytes=300_000_000,
                    at_s=now_s,
                )
            )
    if ends:
        record(
            e.RunEnded(
                step=steps,
                why="finished",
                parts={"train": 7.6, "data": 0.4, "eval": 3.6, "checkpoint": 0.2, "sample": 0.9},
                wall_s=12.7,
                at_s=now_s,
            )
        )
    record.close()
    return folder


NANOGPT_LOG = "\n".join(
    line
    for k in range(0, 2001, 10)
    for line in (
        *(
            [f"step {k}: train loss {1.2 + 3 * math.exp(-k / 300):.4f}, val loss {1.3 + 3 * math.exp(-k / 300):.4f}"]
            if k % 250 == 0
            else []
        ),
        f"iter {k}: loss {1.25 + 3 * math.exp(-k / 300) + 0.02 * math.sin(k):.4f}, time "
        f"{33.2 + (400 if k % 250 == 0 else 0):.2f}ms, mfu 11.07%",
    )
)


def as_json(text: str) -> dict:
    return json.loads(text)
