"""Memory of a run by part and on disk, what fits, and which micro-batch would be the fastest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

from nanolens.config.fields import Config
from nanolens.facts.finding import known
from nanolens.message import msg
from nanolens.planning.figures import MachineFacts, PlanFigure, on_line, row, unknown
from nanolens.sizing.devices import KERNELS_PER_LAYER, LAUNCH_S, micro_batch_time
from nanolens.sizing.memory import Memory, memory
from nanolens.sizing.shape import Shape, parameters

USABLE = {"gpu": 0.92, "cpu": 0.85, "apple": 0.7}
"""Share of the device's memory that a run may plan with: drivers, the desktop and other programs need the rest."""
PRIOR_RANGE = (0.8, 1.35)
"""Of the formula: autocast's float32 parts alone move it by a third (1.2 to 1.6 times the 16-bit formula)."""
LARGEST_TRIED = 8191
SATURATING_TOKENS = 8192  # rows of a matrix product from which a consumer GPU no longer gets faster


def memory_rows(config: Config, shape: Shape, machine: MachineFacts) -> Iterator[PlanFigure]:
    parts, whole, chunked = (
        memory_of(config, shape, machine.dtype, on_gpu=machine.kind == "gpu", chunked=chunked)
        for chunked in (bool(config.chunked_head), False, True)
    )
    yield row("memory_weights", parts.weights)
    yield row("memory_gradients", parts.gradients)
    muon = msg("Muon: 4 bytes per parameter in the blocks' matrices, 8 for the others")
    yield row("memory_optimizer", parts.optimizer, muon if config.optimizer == "muon" else ())
    if parts.low_precision_copies:
        yield row("memory_copies", parts.low_precision_copies)
    estimates = {"activations": parts.activations, "logits": whole.logits, "logits_chunked": chunked.logits}
    for key, value in estimates.items():
        yield row(f"memory_{key}", value, low=value * PRIOR_RANGE[0], high=value * PRIOR_RANGE[1])
    if machine.kind == "cpu":
        yield row("memory_checkpoint", checkpoint_bytes(shape))
    what = msg("peak memory, micro-batch of {size:count}", config.batch_size)
    expected, low, high = peak_memory(config, shape, machine)
    how = None
    if machine.calibration is not None:
        sizes = [size for size, _ in machine.calibration.memory_bytes]
        how = msg("this machine, micro-batches of {sizes:count}; a line fitted through them", sizes)
    yield row("memory_total", expected, how or (), "measured" if how else None, low, high, what=what)
    yield from _micro_batches(config, shape, machine)


def memory_of(config: Config, shape: Shape, dtype: str, *, on_gpu: bool, chunked: bool) -> Memory:
    return memory(
        shape,
        batch_size=config.batch_size,
        dtype=dtype,
        dropout=config.dropout,
        chunked_head=chunked,
        on_gpu=on_gpu,
        optimizer=config.optimizer,
    )


def disk_rows(config: Config, shape: Shape) -> Iterator[PlanFigure]:
    yield row("checkpoint_bytes", checkpoint_bytes(shape))
    yield row("disk_bytes", disk_bytes(config, shape), [config.keep_checkpoints])


def checkpoint_bytes(shape: Shape) -> float:
    return 12.0 * parameters(shape).total


def disk_bytes(config: Config, shape: Shape) -> float:
    """At the worst moment: those kept, the best, and one being written."""
    return checkpoint_bytes(shape) * (config.keep_checkpoints + 2)


def peak_memory(
    config: Config, shape: Shape, machine: MachineFacts, batch_size: int | None = None
) -> tuple[float, float, float]:
    """(expected, low, high) bytes at the peak of training."""
    size = config.batch_size if batch_size is None else batch_size
    if machine.calibration is not None:
        # A checkpoint was written meanwhile, so its copy is in it.
        seen = on_line(machine.calibration.memory_bytes, size)
        return seen, seen * 0.95, seen * 1.1
    sized, on_gpu = replace(config, batch_size=size), machine.kind == "gpu"
    parts = memory_of(sized, shape, machine.dtype, on_gpu=on_gpu, chunked=bool(config.chunked_head))
    varying = parts.activations + parts.logits
    fixed = parts.total - varying + (checkpoint_bytes(shape) if machine.kind == "cpu" else 0.0)
    return fixed + varying, fixed + PRIOR_RANGE[0] * varying, fixed + PRIOR_RANGE[1] * varying


def largest_micro_batch(
    config: Config, shape: Shape, machine: MachineFacts, *, chunked: bool | None = None
) -> int | None:
    """The largest number of sequences that fits; 0 where not even one does; None where the memory is unknown."""
    room = usable_memory(machine)
    if room is None:
        return None
    asked = config if chunked is None else replace(config, chunked_head=chunked)

    def is_too_large(size: int) -> bool:
        return peak_memory(asked, shape, machine, size)[2 if machine.calibration is None else 0] > room

    return bisect_left(range(1, LARGEST_TRIED + 1), True, key=is_too_large)


def usable_memory(machine: MachineFacts) -> float | None:
    return machine.memory_bytes * USABLE.get(machine.kind, 0.85) if machine.memory_bytes else None


def _micro_batches(config: Config, shape: Shape, machine: MachineFacts) -> Iterator[PlanFigure]:
    largest, is_guess = largest_micro_batch(config, shape, machine), machine.calibration is None
    if largest is None:
        yield unknown("largest_micro_batch", msg("the memory of this device is not known"))
    else:
        room = [USABLE.get(machine.kind, 0.85), machine.memory_bytes]
        yield row("largest_micro_batch", largest, room, None if is_guess else "measured")
        if not config.chunked_head and is_guess:
            chunked = largest_micro_batch(config, shape, machine, chunked=True)
            yield row("largest_micro_batch_chunked", known(chunked), room)
    yield _fastest(config, shape, machine, largest)


def _fastest(config: Config, shape: Shape, machine: MachineFacts, largest: int | None) -> PlanFigure:
    key, tune = "fastest_micro_batch", msg("{command:code} tries them all", "nanolens tune")
    per_update = config.batch_size * config.gradient_accumulation_steps
    seen = machine.calibration
    if seen is not None:
        most = per_update if largest is None else largest
        timed = [size for size, _ in seen.micro_s if per_update % size == 0 and size <= most]
        if len(timed) < 2:
            return unknown(key, msg("only one size was timed; {tune}", tune))
        best = min(timed, key=lambda size: seen.update_s(size, per_update // size))
        how = msg("among the sizes timed ({sizes:count}); {tune}", sorted(timed), tune)
        return row(key, best, how, "measured")
    device = machine.device
    if device is None or not device.bytes_per_s or not device.peak(machine.dtype) or not largest:
        return unknown(key, tune)
    sizes = [size for size in range(1, min(largest, per_update) + 1) if per_update % size == 0]
    launch_s = LAUNCH_S * KERNELS_PER_LAYER[machine.compiled and device.kind == "gpu"] * (shape.n_layer + 2)
    work = {"dtype": machine.dtype, "dropout": config.dropout, "compiled": machine.compiled}

    def is_enough(size: int) -> bool:
        micro_s = micro_batch_time(shape, device, batch_size=size, **work)  # type: ignore[arg-type]
        return size * shape.block_size >= SATURATING_TOKENS and micro_s > 4 * launch_s

    how = msg("the smallest that keeps the device busy; by this estimate larger ones gain nothing; {tune}", tune)
    return row(key, next(filter(is_enough, sizes), sizes[-1]), how)
