"""What a tracker holds, read with its own reader."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Numbers = dict[tuple[int, str], float]


def tensorboard(folder: Path) -> tuple[Numbers, dict[str, list[tuple[int, str]]]]:
    """(scalars, texts) as TensorBoard itself reads them; what it was told to forget is not among them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    seen.Reload()
    numbers: Numbers = {}
    for tag in seen.Tags()["scalars"]:
        for event in seen.Scalars(tag):
            assert (event.step, tag) not in numbers, f"{tag} twice at {event.step}"
            numbers[event.step, tag] = event.value
    texts: dict[str, list[tuple[int, str]]] = {}
    for tag in seen.Tags()["tensors"]:
        if tag.endswith("/text_summary"):
            said = [(event.step, event.tensor_proto.string_val[0].decode()) for event in seen.Tensors(tag)]
            texts[tag.removesuffix("/text_summary")] = said
    return numbers, texts


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a `.wandb` file by W&B's own message classes. The file is LevelDB's log format behind a header of
    7 bytes: blocks of 32 KiB, records of checksum, length, kind (1 whole, 2 first, 3 middle, 4 last) and data."""
    from wandb.proto import wandb_internal_pb2

    raw = path.read_bytes()
    assert raw[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(raw):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", raw, at + 4)
        if kind == 0:
            break
        parts += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def wandb(folder: Path) -> tuple[Numbers, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(numbers, media by (step, name), config, summary) of an offline run's folder."""
    numbers: Numbers = {}
    media: dict[Any, Any] = {}
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    (path,) = folder.glob("*.wandb")
    for record in wandb_records(path):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items: dict[str, Any] = {}
            for item in record.history.item:
                if len(item.nested_key) > 1:
                    items.setdefault(item.nested_key[0], {})[item.nested_key[1]] = _value(item)
                else:
                    items[item.key or item.nested_key[0]] = _value(item)
            step = int(items.pop("_step"))
            for key, value in items.items():
                if isinstance(value, dict):
                    media[step, key] = (folder / "files" / value["path"]).read_text()
                elif not key.startswith("_") and key != "iter":
                    assert (step, key) not in numbers
                    numbers[step, key] = float(value)
        elif kind == "run":
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "config":
            config |= {item.key: json.loads(item.value_json) for item in record.config.update}
        elif kind == "summary":
            summary |= {
                (item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.summary.update
            }
    return numbers, media, config, summary


def _value(item: Any) -> Any:
    kind = item.WhichOneof("value")
    if kind in ("number", "integer", "boolean", "text"):
        return getattr(item, kind)
    return json.loads(item.json if kind == "json" else item.value_json)


def trackio(database: Path, run: str) -> tuple[Numbers, dict[Any, str], dict[str, Any]]:
    numbers: Numbers = {}
    texts: dict[Any, str] = {}
    with sqlite3.connect(database) as connection:
        for step, said in connection.execute(
            "select step, metrics from metrics where run_name = ? order by id", (run,)
        ):
            for name, value in json.loads(said).items():
                if isinstance(value, dict):
                    texts[step, name] = value["_value"]
                elif name.startswith("summary/"):
                    texts[step, name] = value
                else:
                    assert (step, name) not in numbers, f"{name} twice at {step}"
                    numbers[step, name] = math.nan if value == "NaN" else float(value)
        ((config,),) = connection.execute("select config from configs where run_name = ?", (run,)).fetchall()
    return numbers, texts, json.loads(config)
