from dataclasses import replace

import numpy as np

from nanolens.facts.case import Case
from tests.diagnosis.rules.build import curve, found, make, mark, sure

NAN = float("nan")


def with_nan(at=60, count=100):
    steps, losses = curve(count)
    losses[at:] = NAN
    return make(losses, steps, not_finite=np.where(np.isfinite(losses), 0.0, 1.0), learning_rate=3e-4)


def test_a_printed_nan_is_certain_and_names_its_first_step():
    finding = found(with_nan(), "nan_divergence")["nan_divergence"]
    assert finding.sureness == "certain"
    assert finding.evidence[0].at_step == 61
    assert finding.evidence[1].seen == 40


def test_values_that_were_not_said_are_no_nan():
    steps, losses = curve(100)
    losses[::2] = NAN
    assert not found(make(losses, steps), "nan_divergence")


def test_placeholders_are_named_and_raise_no_alarm():
    steps, losses = curve(50)
    run = make(losses, steps, marks=[mark("sentinel", 1, "step_avg:nanms")])
    assert sure(run, "nan_divergence") == {"nan_sentinel_benign"}


def test_a_filtered_zero_is_not_success():
    steps, losses = curve(20)
    losses[10:] = 0.0
    run = make(losses, steps, not_finite=np.where(np.arange(20) >= 10, 2.0, 0.0))
    assert {"hf_zero_loss_is_nan", "nan_divergence"} <= sure(run, "nan_divergence")
    assert "too_good_to_be_true" not in sure(run) and "constant_loss" not in sure(run)


def test_nan_from_the_start_at_a_low_rate_points_to_the_kernel():
    run = make([NAN] * 20, range(10, 30), not_finite=3.0, rate=3e-4)
    assert "kernel_bug" in found(run, "nan_divergence")


def test_skipped_updates_are_told():
    steps, losses = curve(200)
    run = make(losses, steps, marks=[mark("skip", k) for k in range(100, 106)])
    assert found(run, "nan_divergence")["nan_divergence"].sureness == "certain"


def test_zeros_in_a_row_after_a_real_loss_are_a_filtered_nan():
    run = make([1.31, 1.22, 1.4, 1.18, 0.0, 0.0, 0.0, 0.0])
    codes = found(run)
    assert codes["hf_zero_loss_is_nan"].sureness == "likely" and "healthy" not in codes
    assert len(Case(run).losses[1]) == 4  # none of them counts as a loss


def test_a_loss_that_shrinks_to_nothing_is_no_filtered_nan():
    assert "hf_zero_loss_is_nan" not in found(make([1.0, 0.3, 0.05, 0.004, 0.0, 0.0, 0.0, 0.0]))


def test_a_norm_that_is_inf_once_beside_a_falling_loss_is_no_divergence():
    losses = np.linspace(3.0, 2.2, 12)
    norm, bad = np.ones(12), np.zeros(12)
    norm[4], bad[4] = np.nan, 2.0
    codes = found(make(losses, norm=norm, not_finite=bad, dtype="float16"))
    assert codes["nan_divergence"].sureness == "possible" and "fp16_overflow" not in codes and "healthy" in codes


def test_norms_that_stay_nan_or_a_loss_that_rises_after_one_are_a_divergence():
    norm, bad = np.ones(12), np.zeros(12)
    norm[6:], bad[6:] = np.nan, 2.0
    assert "nan_divergence" in sure(make(np.linspace(3.0, 2.2, 12), norm=norm, not_finite=bad))
    norm, bad = np.ones(12), np.zeros(12)
    norm[6], bad[6] = np.nan, 2.0
    assert "nan_divergence" in sure(make(np.r_[np.linspace(3.0, 2.4, 6), np.full(6, 6.5)], norm=norm, not_finite=bad))


def test_a_trainer_that_stops_without_printing_the_loss():
    steps, losses = curve(20)
    run = make(losses, steps, marks=[mark("error", 20, "Model diverged with loss = NaN.")])
    assert "nan_divergence" in sure(run) and "healthy" not in sure(run)
    assert "nan_divergence" not in sure(make(losses, steps, marks=[mark("error", 20, "FileNotFoundError: banana.bin")]))


def test_norms_that_are_nan_beside_finite_losses():
    losses, bad = np.linspace(0.7, 0.65, 8), np.full(8, 2.0)
    finding = found(make(losses, range(10, 90, 10), norm=np.full(8, NAN), not_finite=bad))["grad_nan"]
    assert finding.sureness == "certain" and finding.evidence[0].seen == 8
    assert "healthy" not in found(make(losses, range(10, 90, 10), norm=np.full(8, NAN), not_finite=bad))


def test_norms_after_a_loss_that_is_nan_tell_nothing_more():
    assert "grad_nan" not in found(with_nan())
    losses = np.r_[np.linspace(3.0, 2.5, 6), [NAN] * 3, np.linspace(2.5, 2.4, 3)]
    bad = np.r_[np.zeros(6), [3.0] * 3, [2.0] * 3]
    assert "grad_nan" not in found(make(losses, norm=np.where(bad, NAN, 1.0), not_finite=bad))


def test_a_norm_that_is_nan_beside_a_filtered_zero_is_the_zeros_fault():
    losses, bad = np.r_[1.4, np.zeros(7)], np.full(8, 2.0)
    codes = found(make(losses, norm=np.full(8, NAN), not_finite=bad))
    assert "hf_zero_loss_is_nan" in codes and "grad_nan" not in codes


def test_a_scaler_at_work_and_norms_that_were_not_printed_are_no_fault():
    norm, bad = np.ones(12), np.zeros(12)
    norm[4], bad[4] = NAN, 2.0
    assert "grad_nan" not in found(make(np.linspace(3.0, 2.2, 12), norm=norm, not_finite=bad))
    assert "grad_nan" not in found(make(np.linspace(3.0, 2.2, 12)))


def evaluated(evals, losses=(), took=None, **more):
    run = make(losses, evals=evals, **more)
    not_finite = [2.0 * np.isnan(val) + np.isnan(train) for _, train, val in evals]
    columns = {"not_finite": np.array(not_finite, float)}
    if took is not None:
        columns["took_s"] = np.full(len(evals), took)
    return replace(run, evals=replace(run.evals, **columns))


def test_an_evaluation_over_no_tokens_is_no_divergence():
    assert sure(evaluated([(1, 2.0, NAN)], took=0.001)) == {"empty_validation"}
    codes = found(evaluated([(0, 4.2, NAN), (20, 3.1, NAN)], np.linspace(4.2, 3.0, 20), took=0.001))
    assert codes["empty_validation"].sureness == "likely" and "nan_divergence" not in codes and "healthy" not in codes
    assert "empty_validation" in sure(evaluated([(0, 4.2, NAN)], np.linspace(4.2, 3.0, 20)))


def test_a_nan_of_the_model_is_no_empty_evaluation():
    losses = np.linspace(4.2, 3.0, 20)
    for run in (
        evaluated([(20, 3.1, NAN)], losses),  # late, and for all that is known it took its time
        evaluated([(20, 3.1, NAN)], losses, took=3.0),
        evaluated([(0, NAN, NAN)], losses),  # both splits
        evaluated([(0, 4.2, NAN)], np.full(20, NAN), not_finite=1.0),  # the training too
    ):
        assert "empty_validation" not in found(run) and "nan_divergence" in sure(run)
    assert "empty_validation" not in found(evaluated([(0, 4.2, 4.2)], losses))
