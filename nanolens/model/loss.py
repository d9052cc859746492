"""Cross-entropy of a model's next-token predictions: plain, or in chunks that never hold all logits at once.

With a vocabulary of 50,000 the logits of a micro-batch are larger than everything else a small model keeps. In chunks
of a few hundred tokens loss and gradients are computed at once, and only two small gradients have to stay."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanolens.model.kernels import Context
from nanolens.sizing.memory import CHUNK_TOKENS


class Losses(NamedTuple):
    objective: Tensor  # what is minimised: smoothed where label_smoothing is on
    plain: Tensor  # what is reported: mean nats per token


class WithLoss(nn.Module):
    """A model and its loss as one module, so that what wraps it (compile, data parallelism) sees the whole step."""

    def __init__(self, model: nn.Module, *, label_smoothing: float = 0.0, chunked: bool = False):
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing
        self.chunked = chunked and hasattr(model, "hidden")

    def forward(self, idx: Tensor, targets: Tensor) -> Losses:
        smoothing = self.label_smoothing if self.training else 0.0
        if self.chunked:
            hidden, weight = self.model.hidden(idx), self.model.head.weight  # type: ignore[operator, union-attr]
            cap: float = getattr(self.model, "softcap", 0.0)
            return chunked_cross_entropy(hidden, weight, targets, cap, smoothing)  # type: ignore[arg-type]
        return cross_entropy(logits_of(self.model, idx), targets, smoothing)


def logits_of(model: nn.Module, idx: Tensor) -> Tensor:
    if not hasattr(model, "hidden"):
        return model(idx)
    return softcapped(model.head(model.hidden(idx)), getattr(model, "softcap", 0.0))  # type: ignore[operator]


def softcapped(logits: Tensor, cap: float) -> Tensor:
    if not cap:
        return logits
    exact = logits.float() if logits.dtype.itemsize < 4 else logits
    return cap * (exact / cap).tanh()


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Losses:
    rows, wanted = logits.view(-1, logits.shape[-1]), targets.reshape(-1)
    plain = F.cross_entropy(rows, wanted)
    if not smoothing:
        return Losses(plain, plain)
    return Losses(F.cross_entropy(rows, wanted, label_smoothing=smoothing), plain.detach())


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, cap: float = 0.0, smoothing: float = 0.0, chunk: int = CHUNK_TOKENS
) -> Losses:
    """The numbers of `cross_entropy(softcapped(hidden @ weight.T))`, to rounding. hidden (B, T, d), weight (V, d)."""
    needs_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    rows, ids = hidden.flatten(0, -2), targets.flatten()
    objective, plain = _ChunkedHead.apply(rows, weight, ids, cap, smoothing, chunk, needs_gradient)
    return Losses(objective, plain.detach())


class _ChunkedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        cap: float,
        smoothing: float,
        chunk: int,
        needs_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        kind, count = hidden.device.type, len(targets)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        with torch.autocast(kind, enabled=False):
            matrix = weight.to(dtype)
            plain = torch.empty(count, dtype=torch.float32 if dtype.itemsize < 4 else dtype, device=hidden.device)
            objective = torch.empty_like(plain) if smoothing else plain
            to_hidden = torch.empty_like(hidden) if needs_gradient else None
            to_weight = torch.zeros_like(weight) if needs_gradient else None
            for rows in (slice(first, first + chunk) for first in range(0, count, chunk)):
                part, wanted = hidden[rows].to(dtype), targets[rows, None]
                logits = (part @ matrix.t()).to(plain.dtype)
                if cap:
                    logits.div_(cap).tanh_().mul_(cap)
                normal = logits.logsumexp(dim=1, keepdim=True)
                chosen = logits.gather(1, wanted)
                plain[rows] = (normal - chosen)[:, 0]
                if smoothing:
                    mean = logits.mean(dim=1, keepdim=True)
                    objective[rows] = (normal - (1 - smoothing) * chosen - smoothing * mean)[:, 0]
                if to_hidden is None or to_weight is None:
                    continue
                # slope of the soft-cap, before `logits` is overwritten
                slope = (logits / cap).square_().neg_().add_(1) if cap else None
                error = logits.sub_(normal).exp_()  # probabilities ...
                if smoothing:
                    error.sub_(smoothing / error.shape[1])
                # ... minus what they should have been
                error.scatter_add_(1, wanted, torch.full_like(chosen, smoothing - 1))
                if slope is not None:
                    error.mul_(slope)
                error = error.div_(count).to(dtype)
                to_hidden[rows] = error @ matrix
                if to_weight.dtype == dtype:
                    to_weight.addmm_(error.t(), part)
                else:  # summed in the precision of the weights
                    to_weight.add_(error.t() @ part)
            if to_hidden is not None:
                ctx.save_for_backward(to_hidden, to_weight)
            return objective.mean(), plain.mean()

    @staticmethod
    def backward(ctx: Context, of_objective: Tensor, of_plain: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_weight = ctx.saved_tensors
        return to_hidden.mul_(of_objective), to_weight.mul_(of_objective), None, None, None, None, None
