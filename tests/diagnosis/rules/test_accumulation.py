from tests.diagnosis.rules.build import make, mark, sure


def test_versions_that_sum_the_loss():
    assert "grad_accum_loss_scaling" in sure(
        make([10.6, 8.2, 7.9, 8.0, 6.1], transformers="4.47.0"), "grad_accum_loss_scaling"
    )
    assert not sure(make([10.6, 8.2, 7.9, 8.0, 6.1], transformers="4.48.1"), "grad_accum_loss_scaling")


def test_a_first_loss_that_is_a_multiple_of_ln_v():
    run = make([43.3, 41.0, 39.0, 38.0], vocab_size=50304, gradient_accumulation_steps=4)
    assert "grad_accum_loss_scaling" in sure(run, "grad_accum_loss_scaling")


def test_a_sound_first_loss_is_not():
    assert not sure(
        make([10.83, 10.2, 9.7], vocab_size=50304, gradient_accumulation_steps=4), "grad_accum_loss_scaling"
    )


def test_ranks_whose_weights_differ():
    assert "grad_sync_bug" in sure(make([3.0] * 5, marks=[mark("rank_drifted", 100)]), "grad_accum_loss_scaling")


def test_a_printed_loss_that_stays_at_a_multiple_of_the_evaluated_one():
    evals = [(50 * i, 4.0 - 0.2 * i, 4.0 - 0.2 * i) for i in range(1, 7)]
    losses = [4 * (4.0 - 0.2 * step / 50) for step in range(1, 301)]
    assert "grad_accum_loss_scaling" in sure(
        make(losses, evals=evals, gradient_accumulation_steps=4), "grad_accum_loss_scaling"
    )
    sound = [loss / 4 for loss in losses]
    assert not sure(make(sound, evals=evals, gradient_accumulation_steps=4), "grad_accum_loss_scaling")
