"""From what a user names (a run folder, a log, a pipe, a config) to a Run: the one way in for explain, diagnose, compare and forecast."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanolens.errors import UserError, fault
from nanolens.message import msg
from nanolens.record.layout import is_run

if TYPE_CHECKING:
    from nanolens.config.load import ForeignConfig
    from nanolens.record.run import Run

CONFIG_SUFFIXES = (".toml", ".py")  # a .json may be a log of the Hugging Face Trainer


def open_run(target: str | None, config: str | None = None, hardware: str | None = None, given: Sequence[tuple[str, str]] = ()) -> Run:
    """`target`: a run folder or its name below runs/, `RUN@STEP`, a log, a folder of another trainer, `-` for standard input, or a
    config or preset (a Run without rows). `config`, `hardware` and `given` (--key=value) add what the source does not say."""
    said = facts_of_options(given)
    if target is None or target == "":
        if config is None:
            raise fault(msg("nothing was named to be read"), fix=msg("give a run, a log, or {dash:code} for standard input", dash="-"))
        target, config = config, None
    if target == "-":
        return _read_text(sys.stdin.buffer.read(), "stdin", config, hardware, said)
    path = Path(target)
    if _is_config(path):
        return _read_config(target, hardware, said)
    if path.exists() and not is_run(path):
        return _read_file(path, config, hardware, said)
    own = _own_run(target)
    if own is not None:
        return _with_facts(own, config, hardware, said)
    if _is_preset(target):
        return _read_config(target, hardware, said)
    raise fault(
        msg("there is no run, log or config {target:code}", target=target),
        fix=msg(
            "give a run folder, a name below {folder:code}, the path of a log, or {dash:code} for standard input", folder="runs/", dash="-"
        ),
    )


def facts_of_options(given: Sequence[tuple[str, str]]) -> dict[str, object]:
    """--key=value as the values that they most plainly are."""
    return {key.replace("-", "_"): _value(text) for key, text in given}


def _value(text: str) -> object:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text.replace("_", "").replace(",", "") if kind is int else text)
        except ValueError:
            continue
    return text


def _own_run(target: str) -> Run | None:
    from nanolens.record.read import read_run
    from nanolens.record.run import until
    from nanolens.record.store import find_run

    try:
        at = find_run(target)
    except UserError:
        if is_run(Path(target.partition("@")[0])):
            raise
        return None
    run = read_run(at.folder)
    return run if at.step is None else until(run, at.step)


def _read_file(path: Path, config: str | None, hardware: str | None, said: Mapping[str, object]) -> Run:
    from nanolens.interop.logs import read_log

    about = _foreign(config)
    return read_log(path, hardware=hardware, given=said, **about)


def _read_text(raw: bytes, name: str, config: str | None, hardware: str | None, said: Mapping[str, object]) -> Run:
    from nanolens.interop.logs import read_log

    return read_log(raw, hardware=hardware, given=said, name=name, **_foreign(config))


def _foreign(config: str | None) -> dict:
    """What a config file says, in the form that the reader of logs takes."""
    if config is None:
        return {}
    read = _config_named(config)
    return {"config": read.values, "comments": read.comments, "config_where": read.where}


def _config_named(name: str) -> ForeignConfig:
    from nanolens.config.load import ForeignConfig, read_foreign
    from nanolens.config.preset import named_preset

    if Path(name).exists() or Path(name).suffix in (*CONFIG_SUFFIXES, ".json"):
        return read_foreign(Path(name))
    preset = named_preset(name)
    if preset is None:
        return read_foreign(Path(name))  # which says that there is no such file
    return ForeignConfig(dict(preset.values), dict.fromkeys(preset.values, f"preset {preset.name}"), (), ())


def _is_config(path: Path) -> bool:
    return path.is_file() and path.suffix in CONFIG_SUFFIXES


def _is_preset(name: str) -> bool:
    from nanolens.config.preset import named_preset

    return named_preset(name) is not None


def _read_config(name: str, hardware: str | None, said: Mapping[str, object]) -> Run:
    """A config alone: a run of which nothing has happened yet."""
    from nanolens.interop.logs import read_log

    read = _config_named(name)
    return read_log(
        b"", config=read.values, comments=read.comments, config_where=read.where, hardware=hardware, given=said, name=Path(name).stem
    )


def _with_facts(run: Run, config: str | None, hardware: str | None, said: Mapping[str, object]) -> Run:
    """Our own record, with what the user adds. What was recorded stays, except where the command line says otherwise."""
    from nanolens.record.run import Known

    known = dict(run.known)
    if config is not None:
        read = _config_named(config)
        for key, value in read.values.items():
            known.setdefault(key, Known(value, "given", read.where.get(key, config)))
    for key, value in said.items():
        known[key] = Known(value, "given", f"--{key}")
    if hardware:
        known["hardware"] = Known(hardware, "given", "--hardware")
    return dataclasses.replace(run, known=known)
