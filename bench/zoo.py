"""The zoo: small runs whose cause is known because it was put there, as evidence for the diagnosis.

    NANOLENS_DATA=FOLDER python bench/zoo.py make ZOO --nanogpt PATH [--runs 1296]   a few seconds each, on one core
    python bench/zoo.py list [ZOO] [--runs 1296]                                     what there is to make, or was made
    python bench/zoo.py fit [ZOO]             the doctor's expectation and weights; without ZOO, from what is kept
    python bench/zoo.py report                how it does on trainers and corpora that it has not learned from

Four trainers (ours, nanoGPT's own train.py, the Trainer of transformers, a plain loop that prints in a style of its
own), texts of five kinds, and settings drawn within what people do. A third of the runs is sound; the others have one
cause, or now and then two, at a severity from 0.1 (hardly hurts) to 1 (destroys). Run number n is drawn from n alone,
and among any 72 that follow each other every trainer meets every text three times, once soundly: `make` can be stopped
and started again, and what is there so far is a fair sample. nanoGPT is a checkout of its repository; transformers
needs accelerate.

Each run is a file ZOO/NNNN.json: trainer, corpus, causes with severity and the codes of `diagnose` that name them,
codes that would be false, the config as its user knows it, device, what was measured, the whole log, and for
our own trainer the files of its run folder."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import zoo_fit
import zoo_trainers as trainers

from nanolens.config.fields import recommended_warmup
from nanolens.files import write_whole

VERSION = 1  # of the drawing: with another one, runs that were made before are made anew
TRAINERS = ("ours", "nanogpt", "hf", "plain")
CORPORA = ("shakespeare_char", "pydocs_char", "pydocs_bpe", "stdlib", "hindi", "synthetic")
VOCABULARIES = {"shakespeare_char": 65, "pydocs_bpe": 512, "hindi": 149, "synthetic": 20}  # of the others: about 97
BLOCK = [(trainer, corpus, is_sound) for trainer in TRAINERS for corpus in CORPORA for is_sound in (True, False, False)]
PAIR_FRAC = 0.15
UNFINISHED_FRAC, RESUMED_FRAC = 0.15, 0.08  # of sound runs: logs that end early, and such as were resumed as they ought
USUAL_S, SLOW_S = 3.2, 5.5  # of a run, about; of one whose cause shows late
LONG_S, LONG_FRAC = 12.0, 0.15  # a few that go on, so that it is known what comes after the first seconds
LEAST_EVAL_ITERS = 4
EPOCHS = 2.0  # that a sound run takes at most

# What a diagnosis may accuse a run of; whatever is not a cause of a run, nor follows from one, is false of it.
ACCUSATIONS = frozenset(
    """nan_divergence hf_zero_loss_is_nan fp16_overflow fused_adamw_fp16_bug grad_explosion loss_divergence
    collapse_to_unigram bigram_plateau attention_bug kernel_bug worse_than_guessing weights_not_updated
    loss_scale_collapse grad_nan dead_init constant_loss overfitting data_repeated checkpoint_not_best
    underfitting_capacity too_good_to_be_true val_leak above_reference lr_too_high lr_too_low lr_zero
    lr_schedule_mismatch plateau_lr batch_too_small grad_accum_loss_scaling grad_sync_bug resume_discontinuity
    config_log_mismatch param_count_mismatch token_accounting data_problem eval_dominates_time data_bound_or_swap
    input_bound empty_validation throttling_suspected frozen_parameters""".split()
)


@dataclass
class Draft:
    """A run while it is being drawn: what a cause may change."""

    settings: dict[str, Any]  # as the user has them
    style: dict[str, Any]
    corpus: str
    trainer: str
    draw: random.Random
    effects: dict[str, Any] = field(default_factory=dict)  # what the user does not know
    data: dict[str, Any] = field(default_factory=dict)  # changes of the tokens

    @property
    def steps(self) -> int:
        return self.settings["max_iters"]

    def rate_times(self, factor: float) -> None:
        for key in ("learning_rate", "min_lr", "matrix_learning_rate"):
            if key in self.settings:
                self.settings[key] = significant(self.settings[key] * factor)

    def decayed(self) -> None:
        """A schedule that has an end, for causes that are about it."""
        self.settings |= {"decay_lr": True, "schedule": "cosine"}

    def somewhere(self, low: float, high: float) -> int:
        return max(2, round(self.steps * self.draw.uniform(low, high)))


@dataclass(frozen=True)
class Cause:
    name: str
    group: str  # two causes of a pair are of different groups
    codes: tuple[str, ...]  # each of them names it
    follows: tuple[str, ...]  # true of the run as well
    change: Callable[[Draft, float], None]
    trainers: tuple[str, ...] = TRAINERS
    is_graded: bool = True  # else there is only one severity, 1
    is_slow: bool = False  # shows only where a model has learnt something: small models, and more updates


def between(severity: float, low: float, high: float) -> float:
    """From low at a severity of 0.1 to high at 1, in equal ratios."""
    return low * (high / low) ** ((severity - 0.1) / 0.9)


def significant(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}")


# --- the causes


def settings(**values: Any) -> Callable[[Draft, float], None]:
    return lambda run, severity: run.settings.update(values)


def effects(**values: Callable[[Draft, float], Any]) -> Callable[[Draft, float], None]:
    return lambda run, severity: run.effects.update({key: value(run, severity) for key, value in values.items()})


def warmup_missing(run: Draft, severity: float) -> None:
    run.decayed()
    run.rate_times(between(severity, 1.2, 8))
    run.settings["warmup_iters"] = 0


def warmup_long(run: Draft, severity: float) -> None:
    run.decayed()
    warmup = round(run.steps * between(severity, 0.3, 5))
    run.settings |= {"warmup_iters": warmup, "lr_decay_iters": max(run.steps, round(1.2 * warmup))}


def decay_long(run: Draft, severity: float) -> None:
    run.decayed()
    run.settings["lr_decay_iters"] = round(run.steps * between(severity, 1.5, 60))


def decay_short(run: Draft, severity: float) -> None:
    run.decayed()
    end = max(5, round(run.steps * between(severity, 0.7, 0.08)))
    least = significant(run.settings["learning_rate"] * run.draw.choice((0.0, 0.001, 0.01)))
    warmup = min(run.settings["warmup_iters"], end // 3)
    run.settings |= {"lr_decay_iters": end, "min_lr": least, "warmup_iters": warmup}


def batch_small(run: Draft, severity: float) -> None:
    tokens = between(severity, 160, 12)
    block = run.draw.choice((8, 16, 32))
    batch = max(1, round(tokens / block))
    run.settings |= {"block_size": block, "batch_size": batch, "gradient_accumulation_steps": 1}
    run.settings["max_iters"] = min(1500, 2 * run.steps)
    refit(run.settings)


def loss_summed(run: Draft, severity: float) -> None:
    run.settings["gradient_accumulation_steps"] = max(2, round(between(severity, 2, 12)))
    run.settings["max_iters"] = max(40, run.steps * 2 // run.settings["gradient_accumulation_steps"])
    run.settings["batch_size"] = max(2, run.settings["batch_size"] // 2)
    run.effects["summed"] = True
    refit(run.settings)


def data_tiny(run: Draft, severity: float) -> None:
    """So few tokens that they are passed over 4 to 300 times; a rate that can learn them by heart."""
    run.data["tokens"] = max(3 * run.settings["block_size"], int(tokens_of(run.settings) / between(severity, 4, 300)))


def sampler_restarts(run: Draft, severity: float) -> None:
    run.effects["sampler_restarts"] = max(2, round(between(severity, run.steps / 4, 2)))


def val_leak(run: Draft, severity: float) -> None:
    """Val is a copy of train, wholly or in part, and train is small enough for that to show."""
    data_tiny(run, max(0.5, severity))
    run.data["leak"] = severity


def attention(fault: str) -> Callable[[Draft, float], None]:
    return effects(attention=lambda run, severity: (fault, severity))


def frozen(part: str) -> Callable[[Draft, float], None]:
    return effects(frozen=lambda run, severity: (part, severity))


def at_update(name: str) -> Callable[[Draft, float], None]:
    """The more severe, the sooner."""
    return effects(**{name: lambda run, severity: round(run.steps * (1 - severity) * 0.8)})


def fp16_overflow(run: Draft, severity: float) -> None:
    at_update("not_finite")(run, severity)
    run.settings["dtype"] = "float16"


def scale_collapse(run: Draft, severity: float) -> None:
    run.settings["dtype"] = "float16"
    run.style["scale"] = True
    run.effects["overflow"] = between(severity, 0.1, 1.0)


def resumed(what: str) -> Callable[[Draft, float], None]:
    def change(run: Draft, severity: float) -> None:
        every = run.settings["eval_interval"]
        at = every * max(1, round(run.steps * run.draw.uniform(0.4, 0.7) / every))
        at = at if at < run.steps else run.steps // 2
        run.effects |= {"resume": what, "resume_at": at, "resume_lost": severity}
        if what == "counter":
            run.effects |= {"resume_from": round(at * (1 - severity)), "stop_at": at + run.steps // 2}

    return change


def evaluate_rarely(run: Draft, severity: float) -> None:
    run.settings["eval_interval"] = round(run.steps * between(severity, 0.5, 3))


def evaluate_often(run: Draft, severity: float) -> None:
    run.settings["eval_interval"] = max(2, round(between(severity, 20, 2)))
    run.settings["eval_iters"] = max(run.settings["eval_iters"], 12)
    share = eval_share(run.settings)
    run.settings["max_iters"] = max(30, round(run.steps * (1 - share)))
    refit(run.settings)
    run.settings["eval_interval"] = min(run.settings["eval_interval"], max(2, round(between(severity, 20, 2))))


def evaluate_little(run: Draft, severity: float) -> None:
    run.settings |= {"eval_iters": 1, "batch_size": max(1, round(between(severity, 8, 2)))}


def val_offset(kind: str) -> Callable[[Draft, float], None]:
    return lambda run, severity: run.data.update(offset=(kind, severity))


def text_shuffled(run: Draft, severity: float) -> None:
    run.data["span"] = max(1, round(between(severity, 48, 1)))


def vocab_wrong(run: Draft, severity: float) -> None:
    run.data["vocab_factor"] = between(severity, 2, 40)


def model_small(run: Draft, severity: float) -> None:
    run.settings |= {"n_layer": 1, "n_head": 1, "n_embd": 2 * round(between(severity, 12, 2)), "arch": "gpt2"}
    run.settings.pop("matrix_learning_rate", None)
    run.settings["optimizer"] = "adamw"
    run.settings["learning_rate"] = significant(run.settings["learning_rate"] * 1.5)


def too_short(run: Draft, severity: float) -> None:
    run.settings["max_iters"] = round(between(severity, 30, 4))
    refit(run.settings)


def saving_slow(run: Draft, severity: float) -> None:
    run.settings["log_interval"] = 1
    run.style |= {"saves": True, "eval_in_time": True, "shown": list(dict.fromkeys([*run.style["shown"], "time"]))}
    run.effects["save"] = between(severity, 3, 100)


def slower(**values: Callable[[Draft, float], Any]) -> Callable[[Draft, float], None]:
    """Effects that only lines with a time can show."""

    def change(run: Draft, severity: float) -> None:
        effects(**values)(run, severity)
        run.style["shown"] = list(dict.fromkeys([*run.style["shown"], run.draw.choice(("time", "speed"))]))

    return change


def lines_repeated(run: Draft, severity: float) -> None:
    run.data["repeated_lines"] = severity


NAN = ("nan_divergence", "hf_zero_loss_is_nan", "grad_nan", "fp16_overflow")
STUCK = ("collapse_to_unigram", "bigram_plateau", "plateau", "above_reference", "worse_than_guessing")
DEAD = ("weights_not_updated", "dead_init", "constant_loss", "worse_than_guessing", "plateau")
BLOWN = ("loss_divergence", "grad_explosion", "nan_divergence", "hf_zero_loss_is_nan", "lr_too_high", "loss_spike")
MEMORISED = ("overfitting", "data_repeated", "checkpoint_not_best", "will_overfit")
REACHED = ("nanogpt", "plain")  # whose loops have a place for what others do not let in
TIMED = ("ours", "nanogpt", "plain")  # whose lines have times
MISMATCH = ("lr_schedule_mismatch",)
WEAK = ("above_reference", "plateau", "underfitting_capacity")

CAUSES = (
    Cause("lr_high", "rate", ("lr_too_high",), BLOWN + STUCK, lambda run, s: run.rate_times(between(s, 2.5, 400))),
    Cause("lr_low", "rate", ("lr_too_low",), STUCK, lambda run, s: run.rate_times(1 / between(s, 4, 1000))),
    Cause("lr_zero", "rate", ("lr_zero",), DEAD + MISMATCH + ("lr_too_low",), lambda run, s: run.rate_times(0.0),
          is_graded=False),
    Cause("warmup_missing", "rate", ("lr_schedule_mismatch", "no_warmup"), BLOWN + STUCK, warmup_missing),
    Cause("warmup_long", "rate", MISMATCH, ("lr_too_low", *STUCK), warmup_long),
    Cause("decay_long", "rate", MISMATCH, (), decay_long),
    Cause("decay_short", "rate", MISMATCH, ("lr_too_low", "lr_zero", "plateau", "above_reference"), decay_short),
    Cause("rate_jumps", "rate", ("loss_divergence", "lr_too_high"), BLOWN + STUCK + MISMATCH,
          effects(rate_jumps_at=lambda run, s: run.somewhere(0.3, 0.7), rate_factor=lambda run, s: between(s, 5, 300))),
    Cause("batch_small", "batch", ("batch_too_small",), ("micro_batch_noise", "eval_noise", "lr_too_high", *WEAK),
          batch_small),
    Cause("loss_summed", "batch", ("grad_accum_loss_scaling",), ("worse_than_guessing",), loss_summed),
    Cause("labels_shuffled", "labels", ("data_problem", "collapse_to_unigram"), STUCK,
          effects(label_noise=lambda run, s: s)),
    Cause("labels_ahead", "labels", ("data_problem", "collapse_to_unigram"), STUCK,
          effects(label_shift=lambda run, s: round(between(s, 1, 6))), is_slow=True),
    Cause("labels_are_inputs", "labels", ("too_good_to_be_true",), ("val_leak", "attention_bug", "data_problem"),
          effects(label_shift=lambda run, s: -1), is_graded=False),
    Cause("text_shuffled", "data", ("data_problem", "collapse_to_unigram"), STUCK, text_shuffled, is_slow=True),
    Cause("data_tiny", "data", ("overfitting", "data_repeated"), MEMORISED, data_tiny, is_slow=True),
    Cause("sampler_restarts", "data", ("data_repeated", "overfitting"), MEMORISED, sampler_restarts, REACHED,
          is_slow=True),
    Cause("val_leak", "data", ("val_leak",), ("too_good_to_be_true", *MEMORISED), val_leak, is_slow=True),
    Cause("val_harder", "data", ("val_differs",), ("overfitting", "checkpoint_not_best"), val_offset("harder")),
    Cause("val_easier", "data", ("val_below_train_ok",), ("val_differs",), val_offset("easier")),
    Cause("vocab_wrong", "data", ("config_log_mismatch", "param_count_mismatch"), (), vocab_wrong),
    Cause("mask_off", "model", ("attention_bug", "too_good_to_be_true"), ("val_leak",), attention("unmasked"),
          is_slow=True),
    Cause("attention_dead", "model", ("attention_bug", "bigram_plateau"), ("frozen_parameters", *WEAK),
          attention("dead"), is_slow=True),
    Cause("blocks_frozen", "model", ("frozen_parameters",), ("bigram_plateau", *WEAK), frozen("blocks"), is_slow=True),
    Cause("embedding_frozen", "model", ("frozen_parameters",), STUCK + WEAK, frozen("embedding"), is_graded=False),
    Cause("not_updated", "model", ("weights_not_updated",), DEAD + STUCK, at_update("no_update")),
    Cause("output_dead", "model", ("dead_init", "constant_loss"), (*DEAD, "loss_divergence", "grad_explosion"),
          at_update("dead_output")),
    Cause("init_large", "model", ("bad_init", "dead_init"), ("worse_than_guessing", *WEAK, *BLOWN),
          effects(init=lambda run, s: between(s, 2.5, 40))),
    Cause("model_small", "model", ("underfitting_capacity",), (*WEAK, "bigram_plateau"), model_small, is_slow=True),
    Cause("dropout_high", "model", ("dropout_in_one_epoch", "underfitting_capacity"), WEAK,
          lambda run, s: run.settings.update(dropout=round(between(s, 0.3, 0.85), 2)), is_slow=True),
    Cause("not_finite", "numerics", ("nan_divergence", "hf_zero_loss_is_nan"), NAN, at_update("not_finite")),
    Cause("fp16_overflow", "numerics", ("fp16_overflow", "nan_divergence", "hf_zero_loss_is_nan"), NAN, fp16_overflow),
    Cause("scale_collapse", "numerics", ("loss_scale_collapse",), (*NAN, *DEAD, *WEAK), scale_collapse, ("plain",)),
    Cause("blown_up", "numerics", ("grad_explosion", "loss_divergence"), BLOWN + STUCK,
          effects(blown_up_at=lambda run, s: run.somewhere(0.3, 0.8), blown_up=lambda run, s: between(s, 1.3, 12))),
    Cause("resumed_without_optimizer", "resume", ("resume_discontinuity",), ("loss_spike",), resumed("optimizer")),
    Cause("resumed_without_weights", "resume", ("resume_discontinuity",), ("loss_spike", *BLOWN), resumed("weights")),
    Cause("resumed_earlier", "resume", ("resume_discontinuity",), ("lr_schedule_mismatch", "duplicate_lines"),
          resumed("counter"), REACHED),
    Cause("eval_rare", "eval", ("eval_too_rare",), ("run_too_short",), evaluate_rarely),
    Cause("eval_often", "eval", ("eval_dominates_time",), ("eval_spike",), evaluate_often),
    Cause("eval_little", "eval", ("eval_noise", "eval_too_small"), ("batch_too_small", "micro_batch_noise"),
          evaluate_little),
    Cause("eval_empty", "eval", ("empty_validation",), ("eval_noise",), settings(eval_iters=0), REACHED,
          is_graded=False),
    Cause("input_waits", "clock", ("input_bound", "data_bound_or_swap"), ("slow_steps_unexplained", "low_mfu"),
          slower(wait=lambda run, s: between(s, 0.3, 60)), TIMED),
    Cause("throttled", "clock", ("throttling_suspected",), ("slow_steps_unexplained",),
          slower(throttle=lambda run, s: between(s, 0.15, 3)), TIMED),
    Cause("saving_slow", "clock", ("checkpoint_spike",), ("eval_spike", "slow_steps_unexplained", "mfu_ema_lag"),
          saving_slow, REACHED),
    Cause("too_short", "length", ("run_too_short",), ("lr_schedule_mismatch", "still_improving"), too_short),
    Cause("lines_repeated", "print", ("duplicate_lines",), (), lines_repeated),
)  # fmt: skip
LENGTH_GROUPS = ("length", "batch", "eval", "model")  # change length and shape, which others go by
BY_NAME = {cause.name: cause for cause in CAUSES}


# --- drawing


@dataclass(frozen=True)
class Plan:
    index: int
    trainer: str
    corpus: str
    causes: tuple[tuple[str, float], ...]
    settings: dict[str, Any]
    effects: dict[str, Any]
    data: dict[str, Any]
    style: dict[str, Any]
    seed: int


def plan_of(index: int) -> Plan:
    trainer, corpus, number = _place(index)
    draw = random.Random(f"zoo {index}")
    causes = () if number is None else _causes(trainer, number, draw)
    is_slow = any(BY_NAME[name].is_slow for name, _ in causes)
    is_long = (is_slow or not causes) and random.Random(f"length {index}").random() < LONG_FRAC
    chosen = drawn_settings(draw, trainer, corpus, LONG_S if is_long else SLOW_S if is_slow else USUAL_S)
    run = Draft(chosen, trainers.drawn_style(draw), corpus, trainer, draw)
    if trainer == "plain" and run.style["scale"]:
        run.settings["dtype"] = "float16"
    if not causes:
        _vary_sound(run)
    for name, severity in sorted(causes, key=lambda each: BY_NAME[each[0]].group not in LENGTH_GROUPS):
        BY_NAME[name].change(run, severity)
    seed = draw.randrange(1 << 30)
    return Plan(index, trainer, corpus, causes, run.settings, run.effects, run.data, run.style, seed)


@cache
def _order(block: int) -> list[tuple[str, str, bool]]:
    order = list(BLOCK)
    random.Random(f"block {block}").shuffle(order)
    return order


def _place(index: int) -> tuple[str, str, int | None]:
    """Trainer, corpus, and of a faulty run which of its trainer's faulty runs it is."""
    block, place = divmod(index, len(BLOCK))
    trainer, corpus, is_sound = _order(block)[place]
    if is_sound:
        return trainer, corpus, None
    each = sum(one == trainer and not sound for one, _, sound in BLOCK)
    before = sum(one == trainer and not sound for one, _, sound in _order(block)[:place])
    return trainer, corpus, block * each + before


