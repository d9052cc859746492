"""The training loop: evaluate, keep, update, until done; every fact goes to `emit`, nothing is printed."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from nanolens.config.fields import Config
from nanolens.data.store import Dataset
from nanolens.errors import UserError
from nanolens.message import Message, msg, revived
from nanolens.record import STOP_FILE, checkpoint_folders
from nanolens.record import events as e
from nanolens.record.store import training_here
from nanolens.record.write import Emit, write_run_file
from nanolens.training.begin import as_built, find_beginning, keep_own_model
from nanolens.training.checkpoint import newest_good
from nanolens.training.compiling import STEPS_WATCHED, SpeedTrial, compile_if_it_pays, compile_now
from nanolens.training.distributed.ranks import SINGLE_PROCESS, RankLost, Ranks, partition_of, ranks_paced
from nanolens.training.evaluate import Evaluation, evaluate, evaluation_sets
from nanolens.training.machine import measured_peak
from nanolens.training.preflight import preflight
from nanolens.training.saving import Keeper, Sampler
from nanolens.training.setup import Workshop, data_facts, facts_of, set_up, tokenizer_writer
from nanolens.training.state import Clock
from nanolens.training.step import is_out_of_memory, take_update
from nanolens.training.stopping import Stopped, StopRequest, listening

Done = TypeVar("Done")
PEAKS_MEASURED_AT_MOST = 5
ROLLBACKS_ALLOWED = 1
WINDOW_TRIES = 100  # among which skipped updates are counted


@dataclass(frozen=True)
class TrainingOutcome:
    """How a run ended, for the caller."""

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
    config: Config,
    dataset: Dataset,
    run: Path,
    emit: Emit,
    *,
    came_from: Mapping[str, str] | None = None,
    preset: str = "",
    initial: Mapping[str, Tensor] | None = None,
    may_refuse: bool = True,
    ranks: Ranks = SINGLE_PROCESS,
) -> TrainingOutcome:
    """Trains until `config.max_iters` updates are done, a stop is asked for, or going on makes no sense.

    `initial` holds weights to start from, by our names (an imported model). `may_refuse` off turns failed pre-flight
    checks into warnings. `ranks`: the processes that train together; the first of them alone writes to `run` and calls
    `emit`. A mistake of the user's raises UserError before anything is recorded; events and outcome report the rest."""
    clock = Clock()
    early_events: list[e.Event] = []  # nothing is recorded before it is certain that the run can begin
    early = early_events.append
    beginning = ranks.first_does(lambda: find_beginning(config, run, early, has_weights=initial is not None))
    with listening(run / STOP_FILE) as stop, training_here(run) if ranks.is_first else contextlib.nullcontext():
        ranks.listen(stop)
        built = as_built(config, run, early, is_resumed=beginning.is_resumed)
        for made in dataset.chosen:
            early(e.Chosen(**{**made, "words": revived(made.get("words"))}))
        workshop = set_up(config, dataset, beginning, early, initial, built, ranks)
        loop = Loop(workshop, dataset, run, early, clock, stop)
        try:
            if not beginning.is_resumed:
                is_fresh = beginning.checkpoint is None and initial is None
                loop.run_preflight(is_fresh=is_fresh, may_refuse=may_refuse)
        except Stopped:
            return loop.outcome("stopped", msg("{what:code}", stop.because))
        loop.facts = facts_of(workshop, dataset, came_from or {}, preset, beginning.parent)
        if ranks.is_first:
            loop.facts["own_model"] = keep_own_model(built, run)
            write_run_file(run, loop.facts)
        loop.tell = emit if ranks.is_first else lambda event: None
        checkpoint = beginning.checkpoint if beginning.is_resumed else None
        loop.begin(checkpoint.folder.name if checkpoint else "", [*early_events, *beginning.changes])
        return loop.go()


class Unrecoverable(Exception):
    """Going on makes no sense; the message says why."""

    def __init__(self, because: Message):
        self.because = because
        super().__init__(str(because))


