"""Files that trackers leave: TensorBoard's events (TFRecords of protobuf messages, read with the classes of
tensorboardX or tensorboard), and run folders of Weights & Biases, whose `output.log` is read like any other log."""

from __future__ import annotations

import contextlib
import importlib
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanolens.config.names import IN_PERCENT, TRACKER_COLUMNS, setting_of
from nanolens.errors import require
from nanolens.logs.assemble import assemble
from nanolens.logs.documents import decoded
from nanolens.logs.facts import literal
from nanolens.logs.given import Given
from nanolens.logs.tables import of_columns
from nanolens.logs.text import LogText, decode
from nanolens.logs.trainers import Trainer
from nanolens.record.run import Conventions, Reading, RunRecord, number_of

FILES = "events.out.tfevents.*"
EVENT_FILE_MARK = b"brain.Event:"  # in the first record of every event file
_PROTOS = ("tensorboardX.proto.event_pb2", "tensorboard.compat.proto.event_pb2")


def read_events(files: Sequence[bytes], given: Given, name: str) -> list[RunRecord]:
    event_class = _event_class()
    by_step: dict[int, dict[str, float]] = {}
    at_s: dict[int, float] = {}
    texts: list[str] = []
    for raw in files:
        for record in records(raw):
            event = event_class.FromString(record)
            for value in event.summary.value:
                number = _scalar(value)
                if number is not None:
                    by_step.setdefault(event.step, {})[value.tag] = number
                    at_s.setdefault(event.step, event.wall_time)
                elif value.HasField("tensor"):
                    texts += [part.decode("utf-8", "replace") for part in value.tensor.string_val[:1]]
    steps = sorted(by_step)
    is_ours = any(TRACKER_COLUMNS["loss"] in said for said in by_step.values())
    rows = [_as_sent(by_step[step]) if is_ours else by_step[step] for step in steps]
    columns = _as_columns(rows, steps)
    about = LogText("  \n" * len(steps))
    columns |= {"step": [float(step) for step in steps], "at_s": [at_s[step] for step in steps]}
    found = of_columns(columns, about.line_starts[: len(steps)], about, is_ours=is_ours)
    for text in texts:
        for key, value in _settings_in(text):
            found.tell(key, value, 1, 0)
    ours = Conventions("nanolens", loss="mean", time="step_only") if is_ours else None
    trainer = Trainer("tensorboard", ours or Conventions("tensorboard"))
    return assemble(found, trainer, given, Reading(lines=len(rows), understood=len(rows)), name)


def _settings_in(text: str) -> Iterator[tuple[str, object]]:
    """Settings that were written as a text: Hugging Face's arguments, or any JSON object."""
    said = decoded(text)
    for key, value in said.items() if isinstance(said, dict) else ():
        if isinstance(value, (int, float, str)) and value != "":
            yield setting_of(key), value


def _as_sent(said: Mapping[str, float]) -> dict[str, float]:
    """By our columns, what nanolens itself sent: `train/loss` beside `batch/loss` is an evaluation."""
    ours = {tag: column for column, tag in TRACKER_COLUMNS.items()}
    return {ours[tag]: value / 100 if ours[tag] in IN_PERCENT else value for tag, value in said.items() if tag in ours}


def records(raw: bytes) -> Iterator[bytes]:
    """The payloads of a TFRecord file: length, its checksum, payload, its checksum. The last may be unfinished."""
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
    if kind != "tensor" or value.tensor.tensor_shape.dim:
        return None
    is_packed = value.tensor.dtype == 1 and len(value.tensor.tensor_content) == 4
    packed = struct.unpack("<f", value.tensor.tensor_content) if is_packed else ()
    return next(map(float, (*value.tensor.float_val, *value.tensor.double_val, *packed)), None)


def _event_class() -> Any:
    for module in _PROTOS:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(module).Event
    return require(_PROTOS[0], "tensorboard").Event


WANDB_MAGIC = b":W&B"
_BLOCK, _HEAD_BYTES = 32 * 1024, 7  # of LevelDB's log, in which Weights & Biases keeps its records


