"""What the views count is what happened."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from nanolens.message import msg
from nanolens.record import events as e
from nanolens.record.progress import CURVE_POINTS, LossCurve, Progress, about_run, reason
from nanolens.record.read import events_since
from nanolens.record.write import Recorder
from nanolens.show.words import say
from tests.show.made_run import EVAL_S, KNOWN, STEP_S, made_progress, made_run


def test_the_parts_are_the_seconds_of_the_events_and_the_rest_is_other():
    it = made_progress(steps=500, ends=False)
    parts = it.time_parts(it.last_at_s + 1.0)
    assert parts["data"] == pytest.approx(500 * 0.001)
    assert parts["train"] == pytest.approx(500 * (STEP_S - 0.001))
    assert parts["eval"] == pytest.approx(3 * 2 * EVAL_S)
    assert parts["checkpoint"] == pytest.approx(2 * 0.02)
    assert parts["other"] == pytest.approx(1.0, abs=1e-3)
    assert sum(parts.values()) == pytest.approx(it.wall_s(it.last_at_s + 1.0))


def test_speed_and_mfu_are_those_of_the_last_updates():
    it = made_progress(steps=500, ends=False)
    assert it.tokens_per_s == pytest.approx(768 / STEP_S)
    assert it.mfu_frac == pytest.approx(768 / STEP_S * 5.16e6 / 2.1e11)


def test_without_a_peak_there_is_no_mfu():
    it = Progress(about_run("x", {**KNOWN, "peak_flops": None}))
    for event in made_run(10, ends=False):
        it.take(event)
    assert math.isnan(it.mfu_frac)


def test_the_time_left_counts_the_evaluations_to_come():
    it = made_progress(steps=1000, ends=False)
    one = 2 * EVAL_S + 0.02 + 0.3
    assert it.left_s() == pytest.approx(1000 * STEP_S + 4 * one)


def test_a_resumed_run_forgets_the_steps_it_repeats():
    it = made_progress(steps=1000, ends=False)
    it.take(e.RunStarted(step=500, attempt=2, at_s=it.last_at_s + 100))
    assert [row.step for row in it.evals] == [0, 250, 500]
    it.take(e.StepTaken(step=501, loss=9.0, lr=1e-3, grad_norm=1.0, tokens=768, took_s=0.1, at_s=it.last_at_s + 1))
    assert it.curve.steps[-1] == 501 and max(it.curve.steps) == 501
    assert it.wall_s(it.last_at_s) == pytest.approx(1.0)


def test_a_nan_is_shown_as_the_loss_and_kept_out_of_the_curve():
    it = made_progress(steps=100, ends=False)
    it.take(e.StepTaken(step=101, loss="nan", lr=1e-3, grad_norm="nan", tokens=768, took_s=0.1))
    assert math.isnan(it.loss)
    assert all(math.isfinite(loss) for loss in it.curve.losses)


def test_a_long_curve_is_thinned_to_means_of_equal_stretches():
    curve = LossCurve()
    steps = 10 * CURVE_POINTS
    for step in range(1, steps + 1):
        curve.add(step, float(step))
    assert len(curve.steps) <= CURVE_POINTS
    assert sum(count for _, _, count in curve.stretches) == steps
    assert curve.steps[-1] == steps
    first = curve.stretches[0][2]
    assert curve.losses[0] == pytest.approx((1 + first) / 2)


def test_other_ranks_are_not_counted_twice():
    it = made_progress(steps=10, ends=False)
    it.take(e.StepTaken(step=11, loss=1.0, lr=1e-3, grad_norm=1.0, tokens=768, took_s=0.1, rank=1))
    assert it.step == 10


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (e.Warned(step=3, code="overfitting", claim="val rises"), "val rises (overfitting)"),
        (
            e.CheckpointFailed(step=3, because="No space left on device"),
            "the checkpoint at step 3 could not be saved: No space left on device",
        ),
        (e.StepSkipped(step=3, because="loss"), "the update after step 3 was skipped: its loss was not finite"),
        (
            e.StepSkipped(step=3, because="gradient", layer="blocks.0.mlp.up.weight"),
            "the update after step 3 was skipped: its gradient was not finite, first in blocks.0.mlp.up.weight",
        ),
        (e.RolledBack(from_step=30, to_step=20, because="3 skipped"), "rolled back from step 30 to 20: 3 skipped"),
        (e.MicroBatchHalved(step=1, old=12, new=6), "out of memory: micro-batch 12 -> 6, tokens per update unchanged"),
        (e.ConfigChanged(key="max_iters", old=10, new=20), "max_iters changed from 10 to 20"),
    ],
)
def test_what_went_wrong_is_said(event: e.Event, said: str):
    it = made_progress(steps=40, ends=False)
    it.take(event)
    assert say(it.notices[-1][1]) == said


def test_a_reason_in_the_record_is_read_in_the_readers_language(tmp_path: Path):
    share = msg("{low:share} of {what}", low=0.25, what=msg("batch loss"))
    seen = msg("{run} failed at step {step:count}, after {took:seconds}", run=share, step=3, took=math.inf)
    recorder = Recorder(tmp_path)
    recorder(e.RunEnded(step=3, why="failed", because=str(seen), words=seen))
    recorder(e.RunEnded(step=3, why="failed", because="of an older record"))
    recorder.close()
    ends, _ = events_since(tmp_path, 0)
    assert [reason(end) for end in ends if isinstance(end, e.RunEnded)] == [seen, "of an older record"]
    it = made_progress(steps=3, ends=False)
    it.take(ends[0])
    assert it.because == seen
    assert say(seen, "hi") != say(seen, "en")
