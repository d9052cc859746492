import numpy as np

from tests.diagnosis.rules.build import OURS, found, make, sure


def test_waiting_for_data():
    losses = np.linspace(4, 3, 50)
    assert "input_bound" in sure(
        make(losses, conventions=OURS, took=0.1, columns={"data_s": np.full(50, 0.04)}), "input_bound"
    )
    assert not found(make(losses, conventions=OURS, took=0.1, columns={"data_s": np.full(50, 0.001)}), "input_bound")


def test_updates_that_are_always_clipped():
    losses = np.linspace(4, 3, 400)
    assert "clipping_saturated" in found(
        make(losses, conventions=OURS, columns={"clipped": np.ones(400)}), "input_bound"
    )
    assert not found(
        make(losses, conventions=OURS, columns={"clipped": (np.arange(400) < 60).astype(float)}), "input_bound"
    )
