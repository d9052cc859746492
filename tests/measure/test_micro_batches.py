"""Measuring micro-batch sizes: from the smallest up, and none that would not fit."""

from __future__ import annotations

import pytest
import torch

from nanolens.measure import timed
from nanolens.measure.timed import Tuner, room_bytes
from nanolens.training.machine import Machine
from tests.training.small import but, small_data


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "TRIAL_S", 0.01)
    monkeypatch.setattr(timed, "SLOWER_SIZES", 100)  # a busy machine must not end the search here


class Growing:
    """A process whose peak is a megabyte and ten more for each sequence that ever went through together."""

    def __init__(self) -> None:
        self.largest = 0

    def __call__(self, machine: Machine) -> float:
        return 1e6 + 10e6 * self.largest


def tuner_of(monkeypatch: pytest.MonkeyPatch, **changes: object) -> tuple[Tuner, list[int]]:
    """A tuner with made-up memory, and the sizes it really ran."""
    ran: list[int] = []
    memory = Growing()
    tuner = Tuner(but(batch_size=4, gradient_accumulation_steps=4, **changes), small_data(), memory)
    update = tuner._update

    def seen(config):
        ran.append(config.batch_size)
        memory.largest = max(memory.largest, config.batch_size)
        return update(config)

    monkeypatch.setattr(tuner, "_update", seen)
    return tuner, ran


def test_every_size_is_measured_and_the_fastest_are_measured_again(monkeypatch):
    tuner, _ = tuner_of(monkeypatch)
    trials = list(tuner.trials([1, 2, 4, 8, 16]))
    first = [trial for trial in trials if not trial.is_again]
    assert [(trial.size, trial.accumulation) for trial in first] == [(1, 16), (2, 8), (4, 4), (8, 2), (16, 1)]
    assert all(trial.update_s > 0 and not trial.skipped for trial in first)
    assert len([trial for trial in trials if trial.is_again]) == timed.CONTENDERS


def test_a_size_that_would_not_fit_is_told_of_and_never_run(monkeypatch):
    tuner, ran = tuner_of(monkeypatch)
    trials = [trial for trial in tuner.trials([1, 2, 4, 8, 16], limit_bytes=60e6) if not trial.is_again]
    assert [trial.skipped for trial in trials] == ["", "", "", "memory", "memory"]
    assert max(ran) == 4
    # 1 + 10 * 8 MB, and some doubt on top
    assert 81e6 <= trials[3].memory_bytes <= 100e6


def test_a_model_that_does_not_fit_at_all_is_not_run_once(monkeypatch):
    tuner, ran = tuner_of(monkeypatch)
    assert {trial.skipped for trial in tuner.trials([1, 2, 4], limit_bytes=1e6)} == {"memory"}
    assert ran == []


def test_a_size_that_would_take_too_long_is_not_tried(monkeypatch):
    tuner, _ = tuner_of(monkeypatch)
    monkeypatch.setattr(timed, "LONGEST_TRIED_UPDATE_S", 0.0)
    assert [trial.skipped for trial in tuner.trials([1, 2, 4]) if not trial.is_again] == ["", "time", "time"]


def test_the_room_is_less_than_what_is_free():
    import psutil

    machine = Machine(torch.device("cpu"), "float32", 1, "", None)
    assert 0 < room_bytes(machine) < psutil.virtual_memory().total
