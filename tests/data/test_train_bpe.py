"""A vocabulary of the user's own."""

from __future__ import annotations

import pytest
import regex
from hypothesis import given

from nanolens.data.prepare.encoders import OWN_PATTERN, train_bpe
from nanolens.errors import UserError
from tests.data.texts import utf8_text

SPLIT = regex.compile(OWN_PATTERN.replace(r"\x{200C}", "‌").replace(r"\x{200D}", "‍"))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("नमस्ते दुनिया", ["नमस्ते", " दुनिया"]),  # GPT-2's pattern cuts these in 4 and 7
        ("क्‍ष", ["क्‍ष"]),  # with a joiner inside
        ("می‌خواهم", ["می‌خواهم"]),  # with a non-joiner inside
        ("café", ["café"]),  # with the accent on its own
        ("สวัสดี ชาวโลก", ["สวัสดี", " ชาวโลก"]),
        ("❤️ 1️⃣", ["❤️", " 1️⃣"]),
        ("I don't, 's", ["I", " don", "'t", ",", " '", "s"]),
        ("12345 a", ["123", "45", " a"]),
        ("a  b\n\n c", ["a", " ", " b", "\n\n", " c"]),
    ],
)
def test_words_stay_whole_with_their_marks(text: str, pieces: list[str]):
    assert SPLIT.findall(text) == pieces


@given(text=utf8_text)
def test_the_pattern_loses_no_character(text: str):
    assert "".join(SPLIT.findall(text)) == text


def test_hindi_takes_fewer_tokens_than_with_gpt2s_pattern():
    import rustbpe

    from nanolens.data.tokenizers import GPT2_PATTERN

    text = "यह एक छोटा सा वाक्य है, और यह दूसरा वाक्य है। बच्चे स्कूल जाते हैं और किताबें पढ़ते हैं। "
    theirs = rustbpe.Tokenizer()
    theirs.train_from_iterator(iter([text * 50]), vocab_size=599, pattern=GPT2_PATTERN)
    assert len(train_bpe([text * 50], 600).encode(text)) < 0.7 * len(theirs.encode(text))


def test_the_size_counts_the_bytes_and_the_end_of_text():
    trained = train_bpe(["the quick brown fox jumps over the lazy dog " * 100], 280)
    assert trained.vocab_size == 280 and trained.end_of_document == 279
    assert {trained.token_bytes(token) for token in range(256)} == {bytes([byte]) for byte in range(256)}


def test_a_text_with_few_pairs_gives_fewer_tokens():
    assert train_bpe(["ab ab ab"], 1000).vocab_size < 300


def test_training_is_the_same_each_time():
    texts = ["one two three two one", "three four five four three"] * 30
    assert train_bpe(texts, 290) == train_bpe(texts, 290)


def test_a_size_without_room_for_the_bytes_is_refused():
    with pytest.raises(UserError, match="vocab_size = 256 is too small"):
        train_bpe(["text"], 256)
