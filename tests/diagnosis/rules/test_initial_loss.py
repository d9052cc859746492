from tests.diagnosis.rules.build import curve, found, make, sure


def test_the_first_loss_of_a_fresh_model():
    assert "init_loss_ok" in sure(make(evals=[(0, 10.82, 10.83)], vocab_size=50304), "init_loss_ok")
    assert "init_loss_ok" in sure(make(evals=[(0, 4.28, 4.28)], dataset="shakespeare_char"), "init_loss_ok")


def test_token_frequencies_in_the_head_explain_a_lower_start():
    assert "init_loss_ok" in sure(make(evals=[(0, 7.71, 7.71)], vocab_size=50304, dataset="fineweb"), "init_loss_ok")


def test_a_stated_first_loss_counts_where_there_is_no_log():
    assert "init_loss_ok" in sure(make(vocab_size=50304, first_loss="~10"), "init_loss_ok")


def test_a_pretrained_model_is_not_judged():
    assert not found(make(evals=[(0, 3.1, 3.1)], init_from="gpt2", vocab_size=50257), "init_loss_ok")


def test_a_vocabulary_read_off_the_first_loss_proves_nothing_about_it():
    steps, losses = curve(30, start=10.9)
    losses[0] = 10.9
    assert not sure(make(losses, steps), "init_loss_ok")


def test_a_start_far_from_chance_is_not_ok():
    assert not found(make(evals=[(0, 16.0, 16.0)], vocab_size=50304), "init_loss_ok")
