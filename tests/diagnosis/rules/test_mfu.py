import numpy as np
import pytest

from nanolens.record.run import Conventions
from tests.diagnosis.rules.build import GPU_DEMO, found, make, mark, sure

NANOCHAT = Conventions(
    trainer="nanochat", loss="smoothed", time="step_only", updates_before_printed=1, peak_flops=989e12
)


def timed(mfu, took=0.0332, count=20, **known):
    return make(
        np.linspace(2, 1, count),
        np.arange(count) * 10 + 3001,
        took=took,
        mfu=mfu,
        **{**GPU_DEMO, "eval_interval": 10**6, **known},
    )


def test_an_a100_s_peak_on_a_4070_ti():
    finding = found(timed(0.112, hardware="1x RTX 4070 Ti 12GB"), "mfu_wrong_peak")["mfu_wrong_peak"]
    assert finding.evidence[0].usual == pytest.approx(80.2e12, rel=0.002)
    assert finding.evidence[1].usual == pytest.approx(0.436, abs=0.003)


def test_on_an_a100_the_printed_figure_is_right():
    assert not found(timed(0.112, hardware="A100 40GB"), "mfu_wrong_peak")


def test_an_unnamed_device_is_not_judged():
    assert not found(timed(0.112), "mfu_wrong_peak")
    assert not found(timed(0.112, hardware="Colab GPU"), "mfu_wrong_peak")


def test_on_a_cpu_it_means_nothing():
    assert "mfu_wrong_peak" in sure(timed(0.0001, took=0.1, hardware="laptop CPU"), "mfu_wrong_peak")


def test_above_100_per_cent_is_an_accounting_error():
    run = make([0.43, 0.42], [289, 290], mfu=[3.3759, 0.4246])
    assert found(run, "mfu_wrong_peak")["mfu_over_100"].sureness == "certain"


def test_a_trainer_that_was_told_the_peak_is_right():
    known = {
        "depth": 4,
        "n_embd": 256,
        "sequence_len": 256,
        "vocab_size": 8192,
        "flops_per_token": 33_424_896,
        "peak_flops": 30e9,
        "total_batch_size": 2048,
    }
    run = make(
        np.linspace(9, 8, 7),
        conventions=NANOCHAT,
        took=8.0,
        mfu=2048 * 33_424_896 / 8.0 / 30e9,
        hardware="laptop CPU",
        **known,
    )
    assert not found(run, "mfu_wrong_peak")


def test_zero_for_ever_is_a_missing_table_entry():
    assert "mfu_unknown_peak" in sure(
        make(np.linspace(8, 7, 9), conventions=NANOCHAT, took=1.0, mfu=0.0, hardware="RTX 9999"), "mfu_wrong_peak"
    )
    assert "mfu_unknown_peak" not in sure(
        timed(0.0, hardware="RTX 9999"), "mfu_wrong_peak"
    )  # nanoGPT's peak is fixed: a tiny model
    assert "mfu_unknown_peak" not in sure(
        make(np.linspace(2, 1, 5), marks=[mark("sentinel", 1, "mfu -100%")]), "mfu_wrong_peak"
    )


def chat(mfu, **known):
    shape = {
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 6,
        "vocab_size": 32768,
        "block_size": 2048,
        "total_batch_size": 131072,
    }
    return make(
        [3.3, 3.2], [5001, 9001], conventions=NANOCHAT, took=2.4, mfu=mfu, hardware="RTX 4080", **{**shape, **known}
    )


def test_a_zero_that_the_speed_cannot_give_is_an_unknown_peak():
    assert sure(chat(0.0), "mfu_wrong_peak") == {"mfu_unknown_peak"}
    assert "mfu_unknown_peak" not in sure(
        chat(0.0, total_batch_size=256), "mfu_wrong_peak"
    )  # so slow that 0.00 is the truth


def test_any_other_gpu_than_an_a100_is_the_wrong_peak_for_nanogpt():
    assert "mfu_wrong_peak" in sure(timed(0.02, hardware="2x Quadro P5000"), "mfu_wrong_peak")
    assert not sure(timed(0.02, hardware="a machine at work"), "mfu_wrong_peak")


def test_above_100_per_cent_on_one_faster_card_is_the_peak():
    assert sure(timed(1.06, hardware="H100"), "mfu_wrong_peak") == {"mfu_over_100", "mfu_wrong_peak"}
