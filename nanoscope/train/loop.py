"""The training loop: evaluate, keep, update, until done; every fact goes to `emit`, nothing is printed.

outcome = train(config, dataset, Path("runs/first"), emit=Recorder(Path("runs/first")))
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from nanoscope import files
from nanoscope.checkpoint import newest_good
from nanoscope.config.fields import Config
from nanoscope.errors import UserError
from nanoscope.message import Message, msg
from nanoscope.record.events import (
    Evaluated,
    Event,
    MicroBatchHalved,
    RolledBack,
    RunEnded,
    RunStarted,
    StepSkipped,
    StepTaken,
)
from nanoscope.record.layout import STOP_FILE, checkpoint_folders
from nanoscope.record.write import Emit, training_here, write_run_file
from nanoscope.train.begin import find_beginning
from nanoscope.train.clock import Clock
from nanoscope.train.evaluate import Evaluation, evaluate
from nanoscope.train.evaluation_sets import SPLITS, EvaluationSets, evaluation_sets
from nanoscope.train.guards import ROLLBACKS_ALLOWED, is_out_of_memory, is_over_budget
from nanoscope.train.saving import Keeper
from nanoscope.train.setup import Workshop, data_facts, facts_of, set_up
from nanoscope.train.step import Update, take_update
from nanoscope.train.stopping import Stopped, StopRequest, listening

if TYPE_CHECKING:
    from nanoscope.data.store import Dataset

MEMORY_TOLD_EVERY = 16  # steps: asking the operating system takes longer than it is worth each time


@dataclass(frozen=True)
class Outcome:
    """How a run ended, for whoever started it."""

    run: Path
    step: int
    why: str  # "finished", "stopped" or "failed", as in RunEnded
    because: Message | None
    signal: int | None  # the signal that stopped it
    train_loss: float  # of the last evaluation
    val_loss: float
    best_val: float
    best_step: int
    unsaved: str  # why the last state is not on disk; empty when it is
    parts: dict[str, float]  # seconds by part
    wall_s: float


def train(
    config: Config, dataset: Dataset, run: Path, emit: Emit, *, came_from: Mapping[str, str] | None = None, preset: str = "",
    initial: Mapping[str, Tensor] | None = None, may_refuse: bool = True,
) -> Outcome:  # fmt: skip
    """Trains until `config.max_iters` updates are done, a stop is asked for, or going on makes no sense.

    `initial` holds weights to start from, by our names (an imported model). `may_refuse` off turns failed pre-flight checks into warnings.
    A mistake of the user's is raised as UserError before anything is written; what happens later is told by events and the Outcome.
    """
    clock = Clock()
    early: list[Event] = []
    beginning = find_beginning(config, run, early.append)
    with listening(run / STOP_FILE) as stop, training_here(run):
        workshop = set_up(config, dataset, beginning, early.append, initial)
        write_run_file(run, facts_of(workshop, dataset, came_from or {}, preset, beginning.parent))
        tell = _stamped(emit)
        checkpoint = beginning.checkpoint
        tell(
            RunStarted(
                step=workshop.trainee.progress.step, resumed_from=checkpoint.folder.name if checkpoint else "",
                pid=os.getpid(), threads=workshop.machine.threads,
            )
        )  # fmt: skip
        for event in (*early, *beginning.changes):
            tell(event)
        return Loop(workshop, dataset, run, tell, clock, stop).go(is_fresh=checkpoint is None, may_refuse=may_refuse)


class Hopeless(Exception):
    """Going on makes no sense; the message says why."""

    def __init__(self, because: Message):
        self.because = because
        super().__init__(str(because))


class Loop:
    def __init__(self, workshop: Workshop, dataset: Dataset, run: Path, tell: Emit, clock: Clock, stop: StopRequest):
        self.config, self.machine, self.trainee = workshop.config, workshop.machine, workshop.trainee
        self.workshop, self.dataset, self.run, self.tell, self.clock, self.stop = workshop, dataset, run, tell, clock, stop
        self.keeper = Keeper(run, self.config.keep_checkpoints, tell, clock, tokenizer_writer(dataset))
        self.sets: EvaluationSets = evaluation_sets(self.config, dataset.train, dataset.val, self.machine.device)
        self.losses = {"train": math.nan, "val": math.nan}
        self.is_nanogpt = self.config.data_order == "nanogpt"
        # nanoGPT leaves its loop only after iteration number max_iters, which is one update more.
        self.last_step = self.config.max_iters + (1 if self.is_nanogpt else 0)

    def go(self, *, is_fresh: bool, may_refuse: bool) -> Outcome:
        why, because = "finished", None
        if not is_fresh:
            self.keeper.started_step = self.trainee.progress.step
        try:
            self._to_the_end()
        except Stopped:
            why, because = "stopped", msg("{what:code}", what=self.stop.because)
            self._save_where_it_stands()
        except Hopeless as end:
            why, because = "failed", end.because
        except UserError:
            self._end("failed", None)
            raise
        except BaseException as error:
            self._end("failed", msg("{error}", error=f"{type(error).__name__}: {error}"))
            raise
        return self._end(why, because)

    def _to_the_end(self) -> None:
        trainee, progress = self.trainee, self.trainee.progress
        while True:
            progress = trainee.progress
            trainee.step_start = trainee.feed.state()
            if self._is_evaluation_due():
                is_best = self._evaluate()
                trainee.step_start = trainee.feed.state()
            else:
                is_best = False
            if self.config.eval_only:
                return
            is_last = progress.step >= self.last_step
            if self.keeper.started_step != progress.step and (is_last or is_best or progress.step % self._save_interval == 0):
                self.keeper.save(trainee, self._facts(), is_best=is_best)
            if is_last:
                return
            self._update()
            self.keeper.tell_news()

    def _update(self) -> None:
        step = self.trainee.progress.step
        with self.clock.part("train"):
            update = self._update_within_memory()
        progress = self.trainee.progress
        if not update.bad:
            self.tell(
                StepTaken(
                    step=progress.step, loss=update.loss, rate=update.rate, grad_norm=update.grad_norm, clipped=update.clipped,
                    tokens=self.config.tokens_per_update, took_s=update.took_s, data_s=update.data_s, micro_norms=update.micro_norms,
                    loss_scale=update.loss_scale,
                    memory_bytes=self.machine.memory_in_use() if progress.step % MEMORY_TOLD_EVERY == 1 else None,
                )
            )  # fmt: skip
            return
        samples = self.config.tokens_per_update // self.config.block_size
        self.tell(
            StepSkipped(
                step=step, because=update.bad, layer=update.bad_layer, sample=progress.sample - samples, loss_scale=update.loss_scale
            )
        )
        self._consider_rolling_back(update)

    def _update_within_memory(self) -> Update:
        """The update, with ever smaller micro-batches if memory runs out. Tokens per update stay."""
        while True:
            try:
                return take_update(self.trainee, self.config, self.machine, self.clock, self.stop.check)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            # Out of the except block, whose traceback would keep the tensors of the failed pass alive.
            trainee, old = self.trainee, self.trainee.micro_batch
            trainee.optimizer.zero_grad(set_to_none=True)
            if old == 1:
                raise Hopeless(msg("there is not enough memory for a single sequence of {tokens:tokens}", tokens=self.config.block_size))
            trainee.micro_batch = old // 2
            if trainee.step_start:
                trainee.feed.restore(trainee.step_start)
            self.machine.release_memory()
            self.tell(MicroBatchHalved(step=trainee.progress.step, old=old, new=trainee.micro_batch))

    def _consider_rolling_back(self, update: Update) -> None:
        progress = self.trainee.progress
        if update.loss_scale is not None and update.loss_scale > 1 and update.bad == "gradient":
            return  # float16 looking for its scale: that is how it is found
        progress.skipped.append(progress.tries)
        if not is_over_budget(progress.skipped, progress.tries, self.config.skip_budget):
            return
        seen = msg(
            "{count:count} updates in a row or nearly so had a {what} that is not finite, the last at step {step:count} in {layer:code}",
            count=len(progress.skipped), what=update.bad, step=progress.step, layer=update.bad_layer or "the loss",
        )  # fmt: skip
        self.keeper.finish()
        checkpoint, _ = newest_good(checkpoint_folders(self.run))
        if progress.rollbacks >= ROLLBACKS_ALLOWED or checkpoint is None:
            raise Hopeless(seen)
        from_step, sample, rollbacks, feed = progress.step, progress.sample, progress.rollbacks, self.trainee.feed.state()
        self.trainee.restore(checkpoint)
        if feed:
            self.trainee.feed.restore(feed)
        progress = self.trainee.progress
        progress.sample, progress.rollbacks, progress.skipped = sample, rollbacks + 1, []
        self.keeper.started_step = progress.step
        self.tell(RolledBack(from_step=from_step, to_step=progress.step, because=str(seen)))

    def _is_evaluation_due(self) -> bool:
        step = self.trainee.progress.step
        if self.trainee.progress.evaluated_at == step:
            return False
        if self.is_nanogpt and step > self.config.max_iters:
            return False
        return step % self.config.eval_interval == 0 or step >= self.last_step

    def _evaluate(self) -> bool:
        """Tells of both splits; True where val is the lowest so far."""
        trainee, progress = self.trainee, self.trainee.progress
        found: dict[str, Evaluation] = {}
        with self.clock.part("eval"):
            for split in SPLITS:
                found[split] = evaluate(trainee.run, self.sets.batches(split), self.machine, self.stop.check)
        is_best = found["val"].loss < progress.best_val
        if is_best:
            progress.best_val, progress.best_step = found["val"].loss, progress.step
        progress.evaluated_at, progress.val_loss = progress.step, found["val"].loss
        for split, seen in found.items():
            self.losses[split] = seen.loss
            self.tell(
                Evaluated(
                    step=progress.step, split=split, loss=seen.loss, standard_error=seen.standard_error,
                    batch_losses=list(seen.batch_losses), batches=self.sets.fingerprint(split), tokens=seen.tokens,
                    bits_per_byte=seen.bits_per_byte(bytes_per_token(self.dataset, split)), took_s=seen.took_s,
                    is_best=is_best and split == "val",
                )
            )  # fmt: skip
        return is_best and progress.step > 0

    @property
    def _save_interval(self) -> int:
        return self.config.checkpoint_interval or self.config.eval_interval

    def _facts(self) -> dict[str, Any]:
        return {
            "config": dataclasses.asdict(self.config), "choices": self.workshop.choices, "vocab_size": self.workshop.vocab_size,
            "data": data_facts(self.dataset), "torch": torch.__version__,
        }  # fmt: skip

    def _save_where_it_stands(self) -> None:
        self.trainee.optimizer.zero_grad(set_to_none=True)
        self.keeper.save(self.trainee, self._facts())

    def _end(self, why: str, because: Message | None) -> Outcome:
        self.keeper.finish()
        progress, parts = self.trainee.progress, self.clock.parts()
        wall_s = self.clock.wall_s
        self.tell(RunEnded(step=progress.step, why=why, because=str(because or ""), parts=parts, wall_s=wall_s))
        return Outcome(
            run=self.run, step=progress.step, why=why, because=because, signal=self.stop.signal, train_loss=self.losses["train"],
            val_loss=self.losses["val"], best_val=progress.best_val, best_step=progress.best_step, unsaved=self.keeper.failure,
            parts=parts, wall_s=wall_s,
        )  # fmt: skip


def tokenizer_writer(dataset: Dataset) -> Callable[[Path], None] | None:
    if dataset.tokenizer is None:
        return None
    contents = dataset.tokenizer.to_files()

    def write(folder: Path) -> None:
        for name, payload in contents.items():
            files.write_whole(folder / name, payload)

    return write


def bytes_per_token(dataset: Dataset, split: str) -> float | None:
    size, count = dataset.facts.get(f"{split}_bytes"), len(getattr(dataset, split))
    return size / count if size else None


def _stamped(emit: Emit) -> Emit:
    return lambda event: emit(msgspec.structs.replace(event, at_s=time.time()))
