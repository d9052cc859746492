"""AdamW by torch's fused kernel, bit for bit what `torch.optim.AdamW(fused=True)` computes, without what is wrapped around that.

torch's own optimizers import its compiler when they are made, to tell it to leave them alone. That takes two seconds, as long as
training a small model for fifty steps. This one is called once per step, and does one kernel per group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from nanolens.checkpoint.sharded import each_own_part


def spare_the_compiler() -> None:
    """Lets an optimizer be made without importing `torch._dynamo`. Where torch has changed, this does nothing, and the import happens."""
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        inner = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if inner is not None and not hasattr(inner, "__dynamo_disable"):
            setattr(inner, "__dynamo_disable", inner)


class AdamW(Optimizer):
    """State as torch's own has it: `step`, `exp_avg` and `exp_avg_sq` of each parameter."""

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float], weight_decay: float, eps: float = 1e-8):
        spare_the_compiler()
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "one gradient per step"
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            states = [self.state[p] or self._begin(p) for p in params]
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)
            # Element by element: a rank that holds a part of each parameter updates that part.
            torch._fused_adamw_(
                each_own_part(params), each_own_part([p.grad for p in params]), each_own_part([s["exp_avg"] for s in states]),
                each_own_part([s["exp_avg_sq"] for s in states]), [], steps,
                lr=group["lr"], beta1=group["betas"][0], beta2=group["betas"][1], weight_decay=group["weight_decay"], eps=group["eps"],
                amsgrad=False, maximize=False, grad_scale=None, found_inf=None,
            )  # fmt: skip

    def _begin(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        self.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }
        return self.state[parameter]
