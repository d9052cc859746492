"""Evaluations: the same windows each time, every token of a whole split once, and an error that says how sure the mean
is."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nanolens.data.store import Dataset
from nanolens.model import build
from nanolens.model.loss import WithLoss, logits_of
from nanolens.training.evaluate import evaluate, evaluate_model, evaluation_sets, summary
from nanolens.training.machine import choose_machine
from tests.training.small import but, events_of, recorded, small_data


@pytest.fixture
def machine():
    return choose_machine(but(), lambda event: None)


def test_the_standard_error_is_that_of_the_mean_over_batches():
    losses = [2.0, 2.5, 3.0, 2.2]
    seen = summary(losses, [10] * 4, 1.0)
    assert seen.loss == pytest.approx(np.mean(losses))
    assert seen.standard_error == pytest.approx(np.std(losses, ddof=1) / 2)
    assert math.isnan(summary([2.0], [10], 1.0).standard_error)
    assert summary([2.0, math.inf], [10, 10], 1.0).loss == math.inf


def test_bits_per_byte_is_the_loss_in_bits_over_bytes():
    assert summary([math.log(2)], [10], 1.0).bits_per_byte(4.0) == pytest.approx(0.25)
    assert summary([1.0], [10], 1.0).bits_per_byte(None) is None


def test_a_whole_split_counts_every_token_once(data: Dataset, machine):
    """Against the loss computed token by token over the same windows."""
    config = but(eval_whole=True, batch_size=5)
    model = build(config, data.vocab_size)
    sets = evaluation_sets(config, data.train, data.val, torch.device("cpu"))
    seen = evaluate(WithLoss(model), sets["val"], machine)
    assert seen.tokens == len(data.val) - 1
    total = 0.0
    for start in range(0, len(data.val) - 1, config.block_size):
        window = torch.from_numpy(data.val[start : start + config.block_size + 1].astype(np.int64))
        chances = logits_of(model.eval(), window[None, :-1])[0].log_softmax(-1)
        total -= chances[torch.arange(len(window) - 1), window[1:]].sum().item()
    assert seen.loss == pytest.approx(total / (len(data.val) - 1), rel=1e-5)


def test_the_same_windows_are_evaluated_each_time_and_in_every_run_on_this_data(data: Dataset, tmp_path: Path):
    recorded(but(max_iters=4, eval_interval=2), data, tmp_path / "one")
    recorded(but(max_iters=4, eval_interval=2, learning_rate=1e-4, min_lr=1e-5), data, tmp_path / "two")
    recorded(but(max_iters=4, eval_interval=2, seed=1), data, tmp_path / "seed")
    recorded(but(max_iters=4, eval_interval=2), small_data(seed=5), tmp_path / "other")
    prints = {
        name: {(e["split"], e["batches"]) for e in events_of(tmp_path / name) if e["event"] == "evaluated"}
        for name in ("one", "two", "seed", "other")
    }
    assert len(prints["one"]) == 2
    assert prints["one"] == prints["two"] == prints["seed"]
    assert not prints["one"] & prints["other"]


def test_evaluating_drops_nothing_and_leaves_the_model_training(data: Dataset, machine):
    config = but(dropout=0.5)
    model = WithLoss(build(config, data.vocab_size), label_smoothing=0.3)
    sets = evaluation_sets(config, data.train, data.val, torch.device("cpu"))
    one, other = (evaluate(model, sets["val"], machine) for _ in range(2))
    assert one.batch_losses == other.batch_losses
    assert model.training
    batches = [sets["val"].batch(number) for number in range(sets["val"].count)]
    plain = evaluate_model(model.model, batches, machine)
    assert plain.batch_losses == one.batch_losses, "smoothing is not in it either"


def test_each_batch_is_announced_so_that_a_stop_can_come_between(data: Dataset, machine):
    config = but()
    calls: list[int] = []
    sets = evaluation_sets(config, data.train, data.val, torch.device("cpu"))
    evaluate(WithLoss(build(config, 11)), sets["val"], machine, lambda: calls.append(1))
    assert len(calls) == config.eval_iters


def test_eval_only_evaluates_once_and_stops(data: Dataset, tmp_path: Path):
    outcome = recorded(but(eval_only=True), data, tmp_path / "run")
    kinds = [event["event"] for event in events_of(tmp_path / "run")]
    assert kinds.count("evaluated") == 2
    assert "step_taken" not in kinds
    assert (outcome.why, outcome.step) == ("finished", 0)
    assert outcome.val_loss == pytest.approx(math.log(11), abs=0.1)


def test_eval_only_of_a_resumed_run_evaluates_its_newest_weights(data: Dataset, tmp_path: Path):
    trained = recorded(but(max_iters=10, eval_interval=5), data, tmp_path / "run")
    again = recorded(
        replace(but(max_iters=10, eval_interval=5), init_from="resume", eval_only=True, eval_whole=True),
        data,
        tmp_path / "run",
    )
    assert again.step == 10
    assert again.val_loss == pytest.approx(trained.val_loss, abs=0.2)
    assert not math.isnan(again.val_loss)
