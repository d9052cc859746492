"""What is being trained, with all that changes while it is (weights, optimizer, scaler, data feed, progress), and the
clock that gives each second of a run to one part of `events.PARTS`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from nanolens.message import msg
from nanolens.model.loss import WithLoss
from nanolens.record.events import PARTS
from nanolens.training.checkpoint import Checkpoint, Snapshot, copied, cropped, fill, tensors_of
from nanolens.training.distributed.ranks import SINGLE_PROCESS, Ranks, spread_like
from nanolens.training.feed import Feed, FeedState


class Clock:
    """Always in one part, `other` at first. A part inside another takes its seconds away from the outer one."""

    def __init__(self) -> None:
        self.started_at_s = self._since_s = time.perf_counter()
        self._part = "other"
        self._spent = dict.fromkeys(PARTS, 0.0)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        before = self._part
        self._turn_to(name)
        try:
            yield
        finally:
            self._turn_to(before)

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self.started_at_s

    def spent_s(self, part: str) -> float:
        """Seconds of a part that was left again."""
        return self._spent[part]

    def parts(self) -> dict[str, float]:
        self._turn_to(self._part)
        return dict(self._spent)

    def _turn_to(self, part: str) -> None:
        now_s = time.perf_counter()
        self._spent[self._part] += now_s - self._since_s
        self._since_s, self._part = now_s, part


@dataclass
class Counters:
    step: int = 0  # updates done
    sample: int = 0  # global sample cursor: the first sample that no update and no skipped one has used
    tokens_seen: int = 0
    evaluated_at: int = -1  # step of the last evaluation that was completed
    sampled_at: int = -1  # step of the last sample text
    val_loss: float = math.nan  # of that evaluation
    best_val: float = math.inf
    best_step: int = -1
    tries: int = 0  # updates tried, skipped ones included
    skipped: list[int] = field(default_factory=list)  # `tries` of the recent non-finite updates
    rollbacks: int = 0


@dataclass
class Trainee:
    model: nn.Module  # the plain module, whose names go into checkpoints
    with_loss: WithLoss
    run: nn.Module  # what is called: `with_loss`, perhaps compiled
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    feed: Feed
    micro_batch: int  # sequences that go through the model at once; `batch_size` until memory runs out
    progress: Counters = field(default_factory=Counters)
    step_start: FeedState = field(default_factory=dict)  # the feed's state when the current step began
    ranks: Ranks = SINGLE_PROCESS

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def snapshot(self, facts: Mapping[str, object]) -> Snapshot:
        """A copy of the state at the start of the current step, in the computer's memory."""
        progress = {key: written(value) for key, value in dataclasses.asdict(self.progress).items()}
        resuming = {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "feed": self.step_start or self.feed.state(),
            "torch": torch.get_rng_state(),
            "numpy": numpy_state(np.random.get_state(legacy=True)),
            "python": random.getstate(),
        }
        state = {"step": self.progress.step, "progress": progress, "micro_batch": self.micro_batch, **facts}
        return Snapshot(copied(tensors_of(self.model)), copied(resuming), state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Makes this the trainee that was saved, to the bit. Rates, betas and decay stay those of the config."""
        fill(self.model, checkpoint.model, msg("{folder:code}", str(checkpoint.folder)))
        self._restore_optimizer(checkpoint.resuming["optimizer"])
        if self.scaler and checkpoint.resuming["scaler"]:
            self.scaler.load_state_dict(checkpoint.resuming["scaler"])
        random.setstate(checkpoint.resuming["python"])
        name, keys, *rest = checkpoint.resuming["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
        torch.set_rng_state(checkpoint.resuming["torch"])
        if checkpoint.resuming["feed"]:
            self.feed.restore(checkpoint.resuming["feed"])
        self.progress = Counters(**{key: read(value) for key, value in checkpoint.state["progress"].items()})

    def _restore_optimizer(self, saved: dict[str, Any]) -> None:
        groups = self.optimizer.param_groups
        ours = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        order = [parameter for group in groups for parameter in group["params"]]
        for index, moments in saved["state"].items():
            for key, value in moments.items():
                if isinstance(value, torch.Tensor) and value.dim():
                    whole = cropped(self.model, names[id(order[index])], value, order[index].shape)
                    moments[key] = spread_like(order[index], whole)
        self.optimizer.load_state_dict(saved)
        for group, settings in zip(self.optimizer.param_groups, ours, strict=True):
            group.update(settings)


def written(value: object) -> object:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read(value: object) -> Any:
    return float(value) if isinstance(value, str) else value


def numpy_state(state: Any) -> Any:
    """What `get_state` of numpy's older generators gives, in the form that a checkpoint keeps."""
    name, keys, position, has_gauss, gauss = state
    return [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position), int(has_gauss), float(gauss)]
