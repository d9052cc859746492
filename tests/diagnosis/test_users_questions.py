"""The questions of the people this is for, with the numbers that the right answers hold."""

import re

from nanolens.diagnosis import diagnose
from nanolens.diagnosis.words import answer_of
from nanolens.logs import Given, read_log

SHAKESPEARE = {
    "dataset": "shakespeare_char",
    "batch_size": 64,
    "block_size": 256,
    "gradient_accumulation_steps": 1,
    "n_layer": 6,
    "n_head": 6,
    "n_embd": 384,
    "dropout": 0.2,
    "learning_rate": 0.001,
    "max_iters": 5000,
    "lr_decay_iters": 5000,
    "min_lr": 0.0001,
    "beta2": 0.99,
    "warmup_iters": 100,
    "eval_interval": 250,
    "eval_iters": 200,
    "log_interval": 10,
}
FINEWEB = {
    "dataset": "fineweb (one parquet file)",
    "batch_size": 16,
    "gradient_accumulation_steps": 32,
    "block_size": 1024,
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 384,
    "vocab_size": 50304,
    "dropout": 0.1,
    "bias": False,
    "learning_rate": 0.001,
    "min_lr": 0.0001,
    "max_iters": 20000,
    "lr_decay_iters": 20000,
    "warmup_iters": 500,
    "beta2": 0.99,
    "weight_decay": 0.1,
    "eval_iters": 200,
    "comment_in_config": "Model (~125M parameters)",
    "wandb_run_name": "125M-single-parquet-4070",
}


def answer(log, config, hardware=None):
    diagnosis = diagnose(read_log(log, Given(config=config, hardware=hardware)))
    sure = [finding.code for finding in diagnosis.findings if finding.sureness != "possible"]
    return sure, re.sub(r"\s+", " ", answer_of(diagnosis, is_all=True).text(width=200))


def test_what_do_these_lines_mean():
    sure, text = answer(
        "iter 4980: loss 0.8010, time 33.22ms, mfu 11.07%\n"
        "iter 4990: loss 0.8212, time 33.23ms, mfu 11.09%\n"
        "step 5000: train loss 0.6224, val loss 1.7044\n"
        "iter 5000: loss 0.8236, time 4446.83ms, mfu 9.99%\n",
        SHAKESPEARE,
        "1x RTX 4070 Ti 12GB",
    )
    assert sure[0] == "overfitting" and {"eval_spike", "mfu_wrong_peak", "mfu_ema_lag", "data_repeated"} <= set(sure)
    assert not {"low_mfu", "underfitting_capacity"} & set(sure)
    for number in (
        "1.4697",
        "1,750",
        "1.7044",
        "0.6224",
        "81.6",
        "11.0 ms",
        "43.6%",
        "80.2 TFLOP/s",
        "312 TFLOP/s",
        "11.1%",
    ):
        assert number in text, number
    assert "still on disk" in text


def test_the_loss_stopped_falling():
    sure, text = answer(
        "step 0: train loss 10.8700, val loss 10.8700\n"
        "iter 10000: loss 4.1096, time 3900.00ms, mfu 12.00%\n"
        "step 14500: train loss 3.6415, val loss 3.5696\n",
        FINEWEB,
        "1x RTX 4070 12GB",
    )
    assert {"underfitting_capacity", "param_count_mismatch", "still_improving", "micro_batch_noise"} <= set(sure)
    assert not {"overfitting", "lr_too_high"} & set(sure)
    for number in ("40.95M", "125M", "7.6B", "185.6", "4.1096", "2.65e-4"):
        assert number in text, number
    assert "--dataset_tokens" in text  # how many passes 7.6B tokens are, the log cannot tell


def test_every_500th_iteration_is_slow():
    sure, text = answer(
        """step 0: train loss 10.8200, val loss 10.8200
iter 0: loss 10.8300, time 12543.00ms, mfu -100.00%
iter 100: loss 7.1000, time 168.00ms, mfu 8.00%
iter 200: loss 6.5000, time 170.00ms, mfu 8.00%
iter 400: loss 6.1000, time 169.00ms, mfu 8.00%
step 500: train loss 5.9000, val loss 5.9000
saving checkpoint to out
iter 500: loss 5.9000, time 5985.00ms, mfu 7.22%
iter 600: loss 5.8000, time 169.00ms, mfu 7.30%
iter 900: loss 5.6000, time 168.00ms, mfu 7.49%
step 1000: train loss 5.5000, val loss 5.5000
saving checkpoint to out
iter 1000: loss 5.5000, time 5726.00ms, mfu 6.77%
""",
        {"eval_interval": 500, "log_interval": 100},
    )
    assert {"eval_spike", "checkpoint_spike", "compile_warmup"} <= set(sure)
    assert not {"eval_dominates_time", "throttling_suspected"} & set(sure)
    assert "6.35%" in text or "6.3%" in text
    assert "169 ms" in text
