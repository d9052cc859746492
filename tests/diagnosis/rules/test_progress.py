import numpy as np

from tests.diagnosis.rules.build import curve, make, sure


def test_a_falling_curve_is_still_improving():
    steps, losses = curve(200)
    assert "still_improving" in sure(make(losses, steps), "still_improving")


def test_a_flat_noisy_curve_is_not():
    rng = np.random.default_rng(1)
    hits = sum(
        "still_improving" in sure(make(3.5 + 0.05 * rng.standard_normal(200)), "still_improving") for _ in range(60)
    )
    assert hits <= 5  # one in forty by construction of the two-sided test


def test_a_flat_stretch_before_the_decay_is_no_end():
    run = make(
        evals=[(14500, 3.64, 3.57)],
        learning_rate=1e-3,
        min_lr=1e-4,
        lr_decay_iters=20000,
        max_iters=20000,
        warmup_iters=500,
    )
    assert "still_improving" in sure(run, "still_improving")


def test_25_updates_are_too_few():
    steps, losses = curve(25)
    assert "run_too_short" in sure(make(losses, steps, max_iters=25), "still_improving")


def test_the_first_lines_of_a_long_run_are_not_a_short_run():
    steps, losses = curve(25)
    assert "run_too_short" not in sure(make(losses, steps, max_iters=21400), "still_improving")
