from tests.diagnosis.rules.build import make, sure


def test_an_offset_from_the_first_evaluation_on():
    evals = [(5 * i, 2.67 - 0.02 * i, 2.40 - 0.02 * i) for i in range(11)]
    assert "val_below_train_ok" in sure(
        make(evals=evals, eval_iters=40, batch_size=8, block_size=256, vocab_size=50257), "val_below_train_ok"
    )


def test_val_above_train_is_the_usual_case():
    evals = [(5 * i, 2.40 - 0.02 * i, 2.45 - 0.02 * i) for i in range(11)]
    assert not sure(make(evals=evals), "val_below_train_ok")


def test_an_offset_within_noise_is_nothing():
    assert not sure(make(evals=[(100, 2.41, 2.40), (200, 2.39, 2.40), (300, 2.385, 2.38)]), "val_below_train_ok")


def test_one_evaluation_or_an_untrained_one_says_nothing_of_the_splits():
    assert not sure(make(evals=[(0, 4.31, 4.17)], vocab_size=65), "val_below_train_ok")
    assert not sure(make(evals=[(0, 4.2, 4.2), (500, 2.3, 2.1)], vocab_size=65), "val_below_train_ok")
    assert "val_below_train_ok" in sure(
        make(evals=[(500, 2.3, 2.1), (1000, 2.1, 1.9)], vocab_size=65), "val_below_train_ok"
    )
