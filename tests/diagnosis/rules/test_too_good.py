import dataclasses

import numpy as np

from tests.diagnosis.rules.build import GPU_DEMO, found, make, sure


def test_below_the_lowest_known_val_loss():
    assert "too_good_to_be_true" in sure(
        make(evals=[(1000, 0.6846, 1.2164)], dataset="shakespeare_char"), "too_good_to_be_true"
    )


def test_the_best_known_value_itself_is_fine():
    assert not found(make(evals=[(1750, 1.11, 1.4697)], **GPU_DEMO), "too_good_to_be_true")


def test_a_model_that_sees_the_answer():
    evals = [(50 * i, 3.3 * np.exp(-i), 3.3 * np.exp(-i) + 0.001) for i in range(8)]
    run = make(
        evals=evals, vocab_size=65, dataset_tokens=1e6, batch_size=12, block_size=64, gradient_accumulation_steps=1
    )
    assert {"too_good_to_be_true", "attention_bug"} <= sure(run, "too_good_to_be_true")
    assert "val_leak" not in sure(run)


def test_val_that_was_trained_on():
    steps = np.arange(0, 41)
    train = 0.3 + 3.9 * np.exp(-steps / 6)
    evals = [(100 * int(i), t, t + 0.002) for i, t in zip(steps, train, strict=True)]
    known = {
        "vocab_size": 65,
        "dataset_tokens": 1e5,
        "batch_size": 12,
        "block_size": 64,
        "gradient_accumulation_steps": 1,
        "bigram_nats": 2.45,
    }
    assert "val_leak" in sure(make(evals=evals, **known), "too_good_to_be_true")


def test_memorised_train_with_val_far_above_is_not_a_leak():
    evals = [(100 * i, 3.9 * np.exp(-i / 6), 2.0) for i in range(41)]
    known = {
        "vocab_size": 65,
        "dataset_tokens": 1e5,
        "batch_size": 12,
        "block_size": 64,
        "gradient_accumulation_steps": 1,
        "bigram_nats": 2.45,
    }
    assert not sure(make(evals=evals, **known), "too_good_to_be_true")


def test_web_text_below_what_the_size_can_reach():
    known = {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "vocab_size": 50304, "dataset": "fineweb"}
    assert "too_good_to_be_true" in sure(make(evals=[(10000, 2.1, 2.1)], **known), "too_good_to_be_true")
    assert not found(make(evals=[(10000, 3.28, 3.28)], **known), "too_good_to_be_true")


def test_bits_per_byte_alone_are_enough():
    run = make(evals=[(100 * i, np.nan, np.nan) for i in range(1, 6)], vocab_size=65536)
    low = dataclasses.replace(
        run, evals=dataclasses.replace(run.evals, val_bits_per_byte=np.array([1.2, 0.8, 0.4, 0.2, 0.1]))
    )
    assert "too_good_to_be_true" in sure(low, "too_good_to_be_true")
    fair = dataclasses.replace(
        run, evals=dataclasses.replace(run.evals, val_bits_per_byte=np.array([1.2, 1.1, 1.0, 0.9, 0.85]))
    )
    assert not sure(fair, "too_good_to_be_true")
