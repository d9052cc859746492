"""A Case: a Run and all that follows from it, each figure with the formula or the place that it comes from.

A figure that cannot be had is None. A rule names what it needs (`needs=("shape",)`): where `case.has("shape")` is False
it is reported as not checked. Nothing is filled in by a guess; what is inferred says so."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from nanolens.config.fields import Config, settings
from nanolens.config.names import ALIASES, PRECISIONS
from nanolens.facts import references
from nanolens.facts.finding import Figure, inferred
from nanolens.facts.statistics import noise_of, standard_error, stretches
from nanolens.facts.timing import instant_mfu, is_first, measured_mfu_work, ordinary_seconds, rounded_batch
from nanolens.message import Message, msg
from nanolens.record.run import Conventions, Evals, Known, Mark, Origin, RunRecord, Steps, evals_from, steps_from
from nanolens.sizing.devices import Device, Hardware, hardware_named
from nanolens.sizing.schedule import Schedule, lr_of
from nanolens.sizing.shape import GPT2_FAMILY, Parameters, Shape, flops_per_token, parameters

Rows = TypeVar("Rows", Steps, Evals)
TRAINERS_VOCABULARY = {"modded-nanogpt": 50304, "build-nanogpt": 50304, "llm.c": 50304, "nanochat": 65536}
"""Trainers that come with one tokenizer."""


@dataclass(frozen=True)
class Outlook:
    """What a plan adds to a config that has not run: figures of the machine that it is to run on, and what the user
    wants to see."""

    peak_bytes: tuple[float, float, float] | None = None  # expected, low, high
    usable_bytes: float | None = None
    largest_micro_batch: int | None = None  # that fits; None where the memory is not known
    largest_chunked: int | None = None  # the same with the chunked head, where that is not on
    disk_bytes: float = 0.0
    free_disk_bytes: float | None = None
    eval_frac: float = 0.0  # of the time of the run
    eval_s: float = 0.0
    difference: float | None = None  # the smallest in val loss that is to be seen


class Case:
    outlook: Outlook | None = None

    def __init__(self, run: RunRecord, outlook: Outlook | None = None):
        self.run = run
        self.outlook = outlook
        steps = _sane(run.steps, _BOUNDS_OF_STEPS)
        self.is_filtered_zero = _filtered_zeros(steps)
        self.steps = replace(steps, loss=np.where(self.is_filtered_zero, np.nan, steps.loss))
        self.evals = _sane(run.evals, _BOUNDS_OF_EVALS)

    @classmethod
    def of_config(
        cls,
        config: Config,
        facts: Mapping[str, Known] | None = None,
        *,
        came_from: Mapping[str, str] | None = None,
        name: str = "config",
        outlook: Outlook | None = None,
    ) -> Case:
        """Of a config that has not run: its settings and `facts` of the data and the machine, no rows. What is left to
        the trainer (`auto`) is not known."""
        where = came_from or {}
        known = {
            key: Known(value, "given", where.get(key, ""))
            for key in settings()
            if (value := getattr(config, key)) is not None and not (key in ("device", "dtype") and value == "auto")
        }
        known["lr_decay_iters"] = Known(config.decay_ends, "given", where.get("lr_decay_iters", ""))
        product = "batch_size x block_size x gradient_accumulation_steps"
        known["tokens_per_update"] = Known(config.tokens_per_update, "given", product)
        known.update(facts or {})
        return cls(RunRecord(name, Conventions("nanolens"), steps_from({}, 0), evals_from({}, 0), known), outlook)

    @property
    def is_ahead(self) -> bool:
        """Whether nothing has happened yet: a config alone, not a log in which nothing was understood."""
        run = self.run
        return not (len(run.steps) or len(run.evals) or run.marks or run.reading.lines or run.time_parts)

    def has(self, fact: str) -> bool:
        """Whether a figure or a setting is known, a column or a series has points ("losses>=5": so many), a condition
        holds."""
        name, _, fewest = fact.partition(">=")
        if fewest:
            return len(getattr(self, name)[0]) >= int(fewest)
        if "." in fact or hasattr(type(self), fact):
            value = attrgetter(fact)(self)
        else:
            value = self.rows(fact) if hasattr(self.steps, fact) else self.get(fact)
        is_empty = isinstance(value, (np.ndarray, dict)) and not len(value)
        return value is not None and value is not False and not is_empty

    def rows(self, column: str) -> np.ndarray:
        """Updates of which a column is known."""
        return np.flatnonzero(np.isfinite(getattr(self.steps, column)))

    def marks(self, *kinds: str) -> list[Mark]:
        return [mark for mark in self.run.marks if mark.kind in kinds]

    @property
    def is_nanogpt(self) -> bool:
        return self.run.conventions.trainer == "nanogpt"

    @property
    def has_damaged_lines(self) -> bool:
        reading = self.run.reading
        return reading.duplicates + reading.glued + reading.cut > 0

    @property
    def is_foreign_run(self) -> bool:
        """A run that has happened, recorded by another trainer."""
        return self.outlook is None and self.run.conventions.trainer != "nanolens"

    # --- facts as they were recorded, printed or given

    def get(self, name: str) -> object:
        values = map(self.run.get, _spellings(name))
        return next((value for value in values if value is not None), None)

    def number(self, name: str) -> float | None:
        numbers = (as_number(self.run.get(key)) for key in _spellings(name))
        return next((value for value in numbers if value is not None and makes_sense(name, value)), None)

    def stated(self, name: str) -> float | None:
        """A number that somebody gave or the log prints, not one that was filled in from what is published of such
        runs."""
        facts = (self.run.known[key] for key in _spellings(name) if key in self.run.known)
        numbers = (as_number(fact.value) for fact in facts if fact.origin != "inferred")
        return next((value for value in numbers if value is not None), None)

    def whole(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None or abs(value) >= 2**53 or value != int(value) else int(value)

    def text(self, name: str) -> str:
        value = self.get(name)
        return value if isinstance(value, str) else ""

    def where(self, name: str) -> Message:
        """Where a fact was read: for the evidence of a finding."""
        for key in _spellings(name):
            if (known := self.run.known.get(key)) is not None:
                return msg("{key:code} ({where:code})", key, known.where or known.origin)
        return msg("{key:code}", name)

    def figure(self, name: str, origin: Origin = "given") -> Figure | None:
        """A fact above 0 as it was recorded, printed or given."""
        value = self.number(name)
        return Figure(value, self.where(name), origin) if value is not None and value > 0 else None

    # --- the data

    @cached_property
    def corpus(self) -> references.CorpusFacts | None:
        name = self.text("dataset")
        return references.corpus_named(name) if name else None

    @cached_property
    def vocab_size(self) -> Figure | None:
        if (given := self.whole("vocab_size")) is not None and given > 1:
            return Figure(given, self.where("vocab_size"), "given")
        if self.text("init_from").startswith("gpt2"):
            return inferred(50257, msg("GPT-2's tokenizer"))
        if self.corpus is not None:
            return inferred(self.corpus.vocab_size, msg("as nanoGPT prepares {corpus:code}", self.corpus.name))
        trainer = self.run.conventions.trainer
        if trainer in TRAINERS_VOCABULARY and not self.is_pretrained:
            return inferred(TRAINERS_VOCABULARY[trainer], msg("the one {trainer:code} trains with", trainer))
        return self._vocab_from_parameters() or self._vocab_from_first_loss()

    def _vocab_from_parameters(self) -> Figure | None:
        """A printed count and the shape leave one unknown."""
        printed, layers, width = self.whole("parameters"), self.whole("n_layer"), self.whole("n_embd")
        if printed is None or layers is None or width is None or width < 1:
            return None
        vocab = (printed - 12 * layers * width * width) / width
        for usual in (references.PADDED_GPT2_VOCAB, 50257, 32000, 65536):
            if abs(vocab - usual) < 0.02 * usual:
                return inferred(usual, msg("what the printed parameter count leaves for the embedding"))
        return None

    def _vocab_from_first_loss(self) -> Figure | None:
        """A fresh model is as surprised as chance: the first loss is the logarithm of the vocabulary, or a little
        more."""
        first = self.first_loss
        if first is None or self.is_pretrained:
            return None
        for usual in (65, 256, 8192, 32000, references.PADDED_GPT2_VOCAB, 65536):
            if -0.02 <= first - math.log(usual) <= 0.25:
                return inferred(usual, msg("the first loss, {loss:nats}, is near ln {vocab:count}", first, usual))
        return None

    @property
    def is_vocab_guessed(self) -> bool:
        """Whether the vocabulary was inferred from the first loss alone: no ground to judge losses by."""
        vocab = self.vocab_size
        return vocab is not None and vocab.origin == "inferred" and "loss" in vocab.how.args

    @property
    def ln_vocab(self) -> float | None:
        return None if self.vocab_size is None else math.log(self.vocab_size.value)

    @property
    def is_char(self) -> bool:
        """Characters or bytes: a vocabulary of a few hundred."""
        return self.vocab_size is not None and self.vocab_size.value <= 1024

    @cached_property
    def dataset_tokens(self) -> Figure | None:
        given, corpus = self.figure("dataset_tokens"), self.corpus
        if given is not None or corpus is None or corpus.train_tokens is None:
            return given
        return inferred(corpus.train_tokens, msg("as nanoGPT prepares {corpus:code}", corpus.name))

    @property
    def unigram_nats(self) -> float | None:
        given = self.number("unigram_nats")
        return given if given is not None else self.corpus.unigram_nats if self.corpus else None

    @property
    def bigram_nats(self) -> float | None:
        given = self.number("bigram_nats")
        return given if given is not None else self.corpus.bigram_nats if self.corpus else None

    @property
    def unigram_band(self) -> tuple[float, float] | None:
        """Losses that a model has which knows no more than how frequent each token is."""
        level = self.unigram_nats
        if level is not None:
            return (level - 0.12, level + 0.25) if self.is_char else (level - 0.4, level + 0.4)
        return references.WEB_TEXT_UNIGRAM if self.has_gpt2_vocab else None

    @property
    def has_gpt2_vocab(self) -> bool:
        return self.vocab_size is not None and 50_000 <= self.vocab_size.value <= 51_000

    @property
    def text_levels(self) -> bool:
        """Whether anything is known by which a loss on this text can be called too low."""
        has_bits = bool(np.isfinite(self.evals.val_bits_per_byte).any())
        return has_bits or self.is_char or self.corpus is not None or self.number("bytes_per_token") is not None

    @property
    def memorised_below(self) -> float | None:
        """A loss below this is that of a text which the model has memorised."""
        if self.corpus is not None and self.corpus.lowest_val is not None:
            return self.corpus.lowest_val - LOWEST_VAL_MARGIN
        # About 1.6 bits per character is what small models reach on unseen text; half of the bigram level stands for
        # it elsewhere.
        return 0.45 * self.bigram_nats if self.bigram_nats is not None and self.is_char else None

    @property
    def val_in_train_frac(self) -> float | None:
        """Of tokens or of documents, whichever is more; recorded when the data was prepared."""
        shares = map(self.number, ("val_tokens_in_train_frac", "val_documents_in_train_frac"))
        return max((share for share in shares if share is not None), default=None)

    # --- the model

    @property
    def is_adam(self) -> bool:
        return self.text("optimizer").lower() in ("", "adam", "adamw")

    @property
    def is_pretrained(self) -> bool:
        start = self.text("init_from").lower()
        return start not in ("", "scratch", "resume")

    @property
    def is_from_scratch(self) -> bool:
        return not self.is_pretrained

    @cached_property
    def shape(self) -> Shape | None:
        start = self.text("init_from")
        if start in GPT2_FAMILY:
            return GPT2_FAMILY[start]
        layers, heads, width, block = map(self.whole, ("n_layer", "n_head", "n_embd", "block_size"))
        is_nanochat = self.run.conventions.trainer in ("nanochat", "autoresearch")
        if is_nanochat and layers is not None:
            width = width or 64 * layers  # nanochat's rule; its other defaults follow
            block = block or 2048
        inferred_vocab = int(self.vocab_size.value) if self.vocab_size else None
        vocab = self.whole("vocab_size") or (65536 if is_nanochat else inferred_vocab)
        if layers is None or width is None or block is None or vocab is None or min(layers, width, block, vocab) < 1:
            return None
        tied = self.get("tied")
        return Shape(
            arch=self._arch,
            n_layer=layers,
            n_head=heads or max(1, width // 64),
            n_embd=width,
            block_size=block,
            vocab_size=vocab,
            bias=self.get("bias") is True,
            tied=tied if isinstance(tied, bool) else not is_nanochat and self._arch != "modern",
            softcap=self.number("softcap") or 0.0,
            token_shift=self.get("token_shift") is True,
            ngram_rows=self.whole("ngram_rows") or 0,
            ngram_order=self.whole("ngram_order") or 3,
        )

    @property
    def _arch(self) -> str:
        arch = self.text("arch")
        return arch if arch == "modern" else "gpt2"

    @cached_property
    def counted(self) -> Parameters | None:
        return None if self.shape is None else parameters(self.shape)

    @cached_property
    def parameters(self) -> Figure | None:
        """All of them, position table included."""
        counted = None if self.counted is None else inferred(self.counted.total, msg("computed from the shape"))
        return self.figure("parameters_total", "recorded") or counted or self.figure("parameters", "printed")

    @cached_property
    def flops_per_token(self) -> Figure | None:
        given = self.figure("flops_per_token")
        if given is not None or self.shape is None:
            return given
        return inferred(flops_per_token(self.shape).training, msg("6*N_matmul + 12*n_layer*n_embd*block_size"))

    # --- tokens

    @cached_property
    def micro_batch_tokens(self) -> int | None:
        batch, block = self.whole("batch_size"), self.whole("block_size")
        return None if batch is None or block is None else batch * block

    @cached_property
    def tokens_per_update(self) -> Figure | None:
        recorded = self.steps.tokens[self.rows("tokens")]
        if len(recorded):
            return Figure(float(np.median(recorded)), msg("recorded with each step"), "recorded")
        if (stated := self.figure("tokens_per_update")) is not None:
            return stated
        accumulation = self.whole("gradient_accumulation_steps")
        measured = self.tokens_from_mfu
        if self.micro_batch_tokens is not None and accumulation is not None:
            product = self.micro_batch_tokens * accumulation
            is_assumed = self.stated("gradient_accumulation_steps") is None or self.stated("batch_size") is None
            if is_assumed and measured is not None and abs(measured.value / product - 1) > 0.2:
                return measured  # releases of nanoGPT differ in the accumulation that its own configs come to
            return inferred(product, msg("batch_size x block_size x gradient_accumulation_steps"))
        speed, took = self.steps.tokens_per_s, self.steps.took_s
        both = np.isfinite(speed) & np.isfinite(took)
        if both.any():
            ordinary = both & ~is_first(self) if (both & ~is_first(self)).any() else both
            tokens = float(np.median(speed[ordinary] * took[ordinary]))
            return inferred(rounded_batch(tokens), msg("printed tokens/s x step time"))
        return measured

    @cached_property
    def mfu_work(self) -> float | None:
        """MFU x seconds of a step."""
        return measured_mfu_work(self)

    @property
    def assumed_peak(self) -> float | None:
        """FLOP/s by which the trainer divides for its MFU."""
        return self.run.conventions.peak_flops

    @property
    def has_fixed_peak(self) -> bool:
        """Whether the trainer's MFU is of an A100, whatever the card."""
        return self.run.conventions.trainer in ("nanogpt", "llama2.c")

    @cached_property
    def tokens_from_mfu(self) -> Figure | None:
        """Time x MFU is work; work over FLOPs per token is tokens. One device's share, as nanoGPT counts it."""
        peak, work = self.assumed_peak, self.mfu_work
        if peak is None or self.shape is None or self.counted is None or work is None or not self.is_nanogpt:
            return None
        shape = self.shape
        per_token = 6 * self.counted.as_nanogpt_prints + 12 * shape.n_layer * shape.n_embd * shape.block_size
        how = msg("MFU x 312 TFLOP/s x time / FLOPs per token, as nanoGPT computes its MFU")
        return inferred(work * peak / per_token, how)

    @property
    def counts_all_devices(self) -> bool:
        """Whether the tokens of an update are those of all devices for certain. Accumulation counts for one process in
        some trainers and in old releases of nanoGPT, and for all in others: where it was multiplied in and there are
        several devices, nobody can tell."""
        is_stated = self.has("tokens") or self.number("tokens_per_update") is not None
        return is_stated or (self.devices or 1) == 1

    @property
    def last_step(self) -> int:
        """Updates done at the last place that the source tells of."""
        ends = [int(column.max()) for column in (self.steps.step, self.evals.step) if len(column)]
        return max(ends, default=0)

    @property
    def judged_step(self) -> int:
        """The updates that a judgement speaks of: those done, or those planned where nothing has happened yet."""
        return self.whole("max_iters") or 0 if self.is_ahead else self.last_step

    @property
    def max_iters(self) -> int | None:
        return self.whole("max_iters") or None

    @property
    def stated_epochs(self) -> float | None:
        keys = ("epochs", "num_epochs", "num_train_epochs", "n_epochs")
        return next((value for key in keys if (value := self.stated(key)) is not None), None)

    @property
    def planned_updates(self) -> int | None:
        """As configured, or as many as the time that was given is enough for."""
        planned, budget = self.whole("max_iters"), self.number("time_budget_s")
        if planned is not None or budget is None or self.step_time is None:
            return planned
        return int(budget / self.step_time.value)

    @property
    def counts_epochs(self) -> bool:
        """Whether the source counts passes over the data, and what is called a step here is one of them."""
        return self.run.get("steps_are_epochs") is True

    def tokens_at(self, step: int) -> float | None:
        per_update = self.tokens_per_update
        return None if per_update is None or self.counts_epochs else per_update.value * step

    def epochs_at(self, step: int) -> float | None:
        if self.counts_epochs:
            return float(step)
        tokens = self.tokens_at(step)
        return None if tokens is None or self.dataset_tokens is None else tokens / self.dataset_tokens.value

    @property
    def epochs(self) -> float | None:
        return self.epochs_at(self.last_step)

    # --- the schedule

    @cached_property
    def schedule(self) -> Schedule | None:
        rate = self.number("learning_rate")
        if rate is None:
            return None
        if self.get("decay_lr") is False:
            return Schedule(learning_rate=rate, decay_lr=False)
        ends, least = self.whole("lr_decay_iters"), self.number("min_lr")
        ends = ends if ends is not None else self.whole("max_iters")
        if ends is None or least is None:
            return None
        shape, frac = self.text("schedule"), self.number("decay_frac")
        return Schedule(
            learning_rate=rate,
            min_lr=least,
            warmup_iters=self.whole("warmup_iters") or 0,
            decay_ends=ends,
            shape=shape if shape in ("cosine", "linear", "wsd") else "cosine",
            decay_frac=0.2 if frac is None else frac,
        )

    @property
    def may_decay(self) -> bool:
        """Whether the learning rate was not held constant on purpose."""
        return self.get("decay_lr") is not False

    def lr_at(self, step: int) -> float | None:
        """As recorded near that step, or else by the schedule."""
        rows = self.rows("lr")
        if len(rows):
            return float(self.steps.lr[rows[np.argmin(np.abs(self.steps.step[rows] - step))]])
        return None if self.schedule is None else lr_of(self.schedule, step)

    @property
    def peak_lr(self) -> float | None:
        given, rates = self.number("learning_rate"), self.steps.lr[self.rows("lr")]
        return given if given is not None else float(rates.max()) if len(rates) else None

    # --- losses

    @cached_property
    def losses(self) -> tuple[np.ndarray, np.ndarray]:
        """(step, batch loss), finite rows only."""
        rows = self.rows("loss")
        return self.steps.step[rows].astype(float), self.steps.loss[rows]

    @cached_property
    def vals(self) -> tuple[np.ndarray, np.ndarray]:
        return self.evals.step[self.val_rows].astype(float), self.evals.val[self.val_rows]

    @cached_property
    def val_rows(self) -> np.ndarray:
        return np.flatnonzero(np.isfinite(self.evals.val))

    @property
    def any_val(self) -> bool:
        """Some trainers report their val split in bits per byte alone."""
        return len(self.val_rows) > 0 or bool(np.isfinite(self.evals.val_bits_per_byte).any())

    @cached_property
    def both_splits(self) -> np.ndarray:
        """Rows of the evaluations that have a loss of each split."""
        return np.flatnonzero(np.isfinite(self.evals.val) & np.isfinite(self.evals.train))

    @cached_property
    def train_at_evals(self) -> np.ndarray:
        """Train loss at each evaluation: evaluated, or else the mean of the batch losses since the evaluation
        before."""
        train = self.evals.train
        if np.isfinite(train).any() or not len(self.losses[0]) or not len(self.evals):
            return train
        steps, losses = self.losses
        ends = np.searchsorted(steps, self.evals.step, side="right")
        starts = np.r_[0, ends[:-1]]
        means = [losses[low:high].mean() if high > low else np.nan for low, high in zip(starts, ends, strict=True)]
        return np.array(means)

    @cached_property
    def paired_evals(self) -> np.ndarray:
        return np.flatnonzero(np.isfinite(self.evals.val) & np.isfinite(self.train_at_evals))

    @property
    def has_two_or_three_evals(self) -> bool:
        return 2 <= len(self.evals) <= 3

    @property
    def has_a_curve(self) -> bool:
        return max(len(self.losses[0]), len(self.vals[0])) >= 4

    @cached_property
    def not_finite_rows(self) -> np.ndarray:
        """Updates whose loss or gradient norm is said not to be a number."""
        return np.flatnonzero(np.nan_to_num(self.steps.not_finite) > 0)

    @cached_property
    def not_finite_evals(self) -> np.ndarray:
        return np.flatnonzero(np.nan_to_num(self.evals.not_finite) > 0)

    @cached_property
    def filtered_zeros(self) -> np.ndarray:
        """Updates whose loss is printed as 0 and was NaN."""
        return np.flatnonzero(self.is_filtered_zero)

    @property
    def is_not_finite(self) -> bool:
        return len(self.not_finite_rows) > 0 or len(self.not_finite_evals) > 0

    @cached_property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """The best series for judging progress: val, or the evaluations' train loss, or the batch losses; whichever has
        four points or else the most."""
        trains = np.isfinite(self.evals.train)
        choices = [self.vals, (self.evals.step[trains].astype(float), self.evals.train[trains]), self.losses]
        long_enough = (choice for choice in choices if len(choice[0]) >= 4)
        return next(long_enough, max(choices, key=lambda choice: len(choice[0])))

    @cached_property
    def first_loss(self) -> float | None:
        """Of the untrained model: an evaluation at step 0, or the loss of the first update."""
        steps, evals = self.steps, self.evals
        is_of_one = self.run.conventions.loss != "smoothed"  # the mean of the first hundred is no loss of the untrained
        at_0 = (evals.val[0], evals.train[0]) if len(evals) and evals.step[0] == 0 and is_of_one else ()
        of_update = (steps.loss[0],) if len(steps) and steps.step[0] <= 1 and is_of_one else ()
        return next((float(value) for value in (*at_0, *of_update) if np.isfinite(value)), None)

    @property
    def starting_loss(self) -> float | None:
        """The first loss, or the one that the config states."""
        return self.first_loss if self.first_loss is not None else self.number("first_loss")

    @property
    def eval_error(self) -> float:
        """Of one evaluation, in nats; assumed where the log does not show it."""
        return self.eval_noise.value if self.eval_noise is not None else ASSUMED_NOISE

    @cached_property
    def eval_noise(self) -> Figure | None:
        """Standard error of one evaluation's val loss."""
        recorded = self.evals.val_se[np.isfinite(self.evals.val_se)]
        if len(recorded):
            how = msg("recorded: sd over the evaluation's batches / sqrt(batches)")
            return Figure(float(np.median(recorded)), how, "recorded")
        kept = [error for losses in self.evals.val_batch_losses if (error := standard_error(losses)) is not None]
        if kept:
            return Figure(float(np.median(kept)), msg("sd over the evaluation's batches / sqrt(batches)"), "recorded")
        # The first third is left out: where the curve is steep, its bend would be taken for scatter.
        late = len(self.vals[0]) // 3
        seen = noise_of(self.vals[0][late:], self.vals[1][late:]) if len(self.vals[0]) >= 9 else None
        count, batch, modelled = self.whole("eval_iters"), self.batch_noise, None
        if count is not None and count >= 1 and batch is not None:
            modelled = inferred(batch.value / math.sqrt(count), msg("scatter of one batch / sqrt(eval_iters)"))
        if seen is not None and (modelled is None or seen >= modelled.value):
            return inferred(max(seen, 1e-4), msg("scatter of the evaluations around a smooth curve"))
        return modelled

    @cached_property
    def batch_noise(self) -> Figure | None:
        """Standard deviation of the loss of one micro-batch."""
        is_of_one = self.run.conventions.loss in ("last_micro_batch", "unknown")
        if is_of_one and self.has("losses>=12") and (seen := noise_of(*self.losses)):
            return inferred(seen, msg("scatter of the printed losses around a smooth curve"))
        batch, block = self.whole("batch_size"), self.whole("block_size")
        if batch is None or block is None or self.vocab_size is None:
            return None
        window = CHARACTER_SCATTER * math.sqrt(256 / block) if self.is_char else TOKEN_SCATTER
        return inferred(window / math.sqrt(batch), msg("typical scatter of one window / sqrt(batch_size)"))

    # --- the machine

    @cached_property
    def hardware(self) -> Hardware | None:
        text, device = self.text("hardware"), self.text("device")
        name = text or (device if device in ("mps", "cpu") else "")
        return hardware_named(name) if name else None

    @property
    def device(self) -> Device | None:
        return None if self.hardware is None else self.hardware.device

    @property
    def is_cpu(self) -> bool:
        return self.text("device") == "cpu" or (self.hardware is not None and self.hardware.kind == "cpu")

    @cached_property
    def devices(self) -> int | None:
        given = self.whole("devices")
        return given if given is not None or self.hardware is None else self.hardware.count

    @property
    def has_several_devices(self) -> bool:
        return (self.devices or 1) > 1

    @cached_property
    def stated_dtype(self) -> str | None:
        """The precision that somebody gave or the log prints, not the one that would suit the device."""
        for key in ("dtype", "precision", "mixed_precision", "torch_dtype"):
            word = self.text(key).lower().replace("torch.", "").split("-")[0]
            if word in PRECISIONS:
                return PRECISIONS[word]
        for key, name in (("bf16", "bfloat16"), ("fp16", "float16")):
            if self.run.get(key) is True:
                return name
        return None

    @property
    def is_float16(self) -> bool:
        return self.stated_dtype == "float16"

    @cached_property
    def dtype(self) -> str | None:
        usual = "float32" if self.is_cpu else self.device.best_dtype if self.device is not None else None
        return self.stated_dtype or usual

    @cached_property
    def peak(self) -> Figure | None:
        """FLOP/s of one device at this precision."""
        if (given := self.number("peak_flops")) is not None and given > 0:
            origin = self.text("peak_origin")
            how = msg("{key:code} ({where:code})", "peak_flops", origin) if origin else self.where("peak_flops")
            return Figure(given, how, "given")
        device, dtype = self.device, self.dtype
        if device is None or dtype is None or (peak := device.peak(dtype)) is None:
            return None
        return inferred(peak, msg("{device:code}, {dtype:code}, dense: {source}", device.name, dtype, device.source))

    @cached_property
    def step_time(self) -> Figure | None:
        return ordinary_seconds(self)

    @cached_property
    def true_mfu(self) -> Figure | None:
        """Against this device's own peak."""
        peak, took, tokens, cost = self.peak, self.step_time, self.tokens_per_update, self.flops_per_token
        if peak is None or took is None:
            return None
        if tokens is not None and cost is not None and self.devices and self.counts_all_devices:
            count = self.devices
            how = msg("tokens per update x FLOPs per token / time / total peak (devices: {devices:count})", count)
            return inferred(tokens.value * cost.value / took.value / (peak.value * count), how)
        instant, how = instant_mfu(self), msg("printed MFU x the peak it assumes / this device's peak")
        if instant is None or self.assumed_peak is None:
            return None
        return inferred(instant * self.assumed_peak / peak.value, how)

    # --- what is known of such runs

    @cached_property
    def reference(self) -> references.Reference | None:
        """The known run of this very corpus and model."""
        if self.corpus is None or self.shape is None or self.is_pretrained or self._arch != "gpt2":
            return None
        for known in references.published_runs():
            same_model = (known.n_layer, known.n_embd) == (self.shape.n_layer, self.shape.n_embd)
            if known.corpus == self.corpus.name and same_model and known.block_size in (None, self.shape.block_size):
                return known
        return None


