import numpy as np

from tests.diagnosis.rules.build import GPT2, GPU_DEMO, curve, found, make, sure


def timed(took, **known):
    return make(np.linspace(4, 3, 20), np.arange(20) * 10 + 1, took=took, **{"eval_interval": 10**6, **known})


def test_gpt2_at_three_per_cent_of_an_a100():
    assert "low_mfu" in sure(timed(0.5 * 40, **{**GPT2, "hardware": "A100"}), "low_mfu")


def test_gpt2_at_forty_per_cent_is_fine():
    assert not sure(timed(491_520 * 8.547e8 / (0.4 * 312e12), **{**GPT2, "hardware": "A100"}), "low_mfu")


def test_a_narrow_model_cannot_fill_a_large_card():
    assert not sure(timed(0.1, **{**GPU_DEMO, "hardware": "A100"}), "low_mfu")


def test_decent_use_of_a_slow_machine():
    known = {
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 256,
        "block_size": 256,
        "vocab_size": 8192,
        "batch_size": 8,
        "gradient_accumulation_steps": 1,
        "peak_flops": 30e9,
    }
    assert "slow_hardware" in sure(timed(8.0, hardware="laptop CPU", **known), "low_mfu")


def test_a_gpu_is_not_called_slow():
    assert not sure(timed(0.0332, **{**GPU_DEMO, "hardware": "RTX 4070"}), "low_mfu")


def test_fewer_than_ten_tokens_a_second_are_no_computation():
    steps, losses = curve(20, every=10)
    run = make(losses, steps, columns={"tokens_per_s": np.linspace(1.0, 3.0, 20)})
    assert found(run)["data_bound_or_swap"].sureness == "likely" and "healthy" not in found(run)
    assert "data_bound_or_swap" not in found(make(losses, steps, columns={"tokens_per_s": 10.0}))
    assert "data_bound_or_swap" not in found(make(losses[:2], steps[:2], columns={"tokens_per_s": 1.0}))
    assert "data_bound_or_swap" not in found(make(losses, steps))
