"""One update: gradients of the whole global batch, looked at before they may touch the weights.

A non-finite loss or gradient is noticed before the optimizer is called, so weights and moments stay bit for bit what
they were. The update is skipped; after more than `skip_budget` skips within 100 tries the run goes back to its newest
good checkpoint and on with data that it has not met. If that does not help either, it stops and says what it saw."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanolens.config.fields import Config
from nanolens.record.events import StepSkipped, StepTaken
from nanolens.sizing.schedule import lr_at
from nanolens.training.distributed.ranks import each_own_part, partition_of, whole
from nanolens.training.machine import Machine
from nanolens.training.optimizers import set_lr
from nanolens.training.state import Clock, Trainee

MEMORY_EVERY = 16  # steps: asking the operating system each time takes longer than it is worth


def take_update(
    trainee: Trainee, config: Config, machine: Machine, clock: Clock, check: Callable[[], None]
) -> StepTaken | StepSkipped:
    """Moves the weights from step k to k + 1, or leaves them as they are where loss or gradient are not finite."""
    started_at_s = time.perf_counter()
    progress, scaler, ranks, sample = trainee.progress, trainee.scaler, trainee.ranks, trainee.progress.sample
    lr = lr_at(config, progress.step)
    set_lr(trainee.optimizer, lr, config)
    gathered = gather_gradients(trainee, config, machine, clock, check)
    scale = unscale(trainee)
    gradients = [parameter.grad for parameter in trainee.parameters if parameter.grad is not None]
    own_loss, norm = on_host(gathered.loss, global_norm(gradients))
    loss = ranks.mean(own_loss)
    bad = "loss" if not math.isfinite(loss) else "gradient" if not math.isfinite(norm) else ""
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
    pace = ranks.after_update(progress.step, time.perf_counter() - started_at_s, gathered.micro_norms)
    if bad:
        return StepSkipped(step=progress.step, because=bad, layer=layer, sample=sample, loss_scale=scale)
    norms = pace.micro_norms if pace.micro_norms is not None else gathered.micro_norms
    return StepTaken(
        step=progress.step,
        loss=loss,
        lr=lr,
        grad_norm=norm,
        clipped=clipped,
        tokens=tokens,
        took_s=time.perf_counter() - started_at_s,
        data_s=gathered.data_s,
        micro_norms=[value / (scale or 1.0) for value in norms] or None,
        loss_scale=scale,
        memory_bytes=machine.memory_in_use() if progress.step % MEMORY_EVERY == 1 else None,
        rank_s=pace.rank_s,
        rank_busy_s=pace.busy_s,
        rank_comm_s=pace.comm_s,
    )


@dataclass(frozen=True)
class BatchGradients:
    loss: Tensor  # mean over the whole batch
    data_s: float
    micro_norms: list[float]  # of each micro-batch's own mean gradient, still multiplied by the loss scale


def gather_gradients(
    trainee: Trainee, config: Config, machine: Machine, clock: Clock, check: Callable[[], None]
) -> BatchGradients:
    """Adds up in `.grad` the gradient of the mean loss over all micro-batches."""
    progress, scaler, ranks = trainee.progress, trainee.scaler, trainee.ranks
    part = partition_of(config, ranks.rank, ranks.size)
    count, size = part.count, part.size
    check = ranks.stop_check(check)
    at_once = trainee.micro_batch  # sequences that go through the model together
    is_whole = at_once >= size
    has_several = config.gradient_accumulation_steps > 1  # over all ranks; this one may have one of them
    measures_norms = has_several and is_whole and not ranks.is_sharded
    total: Tensor | None = None
    micro_norms: list[Tensor] = []
    data_before_s = clock.spent_s("data")
    with gradient_norms(trainee.parameters if measures_norms else []) as norms:
        for number in range(count):
            sample = progress.sample + part.first + number * part.stride
            with clock.part("data"):
                x, y = trainee.feed.take(sample)
            pieces = [(x, y)] if is_whole else list(zip(x.split(at_once), y.split(at_once), strict=True))
            for place, (idx, targets) in enumerate(pieces):
                check()
                is_last_piece = place == len(pieces) - 1
                trainee.feed.seed_dropout(sample + place * at_once)
                with ranks.micro_batch(trainee.run, is_last=is_last_piece and number == count - 1):
                    with machine.autocast():
                        losses = trainee.run(idx, targets)
                    if is_last_piece:
                        with clock.part("data"):  # while the device still computes
                            trainee.feed.prefetch(sample + part.stride)
                    parts = count * size / len(idx)  # exactly the number of micro-batches where none was cut
                    objective = losses.objective / parts if parts != 1 else losses.objective
                    (scaler.scale(objective) if scaler else objective).backward()
                plain = losses.plain.detach() / parts if parts != 1 else losses.plain.detach()
                total = plain if total is None else total + plain
            if norms:
                micro_norms.append(torch.linalg.vector_norm(torch.stack(norms)) * parts)
                norms.clear()
    assert total is not None
    data_s = clock.spent_s("data") - data_before_s
    return BatchGradients(total, data_s, torch.stack(micro_norms).tolist() if micro_norms else [])


@contextlib.contextmanager
def gradient_norms(parameters: list[nn.Parameter]) -> Iterator[list[Tensor]]:
    """In the block, the norms of gradients, taken on their way into `.grad`, where they are added up."""
    norms: list[Tensor] = []
    hooks = [each.register_hook(lambda grad: norms.append(torch.linalg.vector_norm(grad))) for each in parameters]
    try:
        yield norms
    finally:
        for hook in hooks:
            hook.remove()


def unscale(trainee: Trainee) -> float | None:
    """Takes the loss scale of float16 out of the gradients and returns it; None where there is none."""
    scaler, optimizer, ranks = trainee.scaler, trainee.optimizer, trainee.ranks
    if scaler is None:
        return None
    scale = scaler.get_scale()
    scaler.unscale_(optimizer)
    if ranks.is_sharded:  # a gradient may have overflowed in the part of one rank
        for overflow in scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            overflow.fill_(ranks.largest(float(whole(overflow))))
    return scale


def on_host(loss: Tensor, norm: Tensor) -> tuple[float, float]:
    """Both numbers in one wait for the device: the only one of an update."""
    if loss.device.type == "cpu":
        return loss.item(), norm.item()
    both: list[float] = torch.stack((loss.float(), norm.float())).tolist()
    return both[0], both[1]


def global_norm(gradients: list[Tensor]) -> Tensor:
    return whole(torch.nn.utils.get_total_norm(gradients))


def clip(gradients: list[Tensor], norm: float, limit: float) -> bool:
    """Shortens the gradients to `limit` (0: never); True where that changed them."""
    factor = limit / (norm + 1e-6)
    if not limit or factor >= 1.0:
        return False
    torch._foreach_mul_(each_own_part(gradients), factor)
    return True


def first_bad_layer(named: Iterable[tuple[str, nn.Parameter]]) -> str:
    """Name of the first parameter whose gradient is not finite; empty where all are."""
    gradients = ((name, parameter.grad) for name, parameter in named)
    return next((name for name, g in gradients if g is not None and not bool(torch.isfinite(whole(g)).all())), "")


def is_out_of_memory(error: RuntimeError) -> bool:
    """torch has an exception of its own for CUDA, and plain RuntimeErrors for CPUs and Apple GPUs."""
    is_said = any(words in str(error) for words in ("can't allocate memory", "out of memory"))
    return is_said or isinstance(error, torch.OutOfMemoryError)
