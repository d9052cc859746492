"""nanoGPT's own numbers, digit for digit. They were printed by its train.py (commit 3adf61e) on the tokens made
below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanolens.config.fields import Config
from nanolens.data.store import Dataset
from nanolens.record.events import Evaluated, Event, StepTaken
from tests.training.small import recorded

SHARED: dict[str, Any] = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 32,
    "block_size": 16,
    "batch_size": 4,
    "learning_rate": 3e-3,
    "min_lr": 3e-4,
    "warmup_iters": 5,
    "lr_decay_iters": 20,
    "max_iters": 20,
    "eval_interval": 10,
    "eval_iters": 3,
    "data_order": "nanogpt",
    "device": "cpu",
    "dtype": "float32",
    "compile": False,
    "threads": 1,
    "gradient_accumulation_steps": 1,
}

PRINTED = {
    "plain": (
        {},
        "2.8421 2.8630 2.8473 2.8640 2.8195 2.8018 2.8190 2.8114 2.7780 2.7745 2.8031 2.7662 2.7914 2.8043 2.7891 "
        "2.7389 2.7614 2.7880 "
        "2.7808 2.7481 2.8207",
        "0 2.8529 2.8388, 10 2.8006 2.8126, 20 2.7604 2.7574",
    ),
    "dropout and bias": (
        {"dropout": 0.2, "bias": True},
        "2.8410 2.8367 2.7787 2.8177 2.8094 2.8190 2.7754 2.8080 2.7921 2.8480 2.7625 2.8451 2.8053 2.8297 2.7282 "
        "2.8389 2.7529 2.8587 "
        "2.8281 2.7842 2.8518",
        "0 2.8525 2.8461, 10 2.7967 2.7910, 20 2.7889 2.8231",
    ),
    "accumulation": (
        {"gradient_accumulation_steps": 3, "grad_clip": 0.3},
        "",  # nanoGPT prints the last micro-batch's loss there, we the mean of all
        "0 2.8529 2.8388, 10 2.7892 2.7964, 20 2.7632 2.8094",
    ),
}


def made_up(count: int, seed: int) -> np.ndarray:
    state, ids = seed, []
    for place in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append(((state >> 33) % 13 + place % 7) % 17)
    return np.array(ids, dtype=np.uint16)


@pytest.mark.parametrize("name", PRINTED)
def test_losses_are_those_that_nanogpt_prints(name: str, tmp_path: Path):
    changes, of_steps, of_evaluations = PRINTED[name]
    steps: list[str] = []
    evaluations: dict[int, list[str]] = {}

    def listen(event: Event) -> None:
        if isinstance(event, StepTaken):
            steps.append(f"{event.loss:.4f}")
        elif isinstance(event, Evaluated):
            evaluations.setdefault(event.step, []).append(f"{event.loss:.4f}")

    data = Dataset("made", Path("made"), made_up(3000, 1), made_up(400, 2), 17, None, {})
    recorded(Config(**{**SHARED, **changes}), data, tmp_path / "run", listen)
    if of_steps:
        assert " ".join(steps) == of_steps
    assert len(steps) == 21, "nanoGPT makes one update more than max_iters"
    assert ", ".join(f"{step} {' '.join(both)}" for step, both in evaluations.items()) == of_evaluations
