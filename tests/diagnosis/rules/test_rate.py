import numpy as np

from nanolens.diagnosis.rules.learning_rate import usual_rate
from tests.diagnosis.rules.build import char_curve, make, sure

CHAR = {
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "block_size": 64,
    "dataset": "shakespeare_char",
    "batch_size": 12,
    "gradient_accumulation_steps": 1,
}


def stuck(level=3.33, count=120, every=5):
    return np.arange(count) * every + 1, level + 0.03 * np.random.default_rng(0).standard_normal(count)


def test_thirty_times_the_usual_rate_and_a_loss_that_never_leaves_the_unigram_level():
    steps, losses = stuck()
    codes = sure(make(losses, steps, learning_rate=0.03, **CHAR))
    assert "lr_too_high" in codes


def test_a_high_rate_that_works_is_left_alone():
    steps, losses = char_curve(200, end=1.9)
    assert "lr_too_high" not in sure(make(losses, steps, learning_rate=0.03, **CHAR))


def test_a_usual_rate_is_not_blamed_for_a_stuck_run():
    steps, losses = stuck()
    assert "lr_too_high" not in sure(make(losses, steps, learning_rate=1e-3, **CHAR))


def test_a_rate_far_too_low_at_the_bigram_level():
    evals = [(500 * i, 2.47, 2.49) for i in range(1, 12)]
    assert "lr_too_low" in sure(make(evals=evals, learning_rate=1e-4, **CHAR))


def test_the_table_is_gpt_3_s_at_its_own_sizes():
    assert usual_rate(1.25e8) == np.float64(6e-4) or abs(usual_rate(1.25e8) - 6e-4) < 1e-9
    assert abs(usual_rate(1.3e9) - 2e-4) < 1e-9


def test_a_model_of_unknown_size_that_stands_at_token_pairs_is_not_blamed_on_its_rate():
    steps, losses = char_curve(300, end=2.47)
    losses[60:] = 2.47 + 0.01 * np.random.default_rng(0).standard_normal(240)
    assert not sure(make(losses, steps, dataset="shakespeare_char", learning_rate=1e-2), "lr_too_high")