class Loop:
    def __init__(self, workshop: Workshop, dataset: Dataset, run: Path, tell: Emit, clock: Clock, stop: StopRequest):
        self.workshop, self.dataset, self.run = workshop, dataset, run
        self.tell, self.clock, self.stop = tell, clock, stop
        config, machine, trainee, ranks = workshop.config, workshop.machine, workshop.trainee, workshop.trainee.ranks
        self.config, self.machine, self.trainee, self.ranks = config, machine, trainee, ranks
        self.partition = partition_of(config, ranks.rank, ranks.size)
        write_tokenizer = tokenizer_writer(dataset.tokenizer)
        self.keeper = Keeper(run, config.keep_checkpoints, self._say, clock, write_tokenizer, ranks.is_first)
        generator = getattr(trainee.feed, "generator", None)
        self.sets = evaluation_sets(config, dataset.train, dataset.val, machine.device, generator)
        # several ranks agree on a stop after an update, or a round of an evaluation
        self.check = stop.check if ranks.size == 1 else lambda: None
        self.sampler = Sampler(config, dataset.tokenizer, run, machine, clock, self.check, ranks.is_first)
        self.losses = {"train": math.nan, "val": math.nan}
        # nanoGPT leaves its loop only after iteration number max_iters, which is one update more.
        self.last_step = config.max_iters + (1 if config.data_order == "nanogpt" else 0)
        self.watched: list[float] | None = []  # seconds of the first steps, until it is decided whether to compile
        self.facts: dict[str, Any] = {}  # what run.json says
        self.peaks_measured = 1
        self.is_rank_lost = False
        self.timed: list[e.StepTaken] = []  # updates since the last evaluation, where several ranks make them

    def run_preflight(self, *, is_fresh: bool, may_refuse: bool) -> None:
        """What can be found out before the first step; ends with a checkpoint that was written, read and compared."""
        trainee, vocab_size, dataset, check = self.trainee, self.workshop.vocab_size, self.dataset, self.stop.check
        trainee.step_start = trainee.feed.state()
        model, machine = self.workshop.whole_model()
        x, y = (each.to(machine.device) for each in trainee.feed.take(trainee.progress.sample))
        try:
            self.ranks.first_does(
                lambda: preflight(model, vocab_size, dataset, (x, y), machine, self._say, check, is_fresh, may_refuse)
            )
        finally:
            trainee.feed.restore(trainee.step_start)
        if not self.config.eval_only:
            self.keeper.rehearse(trainee, self._facts())

    def begin(self, resumed_from: str, facts: Iterable[e.Event]) -> None:
        progress = self.trainee.progress
        if resumed_from:
            self.keeper.started_step = self.keeper.saved_step = progress.step
        pid, threads = os.getpid(), self.machine.threads
        self.tell(e.RunStarted(step=progress.step, resumed_from=resumed_from, pid=pid, threads=threads))
        for event in facts:
            self.tell(event)

    def go(self) -> TrainingOutcome:
        why, because = "finished", None
        try:
            self.ranks.warm_up(self.trainee.run, lambda: self._trial().step_s(self.trainee.run))
            self._compile_if_decided()
            self._to_the_end()
        except Stopped:
            why, because = "stopped", msg("{what:code}", self.stop.because)
            self.trainee.optimizer.zero_grad(set_to_none=True)
            self.keeper.finish()
            if self.ranks.first_does(lambda: self.keeper.saved_step != self.trainee.progress.step):
                self.keeper.save(self.trainee, self._facts())
        except Unrecoverable as end:
            why, because = "failed", end.because
        except RankLost as loss:
            why, because, self.is_rank_lost = "failed", loss.because, True
            lost = e.RanksLost(
                step=self.trainee.progress.step,
                ranks=loss.ranks,
                call=loss.call,
                waited_s=loss.waited_s,
                because=str(because),
                words=because,
            )
            self.tell(lost)
        except BaseException as error:  # whatever it is, the record says that and why the run ended
            says = msg("{error}", f"{type(error).__name__}: {error}")
            self._end("failed", None if isinstance(error, UserError) else says)
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
            is_due = step % (config.checkpoint_interval or config.eval_interval) == 0
            if self.keeper.started_step != step and (is_last or is_best or is_due):
                self.keeper.save(trainee, self._facts(), is_best=is_best)
            if is_last:
                return
            self._update()
            self.keeper.tell_news()

    def _sample(self) -> None:
        """By the first rank, or by all where each has only a part of the model; the same text then."""
        trainee = self.trainee
        trainee.progress.sampled_at = trainee.progress.step
        if self.ranks.takes_part:
            with self.ranks.whole(trainee.with_loss):
                self.tell(self.sampler.sample(trainee.model, trainee.progress.step))

    def _update(self) -> None:
        trainee, config, machine, clock, check = self.trainee, self.config, self.machine, self.clock, self.stop.check
        with clock.part("train"):
            update = self._within_memory(lambda: take_update(trainee, config, machine, clock, check))
        self.tell(update)
        if isinstance(update, e.StepSkipped):
            self._after_skip(update)
        else:
            if self.ranks.size > 1:
                self.timed.append(update)
            self._watch(update.took_s)
            self._recheck_peak(update.took_s)
        self.ranks.stop_if_agreed()

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
                because = msg(
                    "rank {rank:count} does not have enough memory for micro-batches of "
                    "{size:count sequence|sequences}; use {option:code} and more gradient_accumulation_steps",
                    self.ranks.rank,
                    old,
                    f"--batch_size={max(1, old // 2)}",
                )
                raise Unrecoverable(because)
            if old == 1:
                tokens = self.config.block_size
                raise Unrecoverable(msg("there is not enough memory for a single sequence of {tokens:tokens}", tokens))
            trainee.micro_batch = old // 2
            trainee.feed.restore(trainee.step_start)
            torch.cuda.empty_cache()  # nothing where no GPU is in use
            self.tell(e.MicroBatchHalved(step=trainee.progress.step, old=old, new=trainee.micro_batch))

    def _after_skip(self, update: e.StepSkipped) -> None:
        """Goes back to a checkpoint where there were too many updates that could not be applied."""
        progress = self.trainee.progress
        if update.loss_scale is not None and update.loss_scale > 1 and update.because == "gradient":
            return  # float16 looking for its scale: that is how it is found
        recent = [number for number in progress.skipped if number > progress.tries - WINDOW_TRIES]
        progress.skipped = [*recent, progress.tries]
        if len(progress.skipped) <= self.config.skip_budget:
            return
        seen = msg(
            "recent updates with a non-finite {what}: {count:count}, the last after step {step:count} in {layer:code}",
            update.because,
            len(progress.skipped),
            progress.step,
            update.layer or "loss",
        )
        self._roll_back(seen)

    def _roll_back(self, seen: Message) -> None:
        """Back to the newest good weights, and on with data that they have not met."""
        self.keeper.finish()
        trainee, before = self.trainee, self.trainee.progress
        checkpoint = self.ranks.first_does(lambda: newest_good(checkpoint_folders(self.run))[0])
        if before.rollbacks >= ROLLBACKS_ALLOWED or checkpoint is None:
            raise Unrecoverable(seen)
        data_position = trainee.feed.state()
        trainee.restore(checkpoint)
        trainee.feed.restore(data_position)
        now = trainee.progress
        now.sample, now.rollbacks, now.skipped = before.sample, before.rollbacks + 1, []
        self.keeper.started_step = self.keeper.saved_step = now.step
        self.tell(e.RolledBack(from_step=before.step, to_step=now.step, because=str(seen), words=seen))

    def _is_evaluation_due(self) -> bool:
        config, step = self.config, self.trainee.progress.step
        is_past_last = config.data_order == "nanogpt" and step > config.max_iters
        is_due = step % config.eval_interval == 0 or step >= self.last_step
        return config.eval_only or (is_due and not is_past_last and self.trainee.progress.evaluated_at != step)

    def _evaluate(self) -> bool:
        """Reports both splits; True where val is the lowest so far."""
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
            bytes_per_token = self.dataset.facts.get("val_bytes_per_token" if split == "val" else "bytes_per_token")
            self.tell(
                e.Evaluated(
                    step=progress.step,
                    split=split,
                    loss=seen.loss,
                    standard_error=seen.standard_error,
                    batch_losses=list(seen.batch_losses),
                    batches=self.sets[split].fingerprint,
                    tokens=seen.tokens,
                    bits_per_byte=seen.bits_per_byte(bytes_per_token),
                    took_s=seen.took_s,
                    is_best=is_best and split == "val",
                )
            )
        self._tell_rank_times()
        if drifted := self.ranks.realign(trainee.model, trainee.optimizer):
            self.tell(e.RankDrifted(step=progress.step, ranks=drifted, realigned=True))
        return is_best

    def _tell_rank_times(self) -> None:
        updates, self.timed = self.timed, []
        if pace := ranks_paced(updates, self.trainee.progress.step, self.ranks.hosts):
            self.tell(pace)

    def _evaluations(self) -> dict[str, Evaluation]:
        run, machine, at_once = self.ranks.unwrap(self.trainee.run), self.machine, self.trainee.micro_batch
        return {
            split: evaluate(run, windows, machine, self.check, at_once, self.ranks)
            for split, windows in self.sets.items()
        }

    def _recheck_peak(self, took_s: float) -> None:
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
        because = msg("a step was faster than the matmul at the start; measured again")
        self.tell(e.choice("peak_flops", peak, because))

    def _compile_if_decided(self) -> None:
        choices = self.workshop.choices
        wanted = self.config.compile if self.config.compile is not None else choices["compile"]
        if wanted is not None:  # else the first steps are watched before deciding
            self.watched, choices["compile"] = None, wanted
        if wanted:
            compiled = compile_now(self._trial(), self.clock, self._say, self.trainee.progress.step)
            self.trainee.run = self.ranks.wrap(compiled)

    def _watch(self, took_s: float) -> None:
        """Collects the times of the first steps and then decides whether to compile."""
        if self.watched is None:
            return
        self.watched.append(took_s)
        if len(self.watched) < STEPS_WATCHED:
            return
        step, count, slowest = self.trainee.progress.step, self.partition.count, self.ranks.largest
        each_s, left = slowest(min(self.watched) / count), count * (self.last_step - step)  # micro-batches
        module = compile_if_it_pays(self._trial(), self.clock, self._say, step, each_s, left, slowest)
        self.workshop.choices["compile"] = module is not self.trainee.with_loss
        self.trainee.run, self.watched = self.ranks.wrap(module), None

    def _trial(self) -> SpeedTrial:
        shape = (self.partition.size, self.config.block_size)
        return SpeedTrial(self.trainee.with_loss, self.machine, self.workshop.vocab_size, shape)

    def _facts(self) -> dict[str, object]:
        return {
            "config": dataclasses.asdict(self.config),
            "choices": dict(self.workshop.choices),
            "vocab_size": self.workshop.vocab_size,
            "data": data_facts(self.dataset),
            "torch": torch.__version__,
        }

    def _end(self, why: str, because: Message | None) -> TrainingOutcome:
        self.keeper.finish()
        self._tell_rank_times()
        outcome = self.outcome(why, because)
        step, text, parts, wall_s = outcome.step, str(because or ""), outcome.parts, outcome.wall_s
        self.tell(e.RunEnded(step=step, why=why, because=text, words=because, parts=parts, wall_s=wall_s))
        return outcome

    def outcome(self, why: str, because: Message | None) -> TrainingOutcome:
        progress = self.trainee.progress
        return TrainingOutcome(
            run=self.run,
            step=progress.step,
            why=why,
            because=because,
            signal=self.stop.signal,
            train_loss=self.losses["train"],
            val_loss=self.losses["val"],
            best_val=progress.best_val,
            best_step=progress.best_step,
            unsaved=self.keeper.failure,
            is_rank_lost=self.is_rank_lost,
            parts=self.clock.parts(),
            wall_s=self.clock.wall_s,
        )

    def _say(self, event: e.Event) -> None:
        self.tell(event)  # looked up at each call: before the run has begun its events are kept back
