"""The first loss, against chance.

What it sees. The loss of the untrained model next to ln of the vocabulary's size, which is what equal chances for all tokens give:
4.17 for 65 characters, 10.82 for GPT-2's 50,257 tokens.

Why it matters. It is the cheapest check there is: a first loss near ln V says that vocabulary, labels and initialisation fit each
other.

When it is wrong. A pretrained model starts far below. A head whose bias holds the token frequencies starts at the unigram level,
and over-scaled output weights start above (16 has been seen in sound runs); both are explained by the initialisation.

What it looks like. For a vocabulary of 50,304:

    step 0: train loss 10.8200, val loss 10.8200

What to change. Nothing where it fits. Where it does not: compare vocab_size with the tokenizer, and look whether a checkpoint was
loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

from nanolens.analysis.corpora import WEB_TEXT_UNIGRAM
from nanolens.facts.case import Case
from nanolens.facts.finding import Evidence, Finding, NotChecked, Sureness
from nanolens.message import msg

CODES = ("init_loss_ok",)


def is_from_first_loss(case: Case) -> bool:
    """Whether the vocabulary's size was itself inferred from the first loss."""
    return case.vocab_size is not None and case.vocab_size.how.msgid.startswith("the first loss")


def look(case: Case) -> Iterator[Finding | NotChecked]:
    if case.is_pretrained:
        yield NotChecked("init_loss_ok", msg("the model was not started from scratch"))
        return
    first, is_stated = case.first_loss, False
    if first is None:
        first, is_stated = case.number("first_loss"), True
    if first is None:
        yield NotChecked("init_loss_ok", msg("the log does not begin at the first step"))
        return
    level = case.ln_vocab
    if level is None:
        yield NotChecked("init_loss_ok", msg("the vocabulary's size is not known; give --vocab_size=N"))
        return
    unigram = case.unigram_nats
    if -0.05 * level <= first - level <= 0.08 * level or (is_stated and abs(first - level) < 0.1 * level):
        how, usual = msg("ln of the vocabulary's size: a fresh model finds all tokens equally likely"), level
    elif unigram is None and 50_000 <= case.vocab_size.value <= 51_000 and WEB_TEXT_UNIGRAM[0] <= first <= WEB_TEXT_UNIGRAM[1]:  # type: ignore[union-attr]
        how, usual = msg("the unigram level of English web text: the head starts with the tokens' frequencies"), WEB_TEXT_UNIGRAM[0]
    elif unigram is not None and abs(first - unigram) < 0.15:
        how, usual = msg("the unigram level of this text: the head starts with the tokens' frequencies"), unigram
    else:
        return
    where = case.where("first_loss") if is_stated else msg("the first line with a loss")
    evidence = Evidence(msg("first loss"), first, usual, where, how, "nats", 0)
    assert case.vocab_size is not None
    sure: Sureness = "likely" if case.vocab_size.origin == "inferred" else "certain"
    if is_from_first_loss(case) and abs(first - level) > 0.002:
        sure = "possible"  # the vocabulary was itself read off this loss; only a match to the digit is more than that
    yield Finding(
        "init_loss_ok",
        sure,
        msg("the first loss is that of a fresh model, as it should be"),
        (evidence,),
        None,
        msg("the model was loaded from a checkpoint"),
    )
