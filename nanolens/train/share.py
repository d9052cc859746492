"""Which part of an update's batch one process computes.

An update goes through `gradient_accumulation_steps` x `batch_size` sequences, however many processes (ranks) work on it. They are dealt out
in turn: micro-batch 0 to rank 0, 1 to rank 1, and so on. So the tokens of an update, and their order, do not depend on the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from nanolens.config.fields import Config
from nanolens.errors import fault
from nanolens.message import msg


@dataclass(frozen=True)
class Share:
    count: int  # micro-batches of this rank in one update
    size: int  # sequences in each of them
    first: int  # sequences of the update that lie before this rank's first micro-batch
    stride: int  # sequences from one of its micro-batches to the next


def share_of(config: Config, rank: int = 0, ranks: int = 1) -> Share:
    """Equal shares. Micro-batches keep their size where their number divides by that of the ranks; else they are made smaller."""
    count, size = config.gradient_accumulation_steps, config.batch_size
    if count % ranks == 0:
        return Share(count // ranks, size, rank * size, ranks * size)
    sequences = count * size
    if sequences % ranks:
        raise fault(
            msg(
                "an update of {sequences:count} sequences ({accumulation:count} micro-batches of {size:count}) cannot be divided equally "
                "over {ranks:count} ranks", sequences=sequences, accumulation=count, size=size, ranks=ranks,
            ),
            fix=msg(
                "choose {option:code} (or any multiple of {ranks:count}), or another number of ranks",
                option=f"--gradient_accumulation_steps={-(-count // ranks) * ranks}", ranks=ranks,
            ),
        )  # fmt: skip
    each = sequences // ranks
    smaller = max(divisor for divisor in range(1, min(size, each) + 1) if each % divisor == 0)
    return Share(each // smaller, smaller, rank * smaller, ranks * smaller)