def _causes(trainer: str, number: int, draw: random.Random) -> tuple[tuple[str, float], ...]:
    """All causes that the trainer can have in turn, in an order that differs from round to round."""
    possible = [cause for cause in CAUSES if trainer in cause.trainers]
    turn, place = divmod(number, len(possible))
    order = random.Random(f"{trainer} {turn}").sample(possible, len(possible))
    first = order[place]
    # Severities of one cause over the rounds are spread evenly, as far apart as the golden section puts them.
    begin = random.Random(f"{trainer} {first.name}").random()
    causes = [(first.name, round(0.1 + 0.9 * ((begin + turn * 0.618) % 1), 2) if first.is_graded else 1.0)]
    if draw.random() < PAIR_FRAC:
        others = [cause for cause in possible if cause.group not in (first.group, "length")]
        second = draw.choice(others)
        causes.append((second.name, round(draw.uniform(0.1, 1), 2) if second.is_graded else 1.0))
    return tuple(causes)


def _vary_sound(run: Draft) -> None:
    chance = run.draw.random()
    if chance < UNFINISHED_FRAC:
        run.effects["stop_at"] = run.somewhere(0.35, 0.95)
    elif chance < UNFINISHED_FRAC + RESUMED_FRAC:
        resumed("soundly")(run, 1.0)