CHARACTER_SCATTER, TOKEN_SCATTER = 0.2, 0.4
"""Nats by which the mean loss of one window of 256 characters, or of any number of BPE tokens, scatters between places
of a text (from public nanoGPT logs)."""
LOWEST_VAL_MARGIN = 0.05  # nats below the lowest val loss known of a text
ASSUMED_NOISE = 0.02  # nats, of one evaluation, where the log does not show it
LARGEST_VALUE = 1e9  # of a loss, a time, a norm: beyond it a number is damage, and squares of it would overflow


_SIGNED, _POSITIVE, _AT_LEAST_0 = (-LARGEST_VALUE, LARGEST_VALUE), (1e-9, 1e15), (0.0, LARGEST_VALUE)
_KINDS_OF_NOT_FINITE = (0.0, 3.0)
_BOUNDS_OF_STEPS = {
    **dict.fromkeys(("loss", "grad_norm"), _SIGNED),
    **dict.fromkeys(("took_s", "tokens", "tokens_per_s", "loss_scale", "memory_bytes"), _POSITIVE),
    **dict.fromkeys(("lr", "mfu_frac", "data_s", "clipped"), _AT_LEAST_0),
    "at_s": (0.0, 1e12),
    "not_finite": _KINDS_OF_NOT_FINITE,
}
_BOUNDS_OF_EVALS = {
    **dict.fromkeys(("train", "val", "val_bits_per_byte"), _SIGNED),
    **dict.fromkeys(("train_se", "val_se", "took_s"), _AT_LEAST_0),
    "not_finite": _KINDS_OF_NOT_FINITE,
}


