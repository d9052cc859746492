"""A budget turned round: the best model size, batch, learning rate and length for so many hours, FLOPs or tokens.

The size minimises a loss law over a ladder of usual shapes. Each shape gets as many tokens as the budget pays for, and
tokens that repeat the data count for what they are worth. Batch and learning rate follow from the length (Step Law)."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from nanolens.config.fields import Config, recommended_warmup
from nanolens.errors import fault
from nanolens.facts import laws
from nanolens.message import Message, msg
from nanolens.planning.figures import DataFacts, MachineFacts
from nanolens.planning.memory import largest_micro_batch
from nanolens.planning.time import rated_update
from nanolens.sizing.shape import Shape, flops_per_token, parameters, shape_of

Kind = Literal["seconds", "flops", "tokens"]


@dataclass(frozen=True)
class Budget:
    kind: Kind
    amount: float
    text: str


MODEL_SIZES = (
    *((2, 2, 64), (3, 3, 96), (4, 4, 128), (4, 4, 192), (6, 4, 256), (6, 5, 320), (6, 6, 384), (8, 7, 448)),
    *((size, size, 64 * size) for size in (8, 10, 12, 14, 16, 20, 24, 28, 32)),
)
"""(n_layer, n_head, n_embd): heads of 32 to 64 channels, deeper as it gets wider."""

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_UNITS: dict[Kind, dict[str, float]] = {
    "seconds": {"s": 1, "sec": 1, "m": _MINUTE, "min": _MINUTE}
    | {"h": _HOUR, "hour": _HOUR, "hours": _HOUR, "d": _DAY, "day": _DAY, "days": _DAY},
    "flops": {"flop": 1, "flops": 1, "tflop": 1e12, "pflop": 1e15, "eflop": 1e18},
    "tokens": {"tok": 1, "tokens": 1, "ktok": 1e3, "mtok": 1e6, "btok": 1e9, "ttok": 1e12},
}
SHARE_FOR_TRAINING = 0.93  # of a time budget; evaluations, checkpoints and the start take the rest
ASSUMED_EFFICIENCY = 0.5  # of the measured matrix product, until the chosen shape itself has been timed
SMALL_MODEL_RATE = 3e-3  # most that is suggested below the sizes that Step Law was fitted on, where it runs away
MOST_PARAMETERS = 12.0
"""Per token of the data; more gain nothing: nanoGPT's GPU demo, with 11, is best after 28 epochs and worse later."""
EVAL_BUDGET = 0.05  # of the time, for evaluations
MICRO_BATCH_TOKENS = {"cpu": 1024, "gpu": 16384, "apple": 8192}


def budget_named(text: str) -> Budget:
    """A budget as a user writes it: 2h, 1e15flop, 3Btok."""
    found = re.fullmatch(r"\s*([\d.]+(?:e[+-]?\d+)?)\s*([a-z]+)\s*", text.lower().replace("_", "").replace(",", ""))
    for kind, units in _UNITS.items():
        if found is not None and found[2] in units and 0 < float(found[1]) < math.inf:
            return Budget(kind, float(found[1]) * units[found[2]], text)
    what, examples = msg("{text:code} is not a valid budget", text), ("2h", "30min", "1e15flop", "3Btok", "500Mtok")
    raise fault(what, where=f"--budget={text}", fix=msg("give a time, FLOPs or tokens: {examples:code}", examples))


def seconds_named(text: str) -> float:
    if (budget := budget_named(text)).kind == "seconds":
        return budget.amount
    what, fix = msg("{text:code} is not a valid time", text), msg("write {examples:code}", ("90s", "10m", "2h"))
    raise fault(what, where=f"--budget={text}", fix=fix)


@dataclass(frozen=True)
class Choice:
    config: Config
    reasons: tuple[Message, ...]


