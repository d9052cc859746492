"""Runs the branches: each a run of its own below `probes/`, from the same checkpoint, over the same batches, judged on the same tokens."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nanoscope.analysis import probe_plan
from nanoscope.analysis.probe_plan import Branch, Frame
from nanoscope.api.probe.subject import Subject
from nanoscope.config.fields import Config
from nanoscope.message import Message, msg
from nanoscope.record.events import Evaluated, Event
from nanoscope.record.layout import EVENTS_FILE, is_run, probe_folder


class Interrupted(KeyboardInterrupt):
    """A branch was stopped by a signal; what it had done is kept."""


@dataclass(frozen=True)
class Ran:
    """A branch that has been run, and how it ended."""

    name: str
    folder: Path
    val: np.ndarray  # loss of each val batch
    train: np.ndarray
    cost: float
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
    took_s: float = 0.0

    def run(self, wanted: Branch) -> Ran:
        if wanted.name not in self.done:
            self.done[wanted.name] = self._kept(wanted) or self._run(wanted)
        return self.done[wanted.name]

    def reference(self) -> Ran:
        return self.run(probe_plan.unchanged(self.frame))

    def config_of(self, wanted: Branch) -> Config:
        folder = probe_folder(self.subject.folder, self.subject.step, wanted.name)
        end = self.subject.step + wanted.updates
        quiet = {
            "init_from": self.subject.name, "out_dir": str(folder), "overwrite": False, "sample_interval": 0, "wandb_log": False,
            "max_iters": end, "eval_only": False, "keep_checkpoints": 1,
        }  # fmt: skip
        if (
            not wanted.changes
        ):  # the run's own continuation: it evaluates when the run does, since nanoGPT's order draws both from one stream
            return dataclasses.replace(self.subject.config, **quiet, lr_decay_iters=self.subject.config.decay_ends)
        once = {"eval_interval": end + 1, "checkpoint_interval": end + 1, "eval_iters": self.frame.eval_iters, "eval_whole": False}
        return dataclasses.replace(self.subject.config, **{**quiet, **once, **wanted.changes})

    def _kept(self, wanted: Branch) -> Ran | None:
        from nanoscope.record.write import read_run_file

        folder = probe_folder(self.subject.folder, self.subject.step, wanted.name)
        if not is_run(folder):
            return None
        config = dataclasses.asdict(self.config_of(wanted))
        known = read_run_file(folder).get("config", {})
        skip = ("out_dir", "init_from")  # another path to the same folder is the same branch
        if any(known.get(key) != value for key, value in config.items() if key not in skip):
            return None
        seen, ended = {}, None
        for line in (folder / EVENTS_FILE).read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["event"] == "evaluated":
                seen[event["split"]] = np.array([float(x) for x in event["batch_losses"]])
            ended = event if event["event"] == "run_ended" else ended
        if ended is None or ended["why"] != "finished" or "val" not in seen:
            return None
        return Ran(wanted.name, folder, seen["val"], seen["train"], wanted.cost, float(ended.get("wall_s", 0.0)))

    def _run(self, wanted: Branch) -> Ran:
        from nanoscope.record.write import Recorder, fan_out
        from nanoscope.train.loop import train

        folder = probe_folder(self.subject.folder, self.subject.step, wanted.name)
        if folder.exists():  # a branch of other settings, or one that was interrupted: ours to replace
            shutil.rmtree(folder)
        self.tell(msg("{name:code}: {words}", name=wanted.name, words=wanted.words))
        config, initial = self.config_of(wanted), None
        if wanted.is_wider:
            from nanoscope.api.probe.grow import grown_parent

            config = dataclasses.replace(config, init_from=str(grown_parent(self.subject, folder, config)))
        seen: dict[str, np.ndarray] = {}

        def listen(event: Event) -> None:
            if isinstance(event, Evaluated):
                seen[event.split] = np.array([float(x) for x in event.batch_losses])

        recorder, started_at_s = Recorder(folder), time.perf_counter()
        try:
            outcome = train(config, self.subject.dataset, folder, fan_out(recorder, listen), initial=initial, may_refuse=False)
        finally:
            recorder.close()
        took_s = time.perf_counter() - started_at_s
        self.took_s += took_s
        if outcome.why == "stopped":
            raise Interrupted
        if outcome.why == "failed" or "val" not in seen:
            nothing = np.full(self.frame.eval_iters, np.inf)  # it diverged: the worst that a change can do
            return Ran(wanted.name, folder, nothing, nothing, wanted.cost, took_s)
        return Ran(wanted.name, folder, seen["val"], seen["train"], wanted.cost, took_s)
