"""A dataset in nanoGPT's own form, and settings that train on it in a second or two."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np

LETTERS = "\n abcdefghij"
SETTINGS = (
    "--dataset=tiny --n_layer=1 --n_head=2 --n_embd=16 --block_size=16 --batch_size=4 "
    "--gradient_accumulation_steps=1 --max_iters=20 "
    "--lr_decay_iters=20 --warmup_iters=2 --eval_interval=10 --eval_iters=2 --learning_rate=1e-2 --min_lr=1e-3 "
    "--sample_tokens=20 "
    "--device=cpu --dtype=float32 --compile=False --threads=1 --log_interval=5 --arch=gpt2 --optimizer=adamw "
    "--schedule=cosine "
    "--weight_decay=0.1 --beta1=0.9 --beta2=0.99 --grad_clip=1.0"
).split()


def make_data(folder: Path, seed: int = 0) -> None:
    """`data/tiny` below the folder: letters that follow each other by rule, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    ids = np.cumsum(rng.choice([1, 1, 1, 5], size=4000)) % len(LETTERS)
    data = folder / "data" / "tiny"
    data.mkdir(parents=True)
    ids[:3600].astype(np.uint16).tofile(data / "train.bin")
    ids[3600:].astype(np.uint16).tofile(data / "val.bin")
    names = {
        "vocab_size": len(LETTERS),
        "itos": dict(enumerate(LETTERS)),
        "stoi": {c: i for i, c in enumerate(LETTERS)},
    }
    (data / "meta.pkl").write_bytes(pickle.dumps(names))


def nanolens(*words: str, **options) -> subprocess.CompletedProcess:
    """The command in a process of its own, as a user would start it."""
    return subprocess.run(
        [sys.executable, "-m", "nanolens", *words], capture_output=True, text=True, timeout=100, **options
    )
