"""Batches are a function of tokens, seed and cursor, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanolens.data.batches import ShuffledWindows, eval_windows, gather, whole_split
from nanolens.errors import UserError

TOKENS = np.arange(10_007, dtype=np.uint16)  # each token says where it stands


@given(cursor=st.integers(0, 2000), counts=st.lists(st.integers(0, 40), max_size=8), seed=st.integers(0, 2**63 - 1))
def test_any_chunking_of_the_cursor_gives_the_same_samples(cursor: int, counts: list[int], seed: int):
    order = ShuffledWindows(TOKENS, 64, seed)
    whole = order.gather(cursor, sum(counts))
    starts = cursor + np.concatenate([[0], np.cumsum(counts)])
    parts = [order.gather(int(start), count) for start, count in zip(starts, counts, strict=False)]
    for side in (0, 1):
        assert np.array_equal(whole[side], np.concatenate([part[side] for part in parts]) if parts else whole[side][:0])


@given(size=st.integers(3, 400), block=st.integers(1, 80), seed=st.integers(0, 1000), epoch=st.integers(0, 5))
def test_an_epoch_has_each_target_at_most_once_and_leaves_out_less_than_a_window(
    size: int, block: int, seed: int, epoch: int
):
    if size <= block:
        return
    order = ShuffledWindows(np.arange(size, dtype=np.uint16), block, seed)
    _, targets = order.gather(epoch * order.windows_per_epoch, order.windows_per_epoch)
    assert len(np.unique(targets)) == targets.size
    assert (size - 1) - targets.size < block


def test_a_target_is_the_token_after_its_input_also_at_the_seam():
    order = ShuffledWindows(TOKENS, 64, seed=3)
    inputs, targets = order.gather(0, order.windows_per_epoch * 3)
    assert np.array_equal(targets, inputs + 1)
    assert inputs.dtype == targets.dtype == np.int64
    seam = [row for row in inputs if np.any(np.diff(row) != 1)]
    assert len(seam) <= 3, "at most one window an epoch runs over the end"


def test_each_epoch_has_its_own_order_and_its_own_offset():
    order = ShuffledWindows(TOKENS, 64, seed=3)
    count = order.windows_per_epoch
    first, second = order.windows(0, count), order.windows(count, count)
    assert not np.array_equal(np.sort(first) % 64, np.sort(second) % 64)
    assert not np.array_equal(np.argsort(first), np.argsort(second))


def test_over_epochs_every_target_is_seen_equally_often():
    order = ShuffledWindows(TOKENS, 1000, seed=5)  # a tenth of the text is left over in no epoch, but 6 tokens are
    _, targets = order.gather(0, order.windows_per_epoch * 50)
    counts = np.bincount(targets.ravel(), minlength=len(TOKENS))[1:]
    assert counts.min() >= 48 and counts.max() <= 50


def test_seeds_give_different_orders_and_one_seed_the_same():
    assert np.array_equal(ShuffledWindows(TOKENS, 64, 1).windows(0, 99), ShuffledWindows(TOKENS, 64, 1).windows(0, 99))
    assert not np.array_equal(
        ShuffledWindows(TOKENS, 64, 1).windows(0, 99), ShuffledWindows(TOKENS, 64, 2).windows(0, 99)
    )


def test_ten_billion_tokens_need_no_array(tmp_path):
    path = tmp_path / "sparse.bin"
    with open(path, "wb") as file:
        file.truncate(2 * 10_000_000_000)  # a hole: takes no room
    order = ShuffledWindows(np.memmap(path, dtype=np.uint16, mode="r"), 1024, seed=1337)
    inputs, _ = order.gather(9_000_000, 4)
    assert inputs.shape == (4, 1024)
    starts = order.windows(0, 10_000)
    assert starts.max() > 9_000_000_000 and len(np.unique(starts)) == 10_000


def test_evaluation_sets_are_fixed_do_not_overlap_and_say_when_they_are_equal():
    one = eval_windows(TOKENS, 64, 8, 5, seed=1)
    again = eval_windows(TOKENS.astype(np.uint32), 64, 8, 5, seed=1)
    other = eval_windows(TOKENS, 64, 8, 5, seed=2)
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert len(one) == 5 and one.targets == 5 * 8 * 64
    targets = np.concatenate([batch[1].ravel() for batch in one])
    assert len(np.unique(targets)) == targets.size == one.targets
    changed = TOKENS.copy()
    changed[int(targets[77])] += 1
    assert eval_windows(changed, 64, 8, 5, seed=1).fingerprint != one.fingerprint
    assert eval_windows(TOKENS, 64, 4, 10, seed=1).fingerprint != one.fingerprint, (
        "other batches cannot be compared one by one"
    )


def test_more_batches_than_there_are_give_each_window_once():
    found = eval_windows(TOKENS, 64, 8, 10_000, seed=1)
    assert len(found) == (len(TOKENS) - 1) // 64 // 8
    tiny = eval_windows(TOKENS[:130], 64, 8, 10, seed=1)
    assert len(tiny) == 1 and next(iter(tiny))[0].shape == (2, 64)


@given(size=st.integers(66, 700), batch=st.integers(1, 9))
def test_a_whole_split_has_every_target_once(size: int, batch: int):
    found = whole_split(TOKENS[:size], 64, batch)
    targets = np.concatenate([batch[1].ravel() for batch in found])
    assert np.array_equal(np.sort(targets), np.arange(1, size))
    assert found.targets == size - 1 and len(list(found)) == len(found)


def test_a_split_shorter_than_a_window_is_told_with_its_size():
    for make in (
        lambda tokens: ShuffledWindows(tokens, 64, 1),
        lambda tokens: eval_windows(tokens, 64, 1, 1, 1),
        lambda tokens: whole_split(tokens, 64, 1),
    ):
        with pytest.raises(UserError, match="has 64 tokens, and one window of block_size = 64 needs 65"):
            make(TOKENS[:64])


def test_gathered_arrays_are_plain_and_contiguous(tmp_path):
    TOKENS.tofile(tmp_path / "x.bin")
    mapped = np.memmap(tmp_path / "x.bin", dtype=np.uint16, mode="r")
    for array in gather(mapped, np.array([3, 9]), 16):
        assert type(array) is np.ndarray and array.flags.c_contiguous and array.flags.writeable
