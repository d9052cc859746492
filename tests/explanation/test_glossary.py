"""The glossary: every word has a meaning, is found by the names people type, and speaks in the user's own numbers."""

from __future__ import annotations

import pytest

from nanolens.config.fields import settings
from nanolens.errors import UserError
from nanolens.explanation.glossary import look_up, names, nearest, term_named, terms
from nanolens.show.words import say
from tests.explanation.given_logs import SHAKESPEARE

WANTED = """loss perplexity bits_per_byte gradient_accumulation tokens_per_update epoch iteration step learning_rate warm-up cosine wsd gradient_norm
clipping mfu hfu flops dropout weight_decay overfitting val_loss standard_error block_size batch_size checkpoint compile dtype bfloat16 float16 kv_cache
temperature top_k top_p muon adamw scaling_law critical_batch seed""".split()


@pytest.mark.parametrize("word", WANTED)
def test_a_word_that_people_ask_for_is_there(word: str) -> None:
    assert look_up(word).meaning


def test_no_two_terms_claim_the_same_name() -> None:
    owner: dict[str, str] = {}
    for term in terms():
        for name in {name.replace("_", "").lower() for name in (term.name, *term.also)}:
            assert owner.setdefault(name, term.name) == term.name


def test_what_is_pointed_to_exists() -> None:
    assert [(term.name, other) for term in terms() for other in term.see if term_named(other) is None] == []


@pytest.mark.parametrize("name", settings())
def test_every_setting_is_a_term(name: str) -> None:
    assert term_named(name) is not None


def test_a_slip_of_the_pen_is_put_right() -> None:
    assert nearest("perplexty") == "perplexity"
    with pytest.raises(UserError) as raised:
        look_up("perplexty")
    assert "perplexity" in str(raised.value.faults[0].fix)


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("mfu", "43.6%"),
        ("epoch", "81.6"),
        ("tokens_per_update", "16,384"),
        ("perplexity", "5.5"),
        ("bits_per_byte", "2.46"),
        ("parameters", "10,745,088"),
        ("flops", "70.9 MFLOP"),
        ("loss", "0.8236"),
        ("ln_v", "4.1744"),
        ("overfitting", "1.0820"),
        ("learning_rate", "1e-4"),
        ("speed", "493,"),
        ("dropout", "dropout = 0.2"),
        ("eval_iters", "200"),
        ("unigram", "3.3090"),
    ],
)
def test_a_term_speaks_in_the_numbers_of_the_run(word: str, number: str) -> None:
    assert number in " ".join(say(message) for message in look_up(word, SHAKESPEARE.case).here)


@pytest.mark.parametrize("name", names())
def test_no_term_fails_on_a_run_of_which_nothing_is_known(name: str) -> None:
    from nanolens.facts.case import Case
    from nanolens.logs import read_log

    look_up(name, Case(read_log("iter 0: loss 4.2, time 10.00ms, mfu -100.00%\n")))
