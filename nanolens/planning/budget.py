"""A budget turned round: the best model size, batch, learning rate and length for so many hours, FLOPs or tokens.

The size minimises a loss law over a ladder of usual shapes. Each shape gets as many tokens as the budget pays for, and tokens that repeat
the data count for what they are worth. Batch and learning rate follow from the length (Step Law)."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from nanolens.analysis.plan_rows import two_digits
from nanolens.config.fields import Config
from nanolens.errors import fault
from nanolens.facts.laws import LOSS_LAWS, SMALLEST_FITTED_N, step_law_batch, step_law_rate, worth_of_tokens
from nanolens.message import Message, msg
from nanolens.planning.figures import DataFacts, MachineFacts
from nanolens.planning.memory import largest_micro_batch
from nanolens.sizing import Shape, flops_per_token, parameters, shape_of
from nanolens.sizing.roofline import update_time

Kind = Literal["seconds", "flops", "tokens"]


@dataclass(frozen=True)
class Budget:
    kind: Kind
    amount: float
    text: str


LADDER = (
    (2, 2, 64),
    (3, 3, 96),
    (4, 4, 128),
    (4, 4, 192),
    (6, 4, 256),
    (6, 5, 320),
    (6, 6, 384),
    (8, 7, 448),
    (8, 8, 512),
    (10, 10, 640),
    (12, 12, 768),
    (14, 14, 896),
    (16, 16, 1024),
    (20, 20, 1280),
    (24, 24, 1536),
    (28, 28, 1792),
    (32, 32, 2048),
)
"""(n_layer, n_head, n_embd): heads of 32 to 64 channels, deeper as it gets wider."""

_UNITS: dict[str, tuple[Kind, float]] = {
    "s": ("seconds", 1),
    "sec": ("seconds", 1),
    "m": ("seconds", 60),
    "min": ("seconds", 60),
    "h": ("seconds", 3600),
    "hour": ("seconds", 3600),
    "hours": ("seconds", 3600),
    "d": ("seconds", 86400),
    "day": ("seconds", 86400),
    "days": ("seconds", 86400),
    "flop": ("flops", 1),
    "flops": ("flops", 1),
    "tflop": ("flops", 1e12),
    "pflop": ("flops", 1e15),
    "eflop": ("flops", 1e18),
    "tok": ("tokens", 1),
    "tokens": ("tokens", 1),
    "ktok": ("tokens", 1e3),
    "mtok": ("tokens", 1e6),
    "btok": ("tokens", 1e9),
    "ttok": ("tokens", 1e12),
}

SHARE_FOR_TRAINING = 0.93  # of a time budget; evaluations, checkpoints and the start take the rest
ASSUMED_EFFICIENCY = 0.5  # of the measured matrix product, until the chosen shape itself has been timed
SMALL_MODEL_RATE = 3e-3
"""Most that is suggested below the sizes that Step Law was fitted on, where its formula runs away."""
MOST_EPOCHS, MOST_PARAMETERS = 24.0, 12.0
"""Passes over the data, and parameters for each of its tokens, beyond which nothing more is won: nanoGPT's GPU demo, 11 parameters a token,
is best after 28 passes and worse ever after."""
EVAL_SHARE = 0.05
MICRO_BATCH_TOKENS = {"cpu": 1024, "gpu": 16384, "apple": 8192}


Speed = Callable[[Config, Shape], float | None]
"""Tokens per second of a config, or None where that is not known."""


def budget_named(text: str) -> Budget:
    found = re.fullmatch(r"\s*([\d.]+(?:e[+-]?\d+)?)\s*([a-z]+)\s*", text.lower().replace("_", "").replace(",", ""))
    if found is None or found[2] not in _UNITS or not 0 < float(found[1]) < math.inf:
        raise fault(
            msg("{text:code} is not a budget", text=text),
            where=msg("{option:code}", option=f"--budget={text}"),
            fix=msg("write a time, FLOPs or tokens: {examples:code}", examples=("2h", "30min", "1e15flop", "3Btok", "500Mtok")),
        )
    kind, size = _UNITS[found[2]]
    return Budget(kind, float(found[1]) * size, text)


@dataclass(frozen=True)
class Choice:
    config: Config
    reasons: tuple[Message, ...]


def best_for(
    budget: Budget, base: Config, data: DataFacts, machine: MachineFacts, tokens_per_s: Speed, fixed: frozenset[str] = frozenset()
) -> Choice:
    """`base` gives all that the budget does not decide (arch, context, data, …) and `fixed` names what the user set by hand, which stays;
    `tokens_per_s` says how fast a config trains on the machine."""
    asked = _Asked(budget, base, data, machine, tokens_per_s, fixed)
    tried = [trial for size in LADDER if (trial := _trial(asked, size)) is not None]
    if not tried:
        raise fault(
            msg("no model fits this budget on {machine:code}", machine=machine.name),
            fix=msg("a larger budget, or a shorter context with {option:code}", option="--block_size=N"),
        )
    best = min(tried, key=lambda trial: trial.loss)
    return Choice(best.config, tuple(_reasons(best, budget, data)))


@dataclass(frozen=True)
class _Trial:
    config: Config
    shape: Shape
    tokens: float
    loss: float


@dataclass(frozen=True)
class _Asked:
    budget: Budget
    base: Config
    data: DataFacts
    machine: MachineFacts
    tokens_per_s: Speed
    fixed: frozenset[str]

    def set(self, config: Config, **values: object) -> Config:
        return dataclasses.replace(config, **{key: value for key, value in values.items() if key not in self.fixed})  # type: ignore[arg-type]


def _trial(asked: _Asked, size: tuple[int, int, int]) -> _Trial | None:
    layers, heads, width = size
    config = asked.set(asked.base, n_layer=layers, n_head=heads, n_embd=width)
    if config.n_embd % config.n_head:
        return None
    shape = shape_of(config, asked.data.vocab_size)
    draft = _with_batch(asked, config, shape, step_law_batch(_rough_tokens(asked.budget, shape, asked.machine)))
    tokens = None if draft is None else _affordable(asked, draft, shape)
    unique = asked.data.train_tokens
    if unique is not None and tokens is not None:
        if parameters(shape).total > MOST_PARAMETERS * unique:
            return None
        tokens = min(tokens, MOST_EPOCHS * unique)
    if tokens is None or tokens < 100 * shape.block_size:
        return None
    draft = _with_batch(asked, config, shape, step_law_batch(tokens))
    assert draft is not None
    if asked.budget.kind == "tokens":
        # The law alone would take the largest model: a length is paired with the size that it is the best use of compute for.
        loss = abs(math.log(parameters(shape).total / _best_size(tokens)))
    else:
        worth = worth_of_tokens(tokens, asked.data.train_tokens) if asked.data.train_tokens else tokens
        loss = LOSS_LAWS[0].loss(parameters(shape).total, worth)
    return _Trial(asked.set(draft, **lengthened(draft, shape, tokens, asked.data)), shape, tokens, loss)


def _best_size(tokens: float) -> float:
    """Parameters for which this many tokens are the best use of compute, by the first law."""
    law = LOSS_LAWS[0]
    return (law.alpha * law.A / (law.beta * law.B)) ** (1 / law.alpha) * tokens ** (law.beta / law.alpha)


def _rough_tokens(budget: Budget, shape: Shape, machine: MachineFacts) -> float:
    each = flops_per_token(shape).training
    if budget.kind == "tokens":
        return budget.amount
    if budget.kind == "flops":
        return budget.amount / each
    peak = machine.device.peak(machine.dtype) if machine.device else None
    measured = machine.calibration.peak_flops if machine.calibration else None
    return max(1e5, budget.amount * 0.4 * machine.count * (peak or measured or 5e10) / each)


def _affordable(asked: _Asked, config: Config, shape: Shape) -> float | None:
    if asked.budget.kind == "tokens":
        return asked.budget.amount
    if asked.budget.kind == "flops":
        return asked.budget.amount / flops_per_token(shape).training
    speed = asked.tokens_per_s(config, shape)
    return None if speed is None else SHARE_FOR_TRAINING * asked.budget.amount * speed


def _with_batch(asked: _Asked, config: Config, shape: Shape, tokens: float) -> Config | None:
    """Tokens per update near `tokens`, in micro-batches that fit and keep the device busy. None where not even one sequence fits."""
    sequences = max(1, round(tokens / config.block_size))
    machine = dataclasses.replace(asked.machine, calibration=None)
    room = largest_micro_batch(dataclasses.replace(config, chunked_head=True), shape, machine)
    if room == 0:
        return None
    busy = max(1, MICRO_BATCH_TOKENS.get(machine.kind, 8192) // config.block_size)
    micro = 1 << (max(1, min(sequences, busy, room if room is not None else busy)).bit_length() - 1)
    accumulation = max(1, round(sequences / micro))
    return asked.set(config, batch_size=micro, gradient_accumulation_steps=accumulation)


def lengthened(config: Config, shape: Shape, tokens: float, data: DataFacts) -> dict[str, object]:
    """What follows from so many tokens: updates, learning rate, schedule, evaluations and dropout."""
    updates = max(20, round(tokens / config.tokens_per_update))
    rate = two_digits(best_rate(parameters(shape).total, tokens))
    epochs = tokens / data.train_tokens if data.train_tokens else 0.0
    interval = max(10, _round_number(updates / 20))
    # An evaluation costs a third of an update for each of its batches, of which there are eval_iters for each split.
    affordable = EVAL_SHARE * interval * 3 * config.gradient_accumulation_steps / 2
    follows: dict[str, object] = {
        "max_iters": updates,
        "lr_decay_iters": updates,
        "eval_interval": interval,
        "eval_iters": max(5, min(config.eval_iters, round(affordable))),
        "dropout": 0.2 if epochs > 8 else 0.1 if epochs > 3 else 0.0,
    }
    if config.optimizer == "muon":
        return follows  # its recipe's rates hold from size to size; Step Law speaks of AdamW
    return follows | {
        "learning_rate": rate,
        "min_lr": two_digits(rate / 10),
        "decay_lr": True,
        "warmup_iters": max(10, min(1000, updates // 20)),
        "beta2": 0.95 if config.tokens_per_update >= 30_000 else 0.99,
    }


def best_rate(N: float, tokens: float) -> float:
    rate = step_law_rate(N, tokens)
    return rate if N >= SMALLEST_FITTED_N else min(rate, SMALL_MODEL_RATE)


def estimated_speed(machine: MachineFacts) -> Speed:
    """Tokens per second of a config: by the table for a named device; for this machine from what one shape's measurement achieved."""

    def speed(config: Config, shape: Shape) -> float | None:
        measured = machine.calibration
        if measured is not None:
            achieved = measured.achieved_flops or (measured.peak_flops or 0) * ASSUMED_EFFICIENCY
            return achieved / flops_per_token(shape).training if achieved else None
        if machine.device is None:
            return None
        guess = update_time(
            shape, machine.device, batch_size=config.batch_size, accumulation=config.gradient_accumulation_steps, dtype=machine.dtype,
            dropout=config.dropout, compiled=machine.compiled, devices=machine.count,
        )  # fmt: skip
        return config.tokens_per_update / guess.seconds if guess else None

    return speed


