"""A Case: a Run and all that follows from it, each figure with the formula or the place that it comes from.

A symptom asks for what it needs with `case.need("shape")`: a figure that cannot be had raises `Lacking`, and the rule is then
reported as not checked, with what was missing. `case.shape` and the like give None instead. Nothing is filled in by a guess; what
is inferred says so.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from nanolens.analysis.corpora import PADDED_GPT2_VOCAB, Corpus, corpus_named
from nanolens.config.fields import settings
from nanolens.facts.references import REFERENCES, Reference
from nanolens.facts.statistics import noise_of, standard_error
from nanolens.message import Message, msg
from nanolens.record.run import Evals, Origin, Run, Steps
from nanolens.sizing import (
    GPT2_FAMILY,
    Device,
    Hardware,
    Parameters,
    Schedule,
    Shape,
    flops_per_token,
    hardware_named,
    parameters,
    rate_of,
)


@dataclass(frozen=True)
class Quantity:
    value: float
    how: Message
    origin: Origin


class Lacking(Exception):
    """Something that a rule needs is neither recorded, printed nor given."""

    def __init__(self, because: Message):
        self.because = because
        super().__init__(str(because))


ALIASES = {
    "learning_rate": ("lr", "max_lr", "peak_lr"),
    "min_lr": ("final_lr",),
    "max_iters": ("max_steps", "num_iterations", "train_steps", "total_steps", "steps"),
    "warmup_iters": ("warmup_steps", "warmup"),
    "block_size": ("sequence_length", "sequence_len", "seq_len", "max_seq_len", "max_seq_length", "context_length", "T"),
    "batch_size": ("per_device_train_batch_size", "device_batch_size", "micro_batch_size", "B"),
    "gradient_accumulation_steps": ("grad_accum_steps", "grad_accumulation_steps", "accumulate_grad_batches"),
    "tokens_per_update": ("total_batch_size", "tokens_per_iter", "tokens_per_step"),
    "n_layer": ("n_layers", "num_layers", "num_hidden_layers", "depth"),
    "n_head": ("n_heads", "num_heads", "num_attention_heads"),
    "n_embd": ("dim", "d_model", "hidden_size", "model_dim"),
    "eval_interval": ("val_loss_every", "eval_every", "eval_steps"),
    "devices": ("nproc_per_node", "world_size", "ddp_world_size", "num_gpus", "gpus", "n_gpus"),
    "dataset": ("data", "data_dir", "corpus"),
    "parameters": ("params", "num_params", "n_params"),
    "tied": ("tied_embeddings", "weight_tying", "tie_word_embeddings", "tie_weights"),
}
"""Other trainers' words for the same setting, most common first."""

TRAINERS_VOCABULARY = {"modded-nanogpt": 50304, "build-nanogpt": 50304, "llm.c": 50304, "nanochat": 65536}
"""Trainers that come with one tokenizer."""

PRECISIONS = {"fp16": "float16", "half": "float16", "16": "float16", "bf16": "bfloat16", "fp32": "float32", "32": "float32"}

LACKS = {
    "shape": msg("n_layer, n_head, n_embd, block_size or the vocabulary's size is not known"),
    "parameters": msg("neither the model's shape nor a printed parameter count is known"),
    "tokens_per_update": msg("batch_size, block_size and gradient_accumulation_steps are not all known"),
    "dataset_tokens": msg("the number of training tokens is not known; give --dataset_tokens=N (two bytes a token in a nanoGPT .bin file)"),
    "flops_per_token": msg("the model's shape is not known"),
    "device": msg("the device is not known; give --hardware=NAME"),
    "peak": msg("the device's peak is not known; give --hardware=NAME or --peak_flops=N"),
    "step_time": msg("there are no ordinary iterations with a time"),
    "vocab_size": msg("the vocabulary's size is not known; give --vocab_size=N"),
    "schedule": msg("learning_rate, min_lr and lr_decay_iters are not all known"),
    "evals": msg("there are no evaluations of both splits"),
    "eval_noise": msg("the scatter of the evaluations cannot be told: too few of them, and eval_iters or batch_size is not known"),
    "losses": msg("there are too few losses"),
    "mfu": msg("no MFU is printed"),
    "true_mfu": msg("step time, FLOPs per token, tokens per update or the device's peak is not known"),
}


