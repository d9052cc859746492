"""A small corpus with structure, made here, and a config that trains on it in seconds."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nanolens.config.fields import Config
from nanolens.data.store import Dataset
from nanolens.data.tokenizers import CharTokenizer
from nanolens.record import checkpoint_folder
from nanolens.record.events import Event
from nanolens.record.write import Recorder
from nanolens.training.loop import TrainingOutcome, train

LETTERS = "abcdefgh .\n"


def small_data(seed: int = 0, tokens: int = 6000) -> Dataset:
    """A chain of letters that leans on the last one and a little on the one before: what it holds can be learnt in
    seconds."""
    rng = np.random.default_rng(seed)
    count = len(LETTERS)
    near, far = rng.dirichlet(np.full(count, 0.15), size=count), rng.dirichlet(np.full(count, 0.15), size=count)
    ids = [0, 1]
    for _ in range(tokens):
        ids.append(int(rng.choice(count, p=0.8 * near[ids[-1]] + 0.2 * far[ids[-2]])))
    everything = np.asarray(ids, dtype=np.uint16)
    cut = tokens * 9 // 10
    facts = {"bytes_per_token": 1.0, "val_bytes_per_token": 1.0}
    return Dataset(
        "small", Path("small"), everything[:cut], everything[cut:], len(LETTERS), CharTokenizer(LETTERS), facts
    )


SMALL = Config(
    n_layer=2,
    n_head=2,
    n_embd=16,
    block_size=16,
    batch_size=4,
    gradient_accumulation_steps=1,
    max_iters=20,
    eval_interval=10,
    eval_iters=3,
    learning_rate=1e-2,
    min_lr=1e-3,
    warmup_iters=2,
    lr_decay_iters=20,
    device="cpu",
    dtype="float32",
    compile=False,
    threads=1,
    sample_interval=0,
)


def but(**changes: Any) -> Config:
    return replace(SMALL, **changes)


def events_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(run) if event["event"] == "step_taken"]


def recorded(
    config: Config, data: Dataset, run: Path, listener: Callable[[Event], None] = lambda event: None, **more: Any
) -> TrainingOutcome:
    """Trains with the record that a real run has."""
    recorder = Recorder(run)
    try:
        return train(config, data, run, lambda event: (recorder(event), listener(event)), **more)
    finally:
        recorder.close()


def signal_at(kind: type[Event], step: int, number: int = signal.SIGTERM) -> Callable[[Event], None]:
    """A listener that sends this process a signal when it first hears of `kind` at `step`."""
    sent = []

    def listen(event: Event) -> None:
        if isinstance(event, kind) and event.step == step and not sent:
            sent.append(True)
            os.kill(os.getpid(), number)

    return listen


def digests(run: Path, step: int) -> dict[str, str]:
    """sha256 of the weights and of everything else that resuming needs, as the manifest of a checkpoint has them."""
    manifest = json.loads((checkpoint_folder(run, step) / "manifest.json").read_text())
    return {name: manifest["files"][name]["sha256"] for name in ("model.safetensors", "optimizer.safetensors")}


def losses_of(run: Path) -> dict[int, tuple[float, float]]:
    """Loss and gradient norm of each step; of a repeated step the last."""
    return {event["step"]: (event["loss"], event["grad_norm"]) for event in steps_of(run)}


def evaluations_of(run: Path) -> dict[tuple[int, str], list[float]]:
    return {(e["step"], e["split"]): e["batch_losses"] for e in events_of(run) if e["event"] == "evaluated"}
