"""Fewer points, the same picture: extremes, ends and gaps survive any zoom."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nanolens.page.series import chosen, mean_of_last


@given(st.integers(2, 6000), st.integers(10, 60), st.integers(0, 2**31), st.booleans())
@settings(max_examples=60, deadline=None)
def test_extremes_and_ends_stay_and_points_are_few(count: int, buckets: int, seed: int, log: bool) -> None:
    rng = np.random.default_rng(seed)
    x = np.arange(1.0, count + 1)
    y = rng.standard_normal(count)
    kept = chosen(x, y, 1.0, float(count), buckets, log)
    assert len(kept) <= max(count if count <= 4 * buckets else 0, 5 * buckets)
    assert y[kept].min() == y.min() and y[kept].max() == y.max()
    assert kept[0] == 0 and kept[-1] == count - 1
    assert (np.diff(kept) > 0).all()


def test_one_spike_among_a_million_is_seen_at_every_zoom() -> None:
    x = np.arange(1e6)
    y = np.zeros(1_000_000)
    y[777_777] = 50.0
    for low, high in ((0, 1e6), (5e5, 9e5), (7.7e5, 7.8e5)):
        assert y[chosen(x, y, low, high, 400)].max() == 50.0


def test_what_is_not_finite_breaks_the_line_and_does_not_hide_its_neighbours() -> None:
    x, y = np.arange(10_000.0), np.ones(10_000)
    y[5000:5003] = np.nan
    y[5004] = 9.0
    seen = y[chosen(x, y, 0, 10_000, 100)]
    assert np.isnan(seen).any() and np.nanmax(seen) == 9.0


def test_a_stretch_comes_with_one_neighbour_on_either_side() -> None:
    x = np.arange(100.0)
    assert chosen(x, x, 10, 20, 50).tolist() == list(range(9, 22))


def test_smoothing_is_the_mean_of_the_last_and_never_of_the_future() -> None:
    y = np.array([1.0, 2.0, 3.0, np.nan, 5.0])
    assert mean_of_last(y, 2)[:3].tolist() == [1.0, 1.5, 2.5]
    assert np.isnan(mean_of_last(y, 2)[3]) and mean_of_last(y, 2)[4] == 5.0
    later = np.array([1.0, 2.0, 3.0, 100.0])
    assert mean_of_last(later, 3)[:3].tolist() == mean_of_last(later[:3], 3).tolist()
