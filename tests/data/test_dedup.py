"""Documents that were there before."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nanolens.data.prepare.documents import NearDuplicates, SeenHashes, pack, run_hashes


@given(batches=st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=12))
def test_the_set_of_hashes_says_what_a_python_set_says(batches: list[list[int]]):
    seen, known = SeenHashes(), set()
    for batch in batches:
        expected = []
        for value in batch:
            expected.append(value in known)
            known.add(value)
        assert seen.add(np.array(batch, dtype=np.uint64)).tolist() == expected
    assert len(seen._sorted) <= 6


def words(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [f"w{draw.randrange(100_000)}" for _ in range(count)]


def near(texts: list[str]) -> list[bool]:
    batch = pack([text.encode() for text in texts])
    finder = NearDuplicates()
    return finder.add(finder.signatures(batch.text, batch.bounds)).tolist()


def test_a_document_with_a_few_words_changed_is_found_and_others_are_not():
    original = words(1000, 1)
    changed = original.copy()
    changed[500] = "changed"
    half = original[:500] + words(500, 2)
    texts = [" ".join(original), " ".join(words(1000, 3)), " ".join(changed), " ".join(half), "\n ".join(original)]
    assert near(texts) == [False, False, True, False, True]


def test_hardly_any_false_alarms_among_unrelated_documents():
    assert sum(near([" ".join(words(100, seed)) for seed in range(300)])) == 0


def test_short_and_empty_documents_have_a_signature_too():
    assert near(["one", "one", "two words", "", "\n"]) == [False, True, False, False, True]


@given(text=st.lists(st.sampled_from(["a", "bb", "ccc", "é", "नम"]), min_size=1, max_size=30))
def test_a_run_has_one_hash_wherever_it_stands(text: list[str]):
    alone = run_hashes(np.frombuffer(" ".join(text).encode(), np.uint8))
    later = run_hashes(np.frombuffer(("before it\n\n  " + "  ".join(text)).encode(), np.uint8))
    if len(text) >= 5:
        assert len(alone) == len(text) - 4
        assert np.array_equal(later[-len(alone) :], alone)


def test_different_words_have_different_hashes():
    texts = [f"{a}{b}" for a in "abcdefghij" for b in ("", "x", "xy", "yx", "  z", "\0")]
    assert len({run_hashes(np.frombuffer(text.encode(), np.uint8)).tobytes() for text in texts}) == len(texts)
