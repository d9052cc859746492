"""A run that is made in a second or two, to be probed."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanolens.config.fields import Config

TINY = Config(
    n_layer=1,
    n_head=2,
    n_embd=16,
    block_size=16,
    batch_size=4,
    gradient_accumulation_steps=1,
    max_iters=40,
    lr_decay_iters=40,
    warmup_iters=2,
    eval_interval=10,
    eval_iters=4,
    learning_rate=1e-2,
    min_lr=1e-3,
    device="cpu",
    dtype="float32",
    compile=False,
    threads=1,
    sample_interval=0,
    checkpoint_interval=2,
    keep_checkpoints=40,
    dropout=0.1,
)

LETTERS = "\n abcdefghij"


def make_data(data: Path, shift: int = 0) -> Path:
    """Letters that follow each other by rule, in nanoGPT's form; with `shift` the val split follows another rule."""
    rng = np.random.default_rng(0)
    ids = np.cumsum(rng.choice([1, 1, 1, 5], size=6000)) % len(LETTERS)
    val = np.cumsum(rng.choice([1 + shift, 1 + shift, 1 + shift, 5], size=1200)) % len(LETTERS)
    data.mkdir(parents=True)
    ids.astype(np.uint16).tofile(data / "train.bin")
    val.astype(np.uint16).tofile(data / "val.bin")
    names = {
        "vocab_size": len(LETTERS),
        "itos": dict(enumerate(LETTERS)),
        "stoi": {c: i for i, c in enumerate(LETTERS)},
    }
    (data / "meta.pkl").write_bytes(pickle.dumps(names))
    return data


def trained(folder: Path, data: Path, **changes) -> Path:
    from nanolens.data.store import open_folder
    from nanolens.record.write import Recorder
    from nanolens.training.loop import train

    recorder = Recorder(folder)
    try:
        train(replace(TINY, dataset=str(data), **changes), open_folder(data), folder, recorder, may_refuse=False)
    finally:
        recorder.close()
    return folder


def fingerprint(run: Path) -> dict[str, str]:
    """sha256 of each file of the run, what probes left aside."""
    paths = [path for path in sorted(run.rglob("*")) if path.is_file() and "probes" not in path.relative_to(run).parts]
    return {path.relative_to(run).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
