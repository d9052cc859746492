"""Named settings that are known to work, each with what to expect of it and who measured that."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from nanolens.message import Message


@dataclass(frozen=True)
class Preset:
    name: str
    values: Mapping[str, object]
    summary: Message  # one sentence: what this trains, and on what
    val_loss: float | None  # what to expect at the end, in nats per token
    val_loss_source: Message | None
    took: Message | None  # how long, where and by whose measurement
    was_run: bool  # False: made from arithmetic, for a device that nobody has run it on yet
    curve: tuple[tuple[int, float, float], ...] = ()  # (step, mean val loss over seeds, standard deviation over seeds), by bench/curves.py


@cache
def preset_names() -> tuple[str, ...]:
    folder = resources.files("nanolens.config") / "presets"
    return tuple(sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")))


def named_preset(name: str) -> Preset | None:
    """The preset of that name, dashes or underscores; None where there is none."""
    plain = name.replace("_", "-").lower()
    return _read(plain) if plain in preset_names() else None


@cache
def _read(name: str) -> Preset:
    folder = resources.files("nanolens.config") / "presets"
    values = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
    about = values.pop("about")
    curve = tuple((int(step), float(mean), float(spread)) for step, mean, spread in about.get("curve", ()))
    return Preset(
        name=name,
        values=values,
        summary=Message(about["summary"]),
        val_loss=about.get("val_loss"),
        val_loss_source=Message(about["val_loss_source"]) if "val_loss_source" in about else None,
        took=Message(about["took"]) if "took" in about else None,
        was_run=about.get("was_run", True),
        curve=curve,
    )
