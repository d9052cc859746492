"""Small models and runs for the tests of the doors: each tokenizer, random weights or a few steps of training."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nanolens.config.fields import Config
from nanolens.data.store import Dataset
from nanolens.data.tokenizers import CharTokenizer, GPT2Tokenizer, Tokenizer
from nanolens.model import build
from nanolens.record.write import Recorder
from nanolens.training.loop import train

TEXT = (
    "The doors of the house stand open; whoever comes may bring 12 apples, 345 pears or 6789 words.\n"
    "Don't they say it's late? We'll see: I'd rather you've come.\n\n    नमस्ते, दुनिया! Größe – naïve café. 你好，世界。\n"
) * 40
TOKENIZERS = ("char", "bpe", "bpe-gpt2", "gpt2")
SHAPE = Config(
    n_layer=2,
    n_head=2,
    n_embd=32,
    block_size=32,
    batch_size=4,
    gradient_accumulation_steps=1,
    max_iters=12,
    eval_interval=6,
    eval_iters=2,
    learning_rate=1e-2,
    min_lr=1e-3,
    warmup_iters=2,
    lr_decay_iters=12,
    device="cpu",
    dtype="float32",
    compile=False,
    threads=1,
    sample_interval=0,
    token_shift=False,
    ngram_rows=0,
)


@cache
def tokenizer(kind: str) -> Tokenizer:
    if kind == "char":
        return CharTokenizer(sorted(set(TEXT)))
    if kind == "gpt2":
        return GPT2Tokenizer()
    from nanolens.data import tokenizers
    from nanolens.data.prepare import encoders

    return encoders.train_bpe([TEXT], 400, tokenizers.GPT2_PATTERN if kind == "bpe-gpt2" else encoders.OWN_PATTERN)


def random_model(config: Config, rows: int, size: float = 0.3) -> nn.Module:
    """All weights drawn, biases and what begins at zero too: what starts at zero would hide a tensor that went to the
    wrong place."""
    generator = torch.Generator().manual_seed(1)
    model = build(config, rows).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * size
    return model


def made_run(folder: Path, kind: str = "char", **changes: Any) -> Path:
    """A run that was trained for a few steps."""
    words = tokenizer(kind)
    ids = np.array(words.encode(TEXT), dtype=np.uint16)
    cut = len(ids) * 8 // 10
    facts = {"bytes_per_token": 1.0, "val_bytes_per_token": 1.0, "dataset_tokens": cut}
    data = Dataset("made", Path("data/made"), ids[:cut], ids[cut:], words.vocab_size, words, facts)
    recorder = Recorder(folder)
    try:
        train(dataclasses.replace(SHAPE, dataset="data/made", **changes), data, folder, recorder)
    finally:
        recorder.close()
    return folder


def some_ids(rows: int, length: int = 32) -> torch.Tensor:
    return torch.randint(rows, (3, length), generator=torch.Generator().manual_seed(2))
