"""Which door a text belongs to: the one that finds most rows in it. Never asked of the user, unless two trainers speak in one text."""

from __future__ import annotations

from nanoscope.errors import UserError, fault
from nanoscope.interop.logs import (
    autoresearch,
    build_nanogpt,
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
from nanoscope.interop.logs.door import Door, Found
from nanoscope.interop.logs.text import Text
from nanoscope.message import msg

DOORS: tuple[Door, ...] = (
    own_lines.DOOR, nanogpt.DOOR, nanochat.DOOR, autoresearch.DOOR, llmc.DOOR, llama2c.DOOR, modded.DOOR, build_nanogpt.DOOR, litgpt.DOOR,
    torchtitan.DOOR, huggingface.DOOR, progress_bar.DOOR, json_lines.DOOR, keyvalue.DOOR,
)  # fmt: skip
"""In the order in which they are believed when they find the same: `own_lines` says of nanoGPT's lines that they are ours. The general
ones come last."""

SAMPLE = 200_000  # characters from either end that are looked at first


def recognise(text: str) -> Door | None:
    """The door that reads this text best; None where none finds a row. UserError where two trainers speak."""
    for part in (_sample(text), text) if len(text) > 2 * SAMPLE else (text,):
        for group in (_specific(), _general()):
            found = [(door, door.rows_in(Text(part))) for door in group if door.may_read(part)]
            found = [(door, rows) for door, rows in found if rows]
            if found:
                return _best(found)
    return None


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
    """Both ends of a long text, whole lines: a log may begin with its program's source, and end with samples."""
    head, tail = text[:SAMPLE], text[-SAMPLE:]
    ends = [end for end in (tail.find("\n"), tail.find("\r")) if end >= 0]
    return head[: max(head.rfind("\n"), head.rfind("\r"))] + "\n" + tail[min(ends, default=-1) + 1 :]


def _best(found: list[tuple[Door, Found]]) -> Door:
    ranked = sorted(found, key=lambda each: -(2 * len(each[1].steps) + len(each[1].evals)))  # stable: the order of DOORS decides a tie
    best, rows = ranked[0]
    lines = _lines(rows)
    for other, its_rows in ranked[1:]:
        apart = len(_lines(its_rows) - lines)
        if apart >= max(3, len(lines) // 5) and not best.is_general:
            raise _two_speak(best, other, len(lines), apart)
    return best


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
