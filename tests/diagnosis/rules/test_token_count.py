from tests.diagnosis.rules.build import make, sure

FIVE = {"batch_size": 5, "block_size": 1024, "gradient_accumulation_steps": 12, "max_iters": 100_000}


def test_an_axis_that_says_5000_billion():
    assert "token_accounting" in sure(make(figure_axis="5000B tokens", **FIVE), "token_accounting")


def test_eight_devices_explain_a_factor_of_eight():
    assert not sure(make(figure_axis="49B tokens", devices=8, **FIVE), "token_accounting")


def test_a_right_statement_is_fine():
    assert not sure(make(tokens="6.1B", **FIVE), "token_accounting")
