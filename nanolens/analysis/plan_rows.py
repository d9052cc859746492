"""A number of a plan: what it is, its value and range, and whether it was measured, calculated or estimated, and from what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from nanolens.message import Message

Source = Literal["given", "measured", "calculated", "estimated", "unknown"]


@dataclass(frozen=True)
class Row:
    key: str  # its name in the JSON
    what: Message
    value: object  # None where it cannot be said; `origin` then says why
    kind: str  # of `value`, `low` and `high`: one of message.KINDS
    source: Source
    origin: Message  # the formula, the measurement, the table
    low: float | None = None
    high: float | None = None

    @property
    def is_known(self) -> bool:
        return self.value is not None


@dataclass(frozen=True)
class Section:
    key: str
    title: Message
    rows: tuple[Row, ...]


def calculated(key: str, what: Message, value: object, kind: str, origin: Message) -> Row:
    return Row(key, what, value, kind, "calculated", origin)


def estimated(key: str, what: Message, value: float | None, kind: str, origin: Message, low: float | None, high: float | None) -> Row:
    return Row(key, what, value, kind, "estimated", origin, low, high)


def measured(
    key: str, what: Message, value: object, kind: str, origin: Message, low: float | None = None, high: float | None = None
) -> Row:
    return Row(key, what, value, kind, "measured", origin, low, high)


def unknown(key: str, what: Message, kind: str, because: Message) -> Row:
    return Row(key, what, None, kind, "unknown", because)


def two_digits(value: float) -> float:
    """As much of an estimate as is meant: 131,861.8 tokens are about 130,000."""
    return round(value, 1 - math.floor(math.log10(abs(value)))) if value else 0.0
