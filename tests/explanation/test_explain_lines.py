"""Which lines are explained, and what is said of each kind."""

from __future__ import annotations

import numpy as np

from nanolens.explanation import explain, explain_arrived
from nanolens.explanation.pick import SHORT_LOG
from nanolens.facts.case import Case
from nanolens.logs import Given, read_log
from nanolens.record.run import Conventions, Known, RunRecord, evals_from, steps_from
from nanolens.show.words import say
from tests.explanation.given_logs import SHAKESPEARE, long_log


def words_of(case: Case) -> list[str]:
    return [say(remark.words) for passage in explain(case).lines for remark in passage.remarks]


def made(
    losses: list[float],
    words: Conventions | None = None,
    known: dict[str, object] | None = None,
    **columns: list[float],
) -> Case:
    count = len(losses)
    steps = steps_from(
        {
            "step": np.arange(1, count + 1),
            "line": np.arange(1, count + 1),
            "printed": np.arange(count),
            "loss": losses,
            **columns,
        },
        count,
    )
    facts = {key: Known(value, "given") for key, value in (known or {}).items()}
    return Case(
        RunRecord(
            "made", words or Conventions("nanogpt", "last_micro_batch", "with_eval", 1), steps, evals_from({}, 0), facts
        )
    )


def test_every_line_of_a_short_paste_is_explained_in_its_order() -> None:
    lines = explain(SHAKESPEARE.case, SHAKESPEARE.quote).lines
    assert [line.quote for line in lines] == SHAKESPEARE.text.splitlines()


def test_of_a_long_log_only_telling_lines_are_explained() -> None:
    explained = explain(Case(read_log(long_log(20_000))))
    assert len(explained.lines) <= SHORT_LOG
    assert explained.left_out is not None
    steps = [(line.kind, line.step) for line in explained.lines]
    assert (
        ("update", 1) in steps
        and ("update", 19_991) in steps
        and ("evaluation", 0) in steps
        and ("evaluation", 19_750) in steps
    )


def test_what_a_number_means_is_said_once() -> None:
    said = words_of(Case(read_log(long_log(600), Given(config=SHAKESPEARE.config, hardware=SHAKESPEARE.hardware))))
    for sentence in (
        "how far off the model's predictions were",
        "For comparison: random guessing",
        "a fraction of 312 TFLOP/s",
        "Achieved:",
    ):
        assert sum(sentence in line for line in said) == 1


def test_a_nan_is_named_and_a_missing_loss_is_not_called_one() -> None:
    nan = float("nan")
    broken = words_of(made([4.0, 3.9, nan, nan], not_finite=[0.0, 0.0, 1.0, 1.0]))
    assert sum("broken" in line for line in broken) == 1
    assert "loss nan, as before." in broken
    assert not any("broken" in line for line in words_of(made([4.0, nan, 3.8, 3.7])))


def test_the_loss_says_what_it_was_measured_on() -> None:
    accumulated = {"batch_size": 12, "block_size": 1024, "gradient_accumulation_steps": 40, "dropout": 0.0}
    assert (
        "the last of the 40 micro-batches of this update, 12,288 of its 491,520 tokens, without dropout"
        in words_of(made([4.0, 3.9], known=accumulated))[2]
    )
    averaged = made([4.0, 3.9], Conventions("hf-trainer", "smoothed", "unknown"))
    assert "the batches of recent updates, averaged" in words_of(averaged)[0]


def test_a_clipped_gradient_is_told() -> None:
    said = words_of(made([4.0, 3.9], known={"grad_clip": 1.0}, grad_norm=[15.4, 0.9]))
    assert any("above grad_clip = 1: the gradient was scaled down to that norm" in line for line in said)


def test_an_mfu_above_one_is_called_impossible() -> None:
    log = SHAKESPEARE.text.replace("33.2", "3.2")
    said = words_of(Case(read_log(log, Given(config=SHAKESPEARE.config, hardware=SHAKESPEARE.hardware))))
    assert any("More than 100% is impossible" in line for line in said)


def test_what_arrives_later_is_explained_once() -> None:
    lines = long_log(1000).splitlines(keepends=True)
    told: set[str] = set()
    first = explain_arrived(Case(read_log("".join(lines[:30]))), 0, told, lambda line: "")
    more = explain_arrived(Case(read_log("".join(lines))), 30, told, lambda line: "")
    assert [(p.kind, p.step) for p in first] == [
        ("evaluation", 0),
        ("update", 1),
        ("update", 11),
        ("evaluation", 250),
        ("update", 251),
    ]
    assert min(passage.line for passage in more) > 30
    assert not any(
        "how far off the model's predictions were" in say(remark.words)
        for passage in more
        for remark in passage.remarks
    )


def test_a_million_updates_take_no_longer_than_a_few_seconds() -> None:
    import time

    rng = np.random.default_rng(1)
    count = 1_000_000
    steps = steps_from(
        {
            "step": np.arange(1, count + 1),
            "line": np.arange(count),
            "printed": np.arange(count),
            "loss": 3 + rng.normal(0, 0.02, count),
            "took_s": np.where(np.arange(count) % 1000 == 0, 2.0, 0.05),
            "rate": np.full(count, 1e-3),
            "tokens": np.full(count, 16384.0),
            "grad_norm": np.full(count, 0.5),
        },
        count,
    )
    at = np.arange(0, count, 1000)
    evals = evals_from(
        {"step": at, "line": at, "printed": at, "train": np.full(1000, 3.0), "val": np.full(1000, 3.1)}, 1000
    )
    case = Case(RunRecord("long", Conventions("nanolens", "mean", "step_only", 1), steps, evals))
    started_at_s = time.process_time()
    explained = explain(case)
    assert len(explained.lines) <= SHORT_LOG
    assert time.process_time() - started_at_s < 3.0


def test_micro_batches_are_those_that_time_and_mfu_prove() -> None:
    lines = "".join(f"iter {k}: loss 4.0, time 1097.00ms, mfu 15.34%\n" for k in range(100, 400, 10))
    config = {
        "batch_size": 12,
        "block_size": 1024,
        "n_layer": 12,
        "n_head": 12,
        "n_embd": 768,
        "vocab_size": 50304,
        "dropout": 0.0,
    }
    said = words_of(Case(read_log(lines, Given(config=config))))
    assert any("the last of the 5 micro-batches of this update" in line for line in said)


def test_an_mfu_that_fits_this_hardware_is_not_called_another_s() -> None:
    log = (
        "step 00004/21400 (0.02%) | loss: 8.893647 | lrm: 1.00 | dt: 989.44ms | tok/sec: 529,882 | mfu: 74.13 | "
        "total time: 0.00m\n"
    )
    known = {"flops_per_token": 3.49e9, "tokens_per_update": 524288, "peak_flops": 2.4946e15, "devices": 1}
    assert any(
        "the fraction of this hardware's peak, 2.49 PFLOP/s" in line
        for line in words_of(Case(read_log(log, Given(config=known))))
    )
    assert any("which nanochat assumes for every device" in line for line in words_of(Case(read_log(log))))
