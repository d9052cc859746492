"""Cross-entropy of a model's next-token predictions: plain, or in chunks that never hold all logits at once."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F


class Losses(NamedTuple):
    objective: Tensor  # what is minimised: smoothed where label_smoothing is on
    plain: Tensor  # what is reported: mean nats per token


class WithLoss(nn.Module):
    """A model and its loss as one module, so that whatever is wrapped around it (compile, data parallelism) sees the whole step."""

    def __init__(self, model: nn.Module, *, label_smoothing: float = 0.0, chunked: bool = False):
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.chunked = chunked

    def forward(self, idx: Tensor, targets: Tensor) -> Losses:
        smoothing = self.label_smoothing if self.training else 0.0
        return cross_entropy(logits_of(self.model, idx), targets, smoothing)


def logits_of(model: nn.Module, idx: Tensor) -> Tensor:
    if not hasattr(model, "hidden"):
        return model(idx)
    return softcapped(model.head(model.hidden(idx)), getattr(model, "softcap", 0.0))  # type: ignore[operator]


def softcapped(logits: Tensor, cap: float) -> Tensor:
    return cap * (logits.float() / cap).tanh() if cap else logits


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Losses:
    rows, wanted = logits.view(-1, logits.shape[-1]), targets.reshape(-1)
    plain = F.cross_entropy(rows, wanted)
    if not smoothing:
        return Losses(plain, plain)
    return Losses(F.cross_entropy(rows, wanted, label_smoothing=smoothing), plain.detach())
