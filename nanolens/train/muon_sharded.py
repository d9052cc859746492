"""Muon where each rank holds a part of every matrix: orthogonalising needs the whole matrix, the rest goes element by element."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from nanolens.checkpoint.sharded import each_own_part, own_part, spread_like, whole
from nanolens.train.muon import LARGEST_BATCH, Muon, momentum_at, move


class ShardedMuon(Muon):
    """Every rank gathers the directions of the matrices, some at a time, finds all updates and applies its own part of each.

    To share the work out as well (each rank orthogonalises some matrices) would save time where that counts, at the price of sending whole
    updates around; the gradient of a batch worth sharding takes far longer than either.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "one gradient per step"
        for group in self.param_groups:
            if group["role"] == "matrix":
                self._matrices(group)
            else:
                self._adam(group)

    def _matrices(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        equal: dict[torch.Size, list[Tensor]] = {}
        for p in params:
            if "step" not in self.state[p]:
                self.state[p] = {"step": torch.tensor(0.0), "momentum": torch.zeros_like(p)}
            self.state[p]["step"] += 1
            equal.setdefault(p.shape, []).append(p)
        for shape, matrices in equal.items():
            at_once = max(1, LARGEST_BATCH // shape.numel())
            for first in range(0, len(matrices), at_once):
                self._move(matrices[first : first + at_once], group)

    def _move(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        updates = [torch.zeros(p.shape, dtype=p.dtype, device=p.device) for p in matrices]
        directions = []
        for p, update in zip(matrices, updates, strict=True):
            keep = momentum_at(int(self.state[p]["step"]))
            momentum = self.state[p]["momentum"].lerp_(p.grad, 1 - keep)
            assert p.grad is not None
            direction = whole(p.grad.lerp(momentum, keep))
            for target, part in zip(update.chunk(group["parts"]), direction.chunk(group["parts"]), strict=True):
                directions.append((target, part if part.shape[0] <= part.shape[1] else part.mT, group))
        move(directions)
        for p, update in zip(matrices, updates, strict=True):
            own = own_part(p)
            own.mul_(1 - group["lr"] * group["weight_decay"])
            own.add_(own_part(spread_like(p, update)))

    def _adam(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if "step" not in self.state[p]:
                steps = torch.tensor(0.0, device=p.device)
                self.state[p] = {"step": steps, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        states = [self.state[p] for p in params]
        adamw(
            each_own_part(params), each_own_part([p.grad for p in params]), each_own_part([s["exp_avg"] for s in states]),
            each_own_part([s["exp_avg_sq"] for s in states]), [], [s["step"] for s in states], fused=True, amsgrad=False,
            beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"],
            maximize=False,
        )  # fmt: skip
