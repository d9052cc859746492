"""Which documents are for validation depends on the documents alone."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nanolens.data.prepare.documents import (
    KEY_BYTES,
    AtCharacter,
    ByHash,
    Piece,
    choose,
    cut_at_character,
    fits,
    hash_of,
    hashes_of,
    pack,
    split_keys,
)


def test_the_share_is_kept_and_a_smaller_one_is_part_of_a_larger():
    keys = hashes_of(np.frombuffer(np.arange(20_000).tobytes(), np.uint8), np.arange(0, 160_001, 8))
    tenth, half = ByHash(0.1).is_val(keys), ByHash(0.5).is_val(keys)
    assert abs(tenth.mean() - 0.1) < 0.01 and abs(half.mean() - 0.5) < 0.02
    assert not np.any(tenth & ~half)
    assert ByHash(1.0).is_val(keys).all() and not ByHash(0.0).is_val(keys).any()


def test_the_key_of_a_long_document_is_its_first_megabyte():
    long = b"x" * (KEY_BYTES + 5)
    batch = pack([b"short", long, long[:-1] + b"y"])
    hashes = hashes_of(batch.text, batch.bounds)
    keys = split_keys(batch.text, batch.bounds, hashes)
    assert keys[0] == hashes[0] and keys[1] == keys[2] == hash_of(np.frombuffer(long[:KEY_BYTES], np.uint8))
    assert hashes[1] != hashes[2]


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=2, max_size=60), frac=st.floats(0.01, 0.4), seed=st.integers(0, 99)
)
def test_few_documents_are_chosen_to_fit_and_never_all(sizes: list[int], frac: float, seed: int):
    keys = np.random.default_rng(seed).permutation(len(sizes)).astype(np.uint64)
    is_val = choose(keys, np.array(sizes), frac).is_val(keys)
    assert 0 < is_val.sum() < len(sizes)
    val, total = np.array(sizes)[is_val].sum(), sum(sizes)
    assert val <= max(1.5 * frac * total, min(sizes))
    shuffled = np.random.default_rng(seed + 1).permutation(len(sizes))
    again = choose(keys[shuffled], np.array(sizes)[shuffled], frac)
    assert set(again.val_keys) == set(keys[is_val].tolist()), "the order of the documents does not matter"


def test_what_fits():
    assert fits(100, 1000, 0.1) and fits(50, 1000, 0.1) and fits(200, 1000, 0.1)
    assert not fits(0, 1000, 0.1) and not fits(201, 1000, 0.1)


@given(
    text=st.text(min_size=1, max_size=60).filter(lambda t: t.isprintable()),
    place=st.integers(0, 60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_a_single_document_is_cut_before_the_character_whatever_its_pieces(text: str, place: int, cuts: list[int]):
    place = min(place, len(text))
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[a:b] for a, b in itertools.pairwise(edges)]
    batches = [
        Piece(np.frombuffer(part.encode(), np.uint8), n == 0, n == len(parts) - 1) for n, part in enumerate(parts)
    ]
    found = list(cut_at_character(batches, AtCharacter(place)))
    joined = {
        split: b"".join(p.text.tobytes() for p in found if p.split == split).decode() for split in ("train", "val")
    }
    assert joined == {"train": text[:place], "val": text[place:]}
    for split in ("train", "val"):
        of_split = [p for p in found if p.split == split]
        assert [p.is_first for p in of_split] == [True] + [False] * (len(of_split) - 1) if of_split else True
        assert [p.is_last for p in of_split] == [False] * (len(of_split) - 1) + [True] if of_split else True
