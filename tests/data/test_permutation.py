"""The shuffle that is never written down."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from nanolens.data.batches import keyed, permute


@given(count=st.integers(1, 5000), key=st.integers(0, 2**64 - 1))
def test_it_is_a_permutation(count: int, key: int):
    assert np.array_equal(np.sort(permute(np.arange(count), count, key)), np.arange(count))


@given(count=st.integers(1, 2**50), key=st.integers(0, 2**64 - 1), data=st.data())
def test_of_any_size_it_stays_inside_and_never_gives_two_items_one_place(count: int, key: int, data):
    items = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=30))
    places = permute(np.array(items, dtype=np.int64), count, key)
    assert len(set(places.tolist())) == len(items)
    assert all(0 <= place < count for place in places)


def test_every_item_can_come_to_every_place():
    count, keys = 5, 2500
    table = np.zeros((count, count))
    for key in range(keys):
        table[np.arange(count), permute(np.arange(count), count, keyed(key))] += 1
    assert stats.chisquare(table.ravel()).pvalue > 1e-4


def test_neighbours_are_torn_apart_and_keys_are_unrelated():
    count = 10_000
    first, second = permute(np.arange(count), count, keyed(1)), permute(np.arange(count), count, keyed(2))
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(first, np.arange(count))[0, 1]) < 0.05
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


def test_a_key_depends_on_every_part_in_its_place():
    keys = [keyed(1, 2), keyed(2, 1), keyed(1, 2, 0), keyed(1), keyed(1, 3), keyed(1 + 2**64, 2), keyed(1, 2 + 2**70)]
    assert len(set(keys)) == len(keys)


def test_ten_billion_tokens_take_no_time():
    windows = 10_000_000_000 // 1024
    started = time.perf_counter()
    permute(np.arange(500), windows, keyed(1337))
    assert time.perf_counter() - started < 0.5
