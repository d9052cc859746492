"""What a plan is made from besides the config: the data and the machine, as far as they are known, and what was measured on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nanolens.message import Message, msg
from nanolens.sizing import Device

if TYPE_CHECKING:
    from nanolens.analysis.plan_ranks import RanksAsked


@dataclass(frozen=True)
class DataFacts:
    name: str
    train_tokens: int | None = None
    val_tokens: int | None = None
    vocab_size: int | None = None
    bytes_per_token: float | None = None
    unigram_nats: float | None = None
    is_char: bool | None = None
    folder: str = ""  # where it lies prepared, if it does
    origin: Message = field(default_factory=lambda: msg("not prepared yet, and not among the known corpora"))


@dataclass(frozen=True)
class Calibration:
    """A few seconds of this very model on this very machine.

    `micro_s` holds what was timed: (sequences in the micro-batch, seconds forward and backward). Where the whole model would have taken too
    long, fewer layers were timed and the rest follows from the difference: `layers_timed` says which."""

    micro_s: tuple[tuple[int, float], ...]
    forward_s: tuple[tuple[int, float], ...]  # the same without gradients, as an evaluation does it
    optimizer_s: float  # clipping and the update itself
    memory_bytes: tuple[tuple[int, float], ...]  # (sequences, peak bytes of the process or the device)
    base_bytes: float  # of which: the interpreter and its libraries, before there was a model
    stall_s: float  # the loop standing still for a checkpoint
    write_s: float  # writing one, beside the training
    sample_s: float  # one sample text; 0 where none is written
    start_s: float  # from the command to the first update: libraries, model, checks
    end_s: float  # from the last update to the end: the last checkpoint on disk
    scatter: float  # relative spread of the timed repeats: the range of what follows from them
    layers_timed: tuple[int, ...]
    peak_flops: float | None  # of the fastest matrix product seen here
    achieved_flops: float | None  # by this model's updates
    took_s: float

    def micro_batch_s(self, batch_size: int) -> float:
        return on_line(self.micro_s, batch_size)

    def evaluation_s(self, batch_size: int) -> float:
        return on_line(self.forward_s, batch_size)

    def memory_at(self, batch_size: int) -> float:
        return on_line(self.memory_bytes, batch_size)

    def update_s(self, batch_size: int, accumulation: int) -> float:
        return accumulation * self.micro_batch_s(batch_size) + self.optimizer_s


@dataclass(frozen=True)
class MachineFacts:
    name: str
    kind: str  # "cpu", "gpu", "apple"
    dtype: str
    device: Device | None = None
    count: int = 1
    memory_bytes: float | None = None  # of one device
    free_disk_bytes: float | None = None
    is_this_one: bool = True
    compiled: bool = False
    calibration: Calibration | None = None
    not_calibrated: Message | None = None  # why there is no measurement
    ranks: RanksAsked | None = None  # several such machines, where the plan is asked about them


def on_line(points: tuple[tuple[int, float], ...], x: float) -> float:
    """On the straight line through the two points nearest to x; never below the smallest point's share of x."""
    assert points, "nothing was measured"
    by_size = sorted(points)
    if len(by_size) == 1:
        return by_size[0][1] * x / by_size[0][0]
    at = min(max(1, sum(1 for size, _ in by_size if size < x)), len(by_size) - 1)
    (x0, y0), (x1, y1) = by_size[at - 1], by_size[at]
    slope = (y1 - y0) / (x1 - x0)
    least = min(y0, y1) * min(1.0, x / x0) if x0 else min(y0, y1)
    return max(y0 + slope * (x - x0), least)
