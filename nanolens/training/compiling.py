"""Whether to compile: from what a step costs now, what compiling costs, and what is left to do, all measured here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import nn

from nanolens.errors import fault
from nanolens.message import msg
from nanolens.model.loss import WithLoss
from nanolens.record.events import Compiled, Event, choice
from nanolens.training.machine import Machine, seconds_of
from nanolens.training.state import Clock

USUAL_COST_S = 60.0  # compiling a small GPT: 47 s on two CPU cores, a minute on most GPUs
SAVING_AT_BEST = {"cuda": 0.5, "cpu": 0.1}  # share of a step; on CPUs it is in matmuls, which compiling does not change
STEPS_WATCHED = 5  # eager steps whose time decides
TRIAL_STEPS = 3


def compile_now(trial: SpeedTrial, clock: Clock, tell: Callable[[Event], None], step: int) -> nn.Module:
    """Because the config says so, or the run that is resumed did it."""
    try:
        module, cost_s = trial.compile(clock)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        fix = msg("use {option:code}", "--compile=False")
        raise fault(msg("torch.compile failed: {error}", lines[-1]), fix=fix) from error
    tell(Compiled(step=step, took_s=cost_s))
    return module


def compile_if_it_pays(
    trial: SpeedTrial,
    clock: Clock,
    tell: Callable[[Event], None],
    step: int,
    micro_batch_s: float,
    micro_batches_left: int,
    slowest: Callable[[float], float] = lambda seconds: seconds,
) -> nn.Module:
    """Compiles where what it may save is more than what it costs, and keeps the result only if it really is faster.
    `slowest` gives the largest of what several ranks measured, so that all come to the same answer."""
    left_s = micro_batch_s * micro_batches_left
    if left_s * SAVING_AT_BEST.get(trial.machine.device.type, 0.0) < USUAL_COST_S:
        because = msg(
            "the steps left take {left:rough_seconds}, compiling about {cost:rough_seconds}", left_s, USUAL_COST_S
        )
        tell(choice("compile", False, because))
        return trial.with_loss
    try:
        module, cost_s = trial.compile(clock)
    except Exception as error:  # no compiler, an unknown operator: the run works without
        slowest(math.inf)
        tell(choice("compile", False, msg("it failed: {error}", type(error).__name__)))
        return trial.with_loss
    tell(Compiled(step=step, took_s=cost_s))
    with clock.part("compile"):
        compiled_s = slowest(trial.seconds(module))
    is_faster = compiled_s < micro_batch_s
    because = msg(
        "{compiled:seconds} instead of {plain:seconds}; compiling took {cost:rough_seconds}",
        compiled_s,
        micro_batch_s,
        cost_s,
    )
    tell(choice("compile", is_faster, because))
    return module if is_faster else trial.with_loss


class SpeedTrial:
    """Forward and backward of a made-up micro-batch, leaving gradients and random generators as they were."""

    def __init__(self, with_loss: WithLoss, machine: Machine, vocab_size: int, shape: tuple[int, int]):
        generator = torch.Generator().manual_seed(0)
        self._batch = tuple(torch.randint(vocab_size, shape, generator=generator).to(machine.device) for _ in range(2))
        self.with_loss, self.machine = with_loss, machine

    def compile(self, clock: Clock) -> tuple[nn.Module, float]:
        """The compiled model, and the seconds that took. In both modes: evaluations compile a graph of their own."""
        with clock.part("compile"):
            started_at_s = time.perf_counter()
            module: nn.Module = torch.compile(self.with_loss)  # type: ignore[assignment]
            self.step_s(module)
            self.with_loss.eval()
            with torch.no_grad(), self.machine.autocast():
                module(*self._batch)
            self.with_loss.train()
            self.machine.synchronize()
            return module, time.perf_counter() - started_at_s

    def seconds(self, module: nn.Module) -> float:
        """The fastest of a few, after one to warm up."""
        self.step_s(module)
        return min(self.step_s(module) for _ in range(TRIAL_STEPS))

    def step_s(self, module: nn.Module) -> float:
        state = torch.get_rng_state()

        def forward_backward() -> None:
            with self.machine.autocast():
                losses = module(*self._batch)
            losses.objective.backward()

        took_s = seconds_of(self.machine, forward_backward)
        self.with_loss.zero_grad(set_to_none=True)
        torch.set_rng_state(state)
        return took_s