def best_for(
    budget: Budget, base: Config, data: DataFacts, machine: MachineFacts, fixed: frozenset[str] = frozenset()
) -> Choice:
    """`base` has all that the budget does not decide (arch, context, data, …); `fixed` names what the user set."""
    search = _Search(budget, base, data, machine, fixed)
    tried = [trial for size in MODEL_SIZES if (trial := _trial(search, size)) is not None]
    if not tried and budget.kind == "seconds" and machine.device is None and machine.calibration is None:
        fix = msg("leave out {option:code}, or give the budget in tokens or FLOPs", "--no_measure")
        raise fault(msg("the speed of {machine:code} has not been measured", machine.name), fix=fix)
    if not tried:
        fix = msg("use a larger budget, or a shorter context with {option:code}", "--block_size=N")
        raise fault(msg("no model fits this budget on {machine:code}", machine.name), fix=fix)
    best = min(tried, key=lambda trial: trial.loss)
    return Choice(best.config, tuple(_reasons(best, budget, data)))


@dataclass(frozen=True)
class _Trial:
    config: Config
    shape: Shape
    tokens: float
    loss: float


@dataclass(frozen=True)
class _Search:
    budget: Budget
    base: Config
    data: DataFacts
    machine: MachineFacts
    fixed: frozenset[str]

    def set(self, config: Config, **values: object) -> Config:
        return dataclasses.replace(config, **{key: value for key, value in values.items() if key not in self.fixed})  # type: ignore[arg-type]


def _trial(search: _Search, size: tuple[int, int, int]) -> _Trial | None:
    layers, heads, width = size
    config = search.set(search.base, n_layer=layers, n_head=heads, n_embd=width)
    if config.n_embd % config.n_head:
        return None
    shape = shape_of(config, search.data.vocab_size)
    N, unique = parameters(shape).total, search.data.train_tokens
    rough_tokens = max(1e5, _affordable(search.budget, shape, _rough_speed(shape, search.machine)))
    draft = _with_batch(search, config, shape, laws.step_law_batch(rough_tokens))
    speed = None if draft is None else estimated_speed(draft, shape, search.machine)
    if draft is None or (speed is None and search.budget.kind == "seconds"):
        return None
    tokens = _affordable(search.budget, shape, SHARE_FOR_TRAINING * (speed or 0.0))
    if unique is not None:
        if MOST_PARAMETERS * unique < N:
            return None
        tokens = min(tokens, laws.SPENT_EPOCHS * unique)
    if tokens < 100 * shape.block_size:
        return None
    draft = _with_batch(search, config, shape, laws.step_law_batch(tokens))
    assert draft is not None
    law = laws.LOSS_LAWS[0]
    if search.budget.kind == "tokens":
        # The law alone would take the largest model: a length is paired with the size that it is the best use of
        # compute for.
        best_N = (law.alpha * law.A / (law.beta * law.B)) ** (1 / law.alpha) * tokens ** (law.beta / law.alpha)
        loss = abs(math.log(N / best_N))
    else:
        loss = law.loss(N, laws.worth_of_tokens(tokens, unique) if unique else tokens)
    return _Trial(search.set(draft, **lengthened(draft, shape, tokens, search.data)), shape, tokens, loss)


def _affordable(budget: Budget, shape: Shape, tokens_per_s: float) -> float:
    if budget.kind == "tokens":
        return budget.amount
    return budget.amount * tokens_per_s if budget.kind == "seconds" else budget.amount / flops_per_token(shape).training


def _rough_speed(shape: Shape, machine: MachineFacts) -> float:
    """Tokens per second, as long as nothing better is known of the shape."""
    peak = machine.device.peak(machine.dtype) if machine.device else None
    measured = machine.calibration.peak_flops if machine.calibration else None
    return 0.4 * machine.count * (peak or measured or 5e10) / flops_per_token(shape).training


