"""Keeping a run: checkpoints in the background, the best and the newest on disk, and a full disk that is told of but stops nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from nanolens import files
from nanolens.checkpoint import Snapshot, delete, load, save, tensors_of
from nanolens.checkpoint.background import BackgroundWriter, NotWritten, Written
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.record.events import CheckPassed, CheckpointFailed, CheckpointSaved, Event
from nanolens.record.layout import CHECKPOINTS, checkpoint_folder, checkpoint_folders, step_of
from nanolens.train.clock import Clock
from nanolens.training.state import Trainee


class Keeper:
    def __init__(
        self, run: Path, keep: int, tell: Callable[[Event], None], clock: Clock, write_tokenizer: Callable[[Path], None] | None,
        writes: bool = True,
    ):  # fmt: skip
        self._run, self._keep, self._tell, self._clock, self._writes = run, keep, tell, clock, writes
        self._write_tokenizer = write_tokenizer
        self._writer = BackgroundWriter()
        self.started_step = -1  # of the newest checkpoint that was begun
        self.saved_step = -1  # of the newest checkpoint that is known to be whole
        self.failure = ""  # why the newest one that was due is not on disk; empty when it is
        if writes:
            (run / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            files.remove_unfinished(run / CHECKPOINTS)

    def save(self, trainee: Trainee, facts: dict[str, Any], *, is_best: bool = False) -> None:
        """Copies the state and leaves the writing to the background. The loop stands still for the copy only."""
        with self._clock.part("checkpoint"):
            started_at_s = time.perf_counter()
            self._writer.wait()
            self.started_step = trainee.progress.step
            if not trainee.ranks.saves:
                return
            snapshot = trainee.snapshot(facts)
            if not self._writes:  # it was needed to put parts together, and is written by the first rank
                return
            best = trainee.progress.best_step
            stall_s = time.perf_counter() - started_at_s
            self._writer.start(trainee.progress.step, lambda: self._write(snapshot, best), stall_s=stall_s, is_best=is_best)
        self.tell_news()

    def rehearse(self, trainee: Trainee, facts: dict[str, Any]) -> None:
        """The first checkpoint, written, read back and compared before any work could be lost; refuses where that fails."""
        started_at_s = time.perf_counter()
        expected = predicted_bytes(trainee)
        trainee.ranks.first_does(
            lambda: files.require_free_space(self._run, expected * (self._keep + 2), "keeping the checkpoints of this run")
        )
        self.save(trainee, facts)
        trainee.ranks.first_does(lambda: self._look_at_first(trainee))
        self._tell(CheckPassed(check="checkpoint_rehearsal", seen=float(expected), took_s=time.perf_counter() - started_at_s))

    def _look_at_first(self, trainee: Trainee) -> None:
        self.finish()
        folder = checkpoint_folder(self._run, trainee.progress.step)
        if self.failure:
            raise fault(
                msg("a checkpoint cannot be written: {because}", because=self.failure),
                where=msg("{folder:code}", folder=str(folder)),
                fix=msg("choose another disk with {option:code}", option="--out_dir"),
            )
        read = load(folder)
        if trainee.ranks.is_sharded:
            return  # this rank has only a part to compare with; every byte was compared with what was handed to the disk
        differing = [name for name, tensor in tensors_of(trainee.model).items() if not torch.equal(tensor.cpu(), read.model[name])]
        if differing:
            raise fault(
                msg("a checkpoint reads back differently from what was written: {names:code}", names=differing[:3]),
                where=msg("{folder:code}", folder=str(folder)),
                fix=msg("choose another disk with {option:code}", option="--out_dir"),
            )

    def finish(self) -> None:
        """Waits until what was saved is on disk."""
        with self._clock.part("checkpoint"):
            self._writer.wait()
        self.tell_news()

    def tell_news(self) -> None:
        for news in self._writer.news():
            match news:
                case Written():
                    self.saved_step, self.failure = news.step, ""
                    self._tell(
                        CheckpointSaved(
                            step=news.step, bytes=news.bytes, stall_s=news.stall_s, write_s=news.write_s, cpu_s=news.cpu_s,
                            is_best=news.is_best,
                        )
                    )  # fmt: skip
                case NotWritten():
                    self.failure = news.because
                    self._tell(CheckpointFailed(step=news.step, because=news.because))

    def _write(self, snapshot: Snapshot, best_step: int) -> int:
        step = snapshot.state["step"]
        spoilt = [name for name, tensor in snapshot.model.items() if not bool(torch.isfinite(tensor).all())]
        if spoilt:  # the older checkpoint is worth more than this one
            raise ValueError(f"{spoilt[0]} holds numbers that are not finite")
        try:
            size = save(checkpoint_folder(self._run, step), snapshot, self._write_tokenizer)
        except (OSError, SafetensorError):
            if not self._made_room(best_step):
                raise
            size = save(checkpoint_folder(self._run, step), snapshot, self._write_tokenizer)
        for folder in beyond(checkpoint_folders(self._run), self._keep, step, best_step):
            delete(folder)
        return size

    def _made_room(self, best_step: int) -> bool:
        """After a failed write: gives up older checkpoints, all but the newest and the best."""
        spare = beyond(checkpoint_folders(self._run), 1, self.saved_step, best_step)
        for folder in spare:
            shutil.rmtree(folder, ignore_errors=True)
        return bool(spare)


def predicted_bytes(trainee: Trainee) -> int:
    """Of a whole checkpoint: weights and two moments of each (Muon's matrices have one, which leaves some room)."""
    return sum(3 * parameter.numel() * parameter.element_size() for parameter in trainee.model.parameters())


def beyond(folders: list[Path], keep: int, newest_step: int, best_step: int) -> list[Path]:
    """Those of `folders` (newest first) that need not stay: neither among the `keep` newest up to `newest_step`, nor the best."""
    known = [folder for folder in folders if (step_of(folder) or 0) <= newest_step]
    return [folder for folder in known[keep:] if step_of(folder) != best_step]
