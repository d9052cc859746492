import numpy as np

from tests.diagnosis.rules.build import GPT2, curve, make, sure


def test_a_decay_that_outlives_the_run():
    run = make(max_iters=10_000, lr_decay_iters=600_000, learning_rate=6e-4, min_lr=6e-5, warmup_iters=2000)
    assert "lr_schedule_mismatch" in sure(run, "no_warmup")


def test_a_decay_as_long_as_the_run():
    assert not sure(make(**GPT2), "no_warmup")


def test_a_warm_up_longer_than_the_run_is_certain():
    assert "lr_schedule_mismatch" in sure(make(max_iters=1000, warmup_iters=2000, lr_decay_iters=1000), "no_warmup")


def test_a_constant_rate_on_purpose_is_not_judged():
    assert not sure(make(max_iters=10_000, lr_decay_iters=600_000, decay_lr=False, learning_rate=1e-4), "no_warmup")


def test_a_blow_up_at_the_start_without_warm_up():
    losses = np.r_[4.2, 5.5, 7.5, 6.9, 5.8, 5.0, 4.4, 4.0, 3.8, 3.6, np.full(30, 3.4)]
    assert "lr_schedule_mismatch" in sure(make(losses, warmup_iters=0, max_iters=500, vocab_size=65), "no_warmup")
    assert not sure(make(np.linspace(4.2, 2.5, 40), warmup_iters=0, max_iters=500, vocab_size=65), "no_warmup")


def test_a_schedule_that_keeps_its_fall_for_the_end_is_judged_by_where_it_leads():
    steps, losses = curve(275)
    wsd = np.where(steps < 240, 4e-3, 4e-3 * (1 - 0.9 * (steps - 240) / 60))
    assert "lr_schedule_mismatch" not in sure(make(losses, steps, rate=wsd, max_iters=300), "no_warmup")
    slow = 4e-3 * (1 - 0.4 * steps / 300)
    assert "lr_schedule_mismatch" in sure(make(losses, steps, rate=slow, max_iters=300), "no_warmup")
