"""The optimizers: AdamW with decayed and non-decayed groups, or Muon for the matrices inside the blocks and Adam for
everything else.

AdamW is torch's fused kernel, bit for bit what `torch.optim.AdamW(fused=True)` computes, without what is wrapped around
that: torch's own optimizers import its compiler when they are made, to tell it to leave them alone, which takes two
seconds.

Muon turns the momentum of each weight matrix into the nearest matrix whose rows (or columns) are orthogonal and of
equal length, so that an update moves the matrix in all directions equally and not in the few that dominate the
gradient. Keller Jordan and others, 2024. The nearest such matrix is found with a few steps of an odd polynomial
(Newton-Schulz), in one batch for all matrices of a shape, since a small model has many small ones.

A group is `{"role": ..., "params": [...], "lr": ..., "weight_decay": ...}`. The role `matrix` is Muon's, every other is
Adam's; a matrix group may say `"parts": 3` for weights that are three matrices on top of each other (q, k, v)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nanolens.config.fields import Config
from nanolens.training.distributed.ranks import each_own_part, own_part, spread_like, whole

Group = dict[str, Any]  # of parameters, as torch has it: values of every type by name
Item = TypeVar("Item")

# Coefficients of x -> a x + b x^3 + c x^5 on the singular values: steep at zero, so that five steps bring all near one.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
MOMENTUM_FIRST, MOMENTUM_LAST, MOMENTUM_STEPS = 0.85, 0.95, 300
# times as wide as high from which steps are cheaper on x @ x.T (at four times, 25 products of the short side for 45)
GRAM_FROM = 2
LARGEST_BATCH = 1 << 24  # elements orthogonalised at once: more would cost memory and win no time

USUAL_WIDTH = 768  # where the rates of the config hold as they stand; see peak_lr
# A row of a table is looked up far more seldom than a row of the embedding, and may move further when it is.
TABLE_FACTOR = 2.5


def build_optimizer(model: nn.Module, config: Config) -> Optimizer:
    spare_the_compiler()
    if config.optimizer == "muon":
        optimizer: Optimizer = build_muon(model, config)
    else:
        groups, decay = groups_of(model, config), config.weight_decay
        groups = groups or decayed_and_not(model, decay)
        optimizer = AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), weight_decay=decay)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]  # the group's peak, which `set_lr` scales
    return optimizer


def set_lr(optimizer: Optimizer, lr: float, config: Config) -> None:
    """Gives each group its learning rate: groups whose peak is not `learning_rate` keep their ratio to it."""
    for group in optimizer.param_groups:
        peak = group["initial_lr"]
        has_own_peak = config.learning_rate and peak != config.learning_rate
        group["lr"] = peak * (lr / config.learning_rate) if has_own_peak else lr


def spare_the_compiler() -> None:
    """Lets an optimizer be made without importing `torch._dynamo`; does nothing where torch has changed."""
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        inner = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if inner is not None and not hasattr(inner, "__dynamo_disable"):
            setattr(inner, "__dynamo_disable", inner)


def groups_of(model: nn.Module, config: Config) -> list[Group]:
    """As the model sorts its parameters; empty where it does not."""
    own_groups = getattr(model, "optimizer_groups", None)
    return own_groups(config) if own_groups else []


def decayed_and_not(model: nn.Module, weight_decay: float) -> list[Group]:
    """Matrices and embeddings are pulled to zero; biases and norms are not, for they have no scale to lose."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


class AdamW(Optimizer):
    """State as torch's own has it: `step`, `exp_avg` and `exp_avg_sq` of each parameter."""

    def __init__(self, groups: list[Group], *, lr: float, betas: tuple[float, float], weight_decay: float):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": 1e-8, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "one gradient per step"
        for group in self.param_groups:
            adamw_step(self, group)


