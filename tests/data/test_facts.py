"""Numbers about a corpus, against texts whose numbers are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanolens.data.prepare import facts
from nanolens.data.prepare.facts import count_tokens, entropy_nats, length_facts, pair_facts


def markov(size: int, vocab: int, seed: int) -> tuple[np.ndarray, float, float]:
    """Tokens of a first-order chain, with the entropy of a token and of a token after another."""
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.full(vocab, 0.3), size=vocab)
    tokens = np.empty(size, dtype=np.uint16)
    state, edges = 0, np.cumsum(table, axis=1)
    draws = rng.random(size)
    for place in range(size):
        tokens[place] = state
        state = min(int(np.searchsorted(edges[state], draws[place])), vocab - 1)
    values, vectors = np.linalg.eig(table.T)
    stationary = np.real(vectors[:, np.argmax(np.real(values))])
    stationary /= stationary.sum()
    after = -(stationary[:, None] * table * np.log(np.maximum(table, 1e-300))).sum()
    return tokens, float(-(stationary * np.log(stationary)).sum()), float(after)


def test_a_uniform_text_has_the_entropy_of_its_vocabulary():
    assert entropy_nats(np.full(65, 1000)) == pytest.approx(np.log(65))
    assert entropy_nats(np.array([5, 0, 0])) == 0
    assert entropy_nats(np.zeros(3)) == 0


def test_a_chain_of_known_entropy_is_measured_right():
    tokens, alone, after = markov(400_000, 20, seed=1)
    counts = count_tokens(tokens, 20)
    found = pair_facts(tokens, counts)
    assert entropy_nats(counts) == pytest.approx(alone, abs=0.02)
    assert found["bigram_how"] == "counted"
    assert found["bigram_nats"] == pytest.approx(after, abs=0.01)


def test_where_pairs_are_rare_counting_would_flatter_and_is_not_used():
    """Independent tokens: the one before says nothing, so both losses are the same; counted pairs claim otherwise."""
    rng = np.random.default_rng(2)
    weights = 1 / np.arange(1, 2001)
    tokens = rng.choice(2000, size=300_000, p=weights / weights.sum()).astype(np.uint16)
    counts = count_tokens(tokens, 2000)
    found = pair_facts(tokens, counts)
    assert found["bigram_how"] == "held out"
    assert found["bigram_nats"] == pytest.approx(entropy_nats(counts), rel=0.03)
    pairs, seen = facts._counted([tokens], 2000)
    counted = entropy_nats(seen) - entropy_nats(np.bincount(pairs // 2000, weights=seen))
    assert counted < 0.9 * entropy_nats(counts)


def test_the_held_out_loss_nears_the_truth_and_stays_above_it():
    tokens, alone, after = markov(300_000, 500, seed=3)
    counts = count_tokens(tokens, 500)
    found = pair_facts(tokens, counts)
    assert found["bigram_how"] == "held out"
    found = found["bigram_nats"]
    assert after < found < after + 0.35 * (alone - after)


@given(size=st.integers(0, 3), vocab=st.sampled_from([2, 3000, 70_000]))
def test_hardly_any_tokens_still_give_an_answer(size: int, vocab: int):
    tokens = np.arange(size, dtype=np.uint32) % 2
    found = pair_facts(tokens, count_tokens(tokens, vocab))
    assert (found["bigram_nats"] is None) == (size < 2)


def test_tables_and_sorting_count_the_same_pairs():
    tokens = np.random.default_rng(4).integers(0, 50, 20_000).astype(np.uint16)
    windows = facts.sample_windows(tokens)
    table = facts._counted(windows, 50)
    pairs, seen = np.unique(facts._keys(windows, 70_000), return_counts=True)
    assert np.array_equal(seen, table[1])
    assert np.array_equal(pairs // 70_000 * 50 + pairs % 70_000, table[0])
    assert table[1].sum() == len(tokens) - 1, "no pair is lost between two windows"


def test_much_text_is_sampled_from_everywhere(monkeypatch):
    tokens = np.arange(10_000_000, dtype=np.uint32)
    windows = facts.sample_windows(tokens)
    assert sum(map(len, windows)) < 1.01 * facts.SAMPLE_TOKENS
    starts = np.array([window[0] for window in windows])
    assert starts[0] == 0 and starts[-1] + facts.WINDOW == 10_000_000 and np.ptp(np.diff(starts)) <= 1


def test_lengths_of_documents():
    assert length_facts(np.array([10, 15, 115])) == {
        "document_tokens_mean": pytest.approx(115 / 3),
        "document_tokens_p10": 6,
        "document_tokens_median": 10,
        "document_tokens_p90": 82,
        "document_tokens_longest": 100,
    }
    assert length_facts(np.empty(0, dtype=np.int64)) == {}