def _with_batch(search: _Search, config: Config, shape: Shape, tokens: float) -> Config | None:
    """With about `tokens` per update, in micro-batches that fit and keep the device busy; None where none fits."""
    sequences = max(1, round(tokens / config.block_size))
    machine = dataclasses.replace(search.machine, calibration=None)
    room = largest_micro_batch(dataclasses.replace(config, chunked_head=True), shape, machine)
    if room == 0:
        return None
    busy = max(1, MICRO_BATCH_TOKENS.get(machine.kind, 8192) // config.block_size)
    micro = 1 << (max(1, min(sequences, busy, room if room is not None else busy)).bit_length() - 1)
    accumulation = max(1, round(sequences / micro))
    return search.set(config, batch_size=micro, gradient_accumulation_steps=accumulation)


def lengthened(config: Config, shape: Shape, tokens: float, data: DataFacts) -> dict[str, object]:
    """What follows from so many tokens: updates, learning rate, schedule, evaluations and dropout."""
    updates = max(20, round(tokens / config.tokens_per_update))
    N = parameters(shape).total
    highest = math.inf if N >= laws.SMALLEST_FITTED_N else SMALL_MODEL_RATE
    rate = laws.two_digits(min(laws.step_law_rate(N, tokens), highest))
    epochs = tokens / data.train_tokens if data.train_tokens else 0.0
    interval = max(10, _round_number(updates / 20))
    # An evaluation costs a third of an update for each of its batches, of which there are eval_iters for each split.
    affordable = EVAL_BUDGET * interval * 3 * config.gradient_accumulation_steps / 2
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
        "min_lr": laws.two_digits(rate / 10),
        "decay_lr": True,
        "warmup_iters": recommended_warmup(updates),
        "beta2": 0.95 if config.tokens_per_update >= 30_000 else 0.99,
    }


def estimated_speed(config: Config, shape: Shape, machine: MachineFacts) -> float | None:
    """Tokens per second, from what another shape achieved on this machine, or by the table of devices."""
    if (measured := machine.calibration) is not None:
        achieved = measured.achieved_flops or (measured.peak_flops or 0) * ASSUMED_EFFICIENCY
        return achieved / flops_per_token(shape).training if achieved else None
    guess = rated_update(config, shape, machine)
    return config.tokens_per_update / guess.seconds if guess else None


def _reasons(best: _Trial, budget: Budget, data: DataFacts) -> Iterator[Message]:
    config, N, epochs = best.config, parameters(best.shape).total, best.tokens / (data.train_tokens or math.inf)
    size = {"layers": config.n_layer, "width": config.n_embd, "parameters": N, "law": laws.LOSS_LAWS[0].name}
    batch = {"batch": config.tokens_per_update, "tokens": best.tokens}
    if budget.kind == "tokens":
        yield msg(
            "{layers:count layer|layers} of {width:count}: {parameters:parameters} parameters, the size that makes the "
            "best use of compute with {tokens:tokens} tokens, by {law}",
            **size,
            tokens=best.tokens,
        )
    else:
        yield msg(
            "{layers:count layer|layers} of {width:count}: {parameters:parameters} parameters, {ratio:about} tokens "
            "per parameter; the lowest loss of the sizes tried, by {law}",
            **size,
            ratio=best.tokens / N,
        )
    if config.optimizer == "muon":
        yield msg(
            "{batch:tokens} tokens per update: Step Law (arXiv 2503.04715) for {tokens:tokens} tokens; the learning "
            "rates are those of the recipe",
            **batch,
        )
    else:
        yield msg(
            "{batch:tokens} tokens per update and a learning rate of {rate:rate}: Step Law (arXiv 2503.04715) for "
            "{tokens:tokens} tokens",
            **batch,
            rate=config.learning_rate,
        )
    if epochs >= 0.99 * laws.SPENT_EPOCHS:
        yield msg(
            "the budget allows more, but after {epochs:count epoch|epochs} of this data there is nothing more to gain: "
            "more text would help",
            laws.SPENT_EPOCHS,
        )
    elif epochs > 1:
        yield msg("the data is repeated {epochs:about} times, which the choice takes into account", epochs)


def _round_number(value: float) -> int:
    """A number that people choose: 1, 2 or 5 times a power of ten, not above."""
    size = 10 ** math.floor(math.log10(max(1.0, value)))
    return int(max(each * size for each in (1, 2, 5) if each * size <= max(1.0, value)))