def adamw_step(optimizer: Optimizer, group: Group) -> None:
    """One kernel for all parameters of a group."""
    params = with_gradient(group)
    if not params:
        return
    for p in params:
        if not optimizer.state[p]:
            count = torch.zeros((), dtype=torch.float32, device=p.device)
            optimizer.state[p] = {"step": count, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    states = [optimizer.state[p] for p in params]
    steps, gradients = [state["step"] for state in states], [p.grad for p in params if p.grad is not None]
    torch._foreach_add_(steps, 1)
    # Element by element: a rank that holds a part of each parameter updates that part.
    beta1, beta2 = group["betas"]
    torch._fused_adamw_(
        each_own_part(params),
        each_own_part(gradients),
        each_own_part([state["exp_avg"] for state in states]),
        each_own_part([state["exp_avg_sq"] for state in states]),
        [],
        steps,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


def with_gradient(group: Group) -> list[Tensor]:
    return [p for p in group["params"] if p.grad is not None]


def build_muon(model: nn.Module, config: Config) -> Muon:
    """The optimizer of a model, each group with its peak rate: what `set_lr` then moves up and down together."""
    groups = groups_of(model, config)
    if not groups or not all("role" in group for group in groups):
        groups = groups_by_shape(model, config.weight_decay)
    for group in groups:
        group["lr"] = peak_lr(group["role"], config)
    kind = ShardedMuon if hasattr(next(model.parameters()), "to_local") else Muon
    return kind(groups, betas=(config.beta1, config.beta2))


def peak_lr(role: str, config: Config) -> float:
    """What one number in the config means for a model of this width, so that another width needs no new search.

    An orthogonal update changes what a matrix puts out by the same share at any width, so Muon's rate stays. Adam moves
    every number by about its rate, and a logit sums n_embd such moves, partly in step with each other: the rate falls
    with the root of the width. nanochat does the same; docs/recipe.md has our check of it."""
    if role == "matrix":
        return config.matrix_learning_rate
    lr = config.learning_rate * math.sqrt(USUAL_WIDTH / config.n_embd)
    return lr * TABLE_FACTOR if role == "table" else lr


def groups_by_shape(model: nn.Module, weight_decay: float) -> list[Group]:
    """For a model that does not say what its parameters are: the weights of linear layers are matrices, except the head
    and what it is tied to; three times as many rows as columns are taken for q, k and v."""
    head = getattr(getattr(model, "head", None), "weight", None)
    lookups = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)} | {id(head)}
    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and id(m.weight) not in lookups]
    matrices = {id(layer.weight): layer.weight for layer in layers}
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
    def __init__(self, groups: Iterable[Group], *, betas: tuple[float, float] = (0.8, 0.95), eps: float = 1e-10):
        groups = [{"parts": 1, **group} for group in groups if group["params"]]
        for group in groups:
            are_matrices = all(p.ndim == 2 and p.shape[0] % group["parts"] == 0 for p in group["params"])
            assert group["role"] != "matrix" or are_matrices, "a matrix that is none"
        super().__init__(groups, {"lr": 0.003, "weight_decay": 0.0, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "one gradient per step"
        for group in self.param_groups:
            if group["role"] != "matrix":
                adamw_step(self, group)
        self.move_matrices([group for group in self.param_groups if group["role"] == "matrix"])

    def move_matrices(self, groups: list[Group]) -> None:
        moves: dict[torch.Size, list[Move]] = {}
        for group in groups:
            for p in with_gradient(group):
                for each in moves_of(p, self.direction(p), group):
                    moves.setdefault(each[1].shape, []).append(each)
        for shape, equal in moves.items():
            for batch in in_batches(equal, shape):
                move(batch)

    def direction(self, p: Tensor) -> Tensor:
        """Of the parameter's momentum, looked at one step ahead (Nesterov)."""
        assert p.grad is not None
        if "step" not in self.state[p]:
            self.state[p] = {"step": torch.tensor(0.0), "momentum": torch.zeros_like(p)}
        state = self.state[p]
        state["step"] += 1
        keep = momentum_at(int(state["step"]))
        momentum = state["momentum"].lerp_(p.grad, 1 - keep)
        return p.grad.lerp(momentum, keep)


class ShardedMuon(Muon):
    """Muon where each rank holds a part of every matrix: orthogonalising needs the whole matrix, so every rank gathers
    the directions, some at a time, finds all updates and applies its own part of each. To share that work out would
    mean to send whole updates around; the gradient of a batch worth sharding takes far longer than either."""

    def move_matrices(self, groups: list[Group]) -> None:
        for group in groups:
            equal: dict[torch.Size, list[Tensor]] = {}
            for p in with_gradient(group):
                equal.setdefault(p.shape, []).append(p)
            for batch in (batch for shape, matrices in equal.items() for batch in in_batches(matrices, shape)):
                pairs = [(p, torch.zeros(p.shape, dtype=p.dtype, device=p.device)) for p in batch]
                move([each for p, update in pairs for each in moves_of(update, whole(self.direction(p)), group)])
                for p, update in pairs:
                    own = own_part(p)
                    own.mul_(1 - group["lr"] * group["weight_decay"])
                    own.add_(own_part(spread_like(p, update)))


# a matrix, its direction (turned so that it is at least as wide as high), its group
Move = tuple[Tensor, Tensor, Group]


def moves_of(target: Tensor, direction: Tensor, group: Group) -> Iterator[Move]:
    for weight, part in zip(target.chunk(group["parts"]), direction.chunk(group["parts"]), strict=True):
        yield weight, part if part.shape[0] <= part.shape[1] else part.mT, group


def in_batches(items: list[Item], shape: torch.Size) -> Iterator[list[Item]]:
    at_once = max(1, LARGEST_BATCH // shape.numel())
    return (items[first : first + at_once] for first in range(0, len(items), at_once))


def move(equal: list[Move]) -> None:
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
    # bfloat16 is enough for an update, and fast on GPUs; most CPUs only imitate it
    x = batch.to(torch.bfloat16 if batch.device.type == "cuda" else batch.dtype)
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    if x.shape[-1] >= GRAM_FROM * x.shape[-2] and x.dtype.itemsize >= 4:
        return orthogonaliser(x @ x.mT) @ x
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.type_as(batch)


def orthogonaliser(gram: Tensor) -> Tensor:
    """The product of all steps' factors, from x @ x.T alone: the same polynomial with products of the short side only.
    For a matrix four times as wide as high this takes 40 % less time on a CPU. Squared singular values need the digits
    of float32."""
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


def momentum_at(step: int) -> float:
    """Short memory while the gradient still changes quickly, longer later."""
    return MOMENTUM_FIRST + (MOMENTUM_LAST - MOMENTUM_FIRST) * min(1.0, step / MOMENTUM_STEPS)
