"""A figure and where it comes from; and what an analysis answers: a claim with its evidence, how sure it is, and what
to change, or why it could not be checked. docs/style.md says when a finding may be certain, likely or possible."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from nanolens.message import Message
from nanolens.record.run import Origin

T = TypeVar("T")


def known(value: T | None) -> T:
    """A fact that somebody has made sure of, such as the `needs` of a rule."""
    assert value is not None
    return value


@dataclass(frozen=True)
class Figure:
    value: float
    how: Message  # the formula, the measurement, the table, or the place it was read from
    origin: Origin
    kind: str = "number"  # of `value`, `low` and `high`: one of message.KINDS
    low: float | None = None  # the range, where there is one
    high: float | None = None

    @property
    def is_known(self) -> bool:
        """Where it is not, the value is NaN and `how` says why."""
        return not math.isnan(self.value)

    @property
    def least(self) -> float:
        return self.value if self.low is None else self.low

    @property
    def most(self) -> float:
        return self.value if self.high is None else self.high

    def times(self, count: float) -> Figure:
        low, high = (None if end is None else end * count for end in (self.low, self.high))
        return replace(self, value=self.value * count, low=low, high=high)


def inferred(value: float, how: Message) -> Figure:
    return Figure(value, how, "inferred")


Sureness = Literal["certain", "likely", "possible"]
SURENESS: tuple[Sureness, ...] = ("possible", "likely", "certain")  # each surer than the one before


@dataclass(frozen=True)
class Evidence:
    what: Message  # the quantity
    seen: object  # its value here
    usual: object  # what it would be in a run without this fault
    where: Message  # the lines, steps or keys that it was read from
    how: Message  # the formula or the test, by name
    kind: str = "number"  # kind of `seen` and `usual`, one of message.KINDS
    at_step: int | None = None  # the place on the curve that it speaks of


def see(
    what: Message,
    seen: object,
    usual: object,
    where: Message,
    how: Message,
    kind: str = "number",
    at_step: float | None = None,
) -> Evidence:
    """Evidence, from numpy's numbers as well as Python's own."""
    return Evidence(what, _plain(seen), _plain(usual), where, how, kind, None if at_step is None else int(at_step))


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True)
class Change:
    """What to do: an exact setting, an exact command, or (only where neither exists) words."""

    words: Message
    key: str = ""
    old: object = None
    new: object = None
    command: str = ""


@dataclass(frozen=True)
class Finding:
    code: str
    sureness: Sureness
    claim: Message
    evidence: tuple[Evidence, ...]
    change: Change | None
    wrong_if: Message  # what would show that this finding is wrong

    def __post_init__(self) -> None:
        assert self.evidence, f"{self.code}: a finding without a number is no finding"


@dataclass(frozen=True)
class NotChecked:
    code: str
    because: Message
