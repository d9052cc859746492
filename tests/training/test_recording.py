"""The record: one line per event, whole or torn at its very end, and never in the way of the training."""

from __future__ import annotations

import errno
import json
import math
import os
import time
from pathlib import Path

import pytest

from nanolens.data.store import Dataset
from nanolens.errors import UserError
from nanolens.record import checkpoint_folders
from nanolens.record.events import Logged, RunEnded, StepTaken
from nanolens.record.read import read_run
from nanolens.record.store import living_process, training_here
from nanolens.record.write import Recorder, end_run, end_torn_line, log, read_run_file, start_run
from tests.training.small import but, events_of, recorded, signal_at, steps_of


def step(number: int, loss: float = 1.0) -> StepTaken:
    return StepTaken(step=number, loss=loss, lr=1e-3, grad_norm=1.0, tokens=10, took_s=0.1)


def test_numbers_that_json_lacks_are_written_as_words(tmp_path: Path):
    recorder = Recorder(tmp_path / "run")
    recorder(step(1, math.nan))
    recorder(step(2, -math.inf))
    recorder(
        StepTaken(step=3, loss=1.0, lr=1e-3, grad_norm=math.inf, tokens=1, took_s=0.1, micro_norms=[1.0, math.nan])
    )
    recorder(Logged(step=4, values={"a": math.nan, "b": 2.0}))
    recorder.close()
    told = events_of(tmp_path / "run")
    assert [told[0]["loss"], told[1]["loss"], told[2]["grad_norm"], told[2]["micro_norms"]] == [
        "nan",
        "-inf",
        "inf",
        [1.0, "nan"],
    ]
    assert told[3]["values"] == {"a": "nan", "b": 2.0}
    assert "NaN" not in (tmp_path / "run" / "events.jsonl").read_text()


def test_a_torn_last_line_is_ended_and_the_next_attempt_counted(tmp_path: Path):
    run = tmp_path / "run"
    first = Recorder(run)
    for number in range(1, 4):
        first(step(number))
    first.close()
    path = run / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    second = Recorder(run)
    second(step(3))
    second.close()
    lines = path.read_bytes().splitlines()
    assert len(lines) == 4
    assert not lines[2].endswith(b"}")
    assert json.loads(lines[3])["attempt"] == 2
    assert end_torn_line(path) == 2
    assert end_torn_line(tmp_path / "nowhere.jsonl") == 0


def test_a_disk_that_fills_up_costs_events_and_tells_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recorder = Recorder(tmp_path / "run")
    recorder(step(1))
    real_write, is_full = os.write, [True]

    def write(handle: int, payload: bytes) -> int:
        if not is_full[0]:
            return real_write(handle, payload)
        if len(payload) % 2:
            return real_write(handle, payload[:7])  # what a disk does that is nearly full
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    for number in range(2, 7):
        recorder(step(number, loss=10.0**number))
    is_full[0] = False
    recorder(step(7))
    recorder(RunEnded(step=7, why="finished"))
    recorder.close()
    lines = (tmp_path / "run" / "events.jsonl").read_bytes().splitlines()
    whole = [json.loads(line) for line in lines if line.endswith(b"}")]
    assert [event["step"] for event in whole] == [1, 7, 7]
    assert whole[-1]["events_lost"] == 5
    assert "No space left" in whole[-1]["lost_because"]