def read_wandb_database(raw: bytes, given: Given, name: str) -> list[RunRecord]:
    """A `.wandb` file: what was logged, row by row, and the config; decoded with the classes of the package wandb."""
    proto = require("wandb.proto.wandb_internal_pb2", "wandb")
    rows: list[dict[str, float]] = []
    found_settings: list[tuple[str, object]] = []
    for record in wandb_records(raw):
        try:
            message = proto.Record.FromString(record)
        except Exception as error:  # the class depends on protobuf's version
            if type(error).__name__ == "DecodeError":
                continue
            raise
        kind = message.WhichOneof("record_type")
        about = message.run.config if kind == "run" else message.config
        items = message.history.item if kind == "history" else about.update if kind in ("config", "run") else ()
        said = {item.key or "/".join(item.nested_key): decoded(item.value_json) for item in items}
        if kind == "history":
            numbers = {key: number_of(value) for key, value in said.items()}
            rows.append({key: number for key, number in numbers.items() if number is not None})
        found_settings += [(setting_of(key), value) for key, value in said.items() if kind != "history"]
    columns = _as_columns(rows, [int(row.get("_step", index)) for index, row in enumerate(rows)])
    columns["at_s"] = [row.get("_timestamp", float("nan")) for row in rows]
    source = LogText("  \n" * len(rows))
    found = of_columns(columns, source.line_starts[: len(rows)], source)
    for key, value in found_settings:
        if isinstance(value, (int, float, str)) and not key.startswith("_"):
            found.tell(key, value, 1, 0)
    trainer = Trainer("wandb", Conventions("wandb"))
    return assemble(found, trainer, given, Reading(lines=len(rows), understood=len(rows)), name)


def _as_columns(rows: Sequence[Mapping[str, float]], steps: Sequence[int]) -> dict[str, Sequence[float]]:
    names = dict.fromkeys(name for row in rows for name in row if not name.startswith("_"))
    columns: dict[str, Sequence[float]] = {name: [row.get(name, float("nan")) for row in rows] for name in names}
    return columns if "step" in columns else {**columns, "step": [float(step) for step in steps]}


def wandb_records(raw: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log behind its own head; the last may be unfinished."""
    at, whole = len(WANDB_MAGIC) + 3, b""
    while at + _HEAD_BYTES <= len(raw):
        if _BLOCK - at % _BLOCK < _HEAD_BYTES:  # the rest of a block that holds no head
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = struct.unpack_from("<HB", raw, at + 4)
        if kind == 0 or at + _HEAD_BYTES + length > len(raw):
            return
        part = raw[at + _HEAD_BYTES : at + _HEAD_BYTES + length]
        at += _HEAD_BYTES + length
        whole = part if kind in (1, 2) else whole + part
        if kind in (1, 4):
            yield whole


OUTPUT, CONFIG, METADATA = "output.log", "config.yaml", "wandb-metadata.json"
_PLAIN = re.compile(r"(?!(?:null|~)$)['\"]?[\w./ +\-]{1,200}['\"]?")
_VALUE = re.compile(r"^([A-Za-z_]\w{0,60}):\n(?: {2,4}desc:[^\n]{0,200}\n)? {2,4}value: ([^\n]{1,400})$", re.M)


def read_wandb_folder(folder: Path, given: Given) -> tuple[str, Given] | None:
    """The log's text, and what is given together with what the folder says; None where it is none of W&B's."""
    inside = folder / "files" if (folder / "files").is_dir() else folder
    paths = [inside / name for name in (OUTPUT, CONFIG, METADATA)]
    has_output, *has_about = (path.is_file() for path in paths)
    if not has_output or not (any(has_about) or any(folder.glob("*.wandb"))):
        return None
    output, config, metadata = (decode(path.read_bytes()) if path.is_file() else "" for path in paths)
    # The config has two levels; a value that is no plain number, word or truth is left out.
    settings = {key: literal(text.strip()) for key, text in _VALUE.findall(config) if _PLAIN.fullmatch(text.strip())}
    about = decoded(metadata)
    about = about if isinstance(about, dict) else {}
    wanted = (("hardware", about.get("gpu"), str), ("devices", about.get("gpu_count"), int))
    machine = {name: value for name, value, kind in wanted if isinstance(value, kind)}
    where = {**dict.fromkeys(settings, CONFIG), **dict.fromkeys(machine, METADATA), **given.config_where}
    return output, replace(given, config={**machine, **settings, **given.config}, config_where=where)
