"""A model of the user's own, from a file that its owner names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nanolens.config.fields import Config
from nanolens.errors import UserError
from nanolens.model import build
from nanolens.model.generate import generate
from nanolens.model.loss import WithLoss

BIGRAM = """
import torch
class Model(torch.nn.Module):
    def __init__(self, config, vocab_size):
        super().__init__()
        self.table = torch.nn.Embedding(vocab_size, vocab_size)
    def forward(self, idx):
        return self.table(idx)
"""
CONFIG = Config(n_layer=1, n_head=1, n_embd=8, block_size=8)


def test_forward_alone_is_enough_to_learn_and_to_write(tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text(BIGRAM)
    model = build(replace(CONFIG, arch=str(path)), 5)
    loss = WithLoss(model, chunked=True)  # falls back to the plain loss: there is no `hidden`
    ids = torch.arange(9).remainder(5)[None]
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    for _ in range(50):
        optimizer.zero_grad()
        loss(ids[:, :-1], ids[:, 1:]).objective.backward()
        optimizer.step()
    assert generate(model, CONFIG, torch.tensor([[0]]), 12, seed=1)[0].tolist() == [i % 5 for i in range(13)]


@pytest.mark.parametrize(
    ("text", "word"), [("x = 1", "class Model"), ("Model = 3", "class Model"), (None, "no model file")]
)
def test_a_file_without_a_model_is_one_clear_message(text: str | None, word: str, tmp_path: Path):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=word):
        build(replace(CONFIG, arch=str(path)), 5)


def test_an_unknown_architecture_is_one_clear_message():
    with pytest.raises(UserError, match="not an architecture"):
        build(replace(CONFIG, arch="gpt9"), 5)