SIZES = (  # layers, width, and how often
    *((2, 32, 3), (2, 48, 6), (2, 64, 9), (3, 64, 6), (4, 64, 4), (2, 96, 5), (3, 96, 3), (4, 128, 2.5), (6, 128, 1.2)),
    *((4, 192, 0.8), (6, 256, 0.4), (6, 384, 0.25)),
)


def drawn_settings(draw: random.Random, trainer: str, corpus: str, seconds: float) -> dict[str, Any]:
    """Settings that suit each other, for a run of about so many seconds."""
    sizes = SIZES[:6] if seconds > USUAL_S else SIZES
    layers, width, _ = draw.choices(sizes, [often for _, _, often in sizes])[0]
    heads = draw.choice([heads for heads in (2, 3, 4, 6, 8) if width % (2 * heads) == 0 and width // heads >= 8])
    block = draw.choice((32, 32, 64, 64, 128)) if width < 192 else draw.choice((32, 64))
    tokens = draw.choice((192, 256, 256, 384, 512, 768)) if width < 192 else draw.choice((256, 512))
    micro = draw.choice((1, 1, 1, 1, 1, 2, 4))
    batch = max(2, round(tokens / block / micro))
    vocab = VOCABULARIES.get(corpus, 97)
    chosen: dict[str, Any] = {
        "dataset": corpus,
        "n_layer": layers,
        "n_head": heads,
        "n_embd": width,
        "block_size": block,
        "batch_size": batch,
        "gradient_accumulation_steps": micro,
        "dropout": draw.choice((0.0, 0.0, 0.0, 0.1, 0.2)),
        "bias": draw.random() < 0.4,
        "learning_rate": 0.0,
        "weight_decay": draw.choice((0.0, 0.01, 0.1, 0.1)),
        "beta1": 0.9,
        "beta2": draw.choice((0.95, 0.99, 0.99, 0.999)),
        "grad_clip": draw.choice((1.0, 1.0, 1.0, 0.5)),  # without it two of four ended 0.2 and 0.9 nats higher
        "optimizer": draw.choice(("adamw", "adamw", "adam", "nadam")) if trainer == "plain" else "adamw",
        "decay_lr": draw.random() < 0.88,
        "schedule": "cosine" if trainer == "nanogpt" else draw.choice(("cosine", "cosine", "cosine", "linear", "wsd")),
        "dtype": "bfloat16" if trainer != "nanogpt" and draw.random() < 0.07 else "float32",
        "log_interval": draw.choice((1, 1, 5, 10, 10, 20)),
        "always_save_checkpoint": draw.random() < 0.5,
    }
    seconds = min(max(9.0, seconds), seconds * math.exp(draw.gauss(0, 0.4)))
    updates = seconds / update_s(chosen, vocab)
    longest = EPOCHS * (140_000 if corpus == "hindi" else 900_000) / (batch * block * micro)
    chosen["max_iters"] = 10 * int(
        max(5 if width < 192 else 3, min(updates, longest, 1500 if seconds <= 9 else 4000) / 10)
    )
    usual = 3e-3 * math.sqrt(64 / width) * (batch * block * micro / 768) ** 0.25
    wanted = significant(usual * draw.uniform(0.5, 1.1), 2)
    chosen["learning_rate"] = wanted if chosen["decay_lr"] else significant(wanted / 2, 2)
    chosen["min_lr"] = significant(chosen["learning_rate"] / draw.choice((10, 10, 100)))
    if trainer == "ours" and draw.random() < 0.3:
        chosen |= {"arch": "modern", "ngram_rows": draw.choice((0, 512)), "bias": False}
        if draw.random() < 0.5:
            chosen |= {"optimizer": "muon", "matrix_learning_rate": 0.02}
    refit(chosen, draw.choice((4, 5, 6, 8, 10)))
    return chosen


def update_s(chosen: dict[str, Any], vocab: int) -> float:
    """Seconds of an update on one core, about."""
    layers, width, micro = chosen["n_layer"], chosen["n_embd"], chosen["gradient_accumulation_steps"]
    tokens = micro * chosen["batch_size"] * chosen["block_size"]
    flops = 6 * tokens * (layers * (12 * width**2 + 2 * width * chosen["block_size"]) + width * vocab)
    return 0.0015 + 0.0006 * layers + 0.0012 * layers * micro + flops / 8e10 + tokens * layers * width * 3e-9


def refit(chosen: dict[str, Any], evaluations: int = 5) -> None:
    """Warm-up, decay, printing and evaluations that suit the length of the run, in round numbers."""
    steps, micro = chosen["max_iters"], chosen["gradient_accumulation_steps"]
    chosen["warmup_iters"], chosen["lr_decay_iters"] = max(recommended_warmup(steps), min(20, steps // 8)), steps
    fitting = [each for each in (1, 5, 10, 20) if each <= max(1, steps // 12)]
    chosen["log_interval"] = min(chosen["log_interval"], fitting[-1])
    # An evaluation of both splits is two forward passes for a micro-batch's three: a tenth of the time at most.
    every = max(steps // evaluations, LEAST_EVAL_ITERS / (0.15 * micro))
    unit = max(chosen["log_interval"], 5 if every < 50 else 10)
    chosen["eval_interval"] = every = unit * math.ceil(every / unit)
    chosen["eval_iters"] = int(max(LEAST_EVAL_ITERS, min(40, 0.15 * every * micro)))


def eval_share(chosen: dict[str, Any]) -> float:
    forward = 2 * chosen["eval_iters"]
    return forward / (forward + 3 * chosen["eval_interval"] * chosen["gradient_accumulation_steps"])


def tokens_of(chosen: dict[str, Any]) -> int:
    return math.prod(chosen[key] for key in ("batch_size", "block_size", "gradient_accumulation_steps", "max_iters"))


# --- making


def made(plan: Plan, corpora: Path, nanogpt: Path) -> dict[str, Any]:
    """The record of a run, trained now."""
    corpus = trainers.open_corpus(plan.corpus, corpora)
    train, val, vocab_size = changed_tokens(plan, corpus)
    letters = corpus.letters if vocab_size == corpus.vocab_size else ""
    forward_s = update_s(plan.settings, vocab_size) / plan.settings["gradient_accumulation_steps"] / 3
    kit = trainers.Sabotage(dict(plan.effects), plan.settings, forward_s, plan.seed)
    begun_s = time.process_time()
    with tempfile.TemporaryDirectory() as folder, kit.active():
        job = trainers.Job(
            dict(plan.settings), train, val, letters, vocab_size, kit, plan.style, plan.seed, Path(folder)
        )
        trained = {
            "ours": trainers.train_ours,
            "nanogpt": lambda job: trainers.train_nanogpt(job, nanogpt),
            "hf": trainers.train_hf,
            "plain": trainers.train_plain,
        }[plan.trainer](job)
    took_s = time.process_time() - begun_s
    return {
        "version": VERSION,
        "index": plan.index,
        "trainer": plan.trainer,
        "corpus": plan.corpus,
        "causes": [
            {"name": name, "severity": severity, "codes": BY_NAME[name].codes, "follows": BY_NAME[name].follows}
            for name, severity in plan.causes
        ],
        "false_codes": sorted(false_codes(plan)),
        "config": {**plan.settings, "device": "cpu", "compile": False},
        "device": "cpu",
        "effects": {**plan.effects, **plan.data},
        "style": plan.style if plan.trainer == "plain" else {},
        "measured": {
            **corpus.facts,
            "vocab_size": corpus.vocab_size,
            "model_vocab_size": vocab_size,
            "train_tokens": len(train),
            "parameters": trained.parameters,
            "updates": kit.update,
            "epochs": tokens_of(plan.settings) / plan.settings["max_iters"] * kit.update / len(train),
            "last_loss": statistics.fmean(kit.losses[-max(8, len(kit.losses) // 10) :]),
            "took_s": took_s,
        },
        "printed": trained.printed,
        "log": with_repeated_lines(trained.log, plan),
        "files": trained.files,
    }


def false_codes(plan: Plan) -> set[str]:
    causes = [BY_NAME[name] for name, _ in plan.causes]
    return ACCUSATIONS - {code for cause in causes for code in (*cause.codes, *cause.follows)}


def changed_tokens(plan: Plan, corpus: trainers.Corpus) -> tuple[np.ndarray, np.ndarray, int]:
    train, val, vocab_size = corpus.train, corpus.val, corpus.vocab_size
    draw = np.random.default_rng(plan.seed)
    if tokens := plan.data.get("tokens"):
        begin = int(draw.integers(max(1, len(train) - tokens)))
        train = train[begin : begin + tokens]
    if span := plan.data.get("span"):
        train, val = (shuffled(part, span, draw) for part in (train, val))
    if share := plan.data.get("leak"):
        copies = np.tile(train, math.ceil(len(val) / len(train)))[: int(share * len(val))]
        val = mixed(val, copies, draw)
    if "offset" in plan.data:
        kind, share = plan.data["offset"]
        part = val[: int(share * len(val))]
        other = easiest(train, val, len(part)) if kind == "easier" else draw.permutation(vocab_size)[part]
        val = mixed(val, other.astype(val.dtype), draw)
    if factor := plan.data.get("vocab_factor"):
        vocab_size = min(2048, round(vocab_size * factor))
    return train, val, vocab_size


def easiest(train: np.ndarray, val: np.ndarray, count: int, span: int = 64, kept_frac: float = 0.1) -> np.ndarray:
    """The spans of val that are easiest for one who knows the pairs of train, over and over."""
    size = int(max(train.max(), val.max())) + 1
    pairs = np.bincount(train[:-1].astype(np.int64) * size + train[1:], minlength=size * size).reshape(size, size) + 0.1
    nats = -np.log(pairs / pairs.sum(axis=1, keepdims=True))[val[:-1], val[1:]]
    whole = len(nats) // span
    order = np.argsort(nats[: whole * span].reshape(whole, span).mean(axis=1))[: max(1, round(kept_frac * whole))]
    return np.resize(val[: whole * span].reshape(whole, span)[order].ravel(), count)


def shuffled(tokens: np.ndarray, span: int, draw: np.random.Generator) -> np.ndarray:
    whole = tokens[: len(tokens) // span * span].reshape(-1, span)
    return whole[draw.permutation(len(whole))].ravel()


def mixed(tokens: np.ndarray, others: np.ndarray, draw: np.random.Generator, span: int = 512) -> np.ndarray:
    """As many of `tokens`, the others among them in pieces of `span`."""
    kept = tokens[len(others) :]
    both = np.concatenate([others[: len(others) // span * span], kept[: len(kept) // span * span]]).reshape(-1, span)
    return both[draw.permutation(len(both))].ravel() if len(both) else others


def with_repeated_lines(log: str, plan: Plan) -> str:
    share, draw = plan.data.get("repeated_lines", 0.0), random.Random(plan.seed)
    return "".join(line * (draw.choice((2, 2, 3)) if draw.random() < share else 1) for line in log.splitlines(True))


def make(folder: Path, runs: int, nanogpt: Path, only: str) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    failures = 0
    for index in range(runs):
        plan = plan_of(index)
        place = folder / f"{index:04d}.json"
        if (only and only not in summary_of(plan)) or is_made(place):
            continue
        begun_s = time.monotonic()
        try:
            record = made(plan, folder / "corpora", nanogpt.resolve())
        except Exception:
            failures += 1
            print(f"{summary_of(plan)}  FAILED\n{traceback.format_exc()}", flush=True)
            continue
        write_whole(place, json.dumps(record))
        print(f"{summary_of(plan)}  {time.monotonic() - begun_s:.1f} s", flush=True)
    return 1 if failures else 0


def is_made(place: Path) -> bool:
    with contextlib.suppress(OSError):
        return json.loads(place.read_text("utf-8"))["version"] == VERSION
    return False


def summary_of(plan: Plan) -> str:
    causes = " + ".join(f"{name} {severity:.2f}" for name, severity in plan.causes) or "sound"
    chosen = plan.settings
    shape = f"{chosen['n_layer']}x{chosen['n_embd']}, {chosen['max_iters']} updates"
    return f"{plan.index:04d}  {plan.trainer:<8} {plan.corpus:<17} {causes:<44} {shape}"


def listed(folder: Path | None, runs: int) -> int:
    plans = [plan for plan in map(plan_of, range(runs)) if folder is None or is_made(folder / f"{plan.index:04d}.json")]
    for plan in plans:
        print(summary_of(plan))
    counted = Counter(name for plan in plans for name in dict(plan.causes) or ("sound",))
    print(", ".join(f"{name} {count}" for name, count in counted.most_common()))
    print(f"{len(plans)} runs, {sum(len(plan.causes) == 2 for plan in plans)} with two causes")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "list", "fit", "report"))
    parser.add_argument("folder", type=Path, nargs="?", metavar="ZOO")
    parser.add_argument("--runs", type=int, default=18 * len(BLOCK), help="how many there shall be in all")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--only", default="", metavar="PART", help="runs whose line in the list holds this")
    given = parser.parse_args()
    if given.what == "list":
        return listed(given.folder, given.runs)
    if given.what == "report":
        print(zoo_fit.report(zoo_fit.kept(), ACCUSATIONS))
        return 0
    if given.what == "fit":
        zoo_fit.fit(given.folder)
        return 0
    if given.folder is None or given.nanogpt is None:
        parser.error("make needs a folder and --nanogpt")
    return make(given.folder, given.runs, given.nanogpt, given.only)


if __name__ == "__main__":
    sys.exit(main())
