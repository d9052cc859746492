"""One JSON object a line, as many loops and trackers write: `{"step": 10, "train/loss": 3.2, "lr": 0.001}`.

Names are read as `names.py` has them, nested objects with a slash. What the numbers mean is not known; a loss at step 0 tells that
updates are counted before the row.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from nanolens.interop.logs import table
from nanolens.interop.logs.door import Door, Found
from nanolens.interop.logs.names import column_of
from nanolens.interop.logs.rows import Rows, from_records, note_rows_alone
from nanolens.logs.text import Text
from nanolens.record.run import Words

WORDS = Words(trainer="unknown")

LINE = re.compile(r"^[> \t]{0,8}+(\{\"[^\n]{1,20000}\})[ \t\r]*+$", re.M)
_OF_ALL = re.compile(r"(\d{1,15})/\d{1,15}")
DEEPEST = 4


def find(source: Text) -> Found:
    return table.split(find_table(source))


def find_table(source: Text) -> Rows:
    steps, records, starts, ends = [], [], [], []
    for match in LINE.finditer(source.text):
        record = as_record(decoded(match[1]))
        if "step" in record and len(record) > 1:
            steps.append(int(record.pop("step")))
            records.append(record)
            starts.append(match.start())
            ends.append(match.end())
    note_rows_alone(source, np.array(starts, np.int64), np.array(ends, np.int64))
    return from_records(records, starts, source, steps)


def decoded(text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        try:
            value = json.loads(text)  # slower, but knows NaN, which many loops write
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def as_record(said: dict[str, Any]) -> dict[str, float]:
    """Numbers of an object by our column names."""
    if dict in map(type, said.values()):
        said = flat(said)
    record: dict[str, float] = {}
    for name, column, scale in _plan(tuple(said)):
        value = said[name]
        kind = type(value)
        number = value if kind is float else float(value) if kind is int and abs(value) < 1e15 else as_number(value)
        if number is not None and column not in record:
            record[column] = number * scale
        elif column == "step" and isinstance(value, str) and (of_all := _OF_ALL.fullmatch(value)):
            record["step"] = float(of_all[1])
    if "step" in record and not 0 <= record["step"] < 1e15:
        del record["step"]
    return record


@lru_cache(maxsize=1024)
def _plan(names: tuple[str, ...]) -> tuple[tuple[str, str, float], ...]:
    """(name, column, scale) of the names that mean something to us: objects of one loop have the same names."""
    meant = ((name, *_meaning(name)) for name in names)
    return tuple((name, column, scale) for name, column, scale in meant if column)


@lru_cache(maxsize=4096)
def _meaning(name: str) -> tuple[str, float]:
    """Our column, and what to multiply with. Without a unit a time or an amount of memory means nothing."""
    column = "step" if name == "global_step/max_steps" else column_of(name)  # "601/2161"
    return {"took": ("", 1.0), "memory": ("", 1.0), "took_ms": ("took_s", 1e-3)}.get(column, (column, 1.0))


def as_number(value: object) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value) if not isinstance(value, int) or abs(value) < 1e300 else None
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return float(value)
    return None


def flat(said: dict[str, Any], before: str = "", deep: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in said.items():
        if isinstance(value, dict) and deep < DEEPEST:
            found |= flat(value, f"{before}{name}/", deep + 1)
        else:
            found[f"{before}{name}"] = value
    return found


DOOR = Door("jsonl", WORDS, signs=('{"',), find=find, is_general=True)
