import math

import numpy as np

from tests.diagnosis.rules.build import curve, found, make, sure


def test_a_rate_of_zero_on_every_line():
    run = make([10.9] * 7, rate=0.0, scheduler="warm-up LambdaLR")
    assert {"lr_zero", "constant_loss", "lr_schedule_mismatch"} <= sure(run, "constant_loss")
    assert "dead_init" not in found(run)


def test_a_rate_that_has_decayed_to_zero_is_fine():
    steps, losses = curve(100)
    run = make(losses, steps, rate=np.linspace(6e-4, 0, 100))
    assert not sure(run, "constant_loss")


def test_a_loss_of_exactly_ln_v_for_every_batch():
    run = make([round(math.log(50304), 4)] * 12, rate=6e-4, vocab_size=50304)
    assert {"constant_loss", "dead_init"} <= sure(run, "constant_loss")


def test_two_digits_hide_changes_and_prove_nothing():
    assert not sure(make([10.9] * 7, rate=1e-6), "constant_loss")


def test_losses_that_vary_are_not_constant():
    steps, losses = curve(50, noise=0.01)
    assert not sure(make(np.round(losses, 4), steps), "constant_loss")


def test_a_run_that_learns_nothing_stays_at_chance():
    rng = np.random.default_rng(0)
    losses = math.log(65) + 0.01 * rng.standard_normal(300)
    assert "dead_init" in sure(make(losses, rate=1e-3, vocab_size=65), "constant_loss")


def test_a_run_that_came_back_to_chance_had_learned():
    rng = np.random.default_rng(0)
    losses = np.r_[np.linspace(4.17, 2.0, 100), np.full(200, math.log(65))] + 0.01 * rng.standard_normal(300)
    assert "dead_init" not in sure(make(losses, rate=1e-3, vocab_size=65), "constant_loss")


def test_an_even_guess_is_known_by_its_loss_where_no_vocabulary_is_told():
    assert "dead_init" in sure(make(np.full(30, 10.8259), np.arange(100, 130)), "constant_loss")  # ln 50,304
    assert "dead_init" not in sure(make(np.full(30, 10.8120), np.arange(100, 130)), "constant_loss")


def test_two_losses_that_agree_to_four_digits_over_many_updates():
    assert found(make([10.8713] * 2, [1, 400]))["constant_loss"].sureness == "likely"
    assert "constant_loss" not in found(make([10.8713] * 2, [1, 60]))  # too near to each other
    assert "constant_loss" not in found(make([10.871] * 2, [1, 400]))  # three digits hide a change
    assert "constant_loss" not in found(make([10.8713, 10.8714], [1, 400]))
    assert "constant_loss" not in found(make([10.8713, 10.2113, 10.8713], [1, 200, 400]))
    assert "constant_loss" not in found(make([0.0] * 2, [1, 400]))
    assert "constant_loss" not in found(make([10.8713], [400]))


def passes(*, moved=0.0, size=20, digits=4):
    one = np.random.default_rng(1).normal(4.2, 0.05, size)
    return np.round(np.r_[one, one - moved], digits)


def test_losses_that_recur_exactly_show_weights_that_do_not_move():
    finding = found(make(passes()))["weights_not_updated"]
    assert finding.sureness == "likely" and finding.evidence[0].seen == 20
    assert "healthy" not in found(make(passes()))
    assert "weights_not_updated" in found(make(np.r_[passes()[:20], 4.0, passes()[:3]]))


def test_losses_that_nearly_recur_or_have_few_digits_show_nothing():
    for losses in (passes(moved=0.0001), passes(digits=3), np.r_[passes()[:20], 4.0, passes()[:2]], [4.21871]):
        assert "weights_not_updated" not in found(make(losses))
    assert "weights_not_updated" not in found(make(np.full(30, 4.21871)))  # constant_loss says that
    steps = np.r_[np.arange(20), 30 + 2 * np.arange(20)]
    assert "weights_not_updated" not in found(make(passes(), steps))  # another spacing


def test_losses_meet_by_chance_in_no_long_run():
    for seed in range(5):
        noise = np.random.default_rng(seed).normal(0, 0.01, 5000)
        assert "weights_not_updated" not in found(make(np.round(2.5 + noise, 4)))
