"""What is left of a run's schedule of learning rates, in a form that a short branch can play to its end.

Much of the loss at a high learning rate is only the noise of the rate, and a schedule that is still to come will remove it anyway. So no
branch is compared with the run as it stands: the branch and the unchanged one both play the rest of their schedule, from the rate of
now to the rate of the end, in the few updates that a probe has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nanolens.config.fields import Config
from nanolens.sizing.schedule import rate_at, schedule_of

LEAST_REST_FRAC = 0.05  # of the run; with less left to do it counts as finished
MORE_FRAC = 0.25  # so much longer a finished run might go on, as a share of what it was


@dataclass(frozen=True)
class Rest:
    """The rest of a schedule: at `rate`, then falling to `end` over the last `decay_frac` of `updates`."""

    rate: float
    end: float
    decay_frac: float
    updates: int
    is_over: bool  # the run has done what it was asked to do, and its rate stays what it is

    @property
    def will_decay(self) -> bool:
        return self.end < 0.9 * self.rate


def rest_of(config: Config, step: int) -> Rest:
    left = config.max_iters - step
    if left < LEAST_REST_FRAC * config.max_iters:
        rate = rate_at(config, step)
        return Rest(rate, rate, 0.0, max(1, round(MORE_FRAC * config.max_iters)), True)
    end = rate_at(config, config.max_iters)
    begins = max(step, schedule_of(config).decay_begins) if config.decay_lr else config.max_iters
    rate = rate_at(config, max(step, config.warmup_iters)) if config.decay_lr else config.learning_rate
    return Rest(rate, min(end, rate), max(0.0, min(1.0, (config.max_iters - begins) / left)), left, False)


def played(config: Config, step: int, updates: int, rest: Rest, *, times: float = 1.0, end: float | None = None) -> dict[str, Any]:
    """Settings under which a branch at `step` plays that rest in `updates` updates, with all rates multiplied by `times`; `end` takes the
    place of the last rate, and then the rate falls from the first update on."""
    last = rest.end * times if end is None else end
    share = rest.decay_frac if end is None else 1.0
    first = max(rest.rate * times, last, 1e-30)
    return {
        "decay_lr": True,
        "schedule": "wsd",  # constant, then linear: with a share of 1 linear from the start
        "warmup_iters": step,
        "lr_decay_iters": step + updates,
        "max_iters": step + updates,
        "decay_frac": share * updates / (step + updates),
        "learning_rate": first,
        "min_lr": last,
        "matrix_learning_rate": config.matrix_learning_rate * first / config.learning_rate if config.learning_rate else 0.0,
    }
