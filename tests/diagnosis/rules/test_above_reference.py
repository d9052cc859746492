from tests.diagnosis.rules.build import GPT2, make, sure

OWT = {**GPT2, "dataset": "openwebtext", "max_iters": 600_000, "lr_decay_iters": 600_000}


def test_0_045_above_the_known_run_is_not_seed_noise():
    assert "above_reference" in sure(make(evals=[(400_000, 2.94, 2.95)], **OWT), "above_reference")


def test_the_known_value_within_noise_is_fine():
    assert not sure(make(evals=[(400_000, 2.90, 2.91)], **OWT), "above_reference")


def test_another_batch_is_not_compared():
    assert not sure(make(evals=[(400_000, 2.94, 2.95)], **{**OWT, "gradient_accumulation_steps": 5}), "above_reference")


def test_the_cpu_demo_at_its_end():
    cpu = {
        "dataset": "shakespeare_char",
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 128,
        "block_size": 64,
        "batch_size": 12,
        "gradient_accumulation_steps": 1,
    }
    assert not sure(make(evals=[(2000, 1.76, 1.89)], max_iters=2000, **cpu), "above_reference")
    assert "above_reference" in sure(make(evals=[(2000, 2.1, 2.12)], max_iters=2000, **cpu), "above_reference")
    assert not sure(make(evals=[(2000, 2.1, 2.12)], **cpu), "above_reference"), "it may be the middle of a longer run"
