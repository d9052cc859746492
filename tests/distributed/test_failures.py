"""A rank that is slow, drifts, hangs, fails or is told to stop."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from nanolens.diagnosis import diagnose
from nanolens.record.read import read_run
from tests.distributed.groups import ends, start, trained
from tests.training.small import digests, events_of, losses_of

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(200)]

CONFIG = {"max_iters": 40, "lr_decay_iters": 40, "eval_interval": 10, "gradient_accumulation_steps": 2}


def found(run: Path) -> dict[str, object]:
    return {finding.code: finding for finding in diagnose(read_run(run)).findings}


def test_a_straggler_is_named_with_what_it_costs(tmp_path: Path):
    trained(3, {tmp_path / "run": CONFIG | {"gradient_accumulation_steps": 3}}, hook="slow_rank_1")
    finding = found(tmp_path / "run")["straggler_rank"]
    assert finding.claim.args["rank"] == 1
    assert 0.03 < finding.evidence[0].seen - finding.evidence[0].usual < 0.5


def test_a_rank_that_drifts_is_told_of_and_brought_back(tmp_path: Path):
    trained(2, {tmp_path / "run": CONFIG, tmp_path / "other": CONFIG | {"seed": 2}}, hook="drifting_rank_1")
    told = [event for event in events_of(tmp_path / "run") if event["event"] == "rank_drifted"]
    assert [(event["step"], event["ranks"], event["realigned"]) for event in told] == [(10, [1], True)]
    assert "grad_sync_bug" in found(tmp_path / "run")


def test_healthy_ranks_do_not_drift(tmp_path: Path):
    trained(2, {tmp_path / "run": CONFIG})
    assert not [event for event in events_of(tmp_path / "run") if event["event"] in ("rank_drifted", "ranks_lost")]
    assert not {"grad_sync_bug", "rank_lost"} & set(found(tmp_path / "run"))


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_a_number_that_is_not_finite_on_one_rank_is_kept_from_the_weights_of_all(engine: str, tmp_path: Path):
    trained(2, {tmp_path / "run": CONFIG | {"max_iters": 10, "engine": engine}}, hook="poisoned_rank_1")
    told = events_of(tmp_path / "run")
    assert [(event["step"], event["because"]) for event in told if event["event"] == "step_skipped"] == [(3, "loss")]
    assert sorted(losses_of(tmp_path / "run")) == list(range(1, 11))
    assert not [event for event in told if event["event"] in ("rank_drifted", "ranks_lost")]


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_a_hang_ends_with_the_name_of_the_rank_and_the_call(engine: str, tmp_path: Path):
    group = start(2, {tmp_path / "run": CONFIG | {"rank_timeout": 8, "engine": engine}}, hook="hanging_rank_1")
    try:
        said = group[0].communicate(timeout=120)[1]
    finally:
        group[1].kill()
        group[1].communicate()
    assert group[0].returncode == 1
    assert f"rank 1 (process {group[1].pid} on " in said and "it is alive and busy with its own work" in said
    assert ("averaging the gradients" if engine == "ddp" else "gathering parameters") in said
    lost = [event for event in events_of(tmp_path / "run") if event["event"] == "ranks_lost"]
    assert lost[0]["ranks"] == [1] and lost[0]["step"] == 5 and lost[0]["waited_s"] >= 7
    assert "rank_lost" in found(tmp_path / "run")


def test_a_rank_that_is_killed_is_named(tmp_path: Path):
    group = start(2, {tmp_path / "run": CONFIG | {"max_iters": 100_000}}, hook="paced")
    _wait_for_steps(tmp_path / "run", 3)
    group[1].kill()
    said = group[0].communicate(timeout=120)[1]
    group[1].communicate()
    assert group[0].returncode == 1
    assert f"rank 1 (process {group[1].pid} on " in said and "has died or cannot be reached" in said


def test_a_signal_to_one_rank_stops_all_at_the_same_step_and_saves(tmp_path: Path):
    run, whole = tmp_path / "run", tmp_path / "whole"
    for engine in ("ddp", "fsdp"):
        config = CONFIG | {"engine": engine, "max_iters": 400, "lr_decay_iters": 400, "eval_interval": 100}
        parts = run / engine
        group = start(2, {parts: config}, hook="paced")
        _wait_for_steps(parts, 5)
        group[1].send_signal(signal.SIGTERM)
        codes, said = ends(group)
        assert codes == [3, 128 + signal.SIGTERM], said
        assert [event["why"] for event in events_of(parts) if event["event"] == "run_ended"] == ["stopped"]
        stopped_at = next(event["step"] for event in events_of(parts) if event["event"] == "run_ended")
        assert 5 <= stopped_at < 300
        short = config | {"max_iters": stopped_at + 5}
        trained(2, {parts: short})
        trained(2, {whole / engine: short})
        assert digests(parts, stopped_at + 5) == digests(whole / engine, stopped_at + 5)
        assert losses_of(parts) == losses_of(whole / engine)


def _wait_for_steps(run: Path, count: int) -> None:
    until_s = time.monotonic() + 90
    while time.monotonic() < until_s:
        if (run / "events.jsonl").exists() and (run / "events.jsonl").read_bytes().count(b'"step_taken"') >= count:
            return
        time.sleep(0.05)
    raise AssertionError("the run did not begin")
