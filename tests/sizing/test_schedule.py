"""lr_at is nanoGPT's schedule; the oracle here is written from the schedule's definition, not from our code."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanolens.config.fields import Config
from nanolens.sizing.schedule import lr_at


def cosine(it, peak, least, warm, ends):
    if it < warm:
        return peak * (it + 1) / (warm + 1)
    if it > ends:
        return least
    return least + (peak - least) * (1 + math.cos(math.pi * (it - warm) / (ends - warm))) / 2


@given(st.integers(0, 3000), st.integers(0, 500), st.integers(501, 2500))
def test_cosine_is_nanogpt_s(step, warm, ends):
    config = Config(learning_rate=1e-3, min_lr=1e-4, warmup_iters=warm, lr_decay_iters=ends, max_iters=ends)
    assert lr_at(config, step) == pytest.approx(cosine(step, 1e-3, 1e-4, warm, ends), rel=1e-12)


def test_the_rate_of_a_real_run_at_step_14500():
    config = Config(learning_rate=1e-3, min_lr=1e-4, warmup_iters=500, lr_decay_iters=20000, max_iters=20000)
    assert lr_at(config, 14500) == pytest.approx(2.7e-4, rel=0.02)


def test_wsd_is_flat_until_its_last_fifth_and_ends_at_min_lr():
    config = Config(
        schedule="wsd",
        learning_rate=1e-3,
        min_lr=0,
        warmup_iters=10,
        lr_decay_iters=None,
        max_iters=1000,
        decay_frac=0.2,
    )
    assert lr_at(config, 10) == lr_at(config, 799) == 1e-3
    assert lr_at(config, 900) == pytest.approx(5e-4)
    assert lr_at(config, 1000) == 0


def test_linear_falls_from_the_end_of_warm_up():
    config = Config(
        schedule="linear", learning_rate=1e-3, min_lr=0, warmup_iters=100, lr_decay_iters=1100, max_iters=1100
    )
    assert lr_at(config, 600) == pytest.approx(5e-4)


def test_without_decay_the_rate_is_constant_from_the_first_update():
    assert lr_at(Config(decay_lr=False, learning_rate=3e-4), 0) == 3e-4


def test_warm_up_as_long_as_the_decay_does_not_divide_by_zero():
    assert lr_at(Config(warmup_iters=100, lr_decay_iters=100, max_iters=100, min_lr=6e-5), 100) == 6e-5
