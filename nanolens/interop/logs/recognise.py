"""Which door a text belongs to: the one that finds most rows in it. Never asked of the user, unless two trainers speak in one text."""

from __future__ import annotations

from collections.abc import Sequence

from nanolens.errors import UserError, fault
from nanolens.interop.logs import (
    autoresearch,
    build_nanogpt,
    epochs,
    fairseq,
    huggingface,
    json_lines,
    keyvalue,
    litgpt,
    llama2c,
    llmc,
    modded,
    nanochat,
    nanogpt,
    own_lines,
    progress_bar,
    torchtitan,
)
from nanolens.interop.logs.door import Door, Found
from nanolens.logs.text import Text
from nanolens.message import msg

DOORS: tuple[Door, ...] = (
    own_lines.DOOR, nanogpt.DOOR, nanochat.DOOR, autoresearch.DOOR, llmc.DOOR, llama2c.DOOR, modded.DOOR, build_nanogpt.DOOR, litgpt.DOOR,
    torchtitan.DOOR, fairseq.DOOR, huggingface.DOOR, progress_bar.DOOR, json_lines.DOOR, keyvalue.DOOR, epochs.DOOR,
)  # fmt: skip
"""In the order in which they are believed when they find the same: `own_lines` says of nanoGPT's lines that they are ours. The general
ones come last."""

SAMPLE = 200_000  # characters from the head, the middle and the end that are looked at first


def recognise(text: str) -> Door | None:
    """The door that reads this text best; None where none finds a row. UserError where two trainers speak.

    Where a long text's sample has no row, the whole of it is searched for rows of the trainers that are known. Names and numbers of
    others are so frequent in any text that those who found none among them in the sample are not asked again.
    """
    sample = _sample(text)
    return _best_of(_specific(), sample) or _best_of(_general(), sample) or (_best_of(_specific(), text) if sample is not text else None)


def _best_of(doors: Sequence[Door], text: str) -> Door | None:
    found = [(door, door.rows_in(Text(text))) for door in doors if door.may_read(text)]
    found = [(door, rows) for door, rows in found if rows]
    return _best(found) if found else None


def door_named(name: str) -> Door:
    for door in DOORS:
        if door.name == name:
            return door
    raise fault(
        msg("there is no log format {name:code}", name=name), where=msg("{option:code}", option=f"--log_format={name}"),
        fix=msg("use one of {names:code}", names=[door.name for door in DOORS]),
    )  # fmt: skip


def _specific() -> tuple[Door, ...]:
    return tuple(door for door in DOORS if not door.is_general)


def _general() -> tuple[Door, ...]:
    return tuple(door for door in DOORS if door.is_general)


def _sample(text: str) -> str:
    """Three stretches of a long text, in whole lines: a log may begin with its program's source, and end with samples."""
    if len(text) <= 3 * SAMPLE:
        return text
    middle = (len(text) - SAMPLE) // 2
    return "\n".join(_whole_lines(text[at : at + SAMPLE]) for at in (0, middle, len(text) - SAMPLE))


def _whole_lines(part: str) -> str:
    """Without what was cut at either end."""
    starts = [at for at in (part.find("\n"), part.find("\r")) if at >= 0]
    return part[min(starts, default=-1) + 1 : max(part.rfind("\n"), part.rfind("\r")) + 1 or len(part)]


def _best(found: list[tuple[Door, Found]]) -> Door:
    """The one with most rows; among those who understand anything a little, the first in the list that has at least half as many."""
    most = max(_rows_of(rows) for _, rows in found)
    if found[0][0].is_general:
        return next(door for door, rows in found if 2 * _rows_of(rows) >= most)
    best, rows = next((door, rows) for door, rows in found if _rows_of(rows) == most)
    lines = _lines(rows)
    for other, its_rows in found:
        apart = len(_lines(its_rows) - lines)
        if other is not best and apart >= max(3, len(lines) // 5):
            raise _two_speak(best, other, len(lines), apart)
    return best


def _rows_of(found: Found) -> int:
    """Rows of updates count double: several trainers print their evaluations alike."""
    return 2 * len(found.steps) + len(found.evals)


def _lines(found: Found) -> set[int]:
    return {*found.steps.line.tolist(), *found.evals.line.tolist()}


def _two_speak(one: Door, other: Door, rows: int, other_rows: int) -> UserError:
    return fault(
        msg(
            "this log has rows of two trainers: {rows:count} in the form of {one:code}, {other_rows:count} in the form of {other:code}",
            rows=rows, one=one.name, other_rows=other_rows, other=other.name,
        ),
        fix=msg("say which to read with {one:code} or {other:code}", one=f"--log_format={one.name}", other=f"--log_format={other.name}"),
    )  # fmt: skip
