from __future__ import annotations

import pytest

from nanolens.cli.arguments import Parser, UsageError


def parser() -> Parser:
    return Parser("train")


def test_both_forms_of_a_setting_and_both_spellings_are_the_same():
    for words in (["--max_iters=10"], ["--max_iters", "10"], ["--max-iters=10"], ["--max-iters", "10"]):
        assert parser().parse(words).overrides == [("max_iters", "10")]


def test_a_value_keeps_its_dashes():
    assert parser().parse(["--out-dir=runs/my-run"]).overrides == [("out_dir", "runs/my-run")]


def test_a_negative_value_is_a_value():
    assert parser().parse(["--seed", "-1"]).overrides == [("seed", "-1")]


def test_a_switch_needs_no_value_but_takes_one():
    assert parser().parse(["--compile", "--bias", "False", "quickstart"]).overrides == [
        ("compile", "True"),
        ("bias", "False"),
    ]
    assert parser().parse(["--compile", "quickstart"]).source == "quickstart"


def test_own_options_stay_with_the_parser():
    given = parser().parse(["quickstart", "--view=lines", "--seed=3"])
    assert (given.source, given.view, given.overrides) == ("quickstart", "lines", [("seed", "3")])


def test_a_setting_without_a_value_is_said():
    with pytest.raises(UsageError, match="needs a value"):
        parser().parse(["--max_iters"])
