"""How a run goes where its log ends, from a few rows and from many."""

import numpy as np
import pytest

from nanolens.diagnosis import diagnose, headline_of
from tests.diagnosis.rules.build import found, make, sure


def evaluated(*vals, every=300, **settings):
    return make(evals=[(every * i, val - 0.02, val) for i, val in enumerate(vals)], **settings)


def test_four_evaluations_that_each_fall_are_still_improving():
    assert "still_improving" in sure(evaluated(3.30, 3.20, 3.15, 3.12, 3.10), "still_improving")


def test_a_few_evaluations_within_their_noise_are_not():
    assert "still_improving" not in found(evaluated(3.30, 3.12, 3.10, 3.13, 3.11))


def test_flat_far_above_what_the_text_allows_is_a_plateau():
    run = evaluated(4.17, 2.41, 2.33, 2.31, 2.268, 2.291, 2.279, 2.262, 2.263, 2.268, vocab_size=65)
    codes = found(run)
    assert codes["plateau"].sureness == "likely" and not {"healthy", "still_improving"} & codes.keys()


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_goes_on_falling_is_no_plateau(seed):
    steps = np.arange(10, 4001, 10)
    losses = 1.3 + 2.9 * (steps / 10) ** -0.35 + 0.03 * np.random.default_rng(seed).standard_normal(len(steps))
    assert "plateau" not in found(make(losses, steps, vocab_size=65))


def test_flat_in_the_middle_of_a_schedule_is_no_plateau():
    vals = (4.17, 2.41, 2.33, 2.31, 2.268, 2.291, 2.279, 2.262, 2.263, 2.268)
    schedule = {"learning_rate": 1e-3, "min_lr": 1e-4, "warmup_iters": 100, "max_iters": 5000, "lr_decay_iters": 5000}
    assert "plateau" not in found(evaluated(*vals, vocab_size=65, **schedule))


def test_two_rows_are_enough_for_a_loss_above_guessing():
    codes = found(make([4.3, 5.1], [1, 400], vocab_size=65))
    assert codes["worse_than_guessing"].sureness == "certain"
    assert "worse_than_guessing" not in found(make([4.3, 4.1], [1, 400], vocab_size=65))
    assert "worse_than_guessing" not in found(make([4.3, 5.1], [1, 40], vocab_size=65)), "too early to say"
    assert "worse_than_guessing" in found(make([13.0, 12.9], [1, 400])), "above any vocabulary in use"
    assert "worse_than_guessing" not in found(make([10.9, 10.8], [1, 400]))


def test_a_gradient_that_grew_and_a_jump_of_two_nats_are_an_explosion_in_three_rows():
    run = make([3.06, 3.11, 7.71], [11446, 11447, 11448], norm=[1.3, 26.0, 25.0])
    assert found(run)["grad_explosion"].sureness == "likely"
    assert "grad_explosion" not in found(make([3.06, 3.11, 7.71], [11446, 11447, 11448], norm=[1.3, 1.2, 1.4]))


def test_tokens_that_cost_nothing_are_known_by_heart():
    low = [0.09, 0.06, 0.09, 0.05]
    assert found(make(low, [310, 320, 330, 340]))["overfitting"].sureness == "likely"
    assert "overfitting" not in found(make(low, [310, 320, 330, 340], vocab_size=65)), "letters may cost as little"
    assert "overfitting" not in found(make([0.5, 0.4, 0.45, 0.4], [310, 320, 330, 340]))


def test_the_headline_is_the_first_fault_or_how_it_goes():
    faulty = diagnose(make([4.3, 5.1], [1, 400], vocab_size=65))
    assert str(faulty.headline).startswith("certain: at step ") and "What to do: " in str(faulty.headline)
    assert "too little to call the run healthy" in str(headline_of(()))
    steps = np.arange(10, 2001, 10)
    sound = diagnose(make(1.5 + 2.6 * np.exp(-steps / 700), steps, vocab_size=65))
    assert str(sound.headline) == "Nothing here needs fixing: the loss is still falling.", sound.findings
