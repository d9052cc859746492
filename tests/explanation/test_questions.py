"""What our first users asked about their own logs, answered with the numbers that are true of them."""

from __future__ import annotations

import pytest

from nanolens.diagnosis import diagnose
from nanolens.explanation import explain
from nanolens.explanation.words import answer_of
from tests.explanation.given_logs import EVERY_500TH, FINEWEB, SHAKESPEARE, GivenLog


def answer(log: GivenLog, lang: str = "en") -> str:
    case = log.case
    codes = {finding.code for finding in diagnose(case.run).findings if finding.sureness != "possible"}
    return " ".join(answer_of(explain(case, log.quote, codes)).text(lang).split())


@pytest.mark.parametrize("lang", ["en", "hi"])
@pytest.mark.parametrize(
    "number",
    [
        "81.9M",  # characters seen
        "81.6",  # epochs
        "1,003,854",
        "16,384",
        "70.9 MFLOP",
        "33.22 ms",
        "35.0 TFLOP/s",
        "43.6%",
        "80.2 TFLOP/s",
        "312 TFLOP/s",
        "11.0 ms",  # one evaluation batch
        "400",
        "0.9 x 11.09% + 0.1 x 0.08%",
        "9.99%",
        "1.47",
        "1,750",
        "0.23",
        "0.80-0.82",
        "4.1744",  # ln 65
        "5.81 PFLOP",
        "2.46",  # bits per byte
    ],
)
def test_what_do_these_lines_mean(number: str, lang: str) -> None:
    assert number in answer(SHAKESPEARE, lang)


def test_the_overfit_run_is_told_to_stop_and_its_best_weights_are_still_there() -> None:
    said = answer(SHAKESPEARE)
    assert "Stop. More training makes the val loss worse" in said
    assert "the better weights are still on disk" in said
    assert "That is dropout, not noise" in said


@pytest.mark.parametrize("lang", ["en", "hi"])
@pytest.mark.parametrize(
    "number",
    [
        "40.95M",
        "40.56M",
        "21.24M",
        "125M",
        "524,288",
        "7.6B",
        "186",
        "2.7e-4",
        "16,384",
        "4.1096",
        "3.6415",
        "0.0719",
        "10.8258",
        "40.3 TFLOP/s",
    ],
)
def test_why_did_the_loss_stop_falling(number: str, lang: str) -> None:
    assert number in answer(FINEWEB, lang)


def test_epochs_of_a_text_of_unknown_size_are_not_guessed() -> None:
    said = answer(FINEWEB)
    assert "--dataset_tokens=N" in said and "epochs of" not in said
    assert "it cannot be compared with a loss per character" in said
    assert "Val is 0.0719 below train: nothing has been memorised." in said
    assert "Continue to step 20,000" in said and "Stop." not in said


@pytest.mark.parametrize("lang", ["en", "hi"])
@pytest.mark.parametrize(
    "number",
    ["168-170 ms", "500 x 169 ms = 84.5 s", "5.7 s", "6.3%", "12543.00 ms", "5985.00 ms", "0.9 x 8.00% + 0.1 x 0.23%"],
)
def test_why_is_every_500th_iteration_slow(number: str, lang: str) -> None:
    assert number in answer(EVERY_500TH, lang)


def test_a_slow_line_is_put_down_to_what_stands_before_it() -> None:
    said = answer(EVERY_500TH)
    assert "the first iteration includes the first evaluation and one-off startup work" in said
    assert said.count("the preceding evaluation and the saving of the checkpoint") == 2
    assert "The MFU on this line is a placeholder" in said
    assert "Nothing needs fixing." in said


def test_a_vocabulary_that_was_told_from_the_first_loss_is_not_confirmed_by_it() -> None:
    assert "As it should be" in answer(FINEWEB)
    assert "As it should be" not in answer(EVERY_500TH)
