"""The training loop: evaluate, keep, update, until done; every fact goes to `emit`, nothing is printed.

outcome = train(config, dataset, Path("runs/first"), emit=Recorder(Path("runs/first")))
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import torch
from torch import Tensor

from nanolens.checkpoint import newest_good
from nanolens.config.fields import Config
from nanolens.errors import UserError
from nanolens.message import Message, msg
from nanolens.record.events import (
    Chosen,
    Evaluated,
    Event,
    MicroBatchHalved,
    RankDrifted,
    RanksLost,
    RolledBack,
    RunEnded,
    RunStarted,
    StepSkipped,
    StepTaken,
)  # fmt: skip
from nanolens.record.layout import STOP_FILE, checkpoint_folders
from nanolens.record.write import Emit, training_here, write_run_file
from nanolens.train.clock import Clock
from nanolens.train.evaluation_sets import SPLITS, evaluation_sets
from nanolens.train.guards import ROLLBACKS_ALLOWED, is_out_of_memory, is_over_budget
from nanolens.train.own_model import as_built, keep
from nanolens.train.paces import Paces
from nanolens.train.sampling import Sampler
from nanolens.train.saving import Keeper
from nanolens.train.step import Update, take_update
from nanolens.training.begin import find_beginning
from nanolens.training.compiling import STEPS_WATCHED, Trial, compile_if_it_pays, compile_now, is_undecided
from nanolens.training.distributed.ranks import ALONE, RankLost, Ranks
from nanolens.training.evaluate import Evaluation, evaluate, evaluate_together
from nanolens.training.machine import measured_peak
from nanolens.training.preflight import preflight
from nanolens.training.setup import Workshop, bytes_per_token, data_facts, facts_of, set_up, tokenizer_writer
from nanolens.training.stopping import Stopped, StopRequest, listening

if TYPE_CHECKING:
    from nanolens.data.store import Dataset

Done = TypeVar("Done")
PEAKS_MEASURED_AT_MOST = 5
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
    is_rank_lost: bool = False  # another rank died or hung: to start again may help


def train(
    config: Config, dataset: Dataset, run: Path, emit: Emit, *, came_from: Mapping[str, str] | None = None, preset: str = "",
    initial: Mapping[str, Tensor] | None = None, may_refuse: bool = True, ranks: Ranks = ALONE,
) -> Outcome:  # fmt: skip
    """Trains until `config.max_iters` updates are done, a stop is asked for, or going on makes no sense.

    `initial` holds weights to start from, by our names (an imported model). `may_refuse` off turns failed pre-flight checks into warnings.
    `ranks`: the processes that train together; the first of them alone writes to `run` and calls `emit`.
    A mistake of the user's is raised as UserError before anything is recorded; what happens later is told by events and the Outcome.
    """
    clock = Clock()
    early = _Buffer()  # nothing is recorded before it is certain that the run can begin
    beginning = ranks.first_does(lambda: find_beginning(config, run, early, has_weights=initial is not None))
    with listening(run / STOP_FILE) as stop, training_here(run) if ranks.is_first else contextlib.nullcontext():
        ranks.listen(stop)
        built = as_built(config, run, early, is_resumed=beginning.is_resumed)
        workshop = set_up(config, dataset, beginning, early, initial, built, ranks)
        loop = Loop(workshop, dataset, run, early, clock, stop)
        try:
            if not beginning.is_resumed:
                loop.look_before(weights_are_drawn=beginning.checkpoint is None and initial is None, may_refuse=may_refuse)
        except Stopped:
            return loop.outcome("stopped", msg("{what:code}", what=stop.because))
        loop.facts = facts_of(workshop, dataset, came_from or {}, preset, beginning.parent)
        if ranks.is_first:
            loop.facts["own_model"] = keep(built, run)
            write_run_file(run, loop.facts)
        loop.tell = _stamped(emit) if ranks.is_first else _unheard
        loop.begin(beginning.resumed_from, [*early.events, *beginning.changes])
        return loop.go()


class Hopeless(Exception):
    """Going on makes no sense; the message says why."""

    def __init__(self, because: Message):
        self.because = because
        super().__init__(str(because))


class Loop:
    def __init__(self, workshop: Workshop, dataset: Dataset, run: Path, tell: Emit, clock: Clock, stop: StopRequest):
        self.workshop, self.dataset, self.run, self.tell, self.clock, self.stop = workshop, dataset, run, tell, clock, stop
        self.config, self.machine, self.trainee = workshop.config, workshop.machine, workshop.trainee
        self.ranks = self.trainee.ranks
        self.keeper = Keeper(run, self.config.keep_checkpoints, self._say, clock, tokenizer_writer(dataset), self.ranks.is_first)
        generator = getattr(self.trainee.feed, "generator", None)
        self.sets = evaluation_sets(self.config, dataset.train, dataset.val, self.machine.device, generator)
        self.sampler = Sampler(self.config, dataset.tokenizer, run, self.machine, clock, stop.check, self.ranks)
        self.losses = {"train": math.nan, "val": math.nan}
        self.is_nanogpt = self.config.data_order == "nanogpt"
        # nanoGPT leaves its loop only after iteration number max_iters, which is one update more.
        self.last_step = self.config.max_iters + (1 if self.is_nanogpt else 0)
        self.watched: list[float] | None = []  # seconds of the first steps, until it is decided whether to compile
        self.facts: dict[str, Any] = {}  # what run.json says
        self.peaks_measured = 1
        self.is_rank_lost = False
        self.paces = Paces()

    def look_before(self, *, weights_are_drawn: bool, may_refuse: bool) -> None:
        """Everything that can be found out before the first step; ends with a checkpoint that was written, read and compared."""
        trainee, config = self.trainee, self.config
        trainee.step_start = trainee.feed.state()
        model, machine = self.workshop.whole_model()
        batch = trainee.feed.take(trainee.progress.sample)
        try:
            self.ranks.first_does(
                lambda: preflight(
                    model, config, self.workshop.vocab_size, self.dataset, (batch[0].to(machine.device), batch[1].to(machine.device)),
                    machine, self._say, self.stop.check, is_fresh=weights_are_drawn, may_refuse=may_refuse,
                )
            )  # fmt: skip
        finally:
            trainee.feed.restore(trainee.step_start)
        if not config.eval_only:
            self.keeper.rehearse(trainee, self._facts())

    def begin(self, resumed_from: str, facts: Iterable[Event]) -> None:
        progress = self.trainee.progress
        if resumed_from:
            self.keeper.started_step = self.keeper.saved_step = progress.step
        self.tell(RunStarted(step=progress.step, resumed_from=resumed_from, pid=os.getpid(), threads=self.machine.threads))
        for event in facts:
            self.tell(event)

    def go(self) -> Outcome:
        why, because = "finished", None
        try:
            self.ranks.warm_up(self.trainee.run, self._pass_through)
            self._compile_if_decided()
            self._to_the_end()
        except Stopped:
            why, because = "stopped", msg("{what:code}", what=self.stop.because)
            self._save_where_it_stands()
        except Hopeless as end:
            why, because = "failed", end.because
        except RankLost as loss:
            why, because, self.is_rank_lost = "failed", loss.because, True
            step = self.trainee.progress.step
            self.tell(RanksLost(step=step, ranks=loss.ranks, call=loss.call, waited_s=loss.waited_s, because=str(because)))
        except BaseException as error:  # whatever it is, the record says that and why the run ended
            self._end("failed", None if isinstance(error, UserError) else msg("{error}", error=f"{type(error).__name__}: {error}"))
            raise
        return self._end(why, because)

    def _to_the_end(self) -> None:
        trainee, config = self.trainee, self.config
        while True:
            trainee.step_start = trainee.feed.state()
            is_best = self._is_evaluation_due() and self._evaluate()
            if config.eval_only:
                return
            step = trainee.progress.step
            is_last = step >= self.last_step
            if self.sampler.is_due(trainee.progress):
                self._sample()
            if self.keeper.started_step != step and (is_last or is_best or step % self._save_interval == 0):
                self.keeper.save(trainee, self._facts(), is_best=is_best)
            if is_last:
                return
            self._update()
            self.keeper.tell_news()

    def _sample(self) -> None:
        """By the first rank, or by all where each has only a part of the model; the same text then."""
        trainee = self.trainee
        trainee.progress.sampled_at = trainee.progress.step
        if self.ranks.samples:
            with self.ranks.whole(trainee.with_loss):
                self.tell(self.sampler.sample(trainee.model, trainee.progress))

    # --- updates

    def _update(self) -> None:
        with self.clock.part("train"):
            update = self._within_memory(lambda: take_update(self.trainee, self.config, self.machine, self.clock, self.stop.check))
        if update.bad:
            self._skip(update)
            self._stop_if(update.pace.is_stopping)
            return
        step = self.trainee.progress.step
        self.tell(
            StepTaken(
                step=step, loss=update.loss, rate=update.rate, grad_norm=update.grad_norm, clipped=update.clipped,
                tokens=self.config.tokens_per_update, took_s=update.took_s, data_s=update.data_s, micro_norms=update.micro_norms,
                loss_scale=update.loss_scale, memory_bytes=self.machine.memory_in_use() if step % MEMORY_TOLD_EVERY == 1 else None,
                rank_s=update.pace.rank_s, rank_busy_s=update.pace.busy_s, rank_comm_s=update.pace.comm_s,
            )
        )  # fmt: skip
        self.paces.add(update.took_s, update.pace)
        if self.watched is not None:
            self._watch(update.took_s)
        self._doubt_the_peak(update.took_s)
        self._stop_if(update.pace.is_stopping)

    def _stop_if(self, is_agreed: bool) -> None:
        if is_agreed:
            raise Stopped

    def _within_memory(self, work: Callable[[], Done]) -> Done:
        """Does `work`, with ever smaller micro-batches if memory runs out. Tokens per update stay."""
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            # Out of the except block, whose traceback would keep the tensors of the failed pass alive.
            trainee, old = self.trainee, self.trainee.micro_batch
            trainee.optimizer.zero_grad(set_to_none=True)
            if self.ranks.size > 1:  # the others are in the middle of it, and would wait for what never comes
                raise Hopeless(
                    msg(
                        "rank {rank:count} has not enough memory for micro-batches of {size:count} sequences; use {option:code} and more "
                        "gradient_accumulation_steps", rank=self.ranks.rank, size=old, option=f"--batch_size={max(1, old // 2)}",
                    )
                )  # fmt: skip
            if old == 1:
                raise Hopeless(msg("there is not enough memory for a single sequence of {tokens:tokens}", tokens=self.config.block_size))
            trainee.micro_batch = old // 2
            trainee.feed.restore(trainee.step_start)
            self.machine.release_memory()
            self.tell(MicroBatchHalved(step=trainee.progress.step, old=old, new=trainee.micro_batch))

    def _skip(self, update: Update) -> None:
        """Tells of an update that was kept from the weights, and goes back where there were too many of them."""
        progress = self.trainee.progress
        sample = progress.sample - self.config.tokens_per_update // self.config.block_size
        self.tell(StepSkipped(step=progress.step, because=update.bad, layer=update.bad_layer, sample=sample, loss_scale=update.loss_scale))
        if update.loss_scale is not None and update.loss_scale > 1 and update.bad == "gradient":
            return  # float16 looking for its scale: that is how it is found
        progress.skipped.append(progress.tries)
        if not is_over_budget(progress.skipped, progress.tries, self.config.skip_budget):
            return
        seen = msg(
            "{count:count} of the last updates had a {what} that is not finite, the last one after step {step:count} in {layer:code}",
            count=len(progress.skipped), what=update.bad, step=progress.step, layer=update.bad_layer or "loss",
        )  # fmt: skip
        self._roll_back(seen)

    def _roll_back(self, seen: Message) -> None:
        """Back to the newest good weights, and on with data that they have not met."""
        self.keeper.finish()
        trainee, before = self.trainee, self.trainee.progress
        checkpoint = self.ranks.first_does(lambda: newest_good(checkpoint_folders(self.run))[0])
        if before.rollbacks >= ROLLBACKS_ALLOWED or checkpoint is None:
            raise Hopeless(seen)
        data_position = trainee.feed.state()
        trainee.restore(checkpoint)
        trainee.feed.restore(data_position)
        now = trainee.progress
        now.sample, now.rollbacks, now.skipped = before.sample, before.rollbacks + 1, []
        self.keeper.started_step = self.keeper.saved_step = now.step
        self.tell(RolledBack(from_step=before.step, to_step=now.step, because=str(seen)))

    # --- evaluations

    def _is_evaluation_due(self) -> bool:
        step = self.trainee.progress.step
        if self.config.eval_only:
            return True
        if self.trainee.progress.evaluated_at == step or (self.is_nanogpt and step > self.config.max_iters):
            return False
        return step % self.config.eval_interval == 0 or step >= self.last_step

    def _evaluate(self) -> bool:
        """Tells of both splits; True where val is the lowest so far."""
        trainee, progress = self.trainee, self.trainee.progress
        with self.clock.part("eval"):
            found = self._within_memory(self._evaluations)
        is_best = found["val"].loss < progress.best_val
        if is_best:
            progress.best_val, progress.best_step = found["val"].loss, progress.step
        progress.evaluated_at, progress.val_loss = progress.step, found["val"].loss
        trainee.step_start = trainee.feed.state()
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
        self._compare_ranks()
        return is_best

    def _compare_ranks(self) -> None:
        """Copies of the weights that are no longer copies are told of, and made the first rank's again."""
        self._tell_paces()
        drifted = self.ranks.drifted(self.trainee.model)
        if drifted:
            self.tell(RankDrifted(step=self.trainee.progress.step, ranks=drifted, realigned=True))
            self.ranks.realign(self.trainee.model, self.trainee.optimizer)

    def _tell_paces(self) -> None:
        pace = self.paces.take(self.trainee.progress.step, self.ranks.hosts)
        if pace is not None:
            self.tell(pace)

    def _evaluations(self) -> dict[str, Evaluation]:
        run, at_once = self.trainee.run, self.trainee.micro_batch
        if self.ranks.size > 1:
            called = self.ranks.evaluated_by(run)
            return {split: evaluate_together(called, self.sets, split, self.machine, self.ranks, at_once) for split in SPLITS}
        return {split: evaluate(run, self.sets.batches(split), self.machine, self.stop.check, at_once) for split in SPLITS}

    # --- the machine's peak

    def _doubt_the_peak(self, took_s: float) -> None:
        """A step that is faster than the measured peak shows that something else was running when that was measured."""
        known, flops = self.facts["machine"]["peak_flops"], self.facts["sizes"].get("flops_per_token")
        if not (known and flops and self.facts["machine"]["peak_origin"].startswith("measured")):
            return
        achieved = flops * self.config.tokens_per_update / took_s / self.ranks.size  # of one device, as the peak is
        if achieved <= known or self.peaks_measured >= PEAKS_MEASURED_AT_MOST:
            return
        self.peaks_measured += 1
        peak = max(achieved, measured_peak(self.machine))
        self.facts["machine"]["peak_flops"] = peak
        if self.ranks.is_first:
            write_run_file(self.run, self.facts)
        self.tell(Chosen(what="peak_flops", value=peak, because="a step was faster than the matmul at the start; measured again"))

    # --- compiling

    def _compile_if_decided(self) -> None:
        remembered = self.workshop.choices.get("compile")
        if is_undecided(self.config, remembered):
            return
        self.watched = None
        wanted = self.config.compile if self.config.compile is not None else remembered
        self.workshop.choices["compile"] = wanted
        if wanted:
            compiled = compile_now(self.trainee.with_loss, self._trial(), self.clock, self.tell, self.trainee.progress.step)
            self.trainee.run = self.ranks.use(self.trainee.run, compiled)

    def _watch(self, took_s: float) -> None:
        """Collects the times of the first steps and then decides."""
        assert self.watched is not None
        self.watched.append(took_s)
        if len(self.watched) < STEPS_WATCHED:
            return
        trainee, count = self.trainee, self.ranks.share(self.config).count
        left = count * (self.last_step - trainee.progress.step)
        module = compile_if_it_pays(
            trainee.with_loss, self._trial(), self.machine, self.clock, self.tell, step=trainee.progress.step,
            micro_batch_s=self.ranks.largest(min(self.watched) / count), micro_batches_left=left, slowest=self.ranks.largest,
        )  # fmt: skip
        self.workshop.choices["compile"] = module is not trainee.with_loss
        trainee.run = self.ranks.use(trainee.run, module)
        self.watched = None

    def _trial(self) -> Trial:
        return Trial(self.trainee.with_loss, self.config, self.machine, self.workshop.vocab_size, self.ranks.share(self.config).size)

    def _pass_through(self) -> None:
        self._trial().once(self.trainee.run, is_evaluated=False)

    # --- keeping and ending

    @property
    def _save_interval(self) -> int:
        return self.config.checkpoint_interval or self.config.eval_interval

    def _facts(self) -> dict[str, Any]:
        return {
            "config": dataclasses.asdict(self.config), "choices": dict(self.workshop.choices), "vocab_size": self.workshop.vocab_size,
            "data": data_facts(self.dataset), "torch": torch.__version__,
        }  # fmt: skip

    def _save_where_it_stands(self) -> None:
        self.trainee.optimizer.zero_grad(set_to_none=True)
        self.keeper.finish()
        if self.ranks.first_does(lambda: self.keeper.saved_step != self.trainee.progress.step):
            self.keeper.save(self.trainee, self._facts())

    def _end(self, why: str, because: Message | None) -> Outcome:
        self.keeper.finish()
        self._tell_paces()
        outcome = self.outcome(why, because)
        self.tell(RunEnded(step=outcome.step, why=why, because=str(because or ""), parts=outcome.parts, wall_s=outcome.wall_s))
        return outcome

    def outcome(self, why: str, because: Message | None) -> Outcome:
        progress = self.trainee.progress
        return Outcome(
            run=self.run, step=progress.step, why=why, because=because, signal=self.stop.signal, train_loss=self.losses["train"],
            val_loss=self.losses["val"], best_val=progress.best_val, best_step=progress.best_step, unsaved=self.keeper.failure,
            is_rank_lost=self.is_rank_lost,
            parts=self.clock.parts(), wall_s=self.clock.wall_s,
        )  # fmt: skip

    def _say(self, event: Event) -> None:
        self.tell(event)  # looked up at each call: before the run has begun its events are kept back


class _Buffer:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(msgspec.structs.replace(event, at_s=time.time()))


def _unheard(event: Event) -> None:
    """What ranks but the first have to say."""


def _stamped(emit: Emit) -> Emit:
    return lambda event: emit(event if event.at_s else msgspec.structs.replace(event, at_s=time.time()))
