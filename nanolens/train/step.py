"""One update: gradients of the whole global batch, looked at before they may touch the weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanolens.config.fields import Config
from nanolens.record.events import Number
from nanolens.sizing import rate_at
from nanolens.train.clock import Clock
from nanolens.train.guards import clip, first_bad_layer, global_norm, is_finite
from nanolens.train.optimizers import set_rate
from nanolens.training.distributed.ranks import Pace
from nanolens.training.machine import Machine
from nanolens.training.state import Trainee


@dataclass(frozen=True)
class Update:
    """What an update saw and did. `bad` names what was not finite; then nothing was done."""

    loss: float
    grad_norm: float
    rate: float
    clipped: bool
    took_s: float
    data_s: float
    pace: Pace
    micro_norms: list[Number] | None = None
    loss_scale: float | None = None
    bad: str = ""  # "", "loss" or "gradient"
    bad_layer: str = ""


def take_update(trainee: Trainee, config: Config, machine: Machine, clock: Clock, check: Callable[[], None]) -> Update:
    """Moves the weights from step k to k + 1, or leaves them exactly as they are where loss or gradient are not finite."""
    started_at_s = time.perf_counter()
    progress, scaler = trainee.progress, trainee.scaler
    rate = rate_at(config, progress.step)
    set_rate(trainee.optimizer, rate, config)
    gathered = gather_gradients(trainee, config, machine, clock, check)
    scale = scaler.get_scale() if scaler else None
    if scaler:
        scaler.unscale_(trainee.optimizer)
        trainee.ranks.same_everywhere(scaler, trainee.optimizer)
    gradients = [parameter.grad for parameter in trainee.parameters if parameter.grad is not None]
    own_loss, norm = on_host(gathered.loss, global_norm(gradients))
    loss = trainee.ranks.mean(own_loss)
    bad = "loss" if not is_finite(loss) else "gradient" if not is_finite(norm) else ""
    layer = first_bad_layer(trainee.model.named_parameters()) if bad else ""
    clipped = False
    if not bad:
        clipped = clip(gradients, norm, config.grad_clip)
        scaler.step(trainee.optimizer) if scaler else trainee.optimizer.step()
        progress.step += 1
    if scaler:
        scaler.update()
    trainee.optimizer.zero_grad(set_to_none=True)
    tokens = config.tokens_per_update
    progress.sample += tokens // config.block_size
    progress.tokens_seen += tokens if not bad else 0
    progress.tries += 1
    pace = trainee.ranks.after_update(progress.step, time.perf_counter() - started_at_s, gathered.micro_norms)
    norms = pace.micro_norms if pace.micro_norms is not None else gathered.micro_norms
    return Update(
        loss=loss, grad_norm=norm, rate=rate, clipped=clipped, took_s=time.perf_counter() - started_at_s, data_s=gathered.data_s,
        pace=pace, micro_norms=[value / (scale or 1.0) for value in norms] or None, loss_scale=scale, bad=bad, bad_layer=layer,
    )  # fmt: skip


@dataclass(frozen=True)
class Gathered:
    loss: Tensor  # mean over the whole batch
    data_s: float
    micro_norms: list[float]  # of each micro-batch's own mean gradient, still multiplied by the loss scale


def gather_gradients(trainee: Trainee, config: Config, machine: Machine, clock: Clock, check: Callable[[], None]) -> Gathered:
    """Adds up in `.grad` the gradient of the mean loss over all micro-batches."""
    progress, scaler, ranks = trainee.progress, trainee.scaler, trainee.ranks
    share = ranks.share(config)
    count, size = share.count, share.size
    check = ranks.check(check)
    is_whole = trainee.micro_batch >= size
    has_several = config.gradient_accumulation_steps > 1  # over all ranks; this one may have a single micro-batch of them
    norms = MicroNorms(trainee.parameters) if has_several and is_whole and not ranks.is_sharded else None
    total: Tensor | None = None
    data_before_s = clock.spent_s("data")
    for number in range(count):
        sample = progress.sample + share.first + number * share.stride
        with clock.part("data"):
            x, y = trainee.feed.take(sample)
        pieces = [(x, y)] if is_whole else list(zip(x.split(trainee.micro_batch), y.split(trainee.micro_batch), strict=True))
        for place, (idx, targets) in enumerate(pieces):
            check()
            is_last_piece = place == len(pieces) - 1
            trainee.feed.seed_dropout(sample + place * trainee.micro_batch)
            with ranks.micro_batch(trainee.run, is_last=is_last_piece and number == count - 1):
                with machine.autocast():
                    losses = trainee.run(idx, targets)
                if is_last_piece:
                    with clock.part("data"):  # while the device still computes
                        trainee.feed.prefetch(sample + share.stride)
                parts = count * size / len(idx)  # exactly the number of micro-batches where none was cut
                objective = losses.objective / parts if parts != 1 else losses.objective
                (scaler.scale(objective) if scaler else objective).backward()
            plain = losses.plain.detach() / parts if parts != 1 else losses.plain.detach()
            total = plain if total is None else total + plain
        if norms:
            norms.close(parts)
    assert total is not None
    return Gathered(total, clock.spent_s("data") - data_before_s, norms.take() if norms else [])


class MicroNorms:
    """Norms of the micro-batches' own gradients, taken on their way into `.grad`, where they are added up and cannot be told apart."""

    def __init__(self, parameters: list[nn.Parameter]):
        self._parts: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._hooks = [parameter.register_hook(self._see) for parameter in parameters]

    def _see(self, gradient: Tensor) -> None:
        self._parts.append(torch.linalg.vector_norm(gradient))

    def close(self, share: float) -> None:
        self._norms.append(torch.linalg.vector_norm(torch.stack(self._parts)) * share)
        self._parts.clear()

    def take(self) -> list[float]:
        for hook in self._hooks:
            hook.remove()
        return torch.stack(self._norms).tolist()


def on_host(loss: Tensor, norm: Tensor) -> tuple[float, float]:
    """Both numbers in one wait for the device: the only one of an update."""
    if loss.device.type == "cpu":
        return loss.item(), norm.item()
    both: list[float] = torch.stack((loss.float(), norm.float())).tolist()
    return both[0], both[1]
