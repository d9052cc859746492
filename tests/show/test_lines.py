"""Piped output is what nanoGPT's users and their scripts expect, under a line that says whose it is."""

from __future__ import annotations

import io
import re
import shlex

from nanolens.record import events as e
from nanolens.record.progress import Progress, about_run
from nanolens.show.lines import LineView, eval_line, header, iter_line
from tests.show.made_run import KNOWN, made_run


def lines_of(events, **options) -> list[str]:
    stream = io.StringIO()
    view = LineView(Progress(about_run("quickstart-1", KNOWN)), stream, folder="runs/quickstart-1", **options)
    for event in events:
        view(event)
    view.tick()
    return stream.getvalue().splitlines()


def test_the_lines_of_a_short_run():
    lines = lines_of(made_run(2))
    assert lines[1:] == [
        "# chosen: dtype = float32, because 16-bit arithmetic is not faster on most CPUs",
        "step 0: train loss 4.1400, val loss 4.1700",
        "iter 0: loss 4.2344, time 25.00ms, mfu 75.48%",
        "iter 1: loss 4.2336, time 25.00ms, mfu 75.48%",
    ]


def test_the_first_line_names_nanolens_and_the_meaning_of_its_numbers():
    words = shlex.split(header("runs/my run", about_run("my run", KNOWN)))
    assert words[:2] == ["#", "nanolens"]
    facts = dict(word.split("=", 1) for word in words[3:])
    assert facts == {
        "run": "runs/my run",
        "loss": "mean",
        "time": "step_only",
        "updates_before_printed": "1",
        "mfu": "unsmoothed",
        "peak_flops": "210000000000",
        "peak_origin": "measured: a matmul",
        "flops_per_token": "5160000",
        "parameters_total": "804096",
        "tokens_per_update": "768",
        "device": "cpu",
        "dtype": "float32",
    }


def test_iter_k_is_the_update_from_step_k():
    event = e.StepTaken(step=1, loss=4.2, lr=1e-3, grad_norm=1.0, tokens=768, took_s=0.05512)
    assert iter_line(event, about_run("x", {})) == "iter 0: loss 4.2000, time 55.12ms, mfu -100.00%"


def test_a_nan_stays_a_nan():
    event = e.StepTaken(step=8, loss="nan", lr=1e-3, grad_norm="nan", tokens=768, took_s=0.05)
    assert iter_line(event, about_run("x", {})).startswith("iter 7: loss nan, ")
    assert eval_line(250, 2.4, float("inf")) == "step 250: train loss 2.4000, val loss inf"


def test_log_interval_thins_the_iterations_as_in_nanogpt():
    lines = lines_of(made_run(30), log_interval=10)
    assert [line.split(":")[0] for line in lines if line.startswith("iter")] == ["iter 0", "iter 10", "iter 20"]


def test_every_line_is_nanogpts_or_a_comment():
    known = re.compile(
        r"#|step \d+: train loss [\d.]+, val loss [\d.]+$|iter \d+: loss [\d.]+, time [\d.]+ms, mfu "
        r"-?[\d.]+%$|saving checkpoint to \S+$"
    )
    lines = lines_of(made_run(600))
    assert not [line for line in lines if not known.match(line)]
    assert lines.count("saving checkpoint to runs/quickstart-1") == 2


def test_escape_sequences_of_a_claim_do_not_reach_the_terminal():
    lines = lines_of([e.Warned(step=1, code="x", claim="red \x1b[31m\nstep 5: train loss 0.0000, val loss 0.0000")])
    assert lines == ["# red ·[31m step 5: train loss 0.0000, val loss 0.0000 (x)"]
