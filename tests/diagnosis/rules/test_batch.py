import numpy as np
import pytest

from tests.diagnosis.rules.build import GPT2, GPU_DEMO, found, make, sure


def timed(mfu, took, count=30, **known):
    steps = np.arange(count) * 10 + 1
    return make(np.linspace(4, 2, count), steps, took=took, mfu=mfu, **known)


def test_time_and_mfu_prove_forty_micro_batches():
    run = timed(0.1668, 0.894, **{**GPU_DEMO, "eval_interval": 10**6})
    finding = found(run, "batch_too_small")["grad_accum_inferred"]
    assert finding.sureness == "certain"
    assert finding.evidence[0].seen == pytest.approx(40, abs=0.2)


def test_the_configured_accumulation_is_no_finding():
    assert "grad_accum_inferred" not in found(
        timed(0.112, 0.0332, **{**GPU_DEMO, "eval_interval": 10**6}), "batch_too_small"
    )


def test_a_rounded_mfu_near_the_configured_count_is_no_proof():
    small = {**GPT2, "n_embd": 384, "batch_size": 16, "gradient_accumulation_steps": 32}
    assert "grad_accum_inferred" not in found(timed(0.12, 3.9, **small), "batch_too_small")


def test_an_eighth_of_the_recipe_is_worth_a_look():
    run = make(np.linspace(10, 4, 20), **{**GPT2, "gradient_accumulation_steps": 5})
    assert found(run, "batch_too_small")["batch_too_small"].sureness == "possible"
    assert not sure(make(np.linspace(10, 4, 20), **GPT2), "batch_too_small")


def test_evaluation_lines_and_rounded_mfus_prove_no_accumulation():
    steps = np.r_[np.arange(1, 7) * 300 + 1, 1811]
    took = np.r_[np.full(6, 75.0), 0.8]
    evals = [(300 * i, 1.6 - 0.05 * i, 1.7 - 0.05 * i) for i in range(1, 7)]
    run = make(np.linspace(1.6, 1.2, 7), steps, evals, took=took, mfu=0.0044, **{**GPU_DEMO, "eval_interval": 300})
    assert "grad_accum_inferred" not in found(run, "batch_too_small")
    ten = 10 * 16384 * 70.9e6 / 312e12  # ten micro-batches
    for seconds, is_told in ((0.8, True), (80.0, False)):  # 4.66% and 0.05%
        rows = make(
            np.linspace(2, 1, 40),
            np.arange(40) * 10 + 1001,
            took=seconds,
            mfu=round(ten / seconds, 4),
            **{**GPU_DEMO, "eval_interval": 10**6},
        )
        assert ("grad_accum_inferred" in found(rows, "batch_too_small")) == is_told, seconds
