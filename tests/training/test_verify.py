"""What `verify` asks of a run depends on whose it is."""

from __future__ import annotations

from nanolens.record import events as e
from nanolens.record.write import Recorder, write_run_file
from nanolens.training.checkpoint import verify_run


def recorded(folder, facts, *events):
    write_run_file(folder, facts)
    recorder = Recorder(folder)
    for event in events:
        recorder(event)
    recorder.close()
    return list(verify_run(folder))


def test_a_run_of_another_loop_is_whole_without_our_settings(tmp_path):
    told = [e.Logged(step=step, values={"loss": 3.0}) for step in (1, 11, 21)]
    run, events = recorded(tmp_path / "watched", {"words": {"trainer": "nanogpt"}}, *told)
    assert not run.problems and not events.problems
    assert events.facts is not None and events.facts.args["steps"] == 3


def test_a_run_of_ours_is_not(tmp_path):
    run, _ = recorded(tmp_path / "ours", {"config": {}}, e.RunStarted(step=0))
    assert run.problems
