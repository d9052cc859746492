import math

import numpy as np
import pytest

from tests.diagnosis.rules.build import GPT2, curve, found, make, sure


def test_one_batch_is_a_guess():
    assert "eval_noise" in sure(make(eval_iters=1, batch_size=16, block_size=2048, vocab_size=50304), "eval_noise")
    assert not sure(make(eval_iters=200, batch_size=16, block_size=2048, vocab_size=50304), "eval_noise")


def test_evaluations_that_only_scatter():
    rng = np.random.default_rng(0)
    evals = [(5 * i, 2.5, 2.2 + 0.04 * rng.standard_normal()) for i in range(14)]
    assert "eval_noise" in sure(make(evals=evals), "eval_noise")


def test_evaluations_that_fall_are_not_noise():
    evals = [(100 * i, 3 - 0.05 * i, 3 - 0.05 * i) for i in range(14)]
    assert not sure(make(evals=evals), "eval_noise")


def test_one_micro_batch_beside_an_evaluation():
    run = make(
        [4.1096],
        [10001],
        [(0, 10.87, 10.87), (9000, 3.66, 3.6), (14500, 3.64, 3.57)],
        **{**GPT2, "batch_size": 16, "gradient_accumulation_steps": 32},
    )
    finding = found(run, "eval_noise")["micro_batch_noise"]
    assert finding.evidence[0].seen == 4.1096


def test_the_spread_of_repeats():
    finals = tuple(3.2787 + 0.0019 * np.random.default_rng(0).standard_normal(80))
    finding = found(make(final_val_losses=finals), "eval_noise")["seed_noise"]
    assert finding.sureness == "certain"
    assert finding.evidence[0].seen == pytest.approx(0.0019, abs=0.0003)


def test_a_falling_curve_says_nothing_of_noise():
    steps, losses = curve(100, noise=0.02)
    assert not sure(make(losses, steps, gradient_accumulation_steps=1), "eval_noise")


def test_a_steep_fall_is_no_scatter_of_micro_batches():
    steps = np.arange(14) * 10 + 1
    losses = 10.5 * 0.85 ** np.arange(14) + np.where(np.arange(14) % 2, 0.1, -0.1)
    assert "micro_batch_noise" not in sure(make(losses, steps, gradient_accumulation_steps=8), "eval_noise")
    losses = np.full(14, 4.0) + np.where(np.arange(14) % 3, 0.1, -0.1)
    losses[10] += 1.2
    assert (
        found(make(losses, steps, gradient_accumulation_steps=8), "eval_noise")["micro_batch_noise"].evidence[0].usual
        < 4.2
    )


def test_a_steep_fall_between_two_evaluations_is_no_scatter():
    steps = np.arange(0, 3000, 10) + 1
    losses = 3.4 + 7.5 * np.exp(-steps / 400) + 0.02 * np.random.default_rng(0).standard_normal(300)
    evals = [(s, 3.4 + 7.5 * math.exp(-s / 400), 3.4 + 7.5 * math.exp(-s / 400)) for s in range(0, 3000, 500)]
    assert "micro_batch_noise" not in sure(make(losses, steps, evals, **GPT2), "eval_noise")
