"""The run that is probed: its checkpoint, settings, data and record. Nothing in its folder is written to but `probes/`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nanolens.config.fields import Config, settings
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.record.layout import checkpoint_folders
from nanolens.record.run import Run
from nanolens.record.store import RunAt, find_checkpoint, find_run

if TYPE_CHECKING:
    from nanolens.data.store import Dataset


@dataclass(frozen=True, eq=False)
class Subject:
    folder: Path
    step: int
    config: Config
    code: str  # `arch`, or the run's own copy of a model file
    dataset: Dataset
    run: Run  # the whole record
    checkpoint: Path
    state: dict[str, Any]  # of the checkpoint
    weights: dict[str, Any]

    @property
    def vocab_size(self) -> int:
        return int(self.state["vocab_size"])

    @property
    def sample(self) -> int:
        """The first sample that no update has used."""
        return int(self.state["progress"]["sample"])

    @property
    def name(self) -> str:
        return f"{self.folder}@{self.step}"

    @cached_property
    def update_s(self) -> float | None:
        """Seconds of an update, where the record tells them."""
        took = self.run.steps.took_s
        took = took[np.isfinite(took)]
        return float(np.median(took)) if len(took) else None


def open_subject(target: str, arch: str | None = None) -> Subject:
    """`RUN` (its newest checkpoint that is whole) or `RUN@STEP`. A model of one's own needs its file again."""
    from nanolens.checkpoint import weights_of
    from nanolens.record.read import read_run

    at = find_run(target)
    checkpoint = _checkpoint(at)
    weights, state = weights_of(checkpoint)
    config = Config(**{key: value for key, value in state["config"].items() if key in settings()})
    code = config.arch
    if code.endswith(".py"):
        from nanolens.api.own_code import file_to_run

        code = str(file_to_run(at.folder, code, arch)[0])  # refuses code that nobody named
    run = read_run(at.folder)
    return Subject(at.folder, int(state["step"]), config, code, _dataset(run, config), run, checkpoint, state, weights)


def _checkpoint(at: RunAt) -> Path:
    """Of that step, or the newest that is whole."""
    from nanolens.checkpoint import verify

    if at.step is not None:
        found = find_checkpoint(at)
    else:
        found = next((folder for folder in checkpoint_folders(at.folder) if not verify(folder)), None)
    if found is None:
        raise fault(
            msg("{run:code} has no checkpoint yet", run=str(at.folder)),
            fix=msg("wait for its first one; {command:code} shows when that is", command=f"nanolens watch {at.folder}"),
        )
    return found


def _dataset(run: Run, config: Config) -> Dataset:
    """The very data that the run was trained on."""
    from nanolens.data.store import open_dataset, open_folder

    folder = run.get("folder")
    dataset = open_folder(Path(folder)) if isinstance(folder, str) and Path(folder).is_dir() else open_dataset(config.dataset)
    recorded = run.get("data_fingerprint")
    if recorded and dataset.fingerprint != recorded:
        raise fault(
            msg("the data in {folder:code} is no longer what {run:code} was trained on", folder=str(dataset.folder), run=run.name),
            fix=msg("prepare it again as it was: branches on other data would say nothing about this run"),
        )
    return dataset
