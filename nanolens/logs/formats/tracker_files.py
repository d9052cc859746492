"""TensorBoard's event files: scalars by tag and step.

The records are TFRecords of protobuf messages; the messages are read with the classes of tensorboardX or tensorboard, whichever is
installed. Tags are read as `names.py` has them. What the numbers mean is not known; an event's step is the number that the training gave
it.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from nanolens.errors import require
from nanolens.interop.logs import table
from nanolens.interop.logs.assemble import Counts, assemble
from nanolens.interop.logs.door import Door
from nanolens.interop.logs.given import Given
from nanolens.interop.logs.json_lines import as_record
from nanolens.interop.logs.rows import from_records
from nanolens.logs.text import Text
from nanolens.record.run import Run, Words
from nanolens.trackers.rows import IN_PERCENT, NAMES

WORDS = Words(trainer="tensorboard")
FILES = "events.out.tfevents.*"
SENT_BY_US = NAMES["loss"]
_VERSION = b"brain.Event:"
_PROTOS = ("tensorboardX.proto.event_pb2", "tensorboard.compat.proto.event_pb2")


def is_event_file(raw: bytes) -> bool:
    """The first record of every event file names the format's version."""
    return len(raw) > 24 and _VERSION in raw[12:64]


def read_events(files: Sequence[bytes], given: Given, name: str) -> list[Run]:
    event_class = _event_class()
    by_step: dict[int, dict[str, Any]] = {}
    at_s: dict[int, float] = {}
    for raw in files:
        for record in records(raw):
            event = event_class.FromString(record)
            for value in event.summary.value:
                number = _scalar(value)
                if number is not None:
                    by_step.setdefault(event.step, {})[value.tag] = number
                    at_s.setdefault(event.step, event.wall_time)
    steps = sorted(by_step)
    if any(SENT_BY_US in said for said in by_step.values()):
        words = Words(trainer="nanolens", loss="mean", time="step_only")
        rows = [{**_as_sent(by_step[step]), "at_s": at_s[step]} for step in steps]
    else:
        words = WORDS
        rows = [{**as_record(by_step[step]), "at_s": at_s[step]} for step in steps]
    for row in rows:
        row.pop("step", None)
    found = table.split(from_records(rows, list(range(len(rows))), Text("\n" * len(rows)), steps))
    return assemble(found, Door("tensorboard", words, (), is_general=words is WORDS), words, given, Counts(lines=len(rows)), name, {})


def _as_sent(said: dict[str, float]) -> dict[str, float]:
    """By our columns, what nanolens itself sent: `train/loss` beside `batch/loss` is an evaluation."""
    ours = {tag: column for column, tag in NAMES.items()}
    return {ours[tag]: value / 100 if ours[tag] in IN_PERCENT else value for tag, value in said.items() if tag in ours}


def records(raw: bytes) -> Iterator[bytes]:
    """The payloads of a TFRecord file: length, its checksum, payload, its checksum. A file that is still being written ends in the midst
    of one."""
    at = 0
    while at + 12 <= len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        if at + 16 + length > len(raw):
            return
        yield raw[at + 12 : at + 12 + length]
        at += 16 + length


def _scalar(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind == "tensor" and not value.tensor.tensor_shape.dim:
        numbers = [*value.tensor.float_val, *value.tensor.double_val]
        if numbers:
            return float(numbers[0])
        if value.tensor.dtype == 1 and len(value.tensor.tensor_content) == 4:
            return float(struct.unpack("<f", value.tensor.tensor_content)[0])
    return None


def _event_class() -> Any:
    for module in _PROTOS:
        try:
            return importlib.import_module(module).Event
        except ModuleNotFoundError:
            continue
    return require(_PROTOS[0], "tensorboard").Event
