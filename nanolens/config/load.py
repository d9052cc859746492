"""Defaults, then a preset or a config file, then `--key=value`: one Config, with the origin of each value and all faults at once."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanolens.config.check import faults_in
from nanolens.config.fields import Config, Setting, as_text, settings
from nanolens.config.preset import named_preset, preset_names
from nanolens.config.python_file import read_python
from nanolens.config.settings import Settings
from nanolens.errors import Fault, UserError, fault, raise_if_any
from nanolens.message import Message, msg

_SUFFIXES = (".py", ".toml", ".json")
# Settings whose `auto` stands for "cut the update as is fastest here": the value given before says how many tokens an update has.
_MEASURED = ("batch_size",)


def load(source: str | None = None, overrides: Sequence[tuple[str, str]] = ()) -> Settings:
    """The settings of a run. `source` is a preset's name or a config file; `overrides` are the command line's keys and values."""
    draft = _Draft()
    preset = ""
    if source is not None:
        if _is_file(source):
            _take_file(draft, Path(source))
        else:
            preset = _take_preset(draft, source)
    for key, text in overrides:
        draft.take_text(key, text, f"--{key}={text}")
    config = Config(**draft.values)  # type: ignore[arg-type]
    raise_if_any([*draft.faults, *faults_in(config, draft.came_from, ignore=draft.faulty)])
    came_from = {name: draft.came_from.get(name, "default") for name in settings()}
    return Settings(
        config, came_from, preset=preset, comments=tuple(draft.comments), automatic=frozenset(draft.automatic), notes=tuple(draft.notes)
    )


@dataclass(frozen=True)
class ForeignConfig:
    """What a config file says, whoever's it is: every key, known or not."""

    values: Mapping[str, object]
    where: Mapping[str, str]
    comments: tuple[str, ...]
    notes: tuple[Message, ...]


def read_foreign(path: Path) -> ForeignConfig:
    """The config that belongs to a foreign log: TOML, JSON or nanoGPT's Python. Keys that nanolens does not have are kept."""
    file = _read_file(path)
    raise_if_any(file.faults)
    return ForeignConfig(file.values, file.where, tuple(file.comments), tuple(file.notes))


@dataclass
class _File:
    values: dict[str, object] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)
    notes: list[Message] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def _read_file(path: Path) -> _File:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise fault(msg("there is no file {path:code}", path=str(path)), fix=msg("give the path of a .toml, .json or .py file")) from None
    except (OSError, UnicodeDecodeError) as error:
        raise fault(msg("{path:code} cannot be read: {problem}", path=str(path), problem=str(error))) from None
    if path.suffix == ".py":
        python = read_python(text, path.name)
        where = {key: f"{path.name} line {line}" for key, line in python.lines.items()}
        return _File(python.values, where, python.comments, python.notes, python.faults)
    try:
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        if path.suffix not in _SUFFIXES:
            raise _no_config(path) from None
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise fault(msg("{path:code} is not valid {kind}: {problem}", path=str(path), kind=kind, problem=str(error))) from None
    if not isinstance(values, dict):
        raise fault(msg("{path:code} holds no settings by name", path=str(path)), fix=msg("write one key and value a line"))
    values.pop("about", None)
    comments = [line.split("#", 1)[1].strip() for line in text.splitlines() if "#" in line] if path.suffix == ".toml" else []
    return _File(values, {key: _line_of(key, text, path.name) for key in values}, comments)


def _no_config(path: Path) -> UserError:
    """Most likely somebody wants to train on this text."""
    return fault(
        msg("{path:code} is not a config file", path=str(path)),
        fix=msg(
            "to train on this text, prepare it with {prepare:code}, and then {train:code}",
            prepare=f"nanolens prepare {path}", train=f"nanolens train --dataset={path.stem}",
        ),
    )  # fmt: skip


def _line_of(key: str, text: str, name: str) -> str:
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().lstrip('"').startswith(key):
            return f"{name} line {number}"
    return name


def _is_file(source: str) -> bool:
    return source.endswith(_SUFFIXES) or Path(source).is_file()


def _take_file(draft: _Draft, path: Path) -> None:
    file = _read_file(path)
    draft.faults += file.faults
    draft.comments += file.comments
    draft.notes += file.notes
    for key, value in file.values.items():
        known = key.replace("-", "_") in settings()
        if path.suffix == ".py" and not known:
            # nanoGPT's files may hold variables of their own; one that looks like a setting is a slip of the pen.
            if near := _nearest(key, cutoff=0.85):
                draft.faults.append(_unknown_key(key, file.where[key], near))
            continue
        draft.take(key, value, file.where[key])


def _take_preset(draft: _Draft, name: str) -> str:
    preset = named_preset(name)
    if preset is None and Path(name).is_dir():
        raise fault(
            msg("{name:code} is a folder, neither a preset nor a config file", name=name),
            fix=msg("name the data with {option:code}", option=f"--dataset={name}"),
        )
    if preset is None:
        near = difflib.get_close_matches(name.replace("_", "-"), preset_names(), n=1, cutoff=0.5)
        raise fault(
            msg("there is no preset and no config file {name:code}", name=name),
            fix=msg("did you mean {nearest:code}?", nearest=near[0]) if near else msg("the presets are {names:code}", names=preset_names()),
        )
    for key, value in preset.values.items():
        draft.take(key, value, f"preset {preset.name}")
    return preset.name


