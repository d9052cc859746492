"""Reading run folders: what stands there, live or finished, torn or resumed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from nanolens.errors import UserError
from nanolens.record import EVENTS_FILE, PID_FILE, columns
from nanolens.record import columns as cache
from nanolens.record import events as e
from nanolens.record.progress import Watching
from nanolens.record.read import events_since, read_run
from nanolens.record.store import training_here
from nanolens.record.write import Recorder, write_run_file


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOLENS_CACHE", str(tmp_path / "cache"))
    cache._memory.clear()


@pytest.fixture
def run(tmp_path) -> Path:
    folder = tmp_path / "run"
    write_run_file(
        folder,
        {
            "config": {"n_layer": 2, "learning_rate": 1e-3, "dtype": "auto", "lr_decay_iters": None},
            "came_from": {"n_layer": "--n_layer=2"},
            "data": {
                "fingerprint": "d",
                "tokenizer_fingerprint": "t",
                "train_tokens": 900,
                "val_tokens": 100,
                "facts": {"bytes_per_token": 1.0},
            },
            "machine": {"hardware": "a CPU", "dtype": "float32", "peak_flops": 2e11, "peak_origin": "measured"},
            "versions": {"nanolens": "0.1.0", "torch": "2.13.0"},
            "sizes": {"vocab_size": 65, "parameters_total": 1000},
        },
    )
    return folder


def step(number: int, loss: float = 2.5, **more) -> e.StepTaken:
    return e.StepTaken(
        **{"step": number, "loss": loss, "lr": 1e-3, "grad_norm": 0.5, "tokens": 768, "took_s": 0.01} | more
    )


def evaluation(number: int, split: str, loss: float) -> e.Evaluated:
    return e.Evaluated(
        step=number,
        split=split,
        loss=loss,
        standard_error=0.1,
        batch_losses=[loss - 0.1, loss + 0.1],
        batches="abc",
        tokens=100,
        took_s=0.2,
    )


def record(folder: Path, *events: e.Event) -> None:
    recorder = Recorder(folder)
    for event in events:
        recorder(event)
    recorder.close()


def test_columns_hold_what_was_recorded(run):
    record(
        run,
        e.RunStarted(step=0),
        evaluation(0, "train", 4.1),
        evaluation(0, "val", 4.2),
        step(1, 3.9, clipped=True, memory_bytes=7),
        step(2, 3.8),
        e.CheckpointSaved(step=2, bytes=10, stall_s=0.3, is_best=True),
        e.Chosen(what="dtype", value="float32", because="CPU"),
        e.RunEnded(step=2, why="finished", parts={"train": 1.5, "eval": 0.5}, wall_s=2.0),
    )
    read = read_run(run)
    assert read.steps.step.tolist() == [1, 2] and read.steps.loss.tolist() == [3.9, 3.8]
    assert read.steps.clipped.tolist() == [1.0, 0.0]
    assert read.steps.memory_bytes[0] == 7 and math.isnan(read.steps.memory_bytes[1])
    assert read.steps.line.tolist() == [4, 5]
    assert read.evals.step.tolist() == [0] and read.evals.train[0] == 4.1 and read.evals.val[0] == 4.2
    assert read.evals.val_se[0] == 0.1 and read.evals.took_s[0] == pytest.approx(0.4)
    assert read.evals.batches == ("abc",) and read.evals.val_batch_losses[0].tolist() == pytest.approx([4.1, 4.3])
    assert read.time_parts == {"train": 1.5, "eval": 0.5}
    assert [mark.kind for mark in read.marks] == ["checkpoint", "chosen", "ended"]
    assert (
        read.conventions.trainer == "nanolens"
        and read.conventions.loss == "mean"
        and read.conventions.time == "step_only"
    )


def test_known_facts_say_where_they_come_from(run):
    known = read_run(run).known
    assert (
        known["n_layer"].value == 2
        and known["n_layer"].where == "--n_layer=2"
        and known["n_layer"].origin == "recorded"
    )
    assert (
        known["dataset_tokens"].value == 900
        and known["bytes_per_token"].value == 1.0
        and known["data_fingerprint"].value == "d"
    )
    assert known["dtype"].value == "float32"  # what `auto` became
    assert known["torch"].value == "2.13.0" and known["trainer_version"].value == "0.1.0"
    assert "lr_decay_iters" not in known  # null says nothing


def test_numbers_that_json_lacks_come_back(run):
    record(run, step(1, math.nan, grad_norm=math.inf), step(2), evaluation(2, "val", math.nan))
    read = read_run(run)
    assert math.isnan(read.steps.loss[0]) and math.isinf(read.steps.grad_norm[0])
    assert read.steps.not_finite.tolist() == [3.0, 0.0]
    assert read.evals.not_finite.tolist() == [2.0]


def test_a_torn_last_line_is_left_and_read_once_it_is_whole(run):
    record(run, step(1), step(2))
    with open(run / EVENTS_FILE, "ab") as file:
        file.write(b'{"event":"step_taken","step":3,"loss":2.1,"rate":0.1,"gr')
    assert read_run(run).steps.step.tolist() == [1, 2]
    with open(run / EVENTS_FILE, "ab") as file:
        file.write(b'ad_norm":1.0,"tokens":1,"took_s":0.1}\n')
    assert read_run(run).steps.step.tolist() == [1, 2, 3]


def test_a_torn_line_in_the_middle_costs_that_line_only(run):
    record(run, step(1), step(2))
    with open(run / EVENTS_FILE, "ab") as file:
        file.write(b'{"event":"step_ta')
    record(run, e.RunStarted(step=1, resumed_from="step-000001"), step(2, 9.0), step(3))
    read = read_run(run)
    assert read.steps.step.tolist() == [1, 2, 3] and read.steps.loss[1] == 9.0
    assert read.reading.not_understood == 1


def test_an_event_of_a_newer_nanolens_is_counted_and_passed_over(run):
    record(run, step(1))
    with open(run / EVENTS_FILE, "ab") as file:
        file.write(b'{"event":"dreamt","of":"sheep"}\n\xff\xfe\n')
    record(run, step(2))
    read = read_run(run)
    assert read.steps.step.tolist() == [1, 2] and read.reading.not_understood == 2


def test_a_later_attempt_takes_the_place_of_what_it_repeats_and_undoes_the_rest(run):
    record(
        run,
        e.RunStarted(step=0),
        *(step(n, 4.0) for n in range(1, 9)),
        evaluation(4, "val", 3.0),
        evaluation(8, "val", 2.0),
    )
    record(run, e.RunStarted(step=4, resumed_from="step-000004"), step(5, 3.0), step(6, 3.0))
    read = read_run(run)
    assert read.steps.step.tolist() == [1, 2, 3, 4, 5, 6]  # 7 and 8 never happened
    assert read.steps.loss.tolist() == [4.0] * 4 + [3.0] * 2
    assert read.evals.step.tolist() == [4]
    assert read.reading.attempts == 2
    assert [(mark.kind, mark.step) for mark in read.marks] == [("resume", 4)]


def test_a_roll_back_undoes_steps_of_the_same_attempt(run):
    record(
        run,
        e.RunStarted(step=0),
        *(step(n) for n in range(1, 6)),
        e.RolledBack(from_step=5, to_step=2, because="loss"),
        step(3, 1.0),
    )
    read = read_run(run)
    assert read.steps.step.tolist() == [1, 2, 3] and read.steps.loss[-1] == 1.0


def test_other_ranks_are_left_out(run):
    record(run, step(1, 3.0), step(1, 99.0, rank=1))
    assert read_run(run).steps.loss.tolist() == [3.0]


def test_what_another_loop_logged_becomes_rows(run):
    record(
        run,
        e.Logged(step=10, values={"loss": 3.0, "lr": 1e-3, "mfu_frac": 0.4}),
        e.Logged(step=20, values={"loss": "nan"}),
    )
    record(run, e.Logged(step=30, values={"took_s": 0.5}), e.Logged(step=40, values={"colour": "red"}))
    steps = read_run(run).steps
    assert steps.step.tolist() == [10, 20, 30]
    assert steps.lr[0] == 1e-3 and steps.mfu_frac[0] == 0.4
    assert steps.not_finite.tolist() == [0.0, 1.0, 0.0]  # the third said nothing of a loss


@pytest.mark.parametrize(
    ("why", "is_alive", "state"),
    [("finished", False, "finished"), ("failed", True, "failed"), (None, True, "running"), (None, False, "gone")],
)
def test_the_state_is_what_the_record_and_the_process_say(run, why, is_alive, state):
    record(run, e.RunStarted(step=0), step(1))
    if why:
        record(run, e.RunEnded(step=1, why=why))
    if is_alive:
        with training_here(run):
            assert read_run(run).get("state") == state
    else:
        (run / PID_FILE).unlink(missing_ok=True)
        assert read_run(run).get("state") == state


def test_a_live_run_is_read_on_from_where_it_was_left(run, monkeypatch):
    record(run, *(step(n) for n in range(1, 2000)))
    assert len(read_run(run).steps) == 1999
    read_bytes = []
    original = columns._decoded
    monkeypatch.setattr(columns, "_decoded", lambda piece: read_bytes.append(len(piece)) or original(piece))
    record(run, step(2000))
    assert len(read_run(run).steps) == 2000
    assert sum(read_bytes) < 500


def test_a_long_run_is_kept_in_the_cache_and_the_run_folder_is_not_touched(run, monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "WORTH_KEEPING_BYTES", 1000)
    record(
        run,
        e.RunStarted(step=0),
        *(step(n, 3.0 + n) for n in range(1, 100)),
        evaluation(50, "val", math.nan),
        step(100, math.nan),
    )
    before = sorted(path.name for path in run.iterdir())
    first = read_run(run)
    assert sorted(path.name for path in run.iterdir()) == before
    assert list((tmp_path / "cache").rglob("*.npz"))
    cache._memory.clear()
    monkeypatch.setattr(columns, "_decoded", lambda piece: pytest.fail("read again"))
    again = read_run(run)
    for name in ("step", "loss", "line", "at_s", "not_finite"):
        np.testing.assert_array_equal(getattr(first.steps, name), getattr(again.steps, name))
    assert again.evals.not_finite.tolist() == [2.0] and again.evals.batches == ("abc",)


def test_a_file_that_was_replaced_is_read_anew(run, monkeypatch):
    monkeypatch.setattr(cache, "WORTH_KEEPING_BYTES", 1000)
    record(run, *(step(n, 3.0) for n in range(1, 100)))
    read_run(run)
    (run / EVENTS_FILE).unlink()
    record(run, *(step(n, 7.0) for n in range(1, 150)))
    assert set(read_run(run).steps.loss) == {7.0}


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not a zip", b"\x00" * 5000])
def test_a_damaged_cache_is_only_slower(run, monkeypatch, tmp_path, damage):
    monkeypatch.setattr(cache, "WORTH_KEEPING_BYTES", 1000)
    record(run, *(step(n) for n in range(1, 100)))
    read_run(run)
    for file in (tmp_path / "cache").rglob("*.npz"):
        file.write_bytes(damage)
    cache._memory.clear()
    assert len(read_run(run).steps) == 99


def test_a_cache_that_cannot_be_written_is_no_fault(run, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("NANOLENS_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(cache, "WORTH_KEEPING_BYTES", 1000)
    record(run, *(step(n) for n in range(1, 100)))
    assert len(read_run(run).steps) == 99


def test_a_folder_without_a_run_is_the_users_mistake(tmp_path):
    with pytest.raises(UserError, match="contains no run"):
        read_run(tmp_path)


def test_a_run_without_events_has_no_rows(run):
    read = read_run(run)
    assert len(read.steps) == 0 and len(read.evals) == 0 and read.get("n_layer") == 2


def test_events_since_an_offset_come_once_and_whole(run):
    record(run, step(1), step(2))
    events, offset = events_since(run, 0)
    assert [event.step for event in events] == [1, 2]
    with open(run / EVENTS_FILE, "ab") as file:
        file.write(b'{"event":"step_taken"')
    assert events_since(run, offset) == ([], offset)
    assert events_since(run.parent / "nowhere", 5) == ([], 5)


def test_a_run_that_is_watched_tells_events_while_they_happen_until_it_ends(run):
    program = (
        "import sys, time; from pathlib import Path; from nanolens.record import events as e; from "
        "nanolens.record.write import Recorder\nfrom nanolens.record.store import training_here\n"
        "run = Path(sys.argv[1]); recorder = Recorder(run)\n"
        "with training_here(run):\n"
        "    for n in range(1, 6):\n"
        "        recorder(e.StepTaken(step=n, loss=1.0, lr=0.1, grad_norm=1.0, tokens=1, took_s=0.1)); "
        "time.sleep(0.05)\n"
        "    recorder(e.RunEnded(step=5, why='finished'))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(run)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.time() + 30
    while not (run / EVENTS_FILE).exists() and time.time() < deadline:
        time.sleep(0.02)
    watching, seen = Watching(run), []
    while not watching.is_over:
        seen += watching.catch_up()
        time.sleep(0.02)
    assert child.wait(timeout=30) == 0
    assert [type(event).__name__ for event in seen] == ["StepTaken"] * 5 + ["RunEnded"]


def test_run_json_of_any_shape_does_not_break_reading(run):
    for facts in ({}, {"config": [], "data": 3, "machine": None}, {"config": {"n_layer": {"a": 1}}}):
        (run / "run.json").write_text(json.dumps(facts))
        assert read_run(run).name == "run"
