"""Experiment trackers: what a run recorded, in the form that TensorBoard, Weights & Biases, trackio and MLflow take.

A tracker gets one MetricRow per step, in the order of the steps, and each step once. `rows.py` makes the rows,
`sender.py` sends them, once or as the record grows; while a run goes on, `live.py` starts a process for that."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from nanolens.errors import UserError, fault
from nanolens.message import msg


@dataclass(frozen=True)
class MetricRow:
    """All that is known of one step: numbers by the names of `config.names.TRACKER_COLUMNS`, texts in Markdown."""

    step: int
    at_s: float  # seconds since 1970; NaN where unknown
    values: Mapping[str, float]
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunInfo:
    """What a tracker gets before the first row."""

    name: str  # of the run
    project: str
    config: Mapping[str, object]
    folder: Path  # where a tracker that writes files may write them
    started_at_s: float = float("nan")


@dataclass(frozen=True)
class RunEnd:
    """What a tracker gets after the last row."""

    summary: Mapping[str, float | int | str]
    texts: Mapping[str, str] = field(default_factory=dict)  # Markdown: the findings
    state: str = "finished"  # finished, stopped, failed, running (more may come)
    step: int = 0  # the last one


class SendState(TypedDict, total=False):
    """What is known of one run at one tracker, as `trackers/NAME.json` of the run folder holds it."""

    tracker: str
    project: str
    name: str
    look: str  # where to look at it: an address, or a command
    step: int  # the last step that it has
    offset: int  # how far the record was read
    names: dict[str, list[str]]  # what was sent of the last steps that a later attempt may begin from
    is_closed: bool
    state: str
    complaints: Sequence[str]
    pid: int  # of the process that sends while the run goes on
    because: str  # why that failed
    failures: int
    id: str  # what the trackers themselves keep
    run: str
    mode: str
    files: int


class Tracker:
    """One tracker. `add` gets rows in the order of their steps."""

    can_rewind = False  # whether `rewind` makes it forget
    complaints: Sequence[str] = ()  # what it warned of, known when it is closed

    def open(self, about: RunInfo, sent: SendState) -> SendState:
        """Begins, or goes on with what an earlier call `sent`. Gives what to keep: an id, a folder; `step` where the
        tracker itself knows up to which step it already has the run."""
        raise NotImplementedError

    def add(self, rows: Sequence[MetricRow]) -> None:
        raise NotImplementedError

    def rewind(self, step: int) -> None:
        """What was added beyond this step did not happen after all."""

    def close(self, ending: RunEnd) -> None:
        raise NotImplementedError

    def look(self) -> str:
        """Where to look at it: an address, or the command to type."""
        raise NotImplementedError


_MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio", "mlflow": "mlflow"}
NAMES = tuple(_MODULES)


def is_installed(name: str) -> bool:
    """Whether the tracker's library is there, without importing it."""
    return importlib.util.find_spec(_MODULES[name]) is not None


def not_installed(name: str) -> UserError:
    what = msg("{module:code} is not installed", _MODULES[name])
    return fault(what, fix=msg("run {command:code}", f"pip install 'nanolens[{name}]'"))
