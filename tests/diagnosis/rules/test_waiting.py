import numpy as np

from tests.diagnosis.rules.build import OURS, found, make, sure


def test_waiting_for_data():
    losses = np.linspace(4, 3, 50)
    assert "input_bound" in sure(make(losses, words=OURS, took=0.1, columns={"data_s": np.full(50, 0.04)}), "waiting")
    assert not found(make(losses, words=OURS, took=0.1, columns={"data_s": np.full(50, 0.001)}), "waiting")


def test_updates_that_are_always_clipped():
    losses = np.linspace(4, 3, 400)
    assert "clipping_saturated" in found(make(losses, words=OURS, columns={"clipped": np.ones(400)}), "waiting")
    assert not found(make(losses, words=OURS, columns={"clipped": (np.arange(400) < 60).astype(float)}), "waiting")
