"""A byte-level BPE of the user's own text."""

from __future__ import annotations

from collections.abc import Iterable

from nanolens.data.tokenizers import OwnBPETokenizer
from nanolens.errors import fault, require
from nanolens.message import msg

PATTERN = "|".join(
    (
        r"'(?:[sdmt]|ll|ve|re)(?![\p{L}\p{M}])",  # English contractions
        r" ?[\p{L}\p{M}][\p{L}\p{M}\x{200C}\x{200D}]*+",  # a word, with its marks and joiners
        r" ?(?:\p{N}\p{M}*+){1,3}",  # at most three digits
        r" ?[^\s\p{L}\p{M}\p{N}][^\s\p{L}\p{N}]*+",  # punctuation and symbols, with their variation selectors
        r"\s++$",
        r"\s{1,512}(?!\S)",  # a bound, because the regex engine remembers each character that it may have to give back
        r"\s",
    )
)
"""Like GPT-2's split, but a combining mark stays with what it combines with: GPT-2's cuts Hindi words at each vowel sign ('नमस्ते' in four).

No piece holds a space or line end after something else, so text may be cut there before it is encoded (`documents.py` relies on it).
"""

SMALLEST = 256 + 1  # the bytes, and the end of text


def train_bpe(texts: Iterable[str], vocab_size: int, pattern: str = PATTERN) -> OwnBPETokenizer:
    """At most `vocab_size` tokens, the 256 bytes and the end of text among them; fewer where the text has no more pairs to join."""
    if vocab_size < SMALLEST:
        raise fault(
            msg("vocab_size = {size:count} is too small for a byte-level BPE", size=vocab_size),
            where=msg("--vocab_size"),
            fix=msg("use {smallest:count} or more: 256 bytes, the end of text, and what is learnt", smallest=SMALLEST),
        )
    trainer = require("rustbpe", "tok").Tokenizer()
    trainer.train_from_iterator(iter(texts), vocab_size=vocab_size - 1, pattern=pattern)
    ranks = {bytes(token): rank for token, rank in trainer.get_mergeable_ranks()}
    return OwnBPETokenizer(pattern, ranks)