def _sane(rows: Rows, bounds: Mapping[str, tuple[float, float]]) -> Rows:
    """Columns in which every number can be one: no negative times, no infinite losses (`not_finite` tells of those)."""
    columns: dict[str, Any] = {name: _within(getattr(rows, name), *ends) for name, ends in bounds.items()}
    return replace(rows, **columns)


def _within(column: np.ndarray, low: float, high: float) -> np.ndarray:
    if not len(column) or (np.fmin.reduce(column) >= low and np.fmax.reduce(column) <= high):
        return column
    with np.errstate(invalid="ignore"):
        return np.where((column >= low) & (column <= high), column, np.nan)


def _filtered_zeros(steps: Steps) -> np.ndarray:
    """Rows with a loss of exactly 0 that is no loss: NaN, filtered out before printing. A gradient norm that is no
    number beside it shows that; so do several zeros in a row from one line to the next, where the loss was no small
    number."""
    is_zero = steps.loss == 0
    return is_zero & ((np.nan_to_num(steps.not_finite) >= 2) | _sudden_zeros(steps.loss)) if is_zero.any() else is_zero


def _sudden_zeros(loss: np.ndarray) -> np.ndarray:
    """Two or more losses of exactly 0 that follow each other, after one above 0.1: a loss that falls to 0 passes what
    lies between."""
    finite = np.flatnonzero(np.isfinite(loss))
    found = np.zeros(len(loss), bool)
    for start, end in stretches(loss[finite] == 0):
        if end - start >= 2 and start > 0 and loss[finite[start - 1]] > 0.1:
            found[finite[start:end]] = True
    return found


def _spellings(name: str) -> tuple[str, ...]:
    """A setting under our name, and under those of other trainers."""
    return (name, *ALIASES.get(name, ()))


def makes_sense(name: str, value: float) -> bool:
    """Whether a setting can have this value at all: a batch of 0 sequences tells nothing of a run."""
    known = settings().get(name)
    return known is None or ((known.low is None or value >= known.low) and (known.high is None or value <= known.high))


_NUMBER = re.compile(r"^\s*(?:default\s+)?[~≈]?\s*([+-]?\d[\d,_]*\.?\d*(?:[eE][+-]?\d+)?)\s*([kKmMbB]?)\s*$")
_SUFFIX = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}


def as_number(value: object) -> float | None:
    """A config may hold "default 40", "~5" or "124M" where a number is meant. Anything else is no number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str) and (found := _NUMBER.match(value)):
        return float(found[1].replace(",", "").replace("_", "")) * _SUFFIX[found[2].lower()]
    return None
