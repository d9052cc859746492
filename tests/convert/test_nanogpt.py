"""nanoGPT's checkpoints in and out. What nanoGPT itself printed when it resumed is written down here;
bench/nanogpt_door.py runs it."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanolens.config.fields import Config
from nanolens.convert.exporting import export_model
from nanolens.convert.foreign import parameters_of
from nanolens.convert.importing import import_model
from nanolens.convert.nanogpt import read_nanogpt
from nanolens.data.store import open_folder
from nanolens.errors import UserError
from nanolens.loaded import load
from nanolens.model import build
from nanolens.record.read import read_run
from nanolens.record.write import Recorder
from nanolens.session.job import plan_job, run_job
from nanolens.training.loop import train

LETTERS = "\nabcdefghijklmnop"
SETTINGS: dict[str, Any] = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 32,
    "block_size": 16,
    "batch_size": 4,
    "learning_rate": 3e-3,
    "min_lr": 3e-4,
    "warmup_iters": 5,
    "lr_decay_iters": 40,
    "max_iters": 10,
    "eval_interval": 10,
    "eval_iters": 3,
    "data_order": "nanogpt",
    "device": "cpu",
    "dropout": 0.2,
    "bias": True,
    "dtype": "float32",
    "compile": False,
    "threads": 1,
    "gradient_accumulation_steps": 1,
    "sample_interval": 0,
}
# By nanoGPT's train.py (commit 3adf61e) with --init_from=resume, from its own checkpoint after 10 updates on the tokens
# made below.
PRINTED = (
    "2.6980 2.7793 2.6492 2.7368 2.6502 2.6972 2.6986 2.7192 2.7598 2.7048 2.8888 2.8318 2.8460 2.8630 2.7097 2.8737 "
    "2.7889 2.8067 2.8030 "
    "2.8482"
)


def made_up(count: int, seed: int) -> np.ndarray:
    state, ids = seed, []
    for place in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append(((state >> 33) % 13 + place % 7) % 17)
    return np.array(ids, dtype=np.uint16)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `data/made`, prepared as nanoGPT does, and a run of 10 updates."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data" / "made"
    data.mkdir(parents=True)
    made_up(3000, 1).tofile(data / "train.bin")
    made_up(400, 2).tofile(data / "val.bin")
    meta = {"vocab_size": 17, "itos": dict(enumerate(LETTERS)), "stoi": {letter: n for n, letter in enumerate(LETTERS)}}
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))
    run = tmp_path / "runs" / "ours"
    recorder = Recorder(run)
    train(Config(**SETTINGS, dataset="made", vocab_size=17), open_folder(data), run, recorder)
    recorder.close()
    return tmp_path


def test_the_next_losses_are_those_that_nanogpt_printed(place: Path):
    """The weights after 10 updates are nanoGPT's own (tests/training/test_parity.py); as its checkpoint they go out and
    come back."""
    export_model("ours@10", "nanogpt", "out")
    imported = import_model("out", "runs/theirs")
    assert (imported.kind, imported.step, imported.with_optimizer) == ("nanoGPT", 10, True)
    options = {
        "init_from": "resume",
        "out_dir": "runs/theirs",
        "max_iters": "29",
        "device": "cpu",
        "dtype": "float32",
        "threads": "1",
    }
    run_job(plan_job(None, list(options.items())))
    losses = read_run(Path("runs/theirs")).steps.loss
    assert np.abs(losses - np.array(PRINTED.split(), dtype=float)).max() < 0.0005


def test_the_out_folder_is_sampled_and_resumed_as_it_is(place: Path):
    export_model("ours@10", "nanogpt", "out")
    assert load("out").generate("abc", max_new_tokens=8, temperature=0) == load("ours@10").generate(
        "abc", max_new_tokens=8, temperature=0
    )
    config = place / "config.py"
    config.write_text(
        "\n".join(f"{key} = {value!r}" for key, value in {**SETTINGS, "dataset": "made", "out_dir": "out"}.items())
    )
    run_job(plan_job(str(config), [("init_from", "resume"), ("max_iters", "12")]))
    assert read_run(Path("out")).steps.step.tolist() == [11, 12, 13] and (place / "out" / "ckpt.pt").is_file()


def test_nanogpts_own_optimizer_takes_our_state(place: Path):
    """AdamW of torch, with the groups that nanoGPT makes, loads it and goes on as ours does."""
    export_model("ours@10", "nanogpt", "out")
    whole = torch.load("out/ckpt.pt", weights_only=True)
    assert list(whole) == ["model", "optimizer", "model_args", "iter_num", "best_val_loss", "config"]
    model = build(Config(**SETTINGS), 17)
    matrices, vectors = ([p for p in model.parameters() if (p.dim() >= 2) is wanted] for wanted in (True, False))
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}])
    optimizer.load_state_dict(whole["optimizer"])
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.95) and optimizer.state[matrices[0]]["step"] == 10
    assert optimizer.state[matrices[2]]["exp_avg"].shape == (96, 32)
    assert whole["config"]["dataset"] == "made" and whole["model_args"]["vocab_size"] == 17


def checkpoint(path: Path, *, prefix: str = "", old_order: bool = False, **changes: Any) -> dict[str, torch.Tensor]:
    """A file like nanoGPT's, made with torch alone; its weights by our names."""
    shape = Config(n_layer=11, n_head=2, n_embd=4, block_size=8, bias=True)
    model = build(shape, 17)
    ours = dict(model.named_parameters())
    from nanolens.convert.foreign import to_theirs

    theirs = {to_theirs(name): tensor for name, tensor in ours.items()}
    if old_order:
        linear = sorted(name for name in theirs if name.endswith("weight") and (".attn." in name or ".mlp." in name))
        groups = [linear, sorted(set(theirs) - set(linear))]
    else:
        groups = [[n for n, p in theirs.items() if p.dim() >= 2], [n for n, p in theirs.items() if p.dim() < 2]]
    order = [*groups[0], *groups[1]]
    state = {
        number: {
            "step": torch.tensor(3.0),
            "exp_avg": theirs[name].detach() * 2,
            "exp_avg_sq": theirs[name].detach() ** 2,
        }
        for number, name in enumerate(order)
    }
    first = len(groups[0])
    numbers = [list(range(first)), list(range(first, len(order)))]
    whole = {
        "model": {prefix + name: tensor.detach() for name, tensor in theirs.items()}
        | {prefix + "lm_head.weight": ours["embedding.weight"]},
        "optimizer": {"state": state, "param_groups": [{"params": part, "lr": 1e-3} for part in numbers]},
        "model_args": {
            "n_layer": 11,
            "n_head": 2,
            "n_embd": 4,
            "block_size": 8,
            "bias": True,
            "vocab_size": 17,
            "dropout": 0.0,
        },
        "iter_num": 3,
        "best_val_loss": torch.tensor(2.5),
        "config": {"dataset": "nowhere", "learning_rate": 1e-3, "device": "cuda"},
    }
    torch.save({**whole, **changes}, path)
    return {name: tensor.detach() for name, tensor in ours.items()}


