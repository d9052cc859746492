"""Columns of long runs, kept in the user's cache folder: never in the run folder, and never needed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import zipfile
from pathlib import Path

import msgspec
import numpy as np

from nanolens import files
from nanolens.record import events as e
from nanolens.record.columns import Other, Record, StepFields, read_on

WORTH_KEEPING_BYTES = 4 << 20  # below it reading anew is as quick
LARGEST_BYTES = 2 << 30  # of all kept files together; the oldest go first
IN_MEMORY = 8  # runs
FORMAT = 1

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
            about = json.loads(bytes(kept["about"]))
            if about["format"] != FORMAT:
                return Record()
            columns = {name: kept[name] for name in (*StepFields.COLUMNS, "line")}
            events = msgspec.json.Decoder(e.EVENTS).decode_lines(bytes(kept["others"]))
            others = [Other(line, before, event) for (line, before), event in zip(kept["places"].tolist(), events, strict=True)]
        record = Record(columns, others, about["offset"], about["lines"], about["not_understood"], about["fingerprint"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, msgspec.MsgspecError):
        return Record()
    return record if record.fits(path) else Record()


def _save(path: Path, record: Record) -> None:
    about = {
        "format": FORMAT,
        "offset": record.offset,
        "lines": record.lines,
        "not_understood": record.not_understood,
        "fingerprint": record.fingerprint,
    }
    lines = b"\n".join(msgspec.json.encode(other.event) for other in record.others)
    places = np.array([(other.line, other.steps_before) for other in record.others], np.int64).reshape(-1, 2)
    # Without its cache a run is only read more slowly: a full or read-only disk is no reason to stop.
    with contextlib.suppress(OSError), files.whole_file(_file_for(path)) as file:
        texts = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8), "others": np.frombuffer(lines, np.uint8), "places": places}
        np.savez(file, **texts, **record.columns)  # type: ignore[arg-type]
    _make_room()


def _make_room() -> None:
    with contextlib.suppress(OSError):
        kept = sorted((files.cache_folder() / "columns").glob("*.npz"), key=lambda file: file.stat().st_mtime, reverse=True)
        total = 0
        for file in kept:
            total += file.stat().st_size
            if total > LARGEST_BYTES:
                file.unlink(missing_ok=True)