class Case:
    def __init__(self, run: Run):
        self.run = run
        steps = sane_steps(run.steps)
        self.is_filtered_zero = _filtered_zeros(steps)
        self.steps = replace(steps, loss=np.where(self.is_filtered_zero, np.nan, steps.loss))
        self.evals = sane_evals(run.evals)

    def need(self, name: str) -> Any:
        value = getattr(self, name)
        if value is None:
            raise Lacking(LACKS[name])
        return value

    # --- facts as they were recorded, printed or given

    def get(self, name: str) -> object:
        for key in (name, *ALIASES.get(name, ())):
            value = self.run.get(key)
            if value is not None:
                return value
        return None

    def number(self, name: str) -> float | None:
        for key in (name, *ALIASES.get(name, ())):
            value = as_number(self.run.get(key))
            if value is not None and makes_sense(name, value):
                return value
        return None

    def stated(self, name: str) -> float | None:
        """A number that somebody gave or the log prints, not one that was filled in from what is published of such runs."""
        for key in (name, *ALIASES.get(name, ())):
            known = self.run.known.get(key)
            if known is not None and known.origin != "inferred" and (value := as_number(known.value)) is not None:
                return value
        return None

    def whole(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None or abs(value) >= 2**53 or value != int(value) else int(value)

    def text(self, name: str) -> str:
        value = self.get(name)
        return value if isinstance(value, str) else ""

    def where(self, name: str) -> Message:
        """Where a fact was read: for the evidence of a finding."""
        for key in (name, *ALIASES.get(name, ())):
            known = self.run.known.get(key)
            if known is not None:
                return msg("{key:code} ({where:code})", key=key, where=known.where or known.origin)
        return msg("{key:code}", key=name)

    # --- the data

    @cached_property
    def corpus(self) -> Corpus | None:
        return corpus_named(self.text("dataset"))

    @cached_property
    def vocab_size(self) -> Quantity | None:
        if (given := self.whole("vocab_size")) is not None and given > 1:
            return Quantity(given, self.where("vocab_size"), "given")
        if self.text("init_from").startswith("gpt2"):
            return Quantity(50257, msg("GPT-2's tokenizer"), "inferred")
        if self.corpus is not None:
            return Quantity(self.corpus.vocab_size, msg("as nanoGPT prepares {corpus:code}", corpus=self.corpus.name), "inferred")
        if (usual := TRAINERS_VOCABULARY.get(self.run.words.trainer)) is not None and not self.is_pretrained:
            return Quantity(usual, msg("what {trainer:code} trains with", trainer=self.run.words.trainer), "inferred")
        if (counted := self._vocab_from_parameters()) is not None:
            return counted
        return self._vocab_from_first_loss()

    def _vocab_from_parameters(self) -> Quantity | None:
        """A printed count and the shape leave one unknown."""
        printed, layers, width = self.whole("parameters"), self.whole("n_layer"), self.whole("n_embd")
        if printed is None or layers is None or width is None or width < 1:
            return None
        rest = printed - 12 * layers * width * width
        vocab = rest / width
        for usual in (PADDED_GPT2_VOCAB, 50257, 32000, 65536):
            if abs(vocab - usual) < 0.02 * usual:
                return Quantity(usual, msg("what the printed parameter count leaves for the embedding"), "inferred")
        return None

    def _vocab_from_first_loss(self) -> Quantity | None:
        """A fresh model is as surprised as chance: the first loss is the logarithm of the vocabulary, or a little more."""
        first = self.first_loss
        if first is None or self.is_pretrained:
            return None
        for usual in (65, 256, 8192, 32000, PADDED_GPT2_VOCAB, 65536):
            if -0.02 <= first - math.log(usual) <= 0.25:
                return Quantity(usual, msg("the first loss, {loss:nats}, is near ln {vocab:count}", loss=first, vocab=usual), "inferred")
        return None

    @property
    def is_vocab_guessed(self) -> bool:
        """Whether the vocabulary was told from the first loss alone: no ground to judge losses by."""
        return self.vocab_size is not None and self.vocab_size.origin == "inferred" and "loss" in self.vocab_size.how.args

    @property
    def ln_vocab(self) -> float | None:
        return None if self.vocab_size is None else math.log(self.vocab_size.value)

    @property
    def is_char(self) -> bool:
        """Characters or bytes: a vocabulary of a few hundred."""
        return self.vocab_size is not None and self.vocab_size.value <= 1024

    @cached_property
    def dataset_tokens(self) -> Quantity | None:
        if (given := self.number("dataset_tokens")) is not None and given > 0:
            return Quantity(given, self.where("dataset_tokens"), "given")
        if self.corpus is not None and self.corpus.train_tokens is not None:
            return Quantity(self.corpus.train_tokens, msg("as nanoGPT prepares {corpus:code}", corpus=self.corpus.name), "inferred")
        return None

    @property
    def unigram_nats(self) -> float | None:
        given = self.number("unigram_nats")
        return given if given is not None else self.corpus.unigram_nats if self.corpus else None

    @property
    def bigram_nats(self) -> float | None:
        given = self.number("bigram_nats")
        return given if given is not None else self.corpus.bigram_nats if self.corpus else None

    # --- the model

    @property
    def is_pretrained(self) -> bool:
        start = self.text("init_from").lower()
        return start not in ("", "scratch", "resume")

    @cached_property
    def shape(self) -> Shape | None:
        start = self.text("init_from")
        if start in GPT2_FAMILY:
            return GPT2_FAMILY[start]
        layers, width, block = self.whole("n_layer"), self.whole("n_embd"), self.whole("block_size")
        heads = self.whole("n_head")
        is_nanochat = self.run.words.trainer in ("nanochat", "autoresearch")
        if is_nanochat and layers is not None:
            width = width or 64 * layers  # nanochat's rule; its other defaults follow
            block = block or 2048
        vocab = self.whole("vocab_size") or (65536 if is_nanochat else None) or (int(self.vocab_size.value) if self.vocab_size else None)
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
    def parameters(self) -> Quantity | None:
        """All of them, position table included."""
        if (recorded := self.number("parameters_total")) is not None and recorded > 0:
            return Quantity(recorded, self.where("parameters_total"), "recorded")
        if self.counted is not None:
            return Quantity(self.counted.total, msg("counted from the shape"), "inferred")
        if (printed := self.number("parameters")) is not None and printed > 0:
            return Quantity(printed, self.where("parameters"), "printed")
        return None

    @cached_property
    def flops_per_token(self) -> Quantity | None:
        if (given := self.number("flops_per_token")) is not None and given > 0:
            return Quantity(given, self.where("flops_per_token"), "given")
        if self.shape is None:
            return None
        return Quantity(flops_per_token(self.shape).training, msg("6*N_matmul + 12*n_layer*n_embd*block_size"), "inferred")

    # --- tokens

    @cached_property
    def micro_batch_tokens(self) -> int | None:
        batch, block = self.whole("batch_size"), self.whole("block_size")
        return None if batch is None or block is None else batch * block

    @cached_property
    def tokens_per_update(self) -> Quantity | None:
        recorded = self.steps.tokens[np.isfinite(self.steps.tokens)]
        if len(recorded):
            return Quantity(float(np.median(recorded)), msg("recorded with each step"), "recorded")
        if (stated := self.number("tokens_per_update")) is not None and stated > 0:
            return Quantity(stated, self.where("tokens_per_update"), "given")
        accumulation = self.whole("gradient_accumulation_steps")
        measured = self.tokens_from_mfu
        if self.micro_batch_tokens is not None and accumulation is not None:
            product = self.micro_batch_tokens * accumulation
            is_assumed = self.stated("gradient_accumulation_steps") is None or self.stated("batch_size") is None
            if is_assumed and measured is not None and abs(measured.value / product - 1) > 0.2:
                return measured  # releases of nanoGPT differ in the accumulation that its own configs come to
            return Quantity(product, msg("batch_size x block_size x gradient_accumulation_steps"), "inferred")
        speed, took = self.steps.tokens_per_s, self.steps.took_s
        both = np.isfinite(speed) & np.isfinite(took)
        if both.any():
            return Quantity(float(np.median(speed[both] * took[both])), msg("printed tokens/s x time of the step"), "inferred")
        return measured

    @cached_property
    def mfu_work(self) -> float | None:
        """MFU x seconds of a step, see pace.mfu_times_seconds."""
        from nanolens.facts.timing import measured_mfu_work

        return measured_mfu_work(self)

    @cached_property
    def tokens_from_mfu(self) -> Quantity | None:
        """Time x MFU is work; work over FLOPs per token is tokens. One device's share, as nanoGPT counts it."""
        from nanolens.facts.timing import mfu_times_seconds

        peak = self.run.words.peak_flops
        if peak is None or self.shape is None or self.counted is None or self.run.words.trainer != "nanogpt":
            return None
        work = mfu_times_seconds(self)
        if work is None:
            return None
        per_token = 6 * self.counted.as_nanogpt_prints + 12 * self.shape.n_layer * self.shape.n_embd * self.shape.block_size
        return Quantity(work * peak / per_token, msg("MFU x 312 TFLOP/s x time / FLOPs per token, as nanoGPT computes its MFU"), "inferred")

    @property
    def counts_all_devices(self) -> bool:
        """Whether the tokens of an update are those of all devices for certain. Accumulation counts for one process in some trainers and in
        old releases of nanoGPT, and for all in others: where it was multiplied in and there are several devices, nobody can tell."""
        if (self.devices or 1) == 1 or np.isfinite(self.steps.tokens).any():
            return True
        return self.number("tokens_per_update") is not None

    @property
    def last_step(self) -> int:
        """Updates done at the last place that the source tells of."""
        ends = [int(column.max()) for column in (self.steps.step, self.evals.step) if len(column)]
        return max(ends, default=0)

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
        shape = self.text("schedule")
        frac = self.number("decay_frac")
        return Schedule(
            learning_rate=rate,
            min_lr=least,
            warmup_iters=self.whole("warmup_iters") or 0,
            decay_ends=ends,
            shape=shape if shape in ("cosine", "linear", "wsd") else "cosine",
            decay_frac=0.2 if frac is None else frac,
        )

    def rate_at(self, step: int) -> float | None:
        """As recorded near that step, or else by the schedule."""
        rates = self.steps.rate
        if np.isfinite(rates).any():
            known = np.flatnonzero(np.isfinite(rates))
            nearest = known[np.argmin(np.abs(self.steps.step[known] - step))]
            return float(rates[nearest])
        return None if self.schedule is None else rate_of(self.schedule, step)

    @property
    def peak_rate(self) -> float | None:
        rates = self.steps.rate[np.isfinite(self.steps.rate)]
        given = self.number("learning_rate")
        return given if given is not None else float(rates.max()) if len(rates) else None

    # --- losses

    @cached_property
    def losses(self) -> tuple[np.ndarray, np.ndarray]:
        """(step, batch loss), finite rows only."""
        kept = np.isfinite(self.steps.loss)
        return self.steps.step[kept].astype(float), self.steps.loss[kept]

    @cached_property
    def vals(self) -> tuple[np.ndarray, np.ndarray]:
        kept = np.isfinite(self.evals.val)
        return self.evals.step[kept].astype(float), self.evals.val[kept]

    @cached_property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """The best series for judging progress: val, or the evaluations' train loss, or the batch losses; whichever has four points or
        else the most."""
        trains = np.isfinite(self.evals.train)
        choices = [self.vals, (self.evals.step[trains].astype(float), self.evals.train[trains]), self.losses]
        for choice in choices:
            if len(choice[0]) >= 4:
                return choice
        return max(choices, key=lambda choice: len(choice[0]))

    @cached_property
    def first_loss(self) -> float | None:
        """Of the untrained model: an evaluation at step 0, or the loss of the first update."""
        if len(self.evals) and self.evals.step[0] == 0:
            for value in (self.evals.val[0], self.evals.train[0]):
                if np.isfinite(value):
                    return float(value)
        if len(self.steps) and self.steps.step[0] <= 1 and np.isfinite(self.steps.loss[0]):
            return float(self.steps.loss[0])
        return None

    @cached_property
    def eval_noise(self) -> Quantity | None:
        """Standard error of one evaluation's val loss."""
        recorded = self.evals.val_se[np.isfinite(self.evals.val_se)]
        if len(recorded):
            return Quantity(float(np.median(recorded)), msg("recorded: sd over the evaluation's batches / sqrt(batches)"), "recorded")
        kept = [error for losses in self.evals.val_batch_losses if (error := standard_error(losses)) is not None]
        if kept:
            return Quantity(float(np.median(kept)), msg("sd over the evaluation's batches / sqrt(batches)"), "recorded")
        # The first third is left out: where the curve is steep, its bend would be taken for scatter.
        late = len(self.vals[0]) // 3
        seen = noise_of(self.vals[0][late:], self.vals[1][late:]) if len(self.vals[0]) >= 9 else None
        modelled = self._modelled_eval_noise()
        if seen is not None and (modelled is None or seen >= modelled.value):
            return Quantity(max(seen, 1e-4), msg("scatter of the evaluations about a smooth curve"), "inferred")
        return modelled

    def _modelled_eval_noise(self) -> Quantity | None:
        count = self.whole("eval_iters")
        if count is None or count < 1:
            return None
        batch = self.batch_noise
        if batch is None:
            return None
        return Quantity(batch.value / math.sqrt(count), msg("scatter of one batch / sqrt(eval_iters)"), "inferred")

    @cached_property
    def batch_noise(self) -> Quantity | None:
        """Standard deviation of the loss of one micro-batch."""
        if self.run.words.loss in ("last_micro_batch", "unknown") and len(self.losses[0]) >= 12:
            seen = noise_of(*self.losses)
            if seen:
                return Quantity(seen, msg("scatter of the printed losses about a smooth curve"), "inferred")
        batch, block = self.whole("batch_size"), self.whole("block_size")
        if batch is None or block is None or self.vocab_size is None:
            return None
        # A window's mean loss scatters between documents: by 0.4 nats for BPE tokens, by 0.2 for 256 characters (from public nanoGPT logs).
        window = 0.2 * math.sqrt(256 / block) if self.is_char else 0.4
        return Quantity(window / math.sqrt(batch), msg("usual scatter of one window / sqrt(batch_size)"), "inferred")

    # --- the machine

    @cached_property
    def hardware(self) -> Hardware | None:
        text = self.text("hardware")
        if text:
            return hardware_named(text)
        device = self.text("device")
        return hardware_named("mps") if device == "mps" else hardware_named("cpu") if device == "cpu" else None

    @property
    def device(self) -> Device | None:
        return None if self.hardware is None else self.hardware.device

    @property
    def is_cpu(self) -> bool:
        return self.text("device") == "cpu" or (self.hardware is not None and self.hardware.kind == "cpu")

    @cached_property
    def devices(self) -> int | None:
        given = self.whole("devices")
        if given is not None:
            return given
        return self.hardware.count if self.hardware is not None else None

    @cached_property
    def stated_dtype(self) -> str | None:
        """The precision that somebody gave or the log prints, not the one that would suit the device."""
        for key in ("dtype", "precision", "mixed_precision", "torch_dtype"):
            word = self.text(key).lower().replace("torch.", "").split("-")[0]
            word = {"fp16": "float16", "half": "float16", "16": "float16", "bf16": "bfloat16", "fp32": "float32", "32": "float32"}.get(
                word, word
            )
            if word in ("float16", "bfloat16", "float32"):
                return word
        for key, name in (("bf16", "bfloat16"), ("fp16", "float16")):
            if self.run.get(key) is True:
                return name
        return None

    @cached_property
    def dtype(self) -> str | None:
        if self.stated_dtype is not None:
            return self.stated_dtype
        if self.is_cpu:
            return "float32"
        return None if self.device is None else self.device.best_dtype

    @cached_property
    def peak(self) -> Quantity | None:
        """FLOP/s of one device at this precision."""
        if (given := self.number("peak_flops")) is not None and given > 0:
            origin = self.text("peak_origin")
            how = msg("{key:code} ({where:code})", key="peak_flops", where=origin) if origin else self.where("peak_flops")
            return Quantity(given, how, "given")
        if self.device is None or self.dtype is None:
            return None
        peak = self.device.peak(self.dtype)
        if peak is None:
            return None
        how = msg("{device:code}, {dtype:code}, dense: {source}", device=self.device.name, dtype=self.dtype, source=self.device.source)
        return Quantity(peak, how, "inferred")

    @cached_property
    def step_time(self) -> Quantity | None:
        from nanolens.facts.timing import ordinary_seconds

        return ordinary_seconds(self)

    @cached_property
    def true_mfu(self) -> Quantity | None:
        """Against this device's own peak."""
        if self.peak is None or self.step_time is None:
            return None
        if self.tokens_per_update is not None and self.flops_per_token is not None and self.devices and self.counts_all_devices:
            achieved = self.tokens_per_update.value * self.flops_per_token.value / self.step_time.value
            how = msg("tokens per update x FLOPs per token / time / peak of {devices:count} device(s)", devices=self.devices)
            return Quantity(achieved / (self.peak.value * self.devices), how, "inferred")
        from nanolens.facts.timing import instant_mfu

        instant, assumed = instant_mfu(self), self.run.words.peak_flops
        if instant is None or assumed is None:
            return None
        return Quantity(instant * assumed / self.peak.value, msg("printed MFU x the peak it assumes / this device's peak"), "inferred")

    # --- what is known of such runs

    @cached_property
    def reference(self) -> Reference | None:
        """The known run of this very corpus and model."""
        if self.corpus is None or self.shape is None or self.is_pretrained or self._arch != "gpt2":
            return None
        for known in REFERENCES:
            same_model = (known.n_layer, known.n_embd) == (self.shape.n_layer, self.shape.n_embd)
            if known.corpus == self.corpus.name and same_model and known.block_size in (None, self.shape.block_size):
                return known
        return None


LARGEST = 1e9  # of a loss, a time, a norm: beyond it a number is damage, and squares of it would overflow


def sane_steps(steps: Steps) -> Steps:
    """Columns in which every number can be one: no negative times, no infinite losses (`not_finite` tells of those)."""
    changed = {name: _within(getattr(steps, name), -LARGEST, LARGEST) for name in ("loss", "grad_norm")}
    changed |= {
        name: _within(getattr(steps, name), 1e-9, 1e15) for name in ("took_s", "tokens", "tokens_per_s", "loss_scale", "memory_bytes")
    }
    changed |= {name: _within(getattr(steps, name), 0.0, LARGEST) for name in ("rate", "mfu_frac", "data_s", "clipped")}
    changed["at_s"] = _within(steps.at_s, 0.0, 1e12)
    changed["not_finite"] = _within(steps.not_finite, 0.0, 3.0)
    return replace(steps, **changed)


def sane_evals(evals: Evals) -> Evals:
    changed: dict[str, Any] = {name: _within(getattr(evals, name), -LARGEST, LARGEST) for name in ("train", "val", "val_bits_per_byte")}
    changed |= {name: _within(getattr(evals, name), 0.0, LARGEST) for name in ("train_se", "val_se", "took_s")}
    changed["not_finite"] = _within(evals.not_finite, 0.0, 3.0)
    return replace(evals, **changed)


def _within(column: np.ndarray, low: float, high: float) -> np.ndarray:
    if not len(column) or (np.fmin.reduce(column) >= low and np.fmax.reduce(column) <= high):
        return column
    with np.errstate(invalid="ignore"):
        return np.where((column >= low) & (column <= high), column, np.nan)


_NUMBER = re.compile(r"^\s*(?:default\s+)?[~≈]?\s*([+-]?\d[\d,_]*\.?\d*(?:[eE][+-]?\d+)?)\s*([kKmMbB]?)\s*$")
_SUFFIX = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}


