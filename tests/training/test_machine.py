"""What the machine is and could do, and who decided it."""

from __future__ import annotations

import time

import pytest
import torch

from nanolens.errors import UserError
from nanolens.record.events import Chosen
from nanolens.record.write import read_run_file
from nanolens.training.machine import choose_machine, measured_peak, usable_cores, with_peak
from tests.training.small import but, events_of, recorded, steps_of


def test_what_was_left_to_the_program_is_told_with_a_reason():
    told: list[Chosen] = []
    machine = choose_machine(but(device="auto", dtype="auto", threads=None), told.append)
    assert {event.what for event in told} == {"device", "dtype", "threads"}
    assert all(event.because and event.because == str(event.words) for event in told)
    assert machine.threads >= 1


def test_what_was_asked_for_is_not_told_as_a_choice():
    told: list[Chosen] = []
    choose_machine(but(), told.append)
    assert not told


def test_a_resumed_run_keeps_its_threads_and_precision():
    machine = choose_machine(but(dtype="auto", threads=None), lambda event: None, {"dtype": "bfloat16", "threads": 3})
    assert (machine.dtype, machine.threads) == ("bfloat16", 3)


@pytest.mark.parametrize("name", ["cuda:7", "tpu", "nonsense"])
def test_a_device_that_is_not_there_is_one_clear_message(name: str):
    with pytest.raises(UserError) as refusal:
        choose_machine(but(device=name), lambda event: None)
    assert name in str(refusal.value)
    assert len(refusal.value.faults) == 1


def test_the_measured_peak_is_at_least_what_a_matmul_here_reaches():
    """In one of five tries: another program may take the processor during either measurement."""
    machine = choose_machine(but(), lambda event: None)
    a = torch.randn(512, 512)

    def reached() -> float:
        best_s = float("inf")
        for _ in range(10):
            started_at_s = time.perf_counter()
            a @ a
            best_s = min(best_s, time.perf_counter() - started_at_s)
        return 2 * 512**3 / best_s

    assert any(measured_peak(machine) > 0.3 * reached() for _ in range(5))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_precision_that_is_only_imitated_does_not_take_long_to_measure(dtype: str):
    machine = choose_machine(but(dtype=dtype), lambda event: None)
    started_at_s = time.perf_counter()
    assert with_peak(machine).peak_flops
    assert time.perf_counter() - started_at_s < 5


def test_cores_that_may_be_used_are_counted():
    assert 1 <= usable_cores() <= 1024


def test_a_step_faster_than_the_peak_makes_the_peak_be_measured_again(data, tmp_path, monkeypatch: pytest.MonkeyPatch):
    """As when something else was running at the start."""
    monkeypatch.setattr("nanolens.training.machine.measured_peak", lambda machine: 1.0)
    recorded(but(max_iters=3, eval_interval=3), data, tmp_path / "run")
    facts = read_run_file(tmp_path / "run")
    fastest_s = min(event["took_s"] for event in steps_of(tmp_path / "run"))
    assert (
        facts["machine"]["peak_flops"]
        >= facts["sizes"]["flops_per_token"] * facts["sizes"]["tokens_per_update"] / fastest_s
    )
    assert any(event["event"] == "chosen" and event["what"] == "peak_flops" for event in events_of(tmp_path / "run"))
