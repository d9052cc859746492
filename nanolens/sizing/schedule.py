"""The learning rate at any step, as a formula: for the trainer at each update, for the reader of a run afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nanolens.config.fields import Config


@dataclass(frozen=True, kw_only=True)
class Schedule:
    learning_rate: float
    min_lr: float = 0.0
    warmup_iters: int = 0
    decay_ends: int = 0
    shape: str = "cosine"  # cosine, linear or wsd
    decay_lr: bool = True  # off: constant from the first update on, without warm-up
    decay_frac: float = 0.2

    @property
    def decay_begins(self) -> int:
        if self.shape == "wsd":
            return max(self.warmup_iters, round(self.decay_ends * (1 - self.decay_frac)))
        return self.warmup_iters


def schedule_of(config: Config) -> Schedule:
    return Schedule(
        learning_rate=config.learning_rate,
        min_lr=config.min_lr,
        warmup_iters=config.warmup_iters,
        decay_ends=config.decay_ends,
        shape=config.schedule,
        decay_lr=config.decay_lr,
        decay_frac=config.decay_frac,
    )


def lr_at(config: Config, step: int) -> float:
    """The rate of the update taken when `step` updates are done: nanoGPT's `get_lr(step)`. The first is step 0."""
    return lr_of(schedule_of(config), step)


def lr_of(schedule: Schedule, step: int) -> float:
    if not schedule.decay_lr:
        return schedule.learning_rate
    if step < schedule.warmup_iters:
        return schedule.learning_rate * (step + 1) / (schedule.warmup_iters + 1)
    if step > schedule.decay_ends:
        return schedule.min_lr
    begins = schedule.decay_begins
    if step < begins:
        return schedule.learning_rate
    length = schedule.decay_ends - begins
    done_frac = (step - begins) / length if length > 0 else 1.0
    left = 0.5 * (1.0 + math.cos(math.pi * done_frac)) if schedule.shape == "cosine" else 1.0 - done_frac
    return schedule.min_lr + left * (schedule.learning_rate - schedule.min_lr)
