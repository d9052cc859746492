"""The optimizers: AdamW with decayed and non-decayed groups, and Muon for the matrices inside the blocks."""

from __future__ import annotations

import torch
from torch import nn

from nanolens.checkpoint.sharded import is_sharded
from nanolens.config.fields import Config
from nanolens.train.adamw import AdamW, spare_the_compiler
from nanolens.train.muon import Muon, build_muon


def build_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    spare_the_compiler()
    optimizer = build_muon(model, config) if config.optimizer == "muon" else build_adamw(model, config)
    if isinstance(optimizer, Muon) and is_sharded(next(model.parameters())):
        from nanolens.train.muon_sharded import ShardedMuon

        optimizer.__class__ = ShardedMuon  # the same groups and the same state, stepped in another way
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]  # the group's peak, which `set_rate` scales
    return optimizer


def build_adamw(model: nn.Module, config: Config) -> AdamW:
    own_groups = getattr(model, "optimizer_groups", None)
    groups = own_groups(config) if own_groups else decayed_and_not(model, config.weight_decay)
    return AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay)


def decayed_and_not(model: nn.Module, weight_decay: float) -> list[dict]:
    """Matrices and embeddings are pulled to zero; biases and norms are not, for they have no scale to lose."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def set_rate(optimizer: torch.optim.Optimizer, rate: float, config: Config) -> None:
    """Gives each group its rate: groups that began with another rate than `learning_rate` keep their ratio to it."""
    for group in optimizer.param_groups:
        peak = group["initial_lr"]
        group["lr"] = rate if peak == config.learning_rate or not config.learning_rate else peak * (rate / config.learning_rate)
