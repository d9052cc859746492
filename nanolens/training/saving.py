"""Keeping a run: checkpoints in the background, the best and the newest on disk, and a full disk that is reported but
stops nothing. And sample texts on the way: what the model writes now, kept as files and reported as events."""

from __future__ import annotations

import contextlib
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn

from nanolens import files
from nanolens.config.fields import Config
from nanolens.data.tokenizers import Tokenizer
from nanolens.errors import UserError, fault
from nanolens.message import Message, msg
from nanolens.model.generate import SamplingParams, generate
from nanolens.record import CHECKPOINTS, checkpoint_folder, checkpoint_folders, sample_file, step_of
from nanolens.record.events import CheckPassed, CheckpointFailed, CheckpointSaved, Event, SampleWritten
from nanolens.training.checkpoint import Snapshot, delete, load, save, tensors_of
from nanolens.training.machine import Machine
from nanolens.training.state import Clock, Counters, Trainee


@dataclass
class Keeper:
    run: Path
    keep: int  # so many checkpoints, besides the best
    tell: Callable[[Event], None]
    clock: Clock
    write_tokenizer: Callable[[Path], None] | None
    is_writing: bool
    started_step: int = -1  # of the newest checkpoint that was begun
    saved_step: int = -1  # of the newest checkpoint that is known to be whole
    failure: str = ""  # why the newest one that was due is not on disk; empty when it is
    _writer: threading.Thread | None = None
    _news: queue.SimpleQueue[CheckpointSaved | CheckpointFailed] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        if self.is_writing:
            (self.run / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            files.remove_unfinished(self.run / CHECKPOINTS)

    def save(self, trainee: Trainee, facts: dict[str, object], *, is_best: bool = False) -> None:
        """Copies the state and leaves the writing to the background. The loop stands still for the copy only, and for
        an earlier checkpoint that is still being written: two snapshots are never held at once."""
        with self.clock.part("checkpoint"):
            started_at_s = time.perf_counter()
            self._wait()
            best_step, self.started_step = trainee.progress.best_step, trainee.progress.step
            if not trainee.ranks.takes_part:
                return
            snapshot = trainee.snapshot(facts)
            if not self.is_writing:  # it was needed to put parts together, and is written by the first rank
                return
            job = (snapshot, best_step, time.perf_counter() - started_at_s, is_best)
            self._writer = threading.Thread(target=self._write_and_note, args=job, name="checkpoint", daemon=True)
            self._writer.start()
        self.tell_news()

    def rehearse(self, trainee: Trainee, facts: dict[str, object]) -> None:
        """The first checkpoint, written, read back and compared before work could be lost; refuses where that fails."""
        started_at_s = time.perf_counter()
        # weights and two moments of each (Muon's matrices have one, which leaves some room)
        expected = sum(3 * parameter.numel() * parameter.element_size() for parameter in trainee.model.parameters())
        needed, purpose = expected * (self.keep + 2), "keeping the checkpoints of this run"
        trainee.ranks.first_does(lambda: files.require_free_space(self.run, needed, purpose))
        self.save(trainee, facts)
        trainee.ranks.first_does(lambda: self._check_first(trainee))
        took_s = time.perf_counter() - started_at_s
        self.tell(CheckPassed(check="checkpoint_rehearsal", seen=float(expected), took_s=took_s))

    def _check_first(self, trainee: Trainee) -> None:
        self.finish()
        folder = checkpoint_folder(self.run, trainee.progress.step)
        if self.failure:
            raise _bad_disk(msg("cannot write a checkpoint: {because}", self.failure), folder)
        saved = load(folder).model
        # of a sharded model this rank has only a part; every byte was compared with what was handed to the disk
        tensors = {} if trainee.ranks.is_sharded else tensors_of(trainee.model)
        differing = [name for name, tensor in tensors.items() if not torch.equal(tensor.cpu(), saved[name])]
        if differing:
            what = msg("a checkpoint read back from disk differs from what was written: {names:code}", differing[:3])
            raise _bad_disk(what, folder)

    def finish(self) -> None:
        """Waits until what was saved is on disk."""
        with self.clock.part("checkpoint"):
            self._wait()
        self.tell_news()

    def _wait(self) -> None:
        if self._writer is not None:
            self._writer.join()

    def tell_news(self) -> None:
        for _ in range(self._news.qsize()):
            event = self._news.get()
            if isinstance(event, CheckpointSaved):
                self.saved_step, self.failure = event.step, ""
            else:
                self.failure = event.because
            self.tell(event)

    def _write_and_note(self, snapshot: Snapshot, best_step: int, stall_s: float, is_best: bool) -> None:
        """In a thread, while training goes on: it leaves news for the loop to tell."""
        step, started_at_s, cpu_at_s = snapshot.state["step"], time.perf_counter(), time.thread_time()
        try:
            size = self._write(snapshot, best_step)
        except Exception as error:  # no room, a broken disk, a fault of ours: training goes on
            name = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
            self._news.put(CheckpointFailed(step=step, because=f"{name}{error}"))
            return
        write_s, cpu_s = time.perf_counter() - started_at_s, time.thread_time() - cpu_at_s
        self._news.put(
            CheckpointSaved(step=step, bytes=size, stall_s=stall_s, write_s=write_s, cpu_s=cpu_s, is_best=is_best)
        )

    def _write(self, snapshot: Snapshot, best_step: int) -> int:
        step = snapshot.state["step"]
        folder = checkpoint_folder(self.run, step)
        for name, tensor in snapshot.model.items():
            if not bool(torch.isfinite(tensor).all()):  # the older checkpoint is worth more than this one
                raise ValueError(f"{name} holds numbers that are not finite")
        try:
            size = save(folder, snapshot, self.write_tokenizer)
        except (OSError, SafetensorError):
            # Gives up older checkpoints, all but the newest and the best.
            spare = beyond(checkpoint_folders(self.run), 1, self.saved_step, best_step)
            for old in spare:
                shutil.rmtree(old, ignore_errors=True)
            if not spare:
                raise
            size = save(folder, snapshot, self.write_tokenizer)
        for old in beyond(checkpoint_folders(self.run), self.keep, step, best_step):
            delete(old)
        return size


def _bad_disk(what: Message, folder: Path) -> UserError:
    return fault(what, where=str(folder), fix=msg("choose another disk with {option:code}", "--out_dir"))


def beyond(folders: list[Path], keep: int, newest_step: int, best_step: int) -> list[Path]:
    """Of `folders` (newest first), those neither among the `keep` newest up to `newest_step` nor the best."""
    known = [folder for folder in folders if (step_of(folder) or 0) <= newest_step]
    return [folder for folder in known[keep:] if step_of(folder) != best_step]


SAMPLING = SamplingParams(temperature=0.8, top_k=200)  # nanoGPT's


@dataclass(frozen=True)
class Sampler:
    config: Config
    tokenizer: Tokenizer | None
    run: Path
    machine: Machine
    clock: Clock
    check: Callable[[], None]  # called for each token; may raise to stop
    is_writing: bool

    def is_due(self, progress: Counters) -> bool:
        interval = self.config.sample_interval
        if self.tokenizer is None or interval == 0 or progress.sampled_at == progress.step:
            return False
        return progress.evaluated_at == progress.step if interval is None else progress.step % interval == 0

    def sample(self, model: nn.Module, step: int) -> SampleWritten:
        """Always from the same prompt and seed: texts differ by what was learnt. Leaves the random numbers alone."""
        assert self.tokenizer is not None
        config = self.config
        with self.clock.part("sample"):
            started_at_s = time.perf_counter()
            first = [0]
            with contextlib.suppress(Exception):  # a vocabulary without a line break: any token will do to begin with
                first = self.tokenizer.encode("\n") or first
            prompt = torch.tensor([first], device=self.machine.device)
            tokens, seed = config.sample_tokens, config.seed
            ids = generate(
                model, config, prompt, tokens, sampling=SAMPLING, seed=seed, on_token=lambda token: self.check()
            )
            # a padded vocabulary has ids without text
            known = [i for i in ids[0, len(first) :].tolist() if i < self.tokenizer.vocab_size]
            text = self.tokenizer.decode(known)
            if self.is_writing:
                with contextlib.suppress(OSError):  # the event holds the text too
                    files.write_whole(sample_file(self.run, step), text)
            return SampleWritten(step=step, text=text, took_s=time.perf_counter() - started_at_s)
