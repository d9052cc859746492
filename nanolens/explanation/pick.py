"""What an explanation consists of, and which rows are worth a paragraph: each of a short paste, few of a long log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from nanolens.facts.reading import WhatWasRead
from nanolens.message import Message
from nanolens.record.run import RunRecord


@dataclass(frozen=True)
class Remark:
    topic: str  # a term of the glossary
    words: Message


Said: TypeAlias = tuple[str, Message | None]  # a topic, and the words where there are any


def remarks(said: Iterable[Said]) -> tuple[Remark, ...]:
    return tuple(Remark(topic, words) for topic, words in said if words is not None)


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
    about: Section | None  # None where it has been shown already
    lines: tuple[Passage, ...]
    left_out: Message | None  # how many lines are like those explained
    story: tuple[Section, ...]
    lacking: tuple[Message, ...] = ()  # facts that the source does not tell, and how to give them
    reading: WhatWasRead | None = None


SHORT_LOG = 16  # rows: about what fits on two screens when every one is explained
EVALS_SHOWN = 5
FIRST_SHOWN = 2  # updates of a growing log: one in full, one for comparison


PickedRow: TypeAlias = tuple[str, int]  # "update" or "evaluation", and its index in those columns


def picked(run: RunRecord, slow: np.ndarray, broken: np.ndarray) -> list[PickedRow]:
    """Rows in the order of the source. `slow` and `broken` mark updates."""
    if len(run.steps) + len(run.evals) <= SHORT_LOG:
        return _rows(run, range(len(run.steps)), range(len(run.evals)))
    vals, count = run.evals.val, len(run.evals)
    evals = {int(i) for i in np.linspace(0, count - 1, min(count, EVALS_SHOWN)).round()}
    evals |= {int(np.nanargmin(vals))} if np.isfinite(vals).any() else set()
    return _rows(run, _telling_updates(run, slow, broken), evals)


def arrived(run: RunRecord, slow: np.ndarray, broken: np.ndarray, after_line: int) -> list[PickedRow]:
    """Of a source that grows: the first updates, then evaluations, slow lines and the first loss that is not finite."""
    telling = slow.copy()
    telling[:FIRST_SHOWN] = True
    telling[np.flatnonzero(broken)[:1]] = True
    updates = np.flatnonzero(telling & (run.steps.line > after_line))
    return _rows(run, updates.tolist(), np.flatnonzero(run.evals.line > after_line).tolist())


def _rows(run: RunRecord, updates: Iterable[int], evals: Iterable[int]) -> list[PickedRow]:
    """By line; rows that share one by step: an evaluation at k stands before the update from k."""
    places = [(int(run.evals.line[i]), int(run.evals.step[i]), "evaluation", i) for i in evals]
    places += [(int(run.steps.line[i]), int(run.steps.step[i]) - 1, "update", i) for i in updates]
    return [(kind, i) for _, _, kind, i in sorted(places)]


def _telling_updates(run: RunRecord, slow: np.ndarray, broken: np.ndarray) -> set[int]:
    ordinary, slow_places = np.flatnonzero(~slow), np.flatnonzero(slow)
    chosen = [0, len(slow) - 1] if len(slow) else []
    if len(ordinary):
        chosen += [ordinary[0], ordinary[len(ordinary) // 2], ordinary[-1]]
    if len(slow_places):
        longest = slow_places[int(np.nanargmax(run.steps.took_s[slow_places]))]
        chosen += [slow_places[0], longest, slow_places[-1]]
    for first in np.flatnonzero(broken)[:1]:
        chosen += [first, max(0, first - 1)]
    return {int(i) for i in chosen}
