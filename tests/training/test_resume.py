"""Stopping and going on changes nothing: weights, optimizer and losses are bit for bit those of the run that was never
stopped."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import nanolens.training.loop as loop_module
import nanolens.training.step as step_module
from nanolens.config.fields import Config
from nanolens.data.store import Dataset
from nanolens.errors import UserError
from nanolens.model import build
from nanolens.record import checkpoint_folders, step_of
from nanolens.record.events import Evaluated, StepTaken
from nanolens.training.checkpoint import load
from nanolens.training.evaluate import Evaluation
from nanolens.training.stopping import Stopped
from tests.training.small import but, digests, evaluations_of, events_of, losses_of, recorded, signal_at, small_data

KINDS: dict[str, Config] = {
    "plain": but(max_iters=12, eval_interval=5),
    "dropout": but(max_iters=12, eval_interval=5, dropout=0.2),
    "accumulation": but(max_iters=8, eval_interval=4, gradient_accumulation_steps=3),
    "nanogpt": but(max_iters=11, eval_interval=5, data_order="nanogpt", dropout=0.1),
    "nanogpt_accumulation": but(max_iters=7, eval_interval=4, data_order="nanogpt", gradient_accumulation_steps=2),
    "modern": but(
        max_iters=12, eval_interval=5, arch="modern", optimizer="muon", ngram_rows=32, dropout=0.1, weight_decay=0.01
    ),
    "bfloat16": but(max_iters=12, eval_interval=5, dtype="bfloat16"),
    "float16": but(max_iters=12, eval_interval=5, dtype="float16"),
    "smoothed_chunked": but(max_iters=12, eval_interval=5, label_smoothing=0.1, chunked_head=True),
}


@pytest.fixture(scope="module", params=KINDS, ids=str)
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path, int]:
    run = tmp_path_factory.mktemp(request.param) / "whole"
    outcome = recorded(KINDS[request.param], small_data(), run)
    assert outcome.why == "finished"
    return KINDS[request.param], run, outcome.step


@pytest.mark.parametrize("stop_at", [1, 4, 7])
def test_resuming_ends_in_the_same_bits_as_never_stopping(
    uninterrupted: tuple[Config, Path, int], stop_at: int, data: Dataset, tmp_path: Path
):
    config, whole, last = uninterrupted
    run = tmp_path / "parts"
    first = recorded(config, data, run, signal_at(StepTaken, stop_at))
    assert (first.why, first.step) == ("stopped", stop_at)
    second = recorded(but_resume(config), data, run)
    assert (second.why, second.step) == ("finished", last)
    assert digests(run, last) == digests(whole, last)
    assert losses_of(run) == losses_of(whole)
    assert evaluations_of(run) == evaluations_of(whole)


@pytest.mark.parametrize("order", ["shuffled", "nanogpt"])
def test_a_stop_inside_an_accumulation_keeps_the_state_of_the_steps_start(
    order: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = but(max_iters=6, eval_interval=4, gradient_accumulation_steps=3, data_order=order, dropout=0.1)
    whole, run = tmp_path / "whole", tmp_path / "parts"
    last = recorded(config, data, whole).step
    original, micro_batches = step_module.gather_gradients, []

    def stops_in_the_middle(trainee, config, machine, clock, check):
        def count_and_stop():
            check()
            micro_batches.append(1)
            if len(micro_batches) == 3 * 2 + 2:  # the second micro-batch of the third update
                raise Stopped

        return original(trainee, config, machine, clock, count_and_stop)

    with monkeypatch.context() as patch:
        patch.setattr(step_module, "gather_gradients", stops_in_the_middle)
        assert recorded(config, data, run).step == 2
    recorded(but_resume(config), data, run)
    assert digests(run, last) == digests(whole, last)
    assert losses_of(run) == losses_of(whole)


@pytest.mark.parametrize("order", ["shuffled", "nanogpt"])
def test_a_stop_inside_an_evaluation_repeats_it_whole(
    order: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = but(max_iters=6, eval_interval=3, data_order=order)
    whole, run = tmp_path / "whole", tmp_path / "parts"
    last = recorded(config, data, whole).step
    original, calls = loop_module.evaluate, []

    def stops_at_the_fourth(model, batches, *rest):
        calls.append(1)
        if len(calls) == 4:  # val at step 3
            batches.batch(0)
            raise Stopped
        return original(model, batches, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(loop_module, "evaluate", stops_at_the_fourth)
        assert recorded(config, data, run).step == 3
    recorded(but_resume(config), data, run)
    assert digests(run, last) == digests(whole, last)
    assert evaluations_of(run) == evaluations_of(whole)


def test_an_unchanged_branch_is_bit_equal_to_its_parents_own_continuation(data: Dataset, tmp_path: Path):
    parent, branch = tmp_path / "parent", tmp_path / "branch"
    config = but(max_iters=12, eval_interval=4, dropout=0.1, keep_checkpoints=5)
    recorded(config, data, parent)
    outcome = recorded(but_start(config, f"{parent}@4"), data, branch)
    assert outcome.step == 12
    assert digests(branch, 12) == digests(parent, 12)
    continued = {step: loss for step, loss in losses_of(parent).items() if step > 4}
    assert losses_of(branch) == continued
    facts = json.loads((branch / "run.json").read_text())
    assert facts["parent"] == {"run": str(parent), "step": 4}


def test_a_branch_may_change_what_a_resumed_run_may(data: Dataset, tmp_path: Path):
    parent = tmp_path / "parent"
    recorded(but(max_iters=8, eval_interval=4, keep_checkpoints=5), data, parent)
    branch = tmp_path / "branch"
    config = but_start(but(max_iters=8, eval_interval=4, learning_rate=2e-2), f"{parent}@4")
    recorded(config, data, branch)
    changes = [event for event in events_of(branch) if event["event"] == "config_changed"]
    assert [(event["key"], event["old"], event["new"]) for event in changes if event["key"] == "learning_rate"] == [
        ("learning_rate", 1e-2, 2e-2)
    ]
    with pytest.raises(UserError, match="n_embd"):
        recorded(but_start(but(n_embd=32), f"{parent}@4"), data, tmp_path / "other")


def test_changed_settings_are_announced_and_used(data: Dataset, tmp_path: Path):
    run = tmp_path / "run"
    recorded(but(max_iters=6, eval_interval=3), data, run)
    outcome = recorded(but_resume(but(max_iters=9, eval_interval=3, learning_rate=5e-3, lr_decay_iters=9)), data, run)
    assert outcome.step == 9
    changed = {
        event["key"]: (event["old"], event["new"]) for event in events_of(run) if event["event"] == "config_changed"
    }
    assert changed == {"max_iters": (6, 9), "learning_rate": (1e-2, 5e-3), "lr_decay_iters": (20, 9)}


def test_settings_that_the_checkpoint_fixes_are_refused_all_at_once(data: Dataset, tmp_path: Path):
    run = tmp_path / "run"
    recorded(but(max_iters=3, eval_interval=3), data, run)
    with pytest.raises(UserError) as refusal:
        recorded(but_resume(but(max_iters=6, n_layer=3, n_embd=32, seed=2)), data, run)
    assert {fault.what.args["key"] for fault in refusal.value.faults} == {"n_layer", "n_embd", "seed"}


def test_a_shorter_context_crops_the_positions_and_their_moments(data: Dataset, tmp_path: Path):
    run = tmp_path / "run"
    recorded(but(max_iters=4, eval_interval=4), data, run)
    outcome = recorded(but_resume(but(max_iters=6, eval_interval=4, block_size=8)), data, run)
    assert (outcome.why, outcome.step) == ("finished", 6)
    with pytest.raises(UserError, match=r"position\.weight"):
        recorded(but_resume(but(max_iters=8, block_size=32)), data, run)


def test_given_weights_are_where_the_run_starts(data: Dataset, tmp_path: Path):
    """As an imported model would be: by our names, with a longer context than the run wants."""
    torch.manual_seed(7)
    given = build(but(block_size=32), data.vocab_size)
    config = but_start(but(max_iters=1, eval_interval=1), "some-model")
    recorded(config, data, tmp_path / "run", initial={name: p.detach() for name, p in given.named_parameters()})
    saved = load(checkpoint_folders(tmp_path / "run")[-1])
    assert saved.state["step"] == 0
    assert torch.equal(saved.model["position.weight"], given.position.weight[:16])
    assert torch.equal(saved.model["blocks.1.mlp.up.weight"], given.blocks[1].mlp.up.weight)


def test_a_damaged_checkpoint_is_told_of_and_the_one_before_is_used(data: Dataset, tmp_path: Path):
    config = but(max_iters=9, eval_interval=3, keep_checkpoints=3)
    whole, run = tmp_path / "whole", tmp_path / "run"
    recorded(config, data, whole)
    recorded(config, data, run, signal_at(Evaluated, 6))
    newest = checkpoint_folders(run)[0]
    assert newest.name == "step-000006"
    weights = newest / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    weights.write_bytes(damaged)
    recorded(but_resume(config), data, run)
    refused = [event for event in events_of(run) if event["event"] == "checkpoint_refused"]
    assert [event["folder"] for event in refused] == ["step-000006"]
    assert digests(run, 9) == digests(whole, 9)


def test_all_checkpoints_damaged_is_an_error_and_not_a_new_beginning(data: Dataset, tmp_path: Path):
    run = tmp_path / "run"
    recorded(but(max_iters=3, eval_interval=3), data, run)
    for folder in checkpoint_folders(run):
        (folder / "state.json").unlink()
    with pytest.raises(UserError, match="no intact checkpoint"):
        recorded(but_resume(but(max_iters=6)), data, run)


def test_a_run_that_died_before_its_first_checkpoint_starts_again(data: Dataset, tmp_path: Path):
    config = but(max_iters=4, eval_interval=2)
    whole, run = tmp_path / "whole", tmp_path / "run"
    recorded(config, data, whole)
    recorded(config, data, run, signal_at(StepTaken, 1))
    shutil.rmtree(run / "checkpoints")
    recorded(but_resume(config), data, run)
    assert digests(run, 4) == digests(whole, 4)


def test_only_the_best_and_the_newest_checkpoints_stay(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With losses that fall until step 8 and rise from there on, whatever the model does."""
    losses = iter([loss for step in range(0, 22, 2) for loss in (9.0, abs(step - 8.0))])
    monkeypatch.setattr(loop_module, "evaluate", lambda *_: Evaluation(next(losses), 0.1, (1.0,), 1, 0.0))
    run = tmp_path / "run"
    outcome = recorded(but(max_iters=20, eval_interval=2, keep_checkpoints=2), data, run)
    assert outcome.best_step == 8
    assert {step_of(folder) for folder in checkpoint_folders(run)} == {20, 18, 8}


def but_resume(config: Config) -> Config:
    return but_start(config, "resume")


def but_start(config: Config, init_from: str) -> Config:
    return replace(config, init_from=init_from)