@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
@pytest.mark.parametrize("old_order", [False, True])
def test_moments_find_their_parameters_in_both_orders(prefix: str, old_order: bool, tmp_path: Path):
    ours = checkpoint(tmp_path / "ckpt.pt", prefix=prefix, old_order=old_order)
    model = read_nanogpt(tmp_path / "ckpt.pt")
    assert model.moments is not None and model.val_loss == 2.5 and model.settings["learning_rate"] == 1e-3
    matrices = [name for name, tensor in ours.items() if tensor.dim() >= 2]
    names = matrices + [name for name, tensor in ours.items() if tensor.dim() < 2]
    for number, name in enumerate(names):
        assert torch.equal(model.weights[name], ours[name])
        assert torch.equal(model.moments[number]["exp_avg"], ours[name] * 2), name


def test_a_state_that_is_not_adamws_is_told_and_left_out(tmp_path: Path):
    for optimizer in (
        None,
        {"state": {}, "param_groups": []},
        {"state": {0: {}}, "param_groups": [{"params": [0]}, {"params": []}]},
    ):
        checkpoint(tmp_path / "ckpt.pt", optimizer=optimizer)
        model = read_nanogpt(tmp_path / "ckpt.pt")
        assert model.moments is None and "starts fresh" in str(model.notes[-1])


def test_a_vocabulary_that_nobody_explains_is_refused(tmp_path: Path):
    checkpoint(tmp_path / "ckpt.pt")
    with pytest.raises(UserError, match="the meaning of its 17 tokens is unknown"):
        import_model(str(tmp_path / "ckpt.pt"), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_shorter_context_and_more_rows_are_cut_and_filled(place: Path):
    export_model("ours@10", "nanogpt", "out")
    import_model("out", "runs/short", [("block_size", "8"), ("vocab_size", "64")])
    run_job(plan_job(None, [("init_from", "resume"), ("out_dir", "runs/short"), ("max_iters", "11")]))
    assert load("short").module.position.weight.shape == (8, 32) and load("short").module.embedding.weight.shape == (
        64,
        32,
    )


def test_a_run_that_nanogpt_cannot_be_is_refused_or_told(place: Path):
    run_job(plan_job(None, [("init_from", "ours@10"), ("gelu", "tanh"), ("max_iters", "10"), ("out_dir", "runs/tanh")]))
    with pytest.raises(UserError, match="exact GELU"):
        export_model("tanh", "nanogpt", "other")
    assert dataclasses.asdict(load("ours").config)["gelu"] == "exact"


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_the_parameters_of_many_blocks_are_told_from_one(arch: str):
    config = Config(arch=arch, n_layer=3, n_head=2, n_embd=8, block_size=8)
    with torch.device("meta"):
        whole = dict(build(config, 16).named_parameters())
    found = parameters_of(config, 16)
    assert [(name, each.shape) for name, each in found.items()] == [(name, each.shape) for name, each in whole.items()]
