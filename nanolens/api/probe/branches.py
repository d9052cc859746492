"""Runs the branches: each a run of its own below `probes/`, from the same checkpoint, over the same batches, judged on the same tokens."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nanolens.api.probe.subject import Subject
from nanolens.config.fields import Config
from nanolens.message import Message, msg
from nanolens.probing import experiments as probe_plan
from nanolens.probing.experiments import EVAL_ITERS, Branch, Frame
from nanolens.record.events import RunEnded
from nanolens.record.layout import checkpoint_folder, is_run, probe_folder
from nanolens.record.read import events_since

JUDGED_SEED = 5  # of the choice of windows; not the evaluations' own


class Interrupted(KeyboardInterrupt):
    """A branch was stopped by a signal; what it had done is kept."""


@dataclass(frozen=True)
class Ran:
    """A branch that has been run, and how it ended."""

    wanted: Branch
    folder: Path
    val: np.ndarray  # loss of each val window that all branches are judged on
    took_s: float

    @property
    def val_loss(self) -> float:
        return float(self.val.mean())


@dataclass
class Branches:
    """All branches of one probing. One that was run before, with the same settings, is not run again."""

    subject: Subject
    frame: Frame
    tell: Callable[[Message], None] = lambda message: None
    done: dict[str, Ran] = field(default_factory=dict)

    def run(self, wanted: Branch) -> Ran:
        if wanted.name not in self.done:
            self.done[wanted.name] = self._kept(wanted) or self._run(wanted)
        return self.done[wanted.name]

    def reference(self) -> Ran:
        return self.run(probe_plan.unchanged(self.frame))

    def config_of(self, wanted: Branch) -> Config:
        folder = probe_folder(self.subject.folder, self.subject.step, wanted.name)
        end = self.subject.step + wanted.updates
        quiet: dict[str, Any] = {
            "init_from": self.subject.name, "out_dir": str(folder), "overwrite": False, "sample_interval": 0, "wandb_log": False,
            "max_iters": end, "eval_only": False, "keep_checkpoints": 1,
        }  # fmt: skip
        if not wanted.changes:
            # The run's own continuation evaluates when the run does: nanoGPT's order draws batches and evaluations from one stream.
            return dataclasses.replace(self.subject.config, **quiet, lr_decay_iters=self.subject.config.decay_ends)
        once = {
            "eval_interval": end + 1,
            "checkpoint_interval": end + 1,
            "eval_iters": min(EVAL_ITERS, self.subject.config.eval_iters),
            "eval_whole": False,
        }
        return dataclasses.replace(self.subject.config, **{**quiet, **once, **wanted.changes})

    def _kept(self, wanted: Branch) -> Ran | None:
        from nanolens.record.write import read_run_file

        folder = probe_folder(self.subject.folder, self.subject.step, wanted.name)
        if not is_run(folder):
            return None
        config = dataclasses.asdict(self.config_of(wanted))
        known = read_run_file(folder).get("config", {})
        skip = ("out_dir", "init_from")  # another path to the same folder is the same branch
        if any(known.get(key) != value for key, value in config.items() if key not in skip):
            return None
        ended = [event for event in events_since(folder, 0)[0] if isinstance(event, RunEnded)]
        end = checkpoint_folder(folder, self.subject.step + wanted.updates)
        if not ended or ended[-1].why != "finished" or not end.is_dir():
            return None
        return Ran(wanted, folder, self.judged(end), ended[-1].wall_s)

    def _run(self, wanted: Branch) -> Ran:
        from nanolens.record.write import Recorder
        from nanolens.training.loop import train

        folder = probe_folder(self.subject.folder, self.subject.step, wanted.name)
        if folder.exists():  # a branch of other settings, or one that was interrupted: ours to replace
            shutil.rmtree(folder)
        self.tell(msg("{name:code}: {words}", name=wanted.name, words=wanted.words))
        config = self.config_of(wanted)
        if wanted.is_wider:
            from nanolens.api.probe.grow import grown_parent

            config = dataclasses.replace(config, init_from=str(grown_parent(self.subject, folder, config)))
        recorder, started_at_s = Recorder(folder), time.perf_counter()
        try:
            outcome = train(config, self.subject.dataset, folder, recorder, may_refuse=False)
        finally:
            recorder.close()
        took_s = time.perf_counter() - started_at_s
        if outcome.why == "stopped":
            raise Interrupted
        end = checkpoint_folder(folder, self.subject.step + wanted.updates)
        if outcome.why == "failed" or not end.is_dir():  # it diverged: the worst that a change can do
            return Ran(wanted, folder, np.full(self.frame.windows, np.inf), took_s)
        return Ran(wanted, folder, self.judged(end), took_s)

    def judged(self, checkpoint: Path) -> np.ndarray:
        """Losses of those weights, on the same windows for all branches, each window by itself: neither the batch size nor the order
        of the data decides what is compared with what."""
        from nanolens.api.probe.look import joined, look_at
        from nanolens.data.batches import eval_windows

        config, dataset = self.subject.config, self.subject.dataset
        windows = joined(eval_windows(dataset.val, config.block_size, 1, self.frame.windows, JUDGED_SEED))
        return look_at(self.subject, checkpoint).losses(*windows).mean(axis=1)
