"""Whether to compile: from what a step costs now, what compiling costs, and what is left to do, all measured here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nanolens.config.fields import Config
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.model.loss import WithLoss
from nanolens.record.events import Chosen, Compiled, Event
from nanolens.train.clock import Clock
from nanolens.training.machine import Machine

USUAL_COST_S = 60.0  # compiling a small GPT: 47 s on two CPU cores, a minute on most GPUs
SAVING_AT_BEST = {"cuda": 0.5, "cpu": 0.1}  # share of a step; on CPUs the time is in matmuls, which compiling does not change
STEPS_WATCHED = 5  # eager steps whose time decides
TRIAL_STEPS = 3


def is_undecided(config: Config, remembered: bool | None) -> bool:
    """Whether the first steps are watched before deciding."""
    return config.compile is None and remembered is None


def compile_now(with_loss: WithLoss, trial: Trial, clock: Clock, tell: Callable[[Event], None], step: int) -> nn.Module:
    """Because the config says so, or the run that is resumed did it."""
    try:
        module, cost_s = _compiled(with_loss, trial, clock)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise fault(
            msg("torch.compile failed: {error}", error=lines[-1]), fix=msg("use {option:code}", option="--compile=False")
        ) from error
    tell(Compiled(step=step, took_s=cost_s))
    return module


def compile_if_it_pays(
    with_loss: WithLoss, trial: Trial, machine: Machine, clock: Clock, tell: Callable[[Event], None], *,
    step: int, micro_batch_s: float, micro_batches_left: int, slowest: Callable[[float], float] = lambda seconds: seconds,
) -> nn.Module:  # fmt: skip
    """Compiles where what it may save is more than what it costs, and keeps the result only if it really is faster. `slowest` gives the
    largest of what several ranks measured, so that all come to the same answer."""
    left_s = micro_batch_s * micro_batches_left
    if left_s * SAVING_AT_BEST.get(machine.device.type, 0.0) < USUAL_COST_S:
        because = f"{round(left_s)} s of steps are left: compiling takes about {round(USUAL_COST_S)} s and would not win that back"
        tell(Chosen(what="compile", value=False, because=because))
        return with_loss
    try:
        module, cost_s = _compiled(with_loss, trial, clock)
    except Exception as error:  # no compiler, an unknown operator: the run works without
        slowest(math.inf)
        tell(Chosen(what="compile", value=False, because=f"it failed: {type(error).__name__}"))
        return with_loss
    tell(Compiled(step=step, took_s=cost_s))
    with clock.part("compile"):
        compiled_s = slowest(trial.seconds(module))
    is_faster = compiled_s < micro_batch_s
    because = f"a micro-batch takes {_ms(compiled_s)} compiled and {_ms(micro_batch_s)} as it is; compiling took {round(cost_s)} s"
    tell(Chosen(what="compile", value=is_faster, because=because))
    return module if is_faster else with_loss


def _compiled(with_loss: WithLoss, trial: Trial, clock: Clock) -> tuple[nn.Module, float]:
    with clock.part("compile"):
        started_at_s = time.perf_counter()
        module: nn.Module = torch.compile(with_loss)  # type: ignore[assignment]
        trial.once(module)
        return module, time.perf_counter() - started_at_s


class Trial:
    """Forward and backward of a made-up micro-batch, leaving gradients and random generators as they were."""

    def __init__(self, with_loss: WithLoss, config: Config, machine: Machine, vocab_size: int, batch_size: int | None = None):
        generator = torch.Generator().manual_seed(0)
        shape = (batch_size or config.batch_size, config.block_size)
        self._batch = tuple(torch.randint(vocab_size, shape, generator=generator).to(machine.device) for _ in range(2))
        self._with_loss, self._machine = with_loss, machine

    def once(self, module: nn.Module, *, is_evaluated: bool = True) -> None:
        """Both modes: evaluations compile a graph of their own."""
        self._step(module)
        if not is_evaluated:
            return
        self._with_loss.eval()
        with torch.no_grad(), self._machine.autocast():
            module(*self._batch)
        self._with_loss.train()
        self._machine.synchronize()

    def seconds(self, module: nn.Module) -> float:
        """The fastest of a few, after one to warm up."""
        self._step(module)
        return min(self._step(module) for _ in range(TRIAL_STEPS))

    def _step(self, module: nn.Module) -> float:
        state: Any = torch.get_rng_state()
        self._machine.synchronize()
        started_at_s = time.perf_counter()
        with self._machine.autocast():
            losses = module(*self._batch)
        losses.objective.backward()
        self._machine.synchronize()
        took_s = time.perf_counter() - started_at_s
        self._with_loss.zero_grad(set_to_none=True)
        torch.set_rng_state(state)
        return took_s


def _ms(seconds: float) -> str:
    return f"{round(seconds * 1000, 1)} ms"