def _filtered_zeros(steps: Steps) -> np.ndarray:
    """Rows with a loss of exactly 0 that is no loss: NaN, filtered out before printing. A gradient norm that is no number beside it shows
    that; so do several zeros in a row from one line to the next, where the loss was no small number."""
    return (steps.loss == 0) & ((np.nan_to_num(steps.not_finite) >= 2) | _sudden_zeros(steps.loss))


def _sudden_zeros(loss: np.ndarray) -> np.ndarray:
    """Two or more losses of exactly 0 that follow each other, after one above 0.1: a loss that falls to 0 passes what lies between."""
    told = np.flatnonzero(np.isfinite(loss))
    is_zero = loss[told] == 0
    starts = np.flatnonzero(is_zero & ~np.r_[False, is_zero[:-1]])
    ends = np.flatnonzero(is_zero & ~np.r_[is_zero[1:], False]) + 1
    found = np.zeros(len(loss), bool)
    for start, end in zip(starts, ends, strict=True):
        if end - start >= 2 and start > 0 and loss[told[start - 1]] > 0.1:
            found[told[start:end]] = True
    return found


def makes_sense(name: str, value: float) -> bool:
    """Whether a setting can have this value at all: a batch of 0 sequences tells nothing of a run."""
    known = settings().get(name)
    return known is None or ((known.low is None or value >= known.low) and (known.high is None or value <= known.high))


def as_number(value: object) -> float | None:
    """A config may hold "default 40", "~5" or "124M" where a number is meant. Anything else is no number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str) and (found := _NUMBER.match(value)):
        return float(found[1].replace(",", "").replace("_", "")) * _SUFFIX[found[2].lower()]
    return None
