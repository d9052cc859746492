import numpy as np

from tests.diagnosis.rules.build import OURS, found, make, mark, sure


def run_of_500(**known):
    """Ordinary steps of 169 ms, evaluation and checkpoint at each 500th, the first line with a compilation."""
    steps = np.arange(0, 2001, 100)
    took = np.full(len(steps), 0.169)
    took[steps % 500 == 0] = 5.9
    took[0] = 12.5
    evals = [(int(s), 5.0, 5.0) for s in steps if s % 500 == 0]
    marks = [mark("checkpoint", int(s)) for s in steps if s % 500 == 0 and s > 0]
    return make(np.linspace(10, 5, len(steps)), steps + 1, evals, took=took, marks=marks, eval_interval=500, **known)


def test_slow_lines_are_evaluations_checkpoints_and_a_first_step():
    assert {"eval_spike", "checkpoint_spike", "compile_warmup"} <= sure(run_of_500(), "eval_spike")


def test_six_per_cent_are_not_too_much():
    assert "eval_dominates_time" not in found(run_of_500(), "eval_spike")


def test_a_third_of_the_time_is():
    steps = np.arange(0, 2001, 10)
    took = np.where(steps % 250 == 0, 4.447, 0.0332)
    evals = [(int(s), 1.5, 1.6) for s in steps if s % 250 == 0]
    run = make(
        np.linspace(4, 1, len(steps)), steps + 1, evals, took=took, eval_interval=250, max_iters=5000, eval_iters=200
    )
    finding = found(run, "eval_spike")["eval_dominates_time"]
    assert abs(finding.evidence[0].seen - 0.347) < 0.01


def test_a_lone_line_with_an_evaluation_is_not_a_step_s_time():
    assert "eval_spike" in sure(make([3.04], [25001], [(25000, 3.08, 3.11)], took=25.0), "eval_spike")


def test_even_steps_have_no_slow_lines():
    assert not found(make(np.linspace(4, 3, 50), np.arange(50) + 100, took=0.1), "eval_spike")


def test_slow_lines_without_a_reason_are_said_to_have_none():
    took = np.full(60, 0.1)
    took[[20, 33, 47]] = 0.9
    assert (
        found(make(np.linspace(4, 3, 60), np.arange(60) + 100, took=took), "eval_spike")[
            "slow_steps_unexplained"
        ].sureness
        == "possible"
    )


def test_our_own_runs_tell_it_from_their_parts():
    steps = np.linspace(4, 3, 50)
    assert "eval_dominates_time" in sure(
        make(steps, conventions=OURS, time_parts={"train": 100.0, "eval": 130.0}, eval_interval=5), "eval_spike"
    )
    assert not found(make(steps, conventions=OURS, time_parts={"train": 100.0, "eval": 10.0}), "eval_spike")


def test_the_first_line_says_of_an_evaluation_only_what_is_known():
    losses, took = np.linspace(4, 3, 12), np.r_[40.0, np.full(11, 0.5)]
    with_one = found(make(losses, evals=[(0, 4.2, 4.2)], took=took), "eval_spike")["compile_warmup"].evidence[0].how
    without = found(make(losses, took=took), "eval_spike")["compile_warmup"].evidence[0].how
    assert "is unknown" in with_one.msgid and "evaluation" not in without.msgid
