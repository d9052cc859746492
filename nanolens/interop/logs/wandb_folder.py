"""A run folder of Weights & Biases: `output.log` is what the training printed, `config.yaml` what it was asked, `wandb-metadata.json`
what it ran on.

The log is read like any other. The `.wandb` file, a database of W&B's own, is not read.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from nanolens.errors import UserError, fault
from nanolens.interop.logs.given import Given
from nanolens.logs.text import decode
from nanolens.message import msg

MAGIC = b":W&B"
OUTPUT, CONFIG, METADATA = "output.log", "config.yaml", "wandb-metadata.json"
_VALUE = re.compile(r"^([A-Za-z_]\w{0,60}):\n(?: {2,4}desc:[^\n]{0,200}\n)? {2,4}value: ([^\n]{1,400})$", re.M)


def is_run(folder: Path) -> bool:
    return (_files(folder) / OUTPUT).is_file() and (
        (_files(folder) / CONFIG).is_file() or (_files(folder) / METADATA).is_file() or bool(list(folder.glob("*.wandb")))
    )


def read_folder(folder: Path, given: Given) -> tuple[str, Given]:
    """The log's text, and what is given together with what the folder says."""
    files = _files(folder)
    said = _config(files / CONFIG)
    machine = _machine(files / METADATA)
    where = dict.fromkeys(said, CONFIG) | dict.fromkeys(machine, METADATA)
    config = {**machine, **said, **given.config}
    return decode((files / OUTPUT).read_bytes()), replace(given, config=config, config_where={**where, **given.config_where})


def needs_output_log(name: str) -> UserError:
    return fault(
        msg("{name:code} is a database of Weights & Biases, which nanolens does not read", name=name),
        fix=msg("give the run's folder or its {file:code}, or a table exported from the page", file=OUTPUT),
    )


def _files(folder: Path) -> Path:
    return folder / "files" if (folder / "files").is_dir() else folder


def _config(path: Path) -> dict[str, object]:
    """Settings of the two-level file that W&B writes; a value that is no plain number, word or truth is left out."""
    if not path.is_file():
        return {}
    return {key: value for key, text in _VALUE.findall(decode(path.read_bytes())) if (value := _plain(text.strip())) is not None}


def _plain(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("'\"") if re.fullmatch(r"['\"]?[\w./ \-]{1,200}['\"]?", text) and text not in ("null", "~") else None


def _machine(path: Path) -> dict[str, object]:
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    found: dict[str, object] = {}
    if isinstance(said, dict):
        if isinstance(said.get("gpu"), str):
            found["hardware"] = said["gpu"]
        if isinstance(said.get("gpu_count"), int):
            found["devices"] = said["gpu_count"]
    return found
