"""`events.jsonl` -> columns: quickly, and only what is new since the last time.

A million steps are 200 MB of JSON. They are decoded in pieces, straight into the few fields that columns hold, and kept in memory and
(long ones) in a file of the user's cache folder, together with the place up to which they were read. A run that is still going is read
from there on.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import operator
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from nanolens.record import events as e

PIECE_BYTES = 512 << 10  # small enough to stay in the processor's cache while it is taken apart
FINGERPRINT_BYTES = 4096


class StepFields(msgspec.Struct, tag_field="event", tag="step_taken", gc=False):
    """The fields of `events.StepTaken` that become columns. Lists are left out: decoding them would cost more than all the rest."""

    step: int
    loss: float | str
    rate: float | str
    grad_norm: float | str
    tokens: int
    took_s: float | str
    clipped: bool = False
    data_s: float = 0.0
    loss_scale: float | None = None
    memory_bytes: int | None = None
    at_s: float = 0.0
    rank: int = 0

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "step", "loss", "rate", "grad_norm", "tokens", "took_s", "clipped", "data_s", "loss_scale", "memory_bytes", "at_s", "rank",
    )  # fmt: skip


_KINDS: Any = functools.reduce(operator.or_, (kind for kind in typing.get_args(e.EVENTS) if kind is not e.StepTaken), StepFields)
_DECODER = msgspec.json.Decoder(_KINDS)


@dataclass(frozen=True)
class Other:
    """An event that is no step: which line of the record it is, and how many steps stand before it."""

    line: int
    steps_before: int
    event: Any


@dataclass
class Record:
    """What was read so far."""

    columns: dict[str, np.ndarray] = field(default_factory=lambda: {name: np.zeros(0) for name in (*StepFields.COLUMNS, "line")})
    others: list[Other] = field(default_factory=list)
    offset: int = 0  # bytes read, whole lines
    lines: int = 0
    not_understood: int = 0
    fingerprint: str = ""  # of the last bytes before the offset: a file that was replaced is read anew

    def fits(self, path: Path) -> bool:
        """Is this what the file still begins with?"""
        try:
            return path.stat().st_size >= self.offset and fingerprint_at(path, self.offset) == self.fingerprint
        except OSError:
            return False


def read_on(path: Path, record: Record) -> Record:
    """The record with all whole lines that the file has by now."""
    pieces: list[dict[str, np.ndarray]] = []
    others = list(record.others)
    offset, lines, bad = record.offset, record.lines, record.not_understood
    steps = len(record.columns["step"])
    with open(path, "rb") as file:
        file.seek(offset)
        for piece in _whole_lines(file):
            events, places, its_lines, wrong = _decoded(piece)
            apart = [index for index, event in enumerate(events) if type(event) is not StepFields]
            others += [Other(lines + int(places[index]) + 1, steps + index - n, events[index]) for n, index in enumerate(apart)]
            if len(apart) < len(events):
                taken = _without(events, apart)
                pieces.append(_columns(taken, np.delete(places, apart) + (lines + 1), piece))
                steps += len(taken)
            lines, bad, offset = lines + its_lines, bad + wrong, offset + len(piece)
    if offset == record.offset:
        return record
    columns = {name: np.concatenate([before, *(piece[name] for piece in pieces)]) for name, before in record.columns.items()}
    return Record(columns, others, offset, lines, bad, fingerprint_at(path, offset))


def fingerprint_at(path: Path, offset: int) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, offset - FINGERPRINT_BYTES))
        return hashlib.sha256(file.read(min(offset, FINGERPRINT_BYTES))).hexdigest()


def _whole_lines(file: Any) -> Iterator[bytes]:
    """Pieces of the file that end with a line; a torn last line is left."""
    rest = b""
    while block := file.read(PIECE_BYTES):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield whole + newline


def _decoded(piece: bytes) -> tuple[list[Any], np.ndarray, int, int]:
    """(events, the line of each within the piece, lines, lines that are no events). One bad line makes the piece be read line by line."""
    try:
        events = _DECODER.decode_lines(piece)
        return events, np.arange(len(events)), len(events), 0
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    events, places, wrong = [], [], 0
    lines = piece.split(b"\n")[:-1]
    for number, line in enumerate(lines):
        try:
            events.append(_DECODER.decode(line))
            places.append(number)
        except (msgspec.MsgspecError, UnicodeDecodeError):  # torn by a kill, or a word of a newer nanolens
            wrong += bool(line.strip())
    return events, np.array(places, np.int64), len(lines), wrong


def _without(events: list[Any], apart: list[int]) -> list[StepFields]:
    """All but a few, by slices: most events are steps."""
    bounds = [-1, *apart, len(events)]
    return [event for low, high in itertools.pairwise(bounds) for event in events[low + 1 : high]] if apart else events


def _columns(taken: list[StepFields], line: np.ndarray, piece: bytes) -> dict[str, np.ndarray]:
    """Fields that occur nowhere in the piece have their default in every step, and are not asked for one by one."""
    count = len(taken)
    columns = {"line": line.astype(np.float64)}
    for name in StepFields.COLUMNS:
        if name in _OPTIONAL and _OPTIONAL[name] not in piece:
            columns[name] = np.full(count, np.nan if name in _MAY_LACK else 0.0)
        elif name in _MAY_LACK:
            columns[name] = np.array(list(map(operator.attrgetter(name), taken)), dtype=np.float64)  # None becomes NaN
        else:
            columns[name] = np.fromiter(map(operator.attrgetter(name), taken), np.float64, count)  # "nan" becomes NaN
    return columns


_MAY_LACK = ("loss_scale", "memory_bytes")
_OPTIONAL = {name: f'"{name}":'.encode() for name in ("clipped", "data_s", "at_s", "rank", *_MAY_LACK)}
