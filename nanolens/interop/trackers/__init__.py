"""Doors to experiment trackers: what a run told, in the form that TensorBoard, Weights & Biases, trackio and MLflow take.

A tracker gets one Row per step, in the order of the steps, and each step once. `trackers/rows.py` makes the rows; who reads the record,
when, and in which process, is for `api` to say. Each library is imported where it is used.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nanolens.errors import UserError, fault
from nanolens.message import msg


@dataclass(frozen=True)
class Row:
    """All that is known of one step: numbers by the names of `rows.NAMES`, and texts (a sample, a warning) in Markdown."""

    step: int
    at_s: float  # seconds since 1970; NaN where unknown
    values: Mapping[str, float]
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class About:
    """What a tracker is told before the first row."""

    name: str  # of the run
    project: str
    config: Mapping[str, Any]
    folder: Path  # where a tracker that writes files may write them
    started_at_s: float = float("nan")


@dataclass(frozen=True)
class Ending:
    """What a tracker is told after the last row."""

    summary: Mapping[str, float | int | str]
    texts: Mapping[str, str] = field(default_factory=dict)  # Markdown: the findings
    state: str = "finished"  # finished, stopped, failed, running (more may come)


class Tracker(Protocol):
    can_rewind: bool  # whether `rewind` makes it forget

    def open(self, about: About, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Begins, or goes on with what `kept` says of an earlier call. Gives what to keep: an id, a folder; `step` where the tracker itself
        knows up to which step it already has the run."""

    def add(self, rows: Sequence[Row]) -> None: ...

    def rewind(self, step: int) -> None:
        """What was added beyond this step did not happen after all."""

    def close(self, ending: Ending) -> None: ...

    def look(self) -> str:
        """Where to look at it: an address, or the command to type."""


NAMES = ("tensorboard", "wandb", "trackio", "mlflow")
_LIBRARY = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio", "mlflow": "mlflow"}


def tracker_named(name: str) -> Tracker:
    match name:
        case "tensorboard":
            from nanolens.interop.trackers.to_tensorboard import TensorBoard

            return TensorBoard()
        case "wandb":
            from nanolens.interop.trackers.to_wandb import WandB

            return WandB()
        case "trackio":
            from nanolens.interop.trackers.to_trackio import Trackio

            return Trackio()
        case "mlflow":
            from nanolens.interop.trackers.to_mlflow import MLflow

            return MLflow()
    raise fault(
        msg("there is no tracker {name:code}", name=name),
        fix=msg("use one of {choices:code}", choices=NAMES),
    )


def is_installed(name: str) -> bool:
    """Whether the tracker's library is there, without importing it."""
    return importlib.util.find_spec(_LIBRARY[name]) is not None


def not_installed(name: str) -> UserError:
    return fault(
        msg("{module:code} is not installed", module=_LIBRARY[name]),
        fix=msg("run {command:code}", command=f"pip install 'nanolens[{name}]'"),
    )
