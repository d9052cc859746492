"""`events.jsonl` -> columns: quickly, and only what is new since the last time.

A million steps are 200 MB of JSON. They are decoded in pieces, straight into the few fields that columns hold, and kept
in memory and (long ones) in a file of the user's cache folder, together with the place up to which they were read. A
run that is still going is read from there on. That file is never in the run folder, and never needed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
import os
import threading
import typing
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, cast

import msgspec
import numpy as np

from nanolens import files
from nanolens.record import events as e

PIECE_BYTES = 512 << 10  # small enough to stay in the processor's cache while it is taken apart
FINGERPRINT_BYTES = 4096


class StepFields(msgspec.Struct, tag_field="event", tag="step_taken", gc=False):
    """What becomes columns of `events.StepTaken`; without its lists, which would cost more than all the rest."""

    step: int
    loss: float | str
    lr: float | str = msgspec.field(name="rate")
    grad_norm: float | str
    tokens: int
    took_s: float | str
    clipped: bool = False
    data_s: float = 0.0
    loss_scale: float | None = None
    memory_bytes: int | None = None
    at_s: float = 0.0
    rank: int = 0


_COLUMNS = StepFields.__struct_fields__
_KINDS = functools.reduce(operator.or_, {*typing.get_args(e.EVENTS)} - {e.StepTaken}, StepFields)
_DECODER: msgspec.json.Decoder[StepFields | e.EVENTS] = msgspec.json.Decoder(_KINDS)


class Other(msgspec.Struct, frozen=True):
    line: int
    event: e.EVENTS


class Record(msgspec.Struct):
    columns: dict[str, np.ndarray] = msgspec.field(
        default_factory=lambda: {name: np.zeros(0) for name in (*_COLUMNS, "line")}
    )
    others: list[Other] = []
    offset: int = 0  # bytes read, whole lines
    lines: int = 0
    not_understood: int = 0
    fingerprint: str = ""  # of the last bytes before the offset: a file that was replaced is read anew
    format: Literal[2] = 2  # of the file in the cache

    def fits(self, path: Path) -> bool:
        try:
            return path.stat().st_size >= self.offset and fingerprint_at(path, self.offset) == self.fingerprint
        except OSError:
            return False


def read_on(path: Path, record: Record) -> Record:
    pieces: list[dict[str, np.ndarray]] = []
    others = list(record.others)
    offset, lines, bad = record.offset, record.lines, record.not_understood
    with open(path, "rb") as file:
        file.seek(offset)
        for piece in _whole_lines(file):
            events, places, its_lines, wrong = _decoded(piece)
            places = places + (lines + 1)
            taken = [event for event in events if type(event) is StepFields]
            apart = [index for index, event in enumerate(events) if type(event) is not StepFields]
            others += [Other(int(places[index]), cast(e.EVENTS, events[index])) for index in apart]
            if taken:
                pieces.append(_columns(taken, np.delete(places, apart), piece))
            lines, bad, offset = lines + its_lines, bad + wrong, offset + len(piece)
    if offset == record.offset:
        return record
    columns = {name: np.concatenate([old, *(piece[name] for piece in pieces)]) for name, old in record.columns.items()}
    return Record(columns, others, offset, lines, bad, fingerprint_at(path, offset))


def fingerprint_at(path: Path, offset: int) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, offset - FINGERPRINT_BYTES))
        return hashlib.sha256(file.read(min(offset, FINGERPRINT_BYTES))).hexdigest()


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Pieces of the file that end with a line; a torn last line is left."""
    rest = b""
    while block := file.read(PIECE_BYTES):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield whole + newline


def _decoded(piece: bytes) -> tuple[list[StepFields | e.EVENTS], np.ndarray, int, int]:
    """(events, line of each within the piece, lines, lines that are no events); line by line where one is bad."""
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        events = _DECODER.decode_lines(piece)
        return events, np.arange(len(events)), len(events), 0
    events, places, wrong = [], [], 0
    lines = piece.split(b"\n")[:-1]
    for number, line in enumerate(lines):
        try:
            events.append(_DECODER.decode(line))
            places.append(number)
        except (msgspec.MsgspecError, UnicodeDecodeError):  # torn by a kill, or a word of a newer nanolens
            wrong += bool(line.strip())
    return events, np.array(places, np.int64), len(lines), wrong


def _columns(taken: list[StepFields], line: np.ndarray, piece: bytes) -> dict[str, np.ndarray]:
    """Fields that occur nowhere in the piece have their default in every step, and are not asked for one by one."""
    count = len(taken)
    columns = {"line": line.astype(np.float64)}
    for name in _COLUMNS:
        if name in _OPTIONAL and _OPTIONAL[name] not in piece:
            columns[name] = np.full(count, np.nan if name in _MAY_LACK else 0.0)
        elif name in _MAY_LACK:
            columns[name] = np.array(list(map(operator.attrgetter(name), taken)), dtype=np.float64)  # None becomes NaN
        else:
            columns[name] = np.fromiter(map(operator.attrgetter(name), taken), np.float64, count)  # "nan" becomes NaN
    return columns


_MAY_LACK = ("loss_scale", "memory_bytes")
_OPTIONAL = {name: f'"{name}":'.encode() for name in ("clipped", "data_s", "at_s", "rank", *_MAY_LACK)}


WORTH_KEEPING_BYTES = 4 << 20  # below it reading anew is as quick
LARGEST_BYTES = 2 << 30  # of all kept files together; the oldest go first
IN_MEMORY = 8  # runs
_UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, msgspec.MsgspecError)
_memory: dict[Path, Record] = {}
_lock = threading.Lock()


def read_record(events_file: Path) -> Record:
    """The record of a run as it is now, with as little reading as can be."""
    path = events_file.resolve()
    with _lock:
        known = _memory.get(path)
    if known is None or not known.fits(path):
        known = _load(path)
    fresh = read_on(path, known)
    if fresh.offset - known.offset >= WORTH_KEEPING_BYTES:
        _save(path, fresh)
    with _lock:
        _memory.pop(path, None)
        _memory[path] = fresh
        while len(_memory) > IN_MEMORY:
            _memory.pop(next(iter(_memory)))
    return fresh


def _file_for(path: Path) -> Path:
    return files.cache_folder() / "columns" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.npz"


def _load(path: Path) -> Record:
    """What was kept of this file; an empty record where nothing was, or it does not fit any more."""
    try:
        with open(_file_for(path), "rb") as file, np.load(file, allow_pickle=False) as kept:
            record = msgspec.json.decode(bytes(kept["record"]), type=Record)
            record.columns = {name: kept[name] for name in (*_COLUMNS, "line")}
    except _UNREADABLE:
        return Record()
    return record if record.fits(path) else Record()


def _save(path: Path, record: Record) -> None:
    without_columns = msgspec.json.encode(msgspec.structs.replace(record, columns={}))
    # Without its cache a run is only read more slowly: a full or read-only disk is no reason to stop.
    with contextlib.suppress(OSError), files.whole_file(_file_for(path)) as file:
        np.savez(file, record=np.frombuffer(without_columns, np.uint8), **record.columns)  # type: ignore[arg-type]
    _make_room()


def _make_room() -> None:
    with contextlib.suppress(OSError):
        kept = (files.cache_folder() / "columns").glob("*.npz")
        total = 0
        for file in sorted(kept, key=lambda file: file.stat().st_mtime, reverse=True):
            total += file.stat().st_size
            if total > LARGEST_BYTES:
                file.unlink(missing_ok=True)
