"""The code of a model of one's own, kept with the run: its file may change or vanish, and the checkpoints must still be of use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanolens import files
from nanolens.config.fields import Config
from nanolens.record.events import Chosen, Event
from nanolens.record.layout import OWN_MODEL


def as_built(config: Config, run: Path, tell: Callable[[Event], None], *, is_resumed: bool) -> Config:
    """The config with the file that the model is built from: a resumed run has a copy of its own, and goes on with that."""
    kept, named = run / OWN_MODEL, Path(config.arch)
    if not config.arch.endswith(".py") or not is_resumed or not kept.is_file():
        return config
    if not named.is_file():
        tell(Chosen(what="model file", value=str(kept), because=f"{named} is not there; the run has a copy"))
    elif files.sha256_of(named) != files.sha256_of(kept):
        tell(Chosen(what="model file", value=str(kept), because=f"{named} has changed since the run began; the run's own copy is used"))
    return replace(config, arch=str(kept))


def keep(config: Config, run: Path) -> dict[str, Any] | None:
    """Puts a copy of the file that the model was built from into the run folder; what `run.json` says of it."""
    if not config.arch.endswith(".py"):
        return None
    kept, built_from = run / OWN_MODEL, Path(config.arch)
    if built_from != kept:
        files.write_whole(kept, built_from.read_bytes())
    return {"file": OWN_MODEL, "sha256": files.sha256_of(kept)}
