"""What an analysis answers: a claim with its evidence, how sure it is, and what to change; or why it could not be checked.

certain   the numbers leave no other reading: a NaN is printed, an identity of the arithmetic holds to the printed digits.
likely    the usual reading of these numbers; the evidence exceeds its noise, and the other readings that we know are excluded.
possible  worth a look; another reading is about as good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nanolens.message import Message

Sureness = Literal["certain", "likely", "possible"]


@dataclass(frozen=True)
class Evidence:
    what: Message  # the quantity
    seen: object  # its value here
    usual: object  # what it would be in a run without this symptom
    where: Message  # the lines, steps or keys that it was read from
    how: Message  # the formula or the test, by name
    kind: str = "number"  # kind of `seen` and `usual`, one of message.KINDS
    at_step: int | None = None  # the place on the curve that it speaks of


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
