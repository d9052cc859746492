"""What a door is: how one trainer's rows are recognised and found, and what its words mean in ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from nanolens.interop.logs.rows import Rows, find_rows, joined
from nanolens.logs.text import Text
from nanolens.record.run import Words


@dataclass
class Fact:
    """Something that the text says once, and where."""

    value: object
    line: int
    at: int = 0  # offset in the source


@dataclass
class Sign:
    """Something that happened at a place in the text, before it is known which step that was. `kind` is one of record.run.MARKS."""

    kind: str
    at: int
    line: int
    text: str = ""
    step: int | None = None  # where the text itself says it
    took_s: float = float("nan")


@dataclass
class Found:
    """What was found in a text: rows of updates, rows of evaluations, facts by name, signs."""

    steps: Rows = field(default_factory=Rows)
    evals: Rows = field(default_factory=Rows)
    facts: dict[str, list[Fact]] = field(default_factory=dict)
    signs: list[Sign] = field(default_factory=list)
    understood: list[int] = field(default_factory=list)  # lines that hold a fact, a sign or a note
    quoted: int = 0  # evaluations that were read out of a note

    def __bool__(self) -> bool:
        return bool(len(self.steps) or len(self.evals))

    def tell(self, name: str, value: object, line: int, at: int = 0) -> None:
        self.facts.setdefault(name, []).append(Fact(value, line, at))
        self.understood.append(line)

    def sign(self, sign: Sign) -> None:
        self.signs.append(sign)
        self.understood.append(sign.line)

    def add(self, other: Found) -> None:
        """Takes in what was found in a later piece of the same text."""
        self.steps = joined((self.steps, other.steps))
        self.evals = joined((self.evals, other.evals))
        for name, facts in other.facts.items():
            self.facts.setdefault(name, []).extend(facts)
        self.signs += other.signs
        self.understood += other.understood
        self.quoted += other.quoted


@dataclass(frozen=True)
class Door:
    name: str  # what `--log_format` calls it
    words: Words
    signs: tuple[str, ...]  # a text of this trainer holds at least one of these
    steps: tuple[re.Pattern[str], ...] = ()
    evals: tuple[re.Pattern[str], ...] = ()
    find: Callable[[Text], Found] | None = None  # where patterns alone do not do
    place: Callable[[Found], None] | None = None  # gives rows without a step number theirs, once all rows are known
    finish: Callable[[Rows, Rows], Rows] | None = None  # (updates, evaluations) of one run -> updates: what rows say only together
    words_in: Callable[[str, Words], Words] | None = None  # where the text itself says which convention it follows
    is_general: bool = False  # understands many texts a little: asked only when no other door finds a row

    def may_read(self, text: str) -> bool:
        return any(sign in text for sign in self.signs)

    def rows_in(self, source: Text) -> Found:
        if self.find is not None:
            return self.find(source)
        return Found(
            joined(find_rows(pattern, source) for pattern in self.steps), joined(find_rows(pattern, source) for pattern in self.evals)
        )
