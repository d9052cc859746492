"""Many documents at once: the ids are those of the tokenizer, whoever encodes."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nanolens.data.prepare import encoders
from nanolens.data.prepare.documents import pack
from nanolens.data.prepare.encoders import (
    CharEncoder,
    GigatokenEncoder,
    ProcessEncoder,
    TiktokenEncoder,
    encoder_for,
    train_bpe,
)
from nanolens.data.tokenizers import CharTokenizer, GPT2Tokenizer
from nanolens.errors import UserError
from tests.data.texts import utf8_text

GPT2 = GPT2Tokenizer()
needs_gigatoken = pytest.mark.skipif(importlib.util.find_spec("gigatoken") is None, reason="gigatoken is not installed")


@pytest.fixture(scope="module")
def gigatoken() -> GigatokenEncoder:
    return GigatokenEncoder(GPT2)


def encoded(encoder, texts: list[str], mark: int | None) -> list[list[int]]:
    batch = pack([text.encode() for text in texts])
    ids, bounds = encoder.encode(batch.text, batch.bounds, mark)
    return [ids[start:end].tolist() for start, end in itertools.pairwise(bounds.tolist())]


@needs_gigatoken
@settings(max_examples=200)
@given(texts=st.lists(utf8_text.filter(bool), min_size=1, max_size=6))
@example(texts=["<|endoftext|>", "a<|endoftext|>b", "x"])
@example(texts=["trailing space ", " leading", "\n\n", "  "])
@example(texts=["holds " + GigatokenEncoder.SEPARATOR, "the separator"])
def test_gigatoken_gives_tiktokens_ids_document_by_document(gigatoken: GigatokenEncoder, texts: list[str]):
    assert encoded(gigatoken, texts, GPT2.end_of_document) == [[*GPT2.encode(text), 50256] for text in texts]


@needs_gigatoken
@given(text=utf8_text.filter(bool))
def test_gigatoken_sets_no_mark_where_none_is_wanted(gigatoken: GigatokenEncoder, text: str):
    assert encoded(gigatoken, [text], None) == [GPT2.encode(text)]


@needs_gigatoken
def test_each_batch_is_compared_with_tiktoken_and_a_difference_stops_everything(monkeypatch):
    encoder = GigatokenEncoder(GPT2)
    encoded(encoder, ["some text"] * 5, 50256)
    assert encoder.checked_bytes == 45
    encoded(encoder, ["much longer text " * 1000], 50256)
    assert 45 + 4000 < encoder.checked_bytes <= 45 + 4096
    monkeypatch.setattr(encoder.tokenizer, "encode", lambda text: [1, 2, 3])
    try:
        with pytest.raises(UserError, match="gigatoken and tiktoken disagree on some text"):
            encoded(encoder, ["some text"], 50256)
    finally:
        monkeypatch.undo()


@given(texts=st.lists(utf8_text.filter(bool), min_size=1, max_size=6), marked=st.booleans())
def test_the_character_table_gives_the_tokenizers_ids(texts: list[str], marked: bool):
    tokenizer = CharTokenizer(sorted(set("".join(texts)) | {"\n"}))
    mark = tokenizer.end_of_document if marked else None
    expected = [tokenizer.encode(text) + ([mark] if marked else []) for text in texts]
    assert encoded(CharEncoder(tokenizer), texts, mark) == expected


def test_a_character_that_is_not_in_the_table_is_named():
    with pytest.raises(UserError, match="'b' is not among the 2"):
        encoded(CharEncoder(CharTokenizer(["\n", "a"])), ["aab"], 0)


def test_processes_give_the_same_ids_and_end_with_us():
    tokenizer = train_bpe(["the cat sat on the mat " * 20], 300)
    encoder = ProcessEncoder(tokenizer, 2, "for the test")
    texts = ["the cat", "नमस्ते <|endoftext|>", "x" * 1000]
    try:
        for _ in range(3):
            assert encoded(encoder, texts, tokenizer.end_of_document) == [
                [*tokenizer.encode(text), tokenizer.end_of_document] for text in texts
            ]
        workers = encoder._workers
    finally:
        encoder.close()
    assert all(worker.returncode == 0 for worker in workers)


def test_the_encoder_is_chosen_with_a_reason(monkeypatch):
    assert isinstance(encoder_for(CharTokenizer(["a"]), 10**9, 1), CharEncoder)
    assert isinstance(encoder_for(GPT2, 1000, 1), TiktokenEncoder)
    monkeypatch.setattr(encoders.importlib.util, "find_spec", lambda name: None)
    slow = encoder_for(GPT2, 10**9, 1)
    slow.close()
    assert isinstance(slow, ProcessEncoder) and "nanolens[fast]" in str(slow.because)


@needs_gigatoken
def test_another_gigatoken_is_not_used_and_that_is_said(monkeypatch):
    import gigatoken.gigatoken_rs

    monkeypatch.delattr(gigatoken.gigatoken_rs, "PadTruncate")
    slow = encoder_for(GPT2, 10**9, 1)
    slow.close()
    assert slow.name == "tiktoken" and "does not know the installed version" in str(slow.because)


def test_ids_are_whole_arrays_without_documents_bounds_lost():
    batch = pack([b"ab", b"", b"c"])
    ids, bounds = TiktokenEncoder(GPT2, "").encode(batch.text, batch.bounds, 50256)
    assert np.diff(bounds).tolist() == [2, 1, 2] and ids[bounds[1:] - 1].tolist() == [50256] * 3
