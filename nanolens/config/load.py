"""Named settings that are known to work, each with what to expect of it and who measured that.

Defaults, then a preset or a config file, then `--key=value`: one Config, with the origin of each value and all faults
at once."""

from __future__ import annotations

import contextlib
import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from nanolens.config.fields import Config, Setting, Settings, as_text, faults_in, settings
from nanolens.config.names import HINTS
from nanolens.config.python_file import ConfigFile, read_python
from nanolens.errors import Fault, UserError, fault, raise_if_any
from nanolens.message import Message, msg

PRESETS = Path(__file__).with_name("presets")
DEFAULT_PRESET = "quickstart"  # of `train`, `plan`, `tune` and `sweep` without a name


@dataclass(frozen=True)
class Preset:
    name: str
    values: Mapping[str, object]
    summary: Message  # one sentence: what this trains, and on what
    val_loss: float | None  # what to expect at the end, in nats per token
    val_loss_source: Message | None
    took: Message | None  # how long, where and by whose measurement
    was_run: bool  # False: made from arithmetic, for a device that nobody has run it on yet
    # (step, mean val loss over seeds, standard deviation over seeds), by bench/curves.py
    curve: tuple[tuple[int, float, float], ...] = ()


@cache
def preset_names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in PRESETS.glob("*.toml")))


def named_preset(name: str) -> Preset | None:
    """The preset of that name, dashes or underscores; None where there is none."""
    plain = name.replace("_", "-").lower()
    return _read(plain) if plain in preset_names() else None


NO_EFFECT_ON_LOSS = frozenset(
    """out_dir overwrite init_from log_interval device dtype compile threads seed eval_interval wandb_log
    checkpoint_interval keep_checkpoints sample_interval sample_tokens""".split()
)


def unchanged_preset(name: str, config: Mapping[str, object]) -> Preset | None:
    """The preset, where these settings are its own as far as the loss depends on them."""
    if (preset := named_preset(name)) is None:
        return None
    own = asdict(load(preset.name).config)
    relevant = {key: value for key, value in own.items() if key not in NO_EFFECT_ON_LOSS and value != "auto"}
    return preset if all(config.get(key, value) == value for key, value in relevant.items()) else None


@cache
def _read(name: str) -> Preset:
    values = tomllib.loads((PRESETS / f"{name}.toml").read_text(encoding="utf-8"))
    about = values.pop("about")
    curve = tuple((int(step), float(mean), float(spread)) for step, mean, spread in about.get("curve", ()))
    loss_source, took = (Message(about[key]) if key in about else None for key in ("val_loss_source", "took"))
    was_run, summary = about.get("was_run", True), Message(about["summary"])
    return Preset(name, values, summary, about.get("val_loss"), loss_source, took, was_run, curve)


_SUFFIXES = (".py", ".toml", ".json")


def load(source: str | None = None, overrides: Sequence[tuple[str, str]] = ()) -> Settings:
    """The settings of a run. `source` is a preset's name or a config file; `overrides` are keys and values typed."""
    draft, preset = _Draft(), None
    if source is not None and (source.endswith(_SUFFIXES) or Path(source).is_file()):
        _take_file(draft, Path(source))
    elif source is not None:
        if (preset := named_preset(source)) is None:
            raise _no_such_preset(source)
        for key, value in preset.values.items():
            draft.take(key, value, f"preset {preset.name}")
    for key, text in overrides:
        draft.take(key, _from_text(text, settings().get(key.replace("-", "_"))), f"--{key}={text}")
    config = Config(**draft.values)  # type: ignore[arg-type]
    raise_if_any([*draft.faults, *faults_in(config, draft.where, ignore=draft.faulty)])
    came_from, name = {name: draft.where.get(name, "default") for name in settings()}, preset.name if preset else ""
    return Settings(config, came_from, name, tuple(draft.comments), frozenset(draft.automatic), tuple(draft.notes))


def read_foreign(path: Path) -> ConfigFile:
    """The config that belongs to a foreign log: TOML, JSON or nanoGPT's Python. Unknown keys are kept."""
    file = _read_file(path)
    raise_if_any(file.faults)
    return file


