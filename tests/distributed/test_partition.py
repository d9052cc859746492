"""Which sequences a rank computes: together always the update's, whatever the number of ranks."""

from __future__ import annotations

import pytest

from nanolens.errors import UserError
from nanolens.training.distributed.ranks import partition_of
from tests.training.small import but


@pytest.mark.parametrize(
    ("accumulation", "size", "ranks"), [(8, 3, 1), (8, 3, 2), (8, 3, 4), (1, 12, 2), (1, 12, 4), (3, 4, 2), (5, 6, 3)]
)
def test_the_ranks_together_have_each_sequence_of_an_update_once(accumulation: int, size: int, ranks: int):
    config = but(gradient_accumulation_steps=accumulation, batch_size=size)
    seen = []
    for rank in range(ranks):
        part = partition_of(config, rank, ranks)
        assert part.size <= size
        for number in range(part.count):
            first = part.first + number * part.stride
            seen += range(first, first + part.size)
    assert sorted(seen) == list(range(accumulation * size))


def test_micro_batches_keep_their_size_where_they_divide():
    part = partition_of(but(gradient_accumulation_steps=40, batch_size=12), 3, 8)
    assert (part.count, part.size) == (5, 12)


def test_what_does_not_divide_is_said_with_what_would():
    with pytest.raises(UserError, match="an update of 15 sequences") as refusal:
        partition_of(but(gradient_accumulation_steps=3, batch_size=5), 0, 2)
    assert refusal.value.faults[0].fix.args["option"] == "--gradient_accumulation_steps=4"