def _reasons(best: _Trial, budget: Budget, data: DataFacts) -> Iterator[Message]:
    N = parameters(best.shape).total
    yield (
        msg(
            "{layers:count} layers of {width:count}: {parameters:parameters} parameters, {ratio:about} tokens for each; "
            "the lowest loss of the sizes tried, by {law}",
            layers=best.config.n_layer,
            width=best.config.n_embd,
            parameters=N,
            ratio=best.tokens / N,
            law=LOSS_LAWS[0].name,
        )
        if budget.kind != "tokens"
        else msg(
            "{layers:count} layers of {width:count}: {parameters:parameters} parameters, the size for which "
            "{tokens:tokens} tokens spend compute best, by {law}",
            layers=best.config.n_layer,
            width=best.config.n_embd,
            parameters=N,
            tokens=best.tokens,
            law=LOSS_LAWS[0].name,
        )
    )
    if best.config.optimizer == "muon":
        yield msg(
            "{batch:tokens} tokens per update: Step Law (arXiv 2503.04715) for {tokens:tokens} tokens; the learning rates "
            "are the recipe's own",
            batch=best.config.tokens_per_update,
            tokens=best.tokens,
        )
    else:
        yield msg(
            "{batch:tokens} tokens per update and a learning rate of {rate:rate}: Step Law (arXiv 2503.04715) for {tokens:tokens} tokens",
            batch=best.config.tokens_per_update,
            rate=best.config.learning_rate,
            tokens=best.tokens,
        )
    if data.train_tokens and best.tokens >= 0.99 * MOST_EPOCHS * data.train_tokens:
        yield msg(
            "the budget would pay for more, but after {epochs:count} passes over this data nothing more is won: more text would help",
            epochs=MOST_EPOCHS,
        )
    elif data.train_tokens and best.tokens > data.train_tokens:
        yield msg("the data is repeated {epochs:about} times, which is counted in the choice", epochs=best.tokens / data.train_tokens)


def _round_number(value: float) -> int:
    """A number that people choose: 1, 2 or 5 times a power of ten, not above."""
    size = 10 ** math.floor(math.log10(max(1.0, value)))
    return int(max(each * size for each in (1, 2, 5) if each * size <= max(1.0, value)))
