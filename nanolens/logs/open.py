"""From what a user names (a run folder, a log, a pipe, a config) to a Run: the one way in for explain, diagnose,
compare and forecast."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nanolens.config.load import named_preset, read_foreign
from nanolens.config.python_file import ConfigFile
from nanolens.errors import UserError, fault
from nanolens.logs import Given, longest, read_logs
from nanolens.logs.facts import literal
from nanolens.message import msg
from nanolens.record import RUNS, is_run
from nanolens.record.read import read_run
from nanolens.record.run import Known, RunRecord, until
from nanolens.record.store import find_run

CONFIG_SUFFIXES = (".toml", ".py")  # a .json may be a log of the Hugging Face Trainer


def open_run(
    target: str | None, config: str | None = None, hardware: str | None = None, given: Sequence[tuple[str, str]] = ()
) -> RunRecord:
    """The run that a source tells of; the longest of several."""
    return longest(open_runs(target, config, hardware, given))


def open_runs(
    target: str | None, config: str | None = None, hardware: str | None = None, given: Sequence[tuple[str, str]] = ()
) -> list[RunRecord]:
    """`target`: a run, `RUN@STEP`, a log, a folder of another trainer, `-` for standard input, or a config or preset (a
    Run without rows). `config`, `hardware` and `given` (--key=value) add what the source does not say."""
    if not target:
        if config is None:
            raise fault(msg("no source given"), fix=msg("give a run, a log, or {dash:code} for standard input", "-"))
        target, config = config, None
    facts, path = facts_of_options(given), Path(target)
    is_config = path.is_file() and path.suffix in CONFIG_SUFFIXES
    if target == "-":
        raw = sys.stdin.buffer.read()
        _check_not_empty(raw, "-")
        return read_logs(raw, _given(config, hardware, facts), name="stdin")
    if path.exists() and not is_config and not is_run(path):
        if path.is_file() and path.stat().st_size < _SMALL_BYTES:
            _check_not_empty(path.read_bytes(), target)
        return read_logs(path, _given(config, hardware, facts))
    if not is_config and (own := _own_run(target)) is not None:
        return [_with_facts(own, config, hardware, facts)]
    if is_config or named_preset(target) is not None:  # a run of which nothing has happened yet
        return read_logs(b"", _given(target, hardware, facts), name=path.stem)
    raise fault(
        msg("there is no run, log or config named {target:code}", target),
        fix=msg(
            "give a run folder, a name below {folder:code}, the path of a log, or {dash:code} for standard input",
            f"{RUNS}/",
            "-",
        ),
    )


_SMALL_BYTES = 4096  # a larger file is not empty


def _check_not_empty(raw: bytes, target: str) -> None:
    if not raw.strip():
        raise fault(
            msg("{target:code} is empty: there is nothing to read", target),
            fix=msg("give the text that the training printed; a program may still hold it back in its buffer"),
        )


def facts_of_options(given: Sequence[tuple[str, str]]) -> dict[str, object]:
    """--key=value as the values that they most plainly are."""
    return {key.replace("-", "_"): literal(text) for key, text in given}


def _own_run(target: str) -> RunRecord | None:
    try:
        at = find_run(target)
    except UserError:
        if is_run(Path(target.partition("@")[0])):
            raise
        return None
    run = read_run(at.folder)
    return run if at.step is None else until(run, at.step)


def _given(config: str | None, hardware: str | None, facts: Mapping[str, object]) -> Given:
    read = ConfigFile() if config is None else _config_named(config)
    return Given(read.values, read.where, read.comments, hardware, facts)


def _config_named(name: str) -> ConfigFile:
    is_file = Path(name).exists() or Path(name).suffix in (*CONFIG_SUFFIXES, ".json")
    preset = None if is_file else named_preset(name)
    if preset is None:
        return read_foreign(Path(name))  # which says so where there is no such file
    return ConfigFile(dict(preset.values), dict.fromkeys(preset.values, f"preset {preset.name}"))


def _with_facts(run: RunRecord, config: str | None, hardware: str | None, said: Mapping[str, object]) -> RunRecord:
    """Our own record, with what the user adds; what was recorded stays, but for what the command line says."""
    known = dict(run.known)
    if config is not None:
        read = _config_named(config)
        for key, value in read.values.items():
            known.setdefault(key, Known(value, "given", read.where.get(key, config)))
    typed = {**said, **({"hardware": hardware} if hardware else {})}
    known |= {key: Known(value, "given", f"--{key}") for key, value in typed.items()}
    return dataclasses.replace(run, known=known)