def test_a_run_goes_on_when_checkpoints_cannot_be_written(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The disk is full from step 4 to step 8, then there is room again."""
    import nanolens.training.saving as saving

    real = saving.save

    def sometimes_full(folder, snapshot, tokenizer):
        if 4 <= snapshot.state["step"] <= 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(folder, snapshot, tokenizer)

    monkeypatch.setattr(saving, "save", sometimes_full)
    run = tmp_path / "run"
    outcome = recorded(but(max_iters=12, eval_interval=2, keep_checkpoints=3), data, run)
    assert (outcome.why, outcome.unsaved) == ("finished", "")
    failed = [event["step"] for event in events_of(run) if event["event"] == "checkpoint_failed"]
    assert failed == [4, 6, 8]
    assert "No space left" in next(
        event["because"] for event in events_of(run) if event["event"] == "checkpoint_failed"
    )
    assert len(steps_of(run)) == 12
    assert checkpoint_folders(run)[0].name == "step-000012"


def test_a_full_disk_at_the_end_is_in_the_outcome_and_the_older_checkpoint_stays(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import nanolens.training.saving as saving

    real = saving.save

    def full_at_last(folder, snapshot, tokenizer):
        if snapshot.state["step"] == 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(folder, snapshot, tokenizer)

    monkeypatch.setattr(saving, "save", full_at_last)
    run = tmp_path / "run"
    outcome = recorded(but(max_iters=12, eval_interval=4, keep_checkpoints=3), data, run)
    assert "No space left" in outcome.unsaved
    assert checkpoint_folders(run)[0].name == "step-000008"


def test_a_checkpoint_holds_the_weights_of_its_step_although_training_goes_on(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The writing is held back until later updates have changed the weights: the file must not know of them."""
    import threading

    import nanolens.training.saving as saving

    real, late = saving.save, threading.Event()

    def slow(folder, snapshot, tokenizer):
        if snapshot.state["step"] == 4:
            assert late.wait(20)
        return real(folder, snapshot, tokenizer)

    def release(event):
        if isinstance(event, StepTaken) and event.step == 7:
            late.set()

    config = but(max_iters=8, eval_interval=4, keep_checkpoints=9)
    recorded(config, data, tmp_path / "prompt")
    monkeypatch.setattr(saving, "save", slow)
    recorded(config, data, tmp_path / "slow", release)
    from tests.training.small import digests

    assert digests(tmp_path / "slow", 4) == digests(tmp_path / "prompt", 4)


def test_run_json_says_what_was_asked_and_what_it_ran_on(data: Dataset, tmp_path: Path):
    recorded(
        but(max_iters=2, eval_interval=2),
        data,
        tmp_path / "run",
        came_from={"max_iters": "--max_iters=2"},
        preset="small",
    )
    facts = read_run_file(tmp_path / "run")
    assert facts["config"]["max_iters"] == 2
    assert facts["came_from"] == {"max_iters": "--max_iters=2"}
    assert facts["preset"] == "small"
    assert facts["machine"]["threads"] == 1
    assert facts["machine"]["peak_flops"] > 1e8
    assert facts["machine"]["peak_origin"].startswith("measured")
    assert facts["sizes"]["vocab_size"] == 11
    assert facts["sizes"]["flops_per_token"] > 0
    assert facts["data"]["train_tokens"] == len(data.train)
    assert facts["data"]["fingerprint"] == data.fingerprint
    assert facts["data"]["tokenizer_fingerprint"]
    assert set(facts["versions"]) == {"nanolens", "torch", "numpy", "python"}
    created = facts["created_at_s"]
    recorded(but(max_iters=4, eval_interval=2, init_from="resume"), data, tmp_path / "run")
    again = read_run_file(tmp_path / "run")
    assert (again["created_at_s"], again["config"]["max_iters"]) == (created, 4)


def test_what_is_written_is_what_the_reader_reads(data: Dataset, tmp_path: Path):
    run = tmp_path / "run"
    recorded(but(max_iters=6, eval_interval=3), data, run, signal_at(StepTaken, 4))
    recorded(but(max_iters=6, eval_interval=3, init_from="resume"), data, run)
    found = read_run(run)
    assert found.steps.step.tolist() == [1, 2, 3, 4, 5, 6]
    assert found.evals.step.tolist() == [0, 3, 6]
    assert found.get("state") == "finished"


def test_a_loop_that_is_not_ours_writes_the_same_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for number in range(1, 4):
        log(loss=4.0 / number, lr=1e-3)
    log(step=3, val_loss=1.5, train_loss=1.4)
    end_run()
    found = read_run(Path("runs/log-1"))
    assert found.steps.step.tolist() == [1, 2, 3]
    assert found.steps.loss.tolist() == pytest.approx([4.0, 2.0, 4 / 3])
    assert found.steps.lr.tolist() == [1e-3] * 3
    assert (found.evals.step.tolist(), found.evals.val.tolist(), found.evals.train.tolist()) == ([3], [1.5], [1.4])
    assert found.get("state") == "finished"
    assert not Path("runs/log-1/running.json").exists()
    folder = start_run("mine", config={"batch_size": 8, "block_size": 16})
    log(step=1, loss=math.nan)
    end_run("failed", "it was only a test")
    assert read_run(folder).get("batch_size") == 8
    assert read_run(folder).get("state") == "failed"
    with pytest.raises(UserError, match="already contains a run"):
        start_run("mine")


def test_a_claim_from_another_machine_counts_while_it_shows_life(tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    claim = run / "running.json"
    claim.write_text(json.dumps({"pid": 12, "host": "elsewhere", "started_at_s": 1.0}))
    assert living_process(run) == 12
    long_ago = claim.stat().st_mtime - 600
    os.utime(claim, (long_ago, long_ago))
    assert living_process(run) is None, "its machine, or its container, is gone"


def test_a_training_process_shows_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanolens.record.store.HEARTBEAT_S", 0.01)
    (tmp_path / "run").mkdir()
    with training_here(tmp_path / "run"):
        claim = tmp_path / "run" / "running.json"
        os.utime(claim, (1.0, 1.0))
        until_s = time.monotonic() + 5
        while claim.stat().st_mtime == 1.0 and time.monotonic() < until_s:
            time.sleep(0.01)
        assert claim.stat().st_mtime > 1.0
    assert not claim.exists()
