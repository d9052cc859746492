"""Muon for the matrices inside the blocks, Adam for everything else, as one optimizer with one state.

Muon turns the momentum of each weight matrix into the nearest matrix whose rows (or columns) are orthogonal and of equal length, so that an
update moves the matrix in all directions equally and not in the few that dominate the gradient. Keller Jordan and others, 2024. The nearest
such matrix is found with a few steps of an odd polynomial (Newton-Schulz): matrix products only, and here in one batch for all matrices of
a shape, since a small model has many small ones.

A group is `{"role": ..., "params": [...], "lr": ..., "weight_decay": ...}`. The role `matrix` is Muon's, every other is Adam's; a matrix
group may say `"parts": 3` for weights that are three matrices on top of each other (q, k, v), each of which is orthogonalised by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from nanolens.config.fields import Config

# Coefficients of x -> a x + b x^3 + c x^5 on the singular values: steep at zero, so that five steps bring all of them near one.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
MOMENTUM_FIRST, MOMENTUM_LAST, MOMENTUM_STEPS = 0.85, 0.95, 300
GRAM_FROM = 2  # times as wide as high: from here on the steps are cheaper on x @ x.T (at four times, 25 products of the short side for 45)
LARGEST_BATCH = 1 << 24  # elements orthogonalised at once: more would cost memory and win no time


# Where the rates of the config hold as they stand; see peak_rate.
USUAL_WIDTH = 768
# A row of a table is looked up far more seldom than a row of the embedding, and may move further when it is.
TABLE_FACTOR = 2.5


def build_muon(model: nn.Module, config: Config) -> Muon:
    """The optimizer of a model, each group with its peak rate: what `set_rate` then moves up and down together."""
    own_groups = getattr(model, "optimizer_groups", None)
    groups = own_groups(config) if own_groups else []
    if not groups or not all("role" in group for group in groups):
        groups = groups_by_shape(model, config.weight_decay)
    for group in groups:
        group["lr"] = peak_rate(group["role"], config)
    return Muon(groups, betas=(config.beta1, config.beta2))


def peak_rate(role: str, config: Config) -> float:
    """What one number in the config means for a model of this width, so that a wider or narrower one needs no new search.

    An orthogonal update changes what a matrix puts out by the same share at any width, so Muon's rate stays. Adam moves every number by
    about its rate, and a logit sums n_embd such moves, partly in step with each other: the rate falls with the root of the width, between
    what holds for moves in step (n_embd) and for independent ones (1). nanochat does the same; docs/recipe.md has our check of it.
    """
    if role == "matrix":
        return config.matrix_learning_rate
    rate = config.learning_rate * math.sqrt(USUAL_WIDTH / config.n_embd)
    return rate * TABLE_FACTOR if role == "table" else rate


def groups_by_shape(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """For a model that does not say what its parameters are: the weights of linear layers are matrices, except the head and what it is
    tied to; three times as many rows as columns are taken for q, k and v."""
    head = getattr(getattr(model, "head", None), "weight", None)
    lookups = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)} | {id(head)}
    matrices = {id(m.weight): m.weight for m in model.modules() if isinstance(m, nn.Linear) and id(m.weight) not in lookups}
    stacked = [w for w in matrices.values() if w.shape[0] == 3 * w.shape[1]]
    single = [w for w in matrices.values() if w.shape[0] != 3 * w.shape[1]]
    rest = [p for p in model.parameters() if id(p) not in matrices]
    return [
        {"role": "matrix", "params": stacked, "parts": 3, "weight_decay": weight_decay},
        {"role": "matrix", "params": single, "weight_decay": weight_decay},
        {"role": "embedding", "params": [p for p in rest if p.ndim >= 2], "weight_decay": weight_decay},
        {"role": "vector", "params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]


class Muon(Optimizer):
    def __init__(self, groups: Iterable[dict[str, Any]], *, betas: tuple[float, float] = (0.8, 0.95), eps: float = 1e-10):
        made = [{"parts": 1, **group} for group in groups if group["params"]]
        for group in made:
            for p in group["params"]:
                assert group["role"] != "matrix" or (p.ndim == 2 and p.shape[0] % group["parts"] == 0), "a matrix that is none"
        super().__init__(made, {"lr": 0.003, "weight_decay": 0.0, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "one gradient per step"
        directions: dict[tuple[torch.Size, torch.device], list[tuple[Tensor, Tensor, dict[str, Any]]]] = {}
        for group in self.param_groups:
            if group["role"] != "matrix":
                self._adam(group)
                continue
            for weight, direction in self._nesterov(group):
                wide = direction if direction.shape[0] <= direction.shape[1] else direction.mT
                directions.setdefault((wide.shape, wide.device), []).append((weight, wide, group))
        for (shape, _), equal in directions.items():
            at_once = max(1, LARGEST_BATCH // shape.numel())
            for first in range(0, len(equal), at_once):
                move(equal[first : first + at_once])

    def _nesterov(self, group: dict[str, Any]) -> Iterable[tuple[Tensor, Tensor]]:
        """Each matrix of the group with the direction of its momentum, looked at one step ahead."""
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if "step" not in self.state[p]:
                self.state[p] = {"step": torch.tensor(0.0), "momentum": torch.zeros_like(p)}
            self.state[p]["step"] += 1
        for p in params:
            keep = momentum_at(int(self.state[p]["step"]))
            momentum = self.state[p]["momentum"].lerp_(p.grad, 1 - keep)
            yield from zip(p.chunk(group["parts"]), p.grad.lerp(momentum, keep).chunk(group["parts"]), strict=True)

    def _adam(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if "step" not in self.state[p]:
                steps = torch.tensor(0.0, device=p.device)
                self.state[p] = {"step": steps, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        states = [self.state[p] for p in params]
        adamw(
            params, [p.grad for p in params], [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states], [],
            [s["step"] for s in states], fused=True, amsgrad=False, beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"],
            weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
        )  # fmt: skip


def move(equal: list[tuple[Tensor, Tensor, dict[str, Any]]]) -> None:
    """One update of matrices whose directions have the same shape."""
    batch = orthogonalised(torch.stack([wide for _, wide, _ in equal]))
    for (weight, _, group), update in zip(equal, batch, strict=True):
        rows, columns = weight.shape
        update = update if rows <= columns else update.mT
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        # A matrix that widens gets a longer update, so that what it puts out changes as much per channel as elsewhere.
        weight.add_(update, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))


def orthogonalised(batch: Tensor) -> Tensor:
    """(n, rows, columns), rows <= columns -> the same with all singular values near one."""
    a, b, c = NEWTON_SCHULZ
    x = batch.to(arithmetic_of(batch))
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    if x.shape[-1] >= GRAM_FROM * x.shape[-2] and x.dtype.itemsize >= 4:
        return orthogonaliser(x @ x.mT) @ x
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.type_as(batch)


def orthogonaliser(gram: Tensor) -> Tensor:
    """The product of all steps' factors, from x @ x.T alone: the same polynomial with products of the short side only. For a matrix four
    times as wide as high this takes 40 % less time on a CPU. Squared singular values need the digits of float32."""
    a, b, c = NEWTON_SCHULZ
    product: Tensor | None = None
    for left in reversed(range(NEWTON_SCHULZ_STEPS)):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        product = factor if product is None else factor @ product
        if left:
            gram = factor @ gram @ factor
    assert product is not None
    return product


def arithmetic_of(batch: Tensor) -> torch.dtype:
    """bfloat16 is enough for an update, and fast on GPUs; most CPUs only imitate it."""
    return torch.bfloat16 if batch.device.type == "cuda" else batch.dtype


def momentum_at(step: int) -> float:
    """Short memory while the gradient still changes quickly, longer later."""
    return MOMENTUM_FIRST + (MOMENTUM_LAST - MOMENTUM_FIRST) * min(1.0, step / MOMENTUM_STEPS)
