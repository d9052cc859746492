"""A Config together with where each of its values came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nanolens.config.fields import Config
from nanolens.message import Message


@dataclass(frozen=True)
class Settings:
    config: Config
    came_from: Mapping[str, str] = field(default_factory=dict)  # "default", "preset quickstart", "config.toml line 4", "--max_iters=10"
    unused: Mapping[str, object] = field(default_factory=dict)  # keys of a config file that nanolens does not have
    preset: str = ""
    comments: tuple[str, ...] = ()  # comments of the config file, for checking what they claim
    automatic: frozenset[str] = frozenset()  # settings left to a measurement (`batch_size = auto`); until then they have a value to go by
    notes: tuple[Message, ...] = ()  # what was passed over while reading, for the user to know
