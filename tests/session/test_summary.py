"""The last words of a run, whole."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from nanolens.config.load import Preset, load, named_preset, unchanged_preset
from nanolens.facts.finding import Change, Evidence, Finding
from nanolens.message import Message, msg
from nanolens.record import events as e
from nanolens.session.summary import RunSummary, summary_blocks
from nanolens.show.document import plain
from tests.show.made_run import made_progress


def finding(code: str, claim: str) -> Finding:
    evidence = Evidence(msg("loss"), 1.0, 2.0, msg("step 5"), msg("by eye"))
    return Finding(code, "likely", msg("{claim}", claim=claim), (evidence,), Change(msg("wait")), msg("never"))


def promised(val_loss: float | None, source: Message | None, curve: tuple = ()) -> Preset:
    return replace(named_preset("quickstart"), val_loss=val_loss, val_loss_source=source, curve=curve)


def test_a_finished_run():
    ending = RunSummary(
        made_progress(2000),
        "quickstart-1",
        best_checkpoint="runs/quickstart-1/checkpoints/step-001750",
        expected=promised(1.6, msg("nanoGPT's README")),
        findings=[finding("still_improving", "the loss is still falling")],
        notes=[msg("my tracker had trouble")],
    )
    assert plain(summary_blocks(ending), 100) == FINISHED


def test_a_run_that_was_stopped_says_how_to_go_on():
    it = made_progress(250, ends=False)
    it.take(
        e.RunEnded(
            step=250, why="stopped", because="SIGINT", parts={"train": 6.0, "other": 1.0}, wall_s=7.0, at_s=it.last_at_s
        )
    )
    lines = plain(
        summary_blocks(RunSummary(it, "a", resume="nanolens train --init_from=resume --out_dir=runs/a")), 100
    ).splitlines()
    assert lines[0] == "quickstart-1 was stopped and saved at step 250, after 7.00 s"
    assert lines[-3:] == ["Next", "  nanolens train --init_from=resume --out_dir=runs/a", "  nanolens diagnose a"]


@pytest.mark.parametrize(("off", "where"), [(0.0, "in that range"), (-0.1, "lower"), (0.1, "higher")])
def test_it_says_where_the_recorded_runs_of_the_preset_stood(off: float, where: str):
    it = made_progress(250, ends=False)
    last = it.evals[-1]
    curve = (
        (last.step - 100, last.val + 1.0, 0.03),
        (last.step + 100, last.val - 1.0 - 2 * off, 0.01),
    )  # between them: val - off ± 0.02
    said = plain(summary_blocks(RunSummary(it, "a", expected=promised(None, None, curve))), 200)
    assert (
        f"recorded runs of quickstart had {last.val - off:.4f} ± 0.02 at step {last.step}: this run is {where}" in said
    )


def test_a_preset_is_unchanged_by_what_the_loss_does_not_depend_on():
    own = asdict(load("quickstart").config)
    for same in ({}, {"seed": 5}, {"out_dir": "x", "eval_interval": 7}):
        preset = unchanged_preset("quickstart", own | same)
        assert preset is not None and preset.name == "quickstart"
    for other in ({"learning_rate": 1.0}, {"dropout": 0.5}, {"lr_decay_iters": 9}):
        assert unchanged_preset("quickstart", own | other) is None
    assert unchanged_preset("", own) is None


def test_a_failure_comes_first_with_its_reason():
    it = made_progress(100, ends=False)
    it.take(e.RunEnded(step=100, why="failed", because="4 updates had a loss that is not finite", at_s=it.last_at_s))
    lines = plain(summary_blocks(RunSummary(it, "a")), 100).splitlines()
    assert lines[:2] == ["quickstart-1 failed at step 100, after 3.60 s", "  4 updates had a loss that is not finite"]
    assert lines[-2:] == ["Next", "  nanolens diagnose a"]


def test_the_command_that_mends_a_finding_is_among_the_next_ones():
    found = finding("eval_noise", "x")
    found = Finding(
        found.code,
        "likely",
        found.claim,
        found.evidence,
        Change(msg("evaluate more"), command="nanolens train --eval_iters=50"),
        found.wrong_if,
    )
    lines = plain(summary_blocks(RunSummary(made_progress(100), "a", findings=[found])), 100).splitlines()
    assert lines[-2:] == ["  nanolens diagnose a", "  nanolens train --eval_iters=50"]


def test_a_run_without_an_evaluation_or_a_step_has_a_summary_too():
    it = made_progress(0, ends=False)
    it.evals.clear()
    it.take(e.RunEnded(step=0, why="stopped", at_s=it.last_at_s))
    assert plain(summary_blocks(RunSummary(it, "a")), 100).startswith("quickstart-1 was stopped at step 0")


def test_many_findings_are_counted():
    many = [finding(f"code_{k}", "x") for k in range(8)]
    assert "and 3 more" in plain(summary_blocks(RunSummary(made_progress(100), "a", findings=many)), 100)


FINISHED = """\
quickstart-1 finished: 2,000 steps in 60.6 s
  best val loss 1.5516 ± 0.0051 nats per token (2.2384 bits per byte), at step 1,750
  at the end, step 2,000: val loss 1.5534, train loss 1.4734
  it started from 4.1700 at step 0
  0.0484 below the 1.6000 expected of preset quickstart (nanoGPT's README)
  1.54M tokens at 30,720 tokens/s, MFU 75.5% of 210 GFLOP/s (measured)
  time: train 79%, eval 12%, sample 4%, data 3%, other 1%
  best weights: runs/quickstart-1/checkpoints/step-001750

Sample from step 0
  q;Zx#
  v)Q
Latest sample, step 2,000
  def the(self):
      Return the value of the first line of the object that is the same as
  the string of the class, or None.

Findings by nanolens
  No fault was found: the loss is still falling.
  - likely: the loss is still falling (still_improving)
  ! my tracker had trouble

Next
  nanolens sample quickstart-1
  nanolens diagnose quickstart-1
"""