@dataclass
class _Draft:
    """Values on their way into a Config, with the faults met so far."""

    values: dict[str, object] = field(default_factory=dict)
    came_from: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    faulty: set[str] = field(default_factory=set)
    automatic: set[str] = field(default_factory=set)
    comments: list[str] = field(default_factory=list)
    notes: list[Message] = field(default_factory=list)

    def take_text(self, key: str, text: str, where: str) -> None:
        """A value typed on the command line."""
        self.take(key, _from_text(text, settings().get(key.replace("-", "_"))), where)

    def take(self, key: str, value: object, where: str) -> None:
        key = key.replace("-", "_")
        known = settings().get(key)
        if known is None:
            self.faults.append(_unknown_key(key, where, _nearest(key)))
            return
        if key in _MEASURED and value == "auto":
            self.automatic.add(key)
            self.came_from[key] = where
            return
        fitted = _fit(value, known)
        if isinstance(fitted, _Misfit):
            self.faults.append(
                Fault(
                    msg("{key:code} = {value:code} is not {wanted}", key=key, value=str(value), wanted=fitted.wanted),
                    where=msg("{where:code}", where=where),
                    fix=msg("for instance {option:code}", option=f"--{key}={True if known.type is bool else as_text(known.default)}"),
                )
            )
            self.faulty.add(key)
            return
        self.values[key] = fitted
        self.automatic.discard(key)
        self.came_from[key] = where


@dataclass(frozen=True)
class _Misfit:
    wanted: Message


def _fit(value: object, known: Setting) -> object:
    """The value as the setting's own type, or a word on what was wanted."""
    if known.is_optional and (value is None or (isinstance(value, str) and value.lower() in ("auto", "none"))):
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if known.type is bool:
        return value if isinstance(value, bool) else _Misfit(msg("True or False"))
    if known.type is int:
        return int(value) if is_number and value == value // 1 and abs(value) < 2**63 else _Misfit(msg("a whole number"))  # type: ignore[operator]
    if known.type is float:
        return float(value) if is_number and value == value and abs(value) < 1e300 else _Misfit(msg("a number"))  # type: ignore[arg-type]
    return value if isinstance(value, str) else _Misfit(msg("a text"))


def _from_text(text: str, known: Setting | None) -> object:
    """Command-line text as the value it most plainly is. A text setting keeps its letters: `--dataset=123` is a name."""
    if known is None or known.type is str:
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


ELSEWHERE = {
    **dict.fromkeys(("lr", "rate", "max_lr", "peak_lr"), "learning_rate"),
    **dict.fromkeys(("steps", "max_steps", "iters", "iterations", "num_steps", "train_steps", "updates"), "max_iters"),
    **dict.fromkeys(("epochs", "num_epochs", "epoch"), "max_iters"),
    **dict.fromkeys(("context", "context_length", "ctx", "ctx_len", "seq_len", "sequence_length", "max_seq_len"), "block_size"),
    **dict.fromkeys(("layers", "n_layers", "num_layers", "depth"), "n_layer"),
    **dict.fromkeys(("heads", "n_heads", "num_heads"), "n_head"),
    **dict.fromkeys(("width", "dim", "d_model", "hidden_size", "embd", "embed_dim", "n_embed"), "n_embd"),
    **dict.fromkeys(("warmup", "warmup_steps"), "warmup_iters"),
    **dict.fromkeys(("accum", "accumulation", "grad_accum", "accumulate_grad_batches"), "gradient_accumulation_steps"),
    **dict.fromkeys(("clip", "max_grad_norm", "max_norm"), "grad_clip"),
    **dict.fromkeys(("eval_every", "eval_steps"), "eval_interval"),
    **dict.fromkeys(("save_every", "save_steps", "save_interval"), "checkpoint_interval"),
    **dict.fromkeys(("data", "input", "corpus", "data_dir"), "dataset"),
    **dict.fromkeys(("name", "run_name", "output_dir", "output", "out"), "out_dir"),
    **dict.fromkeys(("precision", "fp16", "bf16"), "dtype"),
    **dict.fromkeys(("cores", "num_threads"), "threads"),
    **dict.fromkeys(("wandb", "tensorboard", "trackio", "mlflow"), "trackers"),
    "wd": "weight_decay",
    "gpu": "device",
    "model": "arch",
    "resume": "init_from=resume",
}  # fmt: skip
"""What other trainers call our settings: only for a hint, never taken silently."""


def _nearest(key: str, cutoff: float = 0.6) -> str | None:
    if key in ELSEWHERE:
        return ELSEWHERE[key]
    near = difflib.get_close_matches(key, settings(), n=1, cutoff=cutoff)
    return near[0] if near else None


def _unknown_key(key: str, where: str, near: str | None) -> Fault:
    return Fault(
        msg("there is no setting {key:code}", key=key),
        where=msg("{where:code}", where=where),
        fix=msg("did you mean {nearest:code}?", nearest=near) if near else msg("see {command:code}", command="nanolens train --help"),
    )


__all__ = ["ForeignConfig", "UserError", "load", "read_foreign"]
