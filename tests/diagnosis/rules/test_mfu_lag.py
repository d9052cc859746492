import numpy as np

from tests.diagnosis.rules.build import make, sure


def lines(times, work=1.0, seed=None):
    """nanoGPT's recursion."""
    mfu, running = [], None
    for took in times:
        now = work / took
        running = (
            (now if running is None else 0.9 * running + 0.1 * now) if seed is None or running is not None else seed
        )
        mfu.append(round(running, 4))
    return mfu


def test_an_evaluation_pulls_the_average_down():
    times = [0.0332] * 10 + [4.447] + [0.0332] * 5
    run = make(np.linspace(2, 1, 16), np.arange(16) * 10 + 1, took=times, mfu=lines(times, 0.00372), eval_interval=100)
    assert "mfu_ema_lag" in sure(run, "mfu_ema_lag")


def test_an_average_seeded_by_a_slow_line_climbs():
    times = [68.7] + [21.0] * 12
    run = make(np.linspace(2, 1, 13), np.arange(13) + 6, [(5, 2, 2)], took=times, mfu=lines(times, 1.016))
    assert "mfu_ema_lag" in sure(run, "mfu_ema_lag")


def test_a_steady_run_has_no_lag():
    times = [0.17] * 40
    assert not sure(
        make(np.linspace(2, 1, 40), np.arange(40) * 10 + 1, took=times, mfu=lines(times, 0.01)), "mfu_ema_lag"
    )


def test_a_real_slowdown_is_not_a_lag():
    times = list(np.linspace(0.1, 0.2, 40))
    assert not sure(
        make(np.linspace(2, 1, 40), np.arange(40) * 10 + 1, took=times, mfu=lines(times, 0.01)), "mfu_ema_lag"
    )
