"""Corpora that many runs use, with what is known of them: sizes as nanoGPT prepares them, and the levels that mean something on them.

The unigram level is what a model reaches that knows only how frequent each token is; the bigram level, one that looks at the token
before. A run that stays at either uses no more of its context than that. Sources stand beside the figures; a corpus without a
figure has None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Corpus:
    name: str
    pattern: str  # of the words that people use for it
    vocab_size: int
    is_char: bool
    train_tokens: int | None = None
    val_tokens: int | None = None
    unigram_nats: float | None = None
    bigram_nats: float | None = None
    is_web_text: bool = False
    lowest_val: float | None = None  # lowest val loss that is known of a small model trained on it from scratch
    lowest_source: str = ""


GPT2_VOCAB = 50257
PADDED_GPT2_VOCAB = 50304

CORPORA = (
    # Counted on the file itself (1,115,394 characters, nine tenths for training).
    Corpus("shakespeare_char", r"shakespeare[\s_-]*\(?char|char\w*[\s_-]*shakespeare", 65, True, 1_003_854, 111_540, 3.309, 2.452,
           lowest_val=1.4697, lowest_source="nanoGPT's README, 6 x 384, 5,000 iterations; 1.45 with much tuning"),
    # nanoGPT's data/shakespeare/readme; GPT-2's tokens.
    Corpus("shakespeare", r"shakespeare", PADDED_GPT2_VOCAB, False, 301_966, 36_059),
    # nanoGPT's data/openwebtext/readme.
    Corpus("openwebtext", r"open\s*-?web\s*-?text|\bowt\b", PADDED_GPT2_VOCAB, False, 9_035_582_198, 4_434_897, 7.6, is_web_text=True),
    Corpus("fineweb-edu", r"fine\s*-?web[\s_-]*edu|edu[\s_-]*fineweb", PADDED_GPT2_VOCAB, False, unigram_nats=7.7, is_web_text=True),
    # 7.71: a head whose bias holds the token frequencies starts there.
    Corpus("fineweb", r"fine\s*-?web", PADDED_GPT2_VOCAB, False, unigram_nats=7.71, is_web_text=True),
    Corpus("c4", r"\bc4\b", PADDED_GPT2_VOCAB, False, unigram_nats=7.7, is_web_text=True),
    Corpus("tinystories", r"tiny\s*-?stories", 32_000, False),
)  # fmt: skip

WEB_TEXT_UNIGRAM = (7.3, 8.0)
"""GPT-2's tokens on any English web text: the unigram level lies in here."""


def corpus_named(text: str) -> Corpus | None:
    lower = text.lower()
    for corpus in CORPORA:
        if re.search(corpus.pattern, lower):
            return corpus
    return None
