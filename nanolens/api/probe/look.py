"""What can be seen of a checkpoint without training it: losses of given windows token by token, gradients of given batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nanolens.api.probe.subject import Subject

if TYPE_CHECKING:
    from torch import nn

AT_ONCE = 32  # windows


@dataclass(frozen=True, eq=False)
class Look:
    """The model of the checkpoint, in eval mode and in float32, on the run's device."""

    model: nn.Module
    machine: Any

    def losses(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Nats of each token: (windows, tokens)."""
        import torch
        from torch.nn import functional as F

        from nanolens.model.loss import logits_of

        found = []
        with torch.no_grad():
            for start in range(0, len(inputs), AT_ONCE):
                x, y = (torch.from_numpy(a[start : start + AT_ONCE]).long().to(self.machine.device) for a in (inputs, targets))
                logits = logits_of(self.model, x).float()
                found.append(F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).cpu().numpy())
        return np.concatenate(found)


def joined(windows: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = list(windows)
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def look_at(subject: Subject, checkpoint: Path | None = None) -> Look:
    """The model at the step probed, or in another checkpoint, of a branch."""
    from nanolens.checkpoint import weights_of
    from nanolens.checkpoint.load import fill
    from nanolens.config.fields import Config, settings
    from nanolens.message import msg
    from nanolens.model import build
    from nanolens.training.machine import choose_machine

    config, weights = subject.config, subject.weights
    if checkpoint is not None:
        weights, state = weights_of(checkpoint)
        config = Config(**{key: value for key, value in state["config"].items() if key in settings()})
    remembered = {"threads": subject.state.get("choices", {}).get("threads")}
    machine = choose_machine(Config(device=config.device, dtype="float32", threads=config.threads), lambda chosen: None, remembered)
    model = build(dataclasses.replace(config, arch=subject.code), subject.vocab_size)
    fill(model, weights, msg("{folder:code}", folder=str(checkpoint or subject.checkpoint)))
    return Look(model.to(machine.device).eval(), machine)


def gradients(subject: Subject, look: Look, batches: Iterable[tuple[np.ndarray, np.ndarray]], dtype: str = "float32") -> Iterator[Any]:
    """The gradient of each batch as one long vector, without dropout."""
    import torch

    from nanolens.model.loss import WithLoss

    machine = dataclasses.replace(look.machine, dtype=dtype)
    with_loss = WithLoss(look.model, label_smoothing=subject.config.label_smoothing).eval()
    for inputs, targets in batches:
        look.model.zero_grad(set_to_none=True)
        x, y = (torch.from_numpy(a).long().to(look.machine.device) for a in (inputs, targets))
        with machine.autocast():
            objective = with_loss(x, y).objective
        objective.backward()
        parts = [p.grad.float().flatten() for p in look.model.parameters() if p.grad is not None]
        yield float(objective.detach()), torch.cat(parts)
    look.model.zero_grad(set_to_none=True)
