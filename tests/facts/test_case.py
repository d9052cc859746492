"""What follows from a run, against figures worked out by hand."""

import numpy as np
import pytest

from nanolens.diagnosis.rule import LACKS
from nanolens.facts.case import Case, as_number
from tests.diagnosis.rules.build import GPT2, GPU_DEMO, OURS, make


def test_the_figures_of_the_4070_ti_run():
    took = np.array([0.03322, 0.03323, 4.44683])
    run = make(
        [0.8010, 0.8212, 0.8236],
        [4981, 4991, 5001],
        [(5000, 0.6224, 1.7044)],
        took=took,
        mfu=[0.1107, 0.1109, 0.0999],
        hardware="1x RTX 4070 Ti 12GB",
        **GPU_DEMO,
    )
    case = Case(run)
    assert case.tokens_per_update.value == 16_384
    assert case.flops_per_token.value == pytest.approx(70.9e6, rel=1e-3)
    assert case.epochs_at(5000) == pytest.approx(81.6, abs=0.05)
    assert case.step_time.value == pytest.approx(0.0332, abs=1e-4)
    assert case.peak.value == pytest.approx(80.2e12, rel=2e-3)
    assert case.true_mfu.value == pytest.approx(0.436, abs=2e-3)


def test_the_rate_at_a_step_is_the_schedule_s_where_none_is_printed():
    case = Case(make(learning_rate=1e-3, min_lr=1e-4, lr_decay_iters=20000, max_iters=20000, warmup_iters=500))
    assert case.lr_at(14500) == pytest.approx(2.7e-4, rel=0.02)


def test_a_printed_rate_counts_before_the_schedule():
    case = Case(make([3.0, 2.9, 2.8], [100, 200, 300], rate=[1e-4, 2e-4, 3e-4], **GPT2))
    assert case.lr_at(210) == 2e-4


def test_tokens_are_inferred_from_time_and_mfu():
    known = {key: value for key, value in GPU_DEMO.items() if key != "gradient_accumulation_steps"}
    run = make(
        np.linspace(3, 2, 20), np.arange(20) * 10 + 1001, took=0.894, mfu=0.1668, **{**known, "eval_interval": 10**6}
    )
    assert Case(run).tokens_per_update.value == pytest.approx(655_360, rel=0.01)


def test_what_is_missing_is_named():
    assert not Case(make()).has("dataset_tokens") and "--dataset_tokens" in str(LACKS["dataset_tokens"])
    names = [fact.partition(">=")[0] for fact in LACKS]
    assert all(hasattr(Case, name) or hasattr(Case(make()).steps, name) for name in names)


def test_other_trainers_words_for_settings():
    case = Case(make(max_steps=1000, lr=3e-4, seq_len=512, n_layers=6, dim=288, per_device_train_batch_size=8))
    assert (case.whole("max_iters"), case.number("learning_rate"), case.whole("block_size")) == (1000, 3e-4, 512)
    assert (case.whole("n_layer"), case.whole("n_embd"), case.whole("batch_size")) == (6, 288, 8)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("default 40", 40),
        ("~5", 5),
        ("124M", 124e6),
        ("6e-4", 6e-4),
        ("10.26B", 10.26e9),
        ("1,003,854", 1003854),
        ("gpt2", None),
        (True, None),
        (float("nan"), None),
    ],
)
def test_numbers_said_in_words(text, number):
    assert as_number(text) == (pytest.approx(number) if number is not None else None)


def test_recorded_standard_errors_count_before_any_model_of_noise():
    run = make(
        evals=[(0, 4.0, 4.0), (100, 3.0, 3.1)],
        conventions=OURS,
        eval_iters=20,
        batch_size=12,
        block_size=64,
        vocab_size=65,
    )
    assert Case(run).eval_noise.origin == "inferred"
    run.evals.val_se[:] = 0.0123
    assert Case(run).eval_noise.value == 0.0123


def test_precision_is_what_was_said_or_what_suits_the_device():
    assert Case(make(fp16=True)).stated_dtype == "float16"
    assert Case(make(precision="bf16-mixed")).dtype == "bfloat16"
    assert Case(make(hardware="V100")).dtype == "float16" and Case(make(hardware="V100")).stated_dtype is None
    assert Case(make(hardware="laptop CPU")).dtype == "float32"
