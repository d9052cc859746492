from dataclasses import replace

import numpy as np

from tests.diagnosis.rules.build import curve, found, make, sure


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


def decayed(end=0.0, fall=0.0, rates=True):
    steps = np.arange(10, 2001, 10)
    late = np.maximum(steps - 1000, 0) / 1000
    losses = 2.5 + 2 * np.exp(-steps / 150) - fall * late
    losses += 0.01 * np.random.default_rng(3).standard_normal(len(steps))
    rate = 6e-4 * (1 - (1 - end) * steps / steps[-1])
    return make(losses, steps, rate=rate if rates else None)


def test_a_schedule_that_is_over_with_a_flat_loss_is_finished():
    codes = found(decayed())
    assert codes["finished"].sureness == "likely" and "still_improving" not in codes


def test_with_a_rate_left_or_a_loss_that_falls_it_is_not_finished():
    assert "finished" in found(decayed(end=0.019))
    assert "finished" not in found(decayed(end=0.021))
    assert "finished" not in found(decayed(fall=0.5)) and "still_improving" in found(decayed(fall=0.5))
    assert "finished" not in found(decayed(rates=False))
    assert "finished" not in found(make([2.5], [2000], rate=0.0))


def test_a_rate_that_is_as_low_from_the_start_is_no_end():
    run = decayed()
    warming = replace(run, steps=replace(run.steps, lr=run.steps.lr[::-1]))
    assert "finished" not in found(warming)
    assert "finished" not in found(replace(run, steps=replace(run.steps, lr=np.zeros(len(run.steps)))))
