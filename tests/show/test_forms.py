"""Values in words: the digits that a reader can check against a log, and the same digits in every language."""

from __future__ import annotations

import pytest

from nanolens.message import msg
from nanolens.show.words import LANGUAGES, TIE, non_breaking, paragraphs, say, show

FORMS = [
    (34.98e12, "flops_per_s", "35.0 TFLOP/s"),
    (70_928_640, "flops", "70.9 MFLOP"),
    (5.81e15, "flops", "5.81 PFLOP"),
    (0.43628, "share", "43.6%"),
    (0.0631, "share", "6.3%"),
    (0.1, "share", "10%"),
    (0.0008293, "share", "0.083%"),
    (0.1107, "percent", "11.07%"),
    (0.0008293, "percent", "0.08%"),
    (0.011034, "seconds", "11.0 ms"),
    (0.03322, "ms", "33.22 ms"),
    (4.44683, "seconds", "4.45 s"),
    (84.5, "seconds", "84.5 s"),
    (5.6865, "rough_seconds", "5.7 s"),
    (3900, "seconds", "1 h 05 min"),
    (7199.9, "seconds", "2 h 00 min"),
    (119.99, "seconds", "120 s"),
    (179.9, "seconds", "3 min 00 s"),
    (4e5, "seconds", "4.6 days"),
    (3.2e-5, "seconds", "32 µs"),
    (0, "seconds", "0 s"),
    ((0.168, 0.170), "seconds_range", "168-170 ms"),
    ((0.9, 1.1), "seconds_range", "900 ms-1.10 s"),
    ((3.64, 3.71), "nats_range", "3.64-3.71"),
    (1.7044, "nats", "1.7044"),
    (1.4697, "rough_nats", "1.47"),
    (81_920_000, "tokens", "81.9M"),
    (7_602_176_000, "tokens", "7.6B"),
    (524_288, "tokens", "524,288"),
    (40_953_216, "parameters", "40.95M"),
    (804_096, "parameters", "804,096"),
    (185.63, "about", "186"),
    (81.604, "about", "81.6"),
    (1_003_854, "count", "1,003,854"),
    (2.653e-4, "rate", "2.65e-4"),
    (2.653e-4, "rough_rate", "2.7e-4"),
    (1e-3, "rate", "0.001"),
    (6e-4, "rate", "6e-4"),
    (123_456.7, "number", "123,500"),
    (12, "number", "12"),
    (56_100.3, "tokens_per_s", "56,100 tokens/s"),
    (1.5, "tokens_per_s", "1.5 tokens/s"),
    (73.9, "times", "73.9x"),
    (1.24e9, "bytes", "1.24 GB"),
    (float("nan"), "nats", "nan"),
    (float("inf"), "share", "inf"),
    (None, "nats", "-"),
    (True, "count", "True"),
    ("auto", "count", "auto"),
    ((1000, 2000), "count", "1,000, 2,000"),
]


@pytest.mark.parametrize(("value", "kind", "text"), FORMS, ids=lambda value: str(value))
def test_a_value_is_shown_in_the_form_of_its_kind(value: object, kind: str, text: str) -> None:
    assert show(value, kind) == text


@pytest.mark.parametrize("lang", LANGUAGES)
def test_numbers_are_the_same_in_every_language(lang: str) -> None:
    said = say(
        msg(
            "{tokens:tokens} tokens are seen by then: {epochs:about} epochs of {size:tokens}.",
            tokens=81.9e6,
            epochs=81.6,
            size=1_003_854,
        ),
        lang,
    )
    assert all(number in said for number in ("81.9M", "81.6", "1M"))


def test_a_message_inside_a_message_is_translated_too() -> None:
    said = say(msg("error: {what}", what=msg("run {command:code}", command="pip install x")), "hi")
    assert said == "त्रुटि: pip install x चलाएँ"


def test_a_number_and_its_unit_are_tied_for_whoever_breaks_lines() -> None:
    message = msg("It took {took}.", took=msg("{wall:seconds} in all.", wall=0.011))
    assert non_breaking(message) == f"It took 11.0{TIE}ms in all.."
    assert say(message) == "It took 11.0 ms in all.."


def test_a_page_keeps_its_log_lines_and_joins_its_sentences() -> None:
    page = "First line\nand second.\n\n    iter 0: loss 4.2\n    iter 1: loss 4.1\n\nLast."
    assert paragraphs(page) == ["First line and second.", "    iter 0: loss 4.2\n    iter 1: loss 4.1", "Last."]


def test_a_counted_noun_has_the_form_of_its_number():
    skipped = msg("{n:count update was|updates were} skipped in {runs:count run|runs}", 1, 1200)
    assert say(skipped) == "1 update was skipped in 1,200 runs"
    assert say(msg("after {n:count update|updates}", 0)) == "after 0 updates"
    assert str(msg("after {n:count update|updates}", 1)) == "after 1 update"
