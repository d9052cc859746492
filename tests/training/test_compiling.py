"""When to compile: from measured times, with a stand-in for the compiler; the real one in a heavy test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import nanolens.training.compiling as compiling
from nanolens.data.store import Dataset
from nanolens.errors import UserError
from nanolens.model import build
from nanolens.model.loss import WithLoss
from nanolens.record.events import Chosen, Compiled
from nanolens.training.machine import choose_machine
from nanolens.training.state import Clock
from tests.training.small import but, events_of, losses_of, recorded


def decided(monkeypatch: pytest.MonkeyPatch, micro_batch_s: float, left: int, compiled_s: float, fails: bool = False):
    """What came of it, and what was told."""
    config = but()
    machine = choose_machine(config, lambda event: None)
    eager = WithLoss(build(config, 11))
    stand_in = WithLoss(build(config, 11))

    def compile_module(module):
        if fails:
            raise RuntimeError("no C++ compiler found")
        return stand_in

    monkeypatch.setattr(torch, "compile", compile_module)
    monkeypatch.setattr(compiling.SpeedTrial, "seconds", lambda self, module: compiled_s)
    told: list = []
    chosen = compiling.compile_if_it_pays(
        compiling.SpeedTrial(eager, machine, 11, (config.batch_size, config.block_size)),
        Clock(),
        told.append,
        step=5,
        micro_batch_s=micro_batch_s,
        micro_batches_left=left,
    )
    return chosen is stand_in, told


def test_a_short_run_is_not_worth_compiling_for(monkeypatch: pytest.MonkeyPatch):
    is_compiled, told = decided(monkeypatch, 0.05, 2000, 0.01)
    assert not is_compiled
    assert [type(event) for event in told] == [Chosen]
    assert "the steps left take 100.0" in told[0].because


def test_a_long_run_is_and_the_faster_one_is_kept(monkeypatch: pytest.MonkeyPatch):
    is_compiled, told = decided(monkeypatch, 1.0, 100_000, 0.7)
    assert is_compiled
    assert [type(event) for event in told] == [Compiled, Chosen]
    assert (told[1].value, "0.7 instead of 1.0" in told[1].because) == (True, True)


def test_what_turns_out_slower_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    is_compiled, told = decided(monkeypatch, 1.0, 100_000, 1.2)
    assert not is_compiled
    assert told[1].value is False


def test_a_compiler_that_fails_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch):
    is_compiled, told = decided(monkeypatch, 1.0, 100_000, 0.5, fails=True)
    assert not is_compiled
    assert "failed" in told[0].because


def test_a_compiler_that_was_asked_for_and_fails_is_one_clear_message(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(module):
        raise RuntimeError("long story\nno C++ compiler found")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(UserError, match=r"torch\.compile failed: no C\+\+ compiler found"):
        recorded(but(compile=True), data, tmp_path / "run")


def test_the_decision_is_told_once_and_kept_on_resuming(data: Dataset, tmp_path: Path):
    run = tmp_path / "run"
    recorded(but(compile=None, max_iters=8, eval_interval=8), data, run)
    recorded(but(compile=None, max_iters=16, eval_interval=8, init_from="resume"), data, run)
    told = [event for event in events_of(run) if event["event"] == "chosen" and event["what"] == "compile"]
    assert len(told) == 1
    assert told[0]["value"] is False


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_run_learns_the_same(data: Dataset, tmp_path: Path):
    recorded(but(max_iters=6, eval_interval=3), data, tmp_path / "eager")
    outcome = recorded(but(max_iters=6, eval_interval=3, compile=True), data, tmp_path / "compiled")
    eager, compiled = losses_of(tmp_path / "eager"), losses_of(tmp_path / "compiled")
    for step in eager:
        assert compiled[step] == pytest.approx(eager[step], rel=1e-3)
    assert outcome.parts["compile"] > 1
    slowest = max(event["took_s"] for event in events_of(tmp_path / "compiled") if event["event"] == "step_taken")
    assert slowest < 0.5 * outcome.parts["compile"], "no step time holds the compiling"
