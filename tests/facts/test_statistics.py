"""The statistics against what they promise: rates of false alarm, power, and scipy's own answers."""

import numpy as np
import pytest
from scipy import stats

from nanolens.facts.statistics import (
    bias_of_minimum,
    change_point,
    mean_error,
    noise_of,
    paired_difference,
    spikes,
    standard_error,
    t_quantile,
    trend,
)


def walk(rng, count, memory):
    """Noise whose neighbours are alike (first-order autoregressive, standard deviation 1)."""
    out = np.empty(count)
    out[0] = rng.standard_normal()
    for i in range(1, count):
        out[i] = memory * out[i - 1] + np.sqrt(1 - memory**2) * rng.standard_normal()
    return out


@pytest.mark.parametrize("memory", [0.0, 0.5])
def test_a_trend_is_seldom_found_in_noise(memory):
    rng = np.random.default_rng(0)
    hits = [(t := trend(np.arange(300), walk(rng, 300, memory))).is_falling or t.is_rising for _ in range(300)]
    assert np.mean(hits) < 0.08


def test_a_real_trend_is_found_and_measured():
    rng = np.random.default_rng(1)
    slopes = [trend(np.arange(300), -0.01 * np.arange(300) + rng.standard_normal(300)) for _ in range(50)]
    assert np.mean([t.is_falling for t in slopes]) > 0.9
    assert np.median([t.slope for t in slopes]) == pytest.approx(-0.01, rel=0.1)
    assert np.mean([t.low <= -0.01 <= t.high for t in slopes]) > 0.85


def test_the_slope_is_scipy_s_theil_sen_on_few_points():
    rng = np.random.default_rng(2)
    x = np.sort(rng.uniform(0, 100, 20))
    y = 3 - 0.2 * x + rng.standard_normal(20)
    assert trend(x, y).slope == pytest.approx(stats.theilslopes(y, x)[0])


def test_noise_is_measured_about_a_curve_with_uneven_steps():
    rng = np.random.default_rng(3)
    x = np.cumsum(rng.integers(1, 20, 2000))
    y = 3 + 5 * np.exp(-x / 3000) + 0.1 * rng.standard_normal(2000)
    assert noise_of(x, y) == pytest.approx(0.1, rel=0.05)


def test_one_outlier_does_not_change_the_noise():
    rng = np.random.default_rng(4)
    y = rng.standard_normal(500)
    y[100] = 1e6
    assert noise_of(np.arange(500), y) == pytest.approx(1.0, rel=0.1)


def test_standard_errors():
    values = np.array([1.0, 2.0, 3.0, 4.0])
    assert standard_error(values) == pytest.approx(stats.sem(values))
    assert standard_error(np.array([1.0])) is None
    rng = np.random.default_rng(5)
    series = [walk(rng, 1000, 0.7) for _ in range(200)]
    promised = np.median([mean_error(s) for s in series])
    assert 0.7 < promised / np.std([s.mean() for s in series]) < 1.3


@pytest.mark.parametrize(("count", "bias"), [(10, 1.54), (20, 1.87), (50, 2.25)])
def test_the_smallest_of_many_lies_low(count, bias):
    assert bias_of_minimum(count) == pytest.approx(bias, abs=0.02)


def test_t_quantiles_are_the_tables():
    assert t_quantile(0.975, 19) == pytest.approx(2.093, abs=1e-3)


def test_a_shift_is_found_where_it_is():
    rng = np.random.default_rng(6)
    y = np.r_[rng.standard_normal(100), 2 + rng.standard_normal(60)]
    shift = change_point(y)
    assert abs(shift.at - 100) < 6 and shift.p < 1e-6
    assert np.mean([change_point(rng.standard_normal(80)).p < 0.05 for _ in range(200)]) < 0.06


def test_spikes_are_found_beside_a_nan():
    y = 3 + 0.05 * np.random.default_rng(7).standard_normal(300)
    y[150], y[160], y[170] = np.nan, 50, 60
    assert spikes(y).tolist() == [160, 170]


def test_paired_differences_are_tighter_than_their_sides():
    rng = np.random.default_rng(8)
    batches = 3 + 0.3 * rng.standard_normal(50)
    mean, error = paired_difference(batches + 0.01 + 0.005 * rng.standard_normal(50), batches)
    assert mean == pytest.approx(0.01, abs=0.003) and error < 0.002


def test_a_million_points_take_no_time(benchmark_seconds=3.0):
    import time

    rng = np.random.default_rng(9)
    y = rng.standard_normal(1_000_000)
    started = time.process_time()
    trend(np.arange(len(y)), y), noise_of(np.arange(len(y)), y), spikes(y), change_point(y)
    assert time.process_time() - started < benchmark_seconds