def _read_file(path: Path) -> ConfigFile:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        what = msg("there is no file {path:code}", str(path))
        raise fault(what, fix=msg("give the path of a .toml, .json or .py file")) from None
    except (OSError, UnicodeDecodeError) as error:
        raise fault(msg("{path:code} cannot be read: {problem}", str(path), str(error))) from None
    if path.suffix == ".py":
        return read_python(text, path.name)
    try:
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        if path.suffix not in _SUFFIXES:  # most likely somebody wants to train on this text
            prepare, train = f"nanolens prepare {path}", f"nanolens train --dataset={path.stem}"
            fix = msg("to train on this text, prepare it with {prepare:code}, then run {train:code}", prepare, train)
            raise fault(msg("{path:code} is not a config file", str(path)), fix=fix) from None
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise fault(msg("{path:code} is not valid {kind}: {problem}", str(path), kind, str(error))) from None
    if not isinstance(values, dict):
        what = msg("{path:code} contains no named settings", str(path))
        raise fault(what, fix=msg("write one key and value per line"))
    values.pop("about", None)
    commented = [line.partition("#")[2].strip() for line in text.splitlines() if "#" in line]
    where = {key: _line_of(key, text, path.name) for key in values}
    return ConfigFile(values, where, commented if path.suffix == ".toml" else [])


def _line_of(key: str, text: str, name: str) -> str:
    lines = enumerate(text.splitlines(), 1)
    numbers = (number for number, line in lines if line.lstrip().lstrip('"').startswith(key))
    return next((f"{name} line {number}" for number in numbers), name)


def _take_file(draft: _Draft, path: Path) -> None:
    file = _read_file(path)
    draft.faults, draft.comments, draft.notes = file.faults, file.comments, file.notes
    for key, value in file.values.items():
        if path.suffix == ".py" and key not in settings():
            # nanoGPT's files may hold variables of their own; one that looks like a setting is a slip of the pen.
            if near := _nearest(key, cutoff=0.85):
                draft.faults.append(_unknown_key(key, file.where[key], near))
            continue
        draft.take(key, value, file.where[key])


def _no_such_preset(name: str) -> UserError:
    if Path(name).is_dir():
        what = msg("{name:code} is a folder, neither a preset nor a config file", name)
        return fault(what, fix=msg("give the data with {option:code}", f"--dataset={name}"))
    near = difflib.get_close_matches(name.replace("_", "-"), preset_names(), n=1, cutoff=0.5)
    fix = msg("did you mean {nearest:code}?", near[0]) if near else msg("the presets are {names:code}", preset_names())
    return fault(msg("there is no preset or config file named {name:code}", name), fix=fix)


@dataclass
class _Draft(ConfigFile):
    """Values on their way into a Config, with the faults met so far."""

    faulty: set[str] = field(default_factory=set)
    automatic: set[str] = field(default_factory=set)

    def take(self, key: str, value: object, where: str) -> None:
        key = key.replace("-", "_")
        known = settings().get(key)
        if known is None:
            self.faults.append(_unknown_key(key, where, _nearest(key)))
            return
        # "Cut the update as is fastest here": the value given before says how many tokens an update has.
        if key == "batch_size" and value == "auto":
            self.automatic.add(key)
        else:
            try:
                self.values[key] = _fitted(value, known)
            except ValueError:
                example = f"--{key}={True if known.type is bool else as_text(known.default)}"
                what = msg("{key:code} = {value:code} is not {wanted}", key, str(value), _WANTED[known.type])
                self.faults.append(Fault(what, where=where, fix=msg("for example {option:code}", example)))
                self.faulty.add(key)
                return
            self.automatic.discard(key)
        self.where[key] = where


_WANTED = {bool: msg("True or False"), int: msg("a whole number"), float: msg("a finite number"), str: msg("text")}


def _fitted(value: object, known: Setting) -> object:
    """The value as the setting's own type; ValueError where it is of another."""
    if known.is_optional and (value is None or (isinstance(value, str) and value.lower() in ("auto", "none"))):
        return None
    if known.type in (bool, str):
        if isinstance(value, known.type):
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if known.type is int and abs(value) < 2**63 and value == int(value):
            return int(value)
        if known.type is float and abs(value) < 1e300:
            return float(value)
    raise ValueError


def _from_text(text: str, known: Setting | None) -> object:
    """Command-line text as the value it most plainly is. A text setting keeps its letters: 123 is a name too."""
    if known is None or known.type is str:
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _nearest(key: str, cutoff: float = 0.6) -> str | None:
    if (meant := HINTS.get(key, "")).partition("=")[0] in settings():
        return meant
    near = difflib.get_close_matches(key, settings(), n=1, cutoff=cutoff)
    return near[0] if near else None


def _unknown_key(key: str, where: str, near: str | None) -> Fault:
    fix = msg("did you mean {nearest:code}?", near) if near else msg("see {command:code}", "nanolens train --help")
    return Fault(msg("there is no setting named {key:code}", key), where=where, fix=fix)
