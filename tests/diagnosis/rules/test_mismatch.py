import numpy as np

from tests.diagnosis.rules.build import GPT2, GPU_DEMO, curve, make, sure


def test_evaluations_off_their_interval():
    evals = [(300 * i, 2.0, 2.0) for i in range(1, 6)]
    assert "config_log_mismatch" in sure(make(evals=evals, **GPU_DEMO), "config_log_mismatch")


def test_lines_left_out_prove_nothing():
    evals = [(0, 4.2, 4.2), (1750, 1.1, 1.47), (5000, 0.6, 1.7)]
    steps = np.array([1, 11, 51, 4981, 5001])
    assert not sure(make(np.linspace(4, 1, 5), steps, evals, **GPU_DEMO), "config_log_mismatch")


def test_a_parameter_count_of_another_shape():
    assert "config_log_mismatch" in sure(
        make([4.0, 3.9], [1000, 1010], parameters=40_560_000, **GPT2), "config_log_mismatch"
    )
    assert not sure(make([4.0, 3.9], [1000, 1010], parameters=123_590_000, **GPT2), "config_log_mismatch")


def test_a_first_loss_that_the_vocabulary_forbids():
    steps, losses = curve(30, start=4.2, end=2.0)
    assert "config_log_mismatch" in sure(make(losses, steps, **GPT2), "config_log_mismatch")


def test_rates_that_the_schedule_does_not_give():
    steps, losses = curve(30)
    assert "config_log_mismatch" in sure(make(losses, steps, rate=1e-2, **GPT2), "config_log_mismatch")
