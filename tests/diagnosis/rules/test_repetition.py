import pytest

from nanolens.facts.laws import value_of_tokens
from tests.diagnosis.rules.build import GPU_DEMO, found, make, sure


@pytest.mark.parametrize(
    ("epochs", "share"), [(1, 1.0), (2, 0.98), (4, 0.93), (8, 0.83), (16, 0.66), (32, 0.45), (64, 0.25)]
)
def test_the_worth_of_repeated_tokens_is_the_published_one(epochs, share):
    assert value_of_tokens(epochs) == pytest.approx(share, abs=0.006)


def test_82_passes_over_shakespeare():
    finding = found(make(evals=[(5000, 0.62, 1.70)], **GPU_DEMO), "data_repeated")["data_repeated"]
    assert finding.evidence[0].seen == pytest.approx(81.6, abs=0.1)


def test_one_and_a_half_passes_are_fine():
    run = make(
        evals=[(2000, 1.88, 1.89)],
        dataset="shakespeare_char",
        batch_size=12,
        block_size=64,
        gradient_accumulation_steps=1,
    )
    assert not found(run, "data_repeated")


def test_batches_known_by_heart_beside_a_split_that_is_not():
    evals = [(50 * i, 3.5, 3.6) for i in range(1, 7)]
    falling = [4.0 - 3.5 * step / 300 for step in range(1, 301)]
    assert "same few batches" in str(found(make(falling, evals=evals), "data_repeated")["data_repeated"].claim)
    assert not found(make([3.6] * 300, evals=evals), "data_repeated")


def test_steps_that_are_only_planned_have_read_nothing():
    assert not sure(
        make(evals=[(0, 4.2, 4.2)], dataset_tokens=1000, tokens_per_update=1000, max_iters=5000), "data_repeated"
    )
