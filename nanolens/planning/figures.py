"""The numbers of a plan (figures.toml says what each is), and what a plan is made from besides the config: the data and
the machine, as far as they are known, and what was measured on it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from nanolens.config.fields import Config
from nanolens.facts.finding import Figure
from nanolens.message import Message, msg, placeholders
from nanolens.record.run import Origin
from nanolens.sizing.devices import Device
from nanolens.sizing.shape import Shape

if TYPE_CHECKING:
    from nanolens.planning.time import TimePlan

TABLES = tomllib.loads(Path(__file__).with_name("figures.toml").read_text(encoding="utf-8"))


class RowAbout(msgspec.Struct, frozen=True):
    """An entry of figures.toml."""

    kind: str
    what: str = ""
    how: str = ""
    origin: Origin = "calculated"
    topic: str = ""


ROWS = msgspec.convert(TABLES["rows"], dict[str, RowAbout])
TOPICS = {key: about.topic for key, about in ROWS.items() if about.topic}


@dataclass(frozen=True, kw_only=True)
class PlanFigure(Figure):
    key: str  # its name in the JSON
    what: Message


@dataclass(frozen=True)
class PlanSection:
    key: str
    title: Message
    rows: tuple[PlanFigure, ...]


def row(
    key: str,
    value: float,
    how: Message | Sequence[object] = (),
    origin: Origin | None = None,
    low: float | None = None,
    high: float | None = None,
    *,
    what: Message | None = None,
    kind: str = "",
) -> PlanFigure:
    """The number of that name; what is not given is as in figures.toml. `how` may be the values of its sentence."""
    about = ROWS[key]
    if not isinstance(how, Message):
        how = Message(about.how, dict(zip(placeholders(about.how), how, strict=True)))
    what, kind, origin = what or Message(about.what), kind or about.kind, origin or about.origin
    return PlanFigure(value, how, origin, kind, low, high, key=key, what=what)


def unknown(key: str, because: Message) -> PlanFigure:
    return row(key, math.nan, because, "unknown")


@dataclass(frozen=True)
class PlanCheck:
    """A number of a run against its plan."""

    key: str
    planned: float
    low: float
    high: float
    actual: float

    @property
    def verdict(self) -> Literal["as_planned", "above", "below"]:
        return "above" if self.actual > self.high else "below" if self.actual < self.low else "as_planned"

    @property
    def topic(self) -> str:
        return TOPICS[self.key]

    @property
    def words(self) -> Message:
        about = ROWS[self.key]
        values = {"what": Message(about.what), "planned": self.planned, "actual": self.actual}
        return Message(TABLES["checks"][about.kind][self.verdict], values)


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
    """A few seconds of this very model on this very machine. Where the whole model would have taken too long, fewer
    layers were timed, and the rest follows from the difference."""

    micro_s: tuple[tuple[int, float], ...]  # (sequences in the micro-batch, seconds forward and backward)
    forward_s: tuple[tuple[int, float], ...]  # the same without gradients, as an evaluation does it
    optimizer_s: float  # clipping and the update itself
    memory_bytes: tuple[tuple[int, float], ...]  # (sequences, peak bytes of the process or the device)
    stall_s: float  # the loop standing still for a checkpoint
    sample_s: float  # one sample text; 0 where none is written
    start_s: float  # from the command to the first update: libraries, model, checks
    end_s: float  # from the last update to the end: the last checkpoint on disk
    scatter: float  # relative spread of the timed repeats: the range of what follows from them
    layers_timed: tuple[int, ...]
    peak_flops: float | None  # of the fastest matrix product seen here
    achieved_flops: float | None  # by this model's updates
    took_s: float

    def update_s(self, batch_size: int, accumulation: int) -> float:
        return accumulation * on_line(self.micro_s, batch_size) + self.optimizer_s

    @property
    def margin(self) -> float:
        """Of a time that follows from these, as a share."""
        return max(0.05, 2 * self.scatter)


@dataclass(frozen=True)
class Cluster:
    count: int
    bytes_per_s: float  # one way, of each machine's link
    latency_s: float
    speeds: tuple[float, ...]  # of each machine, this one being 1
    origin: Message  # where the bandwidth comes from


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
    ranks: Cluster | None = None  # several such machines, where the plan is asked about them


@dataclass(frozen=True)
class PlanInputs:
    """What a plan is made from."""

    config: Config
    shape: Shape
    data: DataFacts
    machine: MachineFacts
    times: TimePlan | Message  # of one machine, or why they are not known

    @property
    def tokens(self) -> int:
        """Seen in the whole run."""
        return self.config.tokens_per_update * self.config.max_iters


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
