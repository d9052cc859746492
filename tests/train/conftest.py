"""A small corpus with structure, made here, and a config that trains on it in seconds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoscope.config.fields import Config
from nanoscope.data.tokenizers import CharTokenizer

LETTERS = "abcdefgh .\n"


@dataclass
class SmallData:
    """What the loop asks of a dataset, without a folder behind it."""

    train: np.ndarray
    val: np.ndarray
    tokenizer: Any
    vocab_size: int = len(LETTERS)
    fingerprint: str = "small"
    facts: dict[str, Any] = field(default_factory=dict)


def small_data(seed: int = 0, tokens: int = 6000) -> SmallData:
    """A second-order chain of letters: enough to learn that a loss falls, and no two splits alike."""
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.full(len(LETTERS), 0.2), size=(len(LETTERS), len(LETTERS)))
    ids = [0, 1]
    for _ in range(tokens):
        ids.append(int(rng.choice(len(LETTERS), p=table[ids[-2], ids[-1]])))
    everything = np.asarray(ids, dtype=np.uint16)
    cut = tokens * 9 // 10
    facts = {"train_bytes": cut, "val_bytes": len(ids) - cut}
    return SmallData(everything[:cut], everything[cut:], CharTokenizer(LETTERS), facts=facts)


SMALL = Config(
    n_layer=2, n_head=2, n_embd=16, block_size=16, batch_size=4, gradient_accumulation_steps=1, max_iters=20, eval_interval=10,
    eval_iters=3, learning_rate=1e-2, min_lr=1e-3, warmup_iters=2, lr_decay_iters=20, device="cpu", dtype="float32", compile=False,
    threads=1, sample_interval=0,
)  # fmt: skip


def but(**changes: Any) -> Config:
    return replace(SMALL, **changes)


def events_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(run) if event["event"] == "step_taken"]


@pytest.fixture(scope="session")
def data() -> SmallData:
    return small_data()
