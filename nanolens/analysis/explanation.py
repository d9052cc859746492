"""What an explanation consists of: remarks, each on one topic of the glossary, below the line or the heading that they speak of."""

from __future__ import annotations

from dataclasses import dataclass

from nanolens.message import Message


@dataclass(frozen=True)
class Remark:
    topic: str  # a term of the glossary
    words: Message


@dataclass(frozen=True)
class Passage:
    """One line of a log, or one row of a run folder, and what is to be said of it."""

    kind: str  # "update" or "evaluation"
    step: int
    line: int
    title: Message  # what stands there if the source has no line to quote
    quote: str
    remarks: tuple[Remark, ...]


@dataclass(frozen=True)
class Section:
    name: str  # for machines: "course", "time", "cost", "verdict", …
    title: Message
    remarks: tuple[Remark, ...]


@dataclass(frozen=True)
class Explanation:
    name: str
    about: Section | None  # None where it has been told already
    lines: tuple[Passage, ...]
    left_out: Message | None  # how many lines are like those explained
    story: tuple[Section, ...]
    lacking: tuple[Message, ...] = ()  # facts that the source does not tell, and how to give them
