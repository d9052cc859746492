"""What is being trained, with all that changes while it is: weights, optimizer, scaler, data feed, and how far it has come."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from nanolens.checkpoint import Checkpoint, Snapshot, tensors_of
from nanolens.checkpoint.load import cropped, fill
from nanolens.checkpoint.sharded import spread_like
from nanolens.checkpoint.tree import copied
from nanolens.message import msg
from nanolens.model.loss import WithLoss
from nanolens.training.distributed.ranks import ALONE, Ranks
from nanolens.training.feed import Feed


@dataclass
class Progress:
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
    progress: Progress
    micro_batch: int  # sequences that go through the model at once; `batch_size` until memory runs out
    step_start: dict[str, Any] = field(default_factory=dict)  # the feed's state when the current step began
    ranks: Ranks = ALONE

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def snapshot(self, facts: dict[str, Any]) -> Snapshot:
        """A copy of the state at the start of the current step, in the computer's memory."""
        progress = {key: written(value) for key, value in dataclasses.asdict(self.progress).items()}
        resuming = {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "feed": self.step_start or self.feed.state(),
            "torch": torch.get_rng_state(),
            "numpy": _numpy_state(),
            "python": random.getstate(),
        }
        state = {"step": self.progress.step, "progress": progress, "micro_batch": self.micro_batch, **facts}
        return Snapshot(copied(tensors_of(self.model)), copied(resuming), state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Makes this the trainee that was saved, to the bit. Rates, betas and decay stay those of the present config."""
        fill(self.model, checkpoint.model, msg("{folder:code}", folder=str(checkpoint.folder)))
        self._restore_optimizer(checkpoint.resuming["optimizer"])
        if self.scaler and checkpoint.resuming["scaler"]:
            self.scaler.load_state_dict(checkpoint.resuming["scaler"])
        random.setstate(checkpoint.resuming["python"])
        _set_numpy_state(checkpoint.resuming["numpy"])
        torch.set_rng_state(checkpoint.resuming["torch"])
        if checkpoint.resuming["feed"]:
            self.feed.restore(checkpoint.resuming["feed"])
        saved = {key: read(value) for key, value in checkpoint.state["progress"].items()}
        self.progress = Progress(**saved)

    def _restore_optimizer(self, saved: dict[str, Any]) -> None:
        ours = [{key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups]
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        order = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for index, moments in saved["state"].items():
            for key, value in moments.items():
                if isinstance(value, torch.Tensor) and value.dim():
                    whole = cropped(self.model, names[id(order[index])], value, order[index].shape)
                    moments[key] = spread_like(order[index], whole)
        self.optimizer.load_state_dict(saved)
        for group, settings in zip(self.optimizer.param_groups, ours, strict=True):
            group.update(settings)


def written(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def _numpy_state() -> Any:
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position), int(has_gauss), float(gauss)]


def _set_numpy_state(state: Any) -> None:
    name, keys, position, has_gauss, gauss = state
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
