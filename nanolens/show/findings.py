"""The pieces of a finding in words: for the diagnosis, the plan, the page and the summary alike."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from nanolens.facts.finding import Change, Evidence
from nanolens.message import Message, msg
from nanolens.show.answer import Scalar
from nanolens.show.document import Part, Text, TextBlock
from nanolens.show.words import show

SURENESS_WORDS = {"certain": msg("certain"), "likely": msg("likely"), "possible": msg("possible")}


def change_parts(change: Change) -> Iterator[Part]:
    yield TextBlock(msg("What to do: {what}", change.words), indent=3)
    if change.key:
        yield TextBlock(setting_line(change), "command", indent=5)
    if change.command:
        yield TextBlock(change.command, "command", indent=5)


def values_of(item: Evidence) -> Message:
    seen, usual = _shown(item.seen, item.kind), _shown(item.usual, item.kind)
    return msg("{what}: {seen}, expected {usual}", item.what, seen, usual)


def evidence_words(item: Evidence) -> Message:
    return msg("{values} ({where}; {how})", values_of(item), item.where, item.how)


def setting_line(change: Change) -> str:
    """As it is typed into a config; the old value stands behind it, as a comment."""
    new = f"{change.key} = {_typed(change.new)}"
    return new if change.old is None else f"{new}   # {_typed(change.old)}"


def _shown(value: object, kind: str) -> Text:
    """A pair is a range."""
    if isinstance(value, Message):
        return value
    if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], (str, Message)):
        return msg("{low} to {high}", show(value[0], kind), show(value[1], kind))
    return show(value, kind)


def _typed(value: object) -> str:
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(f"{value:.4g}"))
    return str(value)


class ReadingData(msgspec.Struct):
    """What was read, as JSON."""

    sentence: str
    runs: int
    updates: int
    evaluations: int
    rows: int
    first: dict[str, Scalar] | None
    last: dict[str, Scalar] | None
    last_eval: dict[str, Scalar] | None
    unit: str
    first_loss_nats: float | None
    last_loss_nats: float | None
    step_time_s: float | None
    tokens_per_s: float | None
    tokens_per_update: int | None
    lines: int
    not_understood: int
    examples: list[str]
    duplicates: int
    glued: int
    cut: int
    notes: list[str]
