import numpy as np

from nanolens.record.run import Conventions
from tests.diagnosis.rules.build import OURS, curve, make, sure


def timed(took, conventions=None, **known):
    count = len(took)
    extra = {} if conventions is None else {"conventions": conventions}
    return make(np.linspace(4, 3, count), np.arange(count) * 10 + 1, took=took, eval_interval=10**7, **extra, **known)


def test_a_quarter_slower_after_an_hour():
    rng = np.random.default_rng(0)
    took = np.linspace(0.221, 0.276, 200) + 0.002 * rng.standard_normal(200)
    assert "throttling_suspected" in sure(timed(took, hardware="RTX 3060"), "throttling_suspected")


def test_steady_noisy_steps():
    rng = np.random.default_rng(0)
    for seed in range(20):
        took = 0.17 * (1 + 0.05 * rng.standard_normal(200))
        assert not sure(timed(took), "throttling_suspected"), seed


def test_single_slow_lines_are_no_drift():
    took = np.full(200, 0.17)
    took[::25] = 3.0
    assert not sure(timed(took), "throttling_suspected")


def test_a_window_that_grows_by_design():
    took = np.linspace(0.094, 0.105, 60)
    assert "step_time_schedule" in sure(
        timed(took, sliding_window="grows linearly 128 -> 1792"), "throttling_suspected"
    )
    assert "step_time_schedule" in sure(
        timed(took, conventions=Conventions(trainer="modded-nanogpt", time="average")), "throttling_suspected"
    )


def test_one_per_cent_is_settling():
    assert not sure(timed(np.linspace(0.989, 0.997, 20)), "throttling_suspected")


def test_a_sudden_and_lasting_slowdown_counts_too():
    rng = np.random.default_rng(1)
    took = np.where(np.arange(200) < 110, 0.10, 0.14) * (1 + 0.01 * rng.standard_normal(200))
    assert "throttling_suspected" in sure(timed(took, hardware="RTX 3060"), "throttling_suspected")
    assert not sure(
        timed(took, hardware="laptop CPU"), "throttling_suspected"
    )  # a processor is shared with everything else


def test_a_processor_that_is_suddenly_shared_is_no_throttling():
    rng = np.random.default_rng(0)
    steps, losses = curve(200)
    shared = np.where(steps > 100, 0.0145, 0.0107) + 0.0003 * rng.standard_normal(200)
    assert "throttling_suspected" not in sure(
        make(losses, steps, took=shared, conventions=OURS, device="cpu"), "throttling_suspected"
    )
    hot = 0.0107 * (1 + 0.8 * steps / 200) + 0.0003 * rng.standard_normal(200)
    assert "throttling_suspected" in sure(
        make(losses, steps, took=hot, conventions=OURS, device="cpu"), "throttling_suspected"
    )
