"""Runs at a glance: the last events only, whatever the folder holds."""

from __future__ import annotations

import math
import time

import msgspec

from nanolens.record import EVENTS_FILE, RUN_FILE
from nanolens.record import events as e
from nanolens.record.progress import glance, glances
from nanolens.record.read import TAIL_BYTES
from nanolens.record.store import training_here
from nanolens.record.write import Recorder, write_run_file


def make(folder, *events, max_iters=100):
    write_run_file(folder, {"config": {"max_iters": max_iters}})
    recorder = Recorder(folder)
    for event in events:
        recorder(event)
    recorder.close()


def step(number: int) -> e.StepTaken:
    return e.StepTaken(step=number, loss=3.0 + number, lr=0.1, grad_norm=1.0, tokens=100, took_s=0.5)


def evaluation(number: int, loss: float) -> e.Evaluated:
    return e.Evaluated(step=number, split="val", loss=loss, standard_error=0.1, batch_losses=[], batches="", tokens=1)


def test_a_glance_shows_where_a_run_is(tmp_path):
    make(tmp_path / "a", e.RunStarted(step=0), step(1), evaluation(1, 2.5), step(2))
    seen = glance(tmp_path / "a")
    assert (seen.state, seen.step, seen.max_iters, seen.loss, seen.val, seen.tokens_per_s) == (
        "gone",
        2,
        100,
        5.0,
        2.5,
        200.0,
    )
    with training_here(tmp_path / "a"):
        assert glance(tmp_path / "a").state == "running"


def test_a_finished_run_and_one_of_another_loop(tmp_path):
    make(tmp_path / "a", e.RunStarted(step=0), step(1), e.RunEnded(step=1, why="finished"))
    make(tmp_path / "b", e.RunStarted(step=0), e.Logged(step=7, values={"loss": "nan"}))
    assert glance(tmp_path / "a").state == "finished"
    other = glance(tmp_path / "b")
    assert other.step == 7 and math.isnan(other.loss)


def test_runs_are_listed_oldest_first_and_a_broken_one_is_told(tmp_path):
    for name in ("b", "a"):
        make(tmp_path / name, step(1))
        time.sleep(0.02)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / RUN_FILE).write_text("{")
    (tmp_path / "no run").mkdir()
    listed = glances(tmp_path)
    assert [seen.folder.name for seen in listed] == ["broken", "b", "a"] and listed[0].state == "unreadable"
    assert glances(tmp_path / "nowhere") == [] and len(glances(tmp_path / "a")) == 1


def test_only_the_end_of_a_long_record_is_read(tmp_path):
    make(tmp_path / "a", *(step(n) for n in range(1, 6000)))
    assert (tmp_path / "a" / EVENTS_FILE).stat().st_size > TAIL_BYTES
    with open(tmp_path / "a" / EVENTS_FILE, "ab") as file:
        file.write(b'{"event":"step_tak')
    assert glance(tmp_path / "a").step == 5999


def test_the_best_evaluation_and_the_warnings_are_those_of_the_whole_run(tmp_path):
    best = [msgspec.structs.replace(evaluation(n, 3.0 - n), is_best=True) for n in (1, 2)]
    early = [*best, e.Warned(step=2, code="lr_zero", claim="")]
    make(tmp_path / "a", *early, *(step(n) for n in range(1, 6000)), evaluation(6000, 1.5))
    assert (tmp_path / "a" / EVENTS_FILE).stat().st_size > 2 * TAIL_BYTES
    seen = glance(tmp_path / "a")
    assert (seen.val, seen.best_val, seen.warnings) == (1.5, 1.0, 1)
