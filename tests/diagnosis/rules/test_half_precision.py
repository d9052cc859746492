import numpy as np

from nanolens.diagnosis import diagnose
from nanolens.logs import read_log
from tests.diagnosis.rules.build import curve, found, make, mark, sure

NAN = float("nan")


def fp16(losses, **known):
    losses = np.asarray(losses, float)
    return make(losses, not_finite=np.where(np.isfinite(losses), 0.0, 1.0), dtype="float16", **known)


def sudden():
    losses = curve(80, end=4.0)[1]
    losses[60:] = NAN
    return losses


def test_a_nan_without_growth_in_float16_is_overflow():
    finding = found(fp16(sudden()), "fp16_overflow")["fp16_overflow"]
    assert finding.sureness == "likely" and finding.change.new == "bfloat16"


def test_a_card_without_bfloat16_is_sent_to_float32():
    assert found(fp16(sudden(), hardware="V100"), "fp16_overflow")["fp16_overflow"].change.new == "float32"


def test_growth_before_the_nan_is_an_explosion_and_not_overflow():
    losses = sudden()
    losses[55:60] = [6, 9, 15, 30, 60]
    assert "fp16_overflow" not in found(fp16(losses), "fp16_overflow")


def test_the_same_nan_in_bfloat16_is_not_overflow():
    losses = sudden()
    run = make(losses, not_finite=np.where(np.isfinite(losses), 0.0, 1.0), dtype="bfloat16")
    assert not found(run, "fp16_overflow")


def test_steps_that_become_faster_at_the_nan_are_evidence():
    losses = sudden()
    took = np.where(np.isfinite(losses), 1.097, 1.017)
    run = make(
        losses,
        not_finite=np.where(np.isfinite(losses), 0.0, 1.0),
        dtype="float16",
        took=took,
        torch="2.0.0",
        fused_adamw=True,
    )
    findings = found(run, "fp16_overflow")
    assert len(findings["fp16_overflow"].evidence) == 2
    assert findings["fused_adamw_fp16_bug"].sureness == "likely"


def test_a_loss_scale_below_one_is_certain():
    steps, losses = curve(40)
    run = make(losses, steps, columns={"loss_scale": 65536.0 / 2.0 ** np.arange(40)}, dtype="float16")
    assert found(run, "fp16_overflow")["fp16_overflow"].sureness == "certain"


def test_a_sound_float16_run_has_nothing():
    assert not sure(fp16(curve(200)[1]), "fp16_overflow")


def test_a_loss_scale_that_ends_at_one_has_nowhere_left_to_go():
    steps, losses = curve(40, every=10)
    scale = np.r_[np.full(25, 65536.0), 65536.0 / 8.0 ** np.arange(1, 6), np.ones(10)]
    assert "fp16_overflow" in sure(make(losses, steps, dtype="float16", columns={"loss_scale": scale}), "fp16_overflow")
    assert not sure(
        make(losses, steps, dtype="float16", columns={"loss_scale": np.ones(40)}), "fp16_overflow"
    )  # not scaled at all


def test_a_scale_at_its_minimum_is_what_the_trainer_says():
    steps, losses = curve(20)
    for words in (
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
    ):
        run = make(losses, steps, marks=[mark("error", 20, words)])
        assert "loss_scale_collapse" in sure(run) and not {"healthy", "still_improving"} & set(found(run))
    assert "loss_scale_collapse" not in found(make(losses, steps, marks=[mark("error", 20, "ValueError: minimum")]))


def overflows(*scales, words="OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 2.0, reducing to {}"):
    steps, losses = curve(60)
    return make(losses, steps, marks=[mark("skip", 61, words.format(scale), line=100) for scale in scales])


def test_a_scale_that_overflows_bring_down_to_one():
    assert "loss_scale_collapse" in sure(overflows(8.0, 4.0, 2.0, 1.0))
    # a scale that finds its level from a high start is no fault of any kind
    settling = found(overflows(*2.0 ** np.arange(31, 15, -1)))
    assert "loss_scale_collapse" not in settling and settling["nan_divergence"].sureness == "possible"


def test_more_overflows_in_a_row_than_a_scale_needs():
    assert "loss_scale_collapse" in sure(overflows(*[""] * 41, words="Gradient overflow.  Skipping step"))
    assert "loss_scale_collapse" not in found(overflows(*[""] * 40, words="Gradient overflow.  Skipping step"))


def test_a_printed_scale_needs_no_stated_precision():
    steps, losses = curve(40)
    falling = make(losses, steps, columns={"loss_scale": 65536.0 / 2.0 ** np.arange(40)})
    assert sure(falling, "loss_scale_collapse") == {"loss_scale_collapse"}
    for scale in (np.ones(40), np.full(40, 0.5), np.full(40, 65536.0), 65536.0 / 2.0 ** np.minimum(np.arange(40), 12)):
        assert not found(make(losses, steps, columns={"loss_scale": scale}), "loss_scale_collapse")


def test_the_sentences_of_a_scale_are_read():
    lines = [f"step {k} | loss {3 - 0.01 * k:.4f} | lr 2e-4" for k in range(1, 21)]
    assert "loss_scale_collapse" not in {each.code for each in diagnose(read_log("\n".join(lines))).findings}
    lines.append("[2024] [INFO] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4, reducing to 2")
    lines.append("[2024] [INFO] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 2, reducing to 1")
    assert "loss_scale_collapse" in {each.code for each in diagnose(read_log("\n".join(lines))).findings}
