"""Where a long text may be cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanolens.data.prepare.documents import (
    LONG_BYTES,
    Documents,
    Piece,
    first_cut,
    in_batches,
    last_cut,
    pack,
    packed,
    pieces,
)
from nanolens.data.prepare.encoders import train_bpe
from nanolens.data.tokenizers import GPT2Tokenizer
from tests.data.texts import PIECES, utf8_text

TOKENIZERS = [GPT2Tokenizer(), train_bpe(["".join(PIECES) * 3, "the cat sat on the mat " * 9], 400)]


@settings(max_examples=300)
@given(text=utf8_text)
def test_a_cut_changes_no_token_of_any_tokenizer(text: str):
    raw = text.encode()
    for cut in {last_cut(raw), first_cut(raw, 0), first_cut(raw, len(raw) // 2)} - {None}:
        left, right = raw[:cut].decode(), raw[cut:].decode()
        for tokenizer in TOKENIZERS:
            assert tokenizer.encode(left) + tokenizer.encode(right) == tokenizer.encode(text)


@given(words=st.lists(utf8_text, max_size=40), block=st.integers(1, 50), piece=st.integers(1, 40))
def test_pieces_make_up_the_document_whatever_the_blocks(words: list[str], block: int, piece: int):
    raw = " ".join(words).encode()
    blocks = [raw[start : start + block] for start in range(0, len(raw), block)]
    found = list(pieces(iter(blocks), 7, piece_bytes=piece))
    assert b"".join(part.text.tobytes() for part in found) == raw
    assert [part.is_first for part in found] == [True] + [False] * (len(found) - 1)
    assert [part.is_last for part in found] == [False] * (len(found) - 1) + [True]
    assert sum(part.read_bytes for part in found) == 7
    ids = [token for part in found for token in TOKENIZERS[0].encode(part.text.tobytes().decode())]
    assert ids == TOKENIZERS[0].encode(raw.decode())


def test_a_unicode_space_before_a_space_is_no_place_to_cut():
    assert last_cut("a\u3000 b".encode()) is None  # GPT-2 takes both spaces together
    assert last_cut("ä b".encode()) == 2


def test_documents_are_packed_in_order_and_long_ones_travel_in_pieces():
    long = b"word " * (LONG_BYTES // 5 + 1)
    rows = [(b"one", 3, None), (b"two", 3, None), (long, len(long), None), (b"three", 5, None)]
    found = list(packed(iter(rows)))
    assert isinstance(found[0], Documents) and len(found[0]) == 2
    assert all(isinstance(part, Piece) for part in found[1:-1]) and len(found) >= 4
    assert b"".join(part.text.tobytes() for part in found) == b"onetwo" + long + b"three"
    assert sum(part.read_bytes for part in found) == 11 + len(long)
    assert np.array_equal(found[0].bounds, [0, 3, 6])


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=40), limit=st.integers(1, 40))
def test_large_batches_are_cut_between_documents(sizes: list[int], limit: int):
    whole = pack([bytes([n % 251]) * size for n, size in enumerate(sizes)], read_bytes=1000)
    parts = list(in_batches(whole, limit))
    assert b"".join(part.text.tobytes() for part in parts) == whole.text.tobytes()
    assert [n for part in parts for n in np.diff(part.bounds).tolist()] == sizes
    assert all(len(part) == 1 or len(part.text) <= limit for part in parts)
    assert all(part.bounds[0] == 0 and part.bounds[-1] == len(part.text) for part in parts)
    assert 1000 - len(parts) <= sum(part.read_bytes for part in parts) <= 1000


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_batch_is_sent_when_it_is_full(size: int):
    found = list(packed(((b"x" * 10, 10, None) for _ in range(100)), batch_bytes=10 * size))
    assert [len(part) for part in found] == [size] * (100 // size)
