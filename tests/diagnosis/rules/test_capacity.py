import numpy as np

from tests.diagnosis.rules.build import GPT2, found, make, sure

SMALL = {
    **GPT2,
    "n_embd": 384,
    "batch_size": 16,
    "gradient_accumulation_steps": 32,
    "learning_rate": 1e-3,
    "min_lr": 1e-4,
    "warmup_iters": 500,
}


def test_a_small_model_after_187_tokens_a_parameter_that_calls_itself_large():
    run = make(evals=[(14500, 3.6415, 3.5696)], wandb_run_name="125M-single-parquet-4070", **SMALL)
    finding = found(run, "underfitting_capacity")["underfitting_capacity"]
    assert finding.sureness == "likely"
    assert 185 < finding.evidence[0].seen < 187


def test_the_same_run_by_its_flat_curve_at_a_high_rate():
    steps = np.arange(0, 10001, 500)
    val = 3.6 + 7 * np.exp(-steps / 800)
    evals = [(int(s), v + 0.02, v) for s, v in zip(steps, val, strict=True)]
    assert "underfitting_capacity" in sure(make(evals=evals, **SMALL), "underfitting_capacity")


def test_twenty_tokens_a_parameter_are_no_reason():
    run = make(evals=[(1500, 4.1, 4.1)], wandb_run_name="125M-x", **SMALL)
    assert not found(run, "underfitting_capacity")


def test_a_gap_means_memorising_and_not_lack_of_capacity():
    run = make(evals=[(14500, 3.1, 3.6)], wandb_run_name="125M-x", **SMALL)
    assert not found(run, "underfitting_capacity")


def test_the_known_end_of_the_known_run_is_as_good_as_it_gets():
    run = make(
        evals=[(600_000, 2.85, 2.85)],
        **{**GPT2, "dataset": "openwebtext", "max_iters": 600_000, "lr_decay_iters": 600_000},
    )
    assert not found(run, "underfitting_capacity")


def test_48_layers_of_width_64():
    assert "underfitting_capacity" in sure(
        make(n_layer=48, n_head=8, n_embd=64, block_size=2048, vocab_size=50304), "underfitting_capacity"
    )


def test_ordinary_shapes_are_not_narrow():
    for layers, width in ((6, 384), (12, 768), (4, 128), (12, 384), (24, 1024), (2, 64)):
        assert not found(make(n_layer=layers, n_embd=width, n_head=4, vocab_size=65), "underfitting_capacity"), (
            layers,
            width,
        )
