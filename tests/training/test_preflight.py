"""Mistakes that are found before the first step, each with what it means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nanolens.data.store import Dataset
from nanolens.errors import UserError
from nanolens.model import build
from nanolens.training.preflight import nothing_leaks, overlap, parameters_change, randomised
from tests.training.small import but, events_of, recorded

LEAKY = """
import torch
class Model(torch.nn.Module):
    def __init__(self, config, vocab_size):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab_size, 16)
        self.head = torch.nn.Linear(16, vocab_size, bias=False)
        torch.nn.init.zeros_(self.head.weight)
    def forward(self, idx):
        x = self.embedding(idx)
        return self.head(x + {mix})
"""


def own(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(text)
    return str(path)


def test_a_healthy_run_passes_every_check_and_tells_of_each(data: Dataset, tmp_path: Path):
    recorded(but(max_iters=1, eval_interval=1), data, tmp_path / "run")
    passed = {event["check"]: event for event in events_of(tmp_path / "run") if event["event"] == "check_passed"}
    assert list(passed) == [
        "token_ids",
        "train_val_overlap",
        "first_loss",
        "causal_leak",
        "parameters_change",
        "checkpoint_rehearsal",
    ]
    assert passed["first_loss"]["seen"] == pytest.approx(passed["first_loss"]["usual"], abs=0.1)
    assert not [event for event in events_of(tmp_path / "run") if event["event"] == "warned"]


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_the_checks_change_nothing(arch: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The same losses with and without them, also where data and dropout share torch's generator."""
    from nanolens.training import loop

    for order in ("shuffled", "nanogpt"):
        config = but(arch=arch, max_iters=3, eval_interval=2, dropout=0.1, data_order=order)
        recorded(config, data, tmp_path / order / "with")
        with monkeypatch.context() as patch:
            patch.setattr(loop, "preflight", lambda *args, **kwargs: None)
            recorded(config, data, tmp_path / order / "without")
        told = [[e["loss"] for e in events_of(tmp_path / order / name) if "loss" in e] for name in ("with", "without")]
        assert told[0] == told[1]


def test_a_model_that_sees_the_next_token_is_refused_even_with_a_head_of_zeros(data: Dataset, tmp_path: Path):
    arch = own(tmp_path, LEAKY.replace("{mix}", "torch.roll(x, -1, dims=1)"))
    with pytest.raises(UserError, match="sees the future"):
        recorded(but(arch=arch), data, tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists(), "nothing is left behind that looks like a run"


def test_a_model_that_sees_only_the_past_is_not(data: Dataset, tmp_path: Path):
    arch = own(tmp_path, LEAKY.replace("{mix}", "torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]"))
    assert recorded(but(arch=arch, max_iters=2, eval_interval=2), data, tmp_path / "run").why == "finished"


def test_an_average_over_the_whole_window_leaks_too():
    torch.manual_seed(0)
    model = build(but(), 11)

    class Averaging(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, idx):
            return self.inner(idx) * (1 + 1e-3 * idx.float().mean())

    with pytest.raises(UserError, match="sees the future"):
        nothing_leaks(Averaging(), torch.randint(11, (2, 16)), 11)


def test_refusals_become_warnings_where_that_is_asked_for(data: Dataset, tmp_path: Path):
    arch = own(tmp_path, LEAKY.replace("{mix}", "torch.roll(x, -1, dims=1)"))
    assert (
        recorded(but(arch=arch, max_iters=2, eval_interval=2), data, tmp_path / "run", may_refuse=False).why
        == "finished"
    )
    assert [e["code"] for e in events_of(tmp_path / "run") if e["event"] == "warned"] == ["causal_leak"]


def test_parameters_that_never_change_are_named(data: Dataset):
    model = build(but(), 11)
    model.blocks[0].mlp.down.weight.requires_grad_(False)
    found = parameters_change(randomised(model), *torch.randint(11, (2, 2, 16)))
    assert found.warning is not None
    assert "blocks.0.mlp.down.weight" in str(found.warning)


def test_a_first_loss_far_from_chance_is_told(data: Dataset, tmp_path: Path):
    arch = own(
        tmp_path,
        "import torch\nclass Model(torch.nn.Module):\n    def __init__(self, config, vocab_size):\n        "
        "super().__init__()\n"
        "        self.table = torch.nn.Embedding(vocab_size, vocab_size)\n        "
        "torch.nn.init.normal_(self.table.weight, std=9.0)\n"
        "    def forward(self, idx):\n        return self.table(idx)\n",
    )
    recorded(but(arch=arch, max_iters=1, eval_interval=1), data, tmp_path / "run")
    assert [event["code"] for event in events_of(tmp_path / "run") if event["event"] == "warned"] == ["dead_init"]


def test_a_model_without_finite_numbers_is_refused(data: Dataset, tmp_path: Path):
    arch = own(
        tmp_path,
        "import torch\nclass Model(torch.nn.Module):\n    def __init__(self, config, vocab_size):\n        "
        "super().__init__()\n"
        "        self.table = torch.nn.Embedding(vocab_size, vocab_size)\n    def forward(self, idx):\n        "
        "return self.table(idx) / 0\n",
    )
    with pytest.raises(UserError, match="not finite"):
        recorded(but(arch=arch), data, tmp_path / "run")


def test_overlap_is_the_share_of_val_that_train_holds():
    rng = np.random.default_rng(0)
    train, fresh = rng.integers(0, 60, 20_000), rng.integers(0, 60, 4000)
    assert overlap(train, fresh) == 0.0
    assert overlap(train, train[5000:9000].copy()) == 1.0
    assert overlap(train, np.concatenate([train[5000:7000], fresh[:2000]])) == pytest.approx(0.5, abs=0.03)


def test_a_val_split_that_was_trained_on_is_told(data: Dataset, tmp_path: Path):
    copied = replace(data, val=data.train[1000:1600].copy())
    recorded(but(max_iters=1, eval_interval=1), copied, tmp_path / "run")
    assert [event["code"] for event in events_of(tmp_path / "run") if event["event"] == "warned"] == ["val_leak"]
