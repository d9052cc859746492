"""Memory of a run by part, what fits, and which micro-batch would be the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nanolens.analysis.plan_rows import Row, calculated, estimated, measured, unknown
from nanolens.config.fields import Config
from nanolens.message import Message, msg
from nanolens.planning.figures import MachineFacts
from nanolens.sizing import Memory, Shape, memory, parameters
from nanolens.sizing.roofline import KERNELS_PER_LAYER, LAUNCH_S, micro_batch_time

USABLE = {"gpu": 0.92, "cpu": 0.85, "apple": 0.7}
"""Share of the device's memory that a run may plan with: drivers, the desktop and other programs need the rest."""
PRIOR_RANGE = (0.8, 1.35)
"""Of the formula: autocast's float32 parts alone move it by a third (1.2 to 1.6 times the 16-bit formula)."""
LARGEST_TRIED = 4096


def memory_rows(config: Config, shape: Shape, machine: MachineFacts) -> Iterator[Row]:
    parts = memory_of(config, shape, machine, config.batch_size, chunked=bool(config.chunked_head))
    formula = msg("bytes by part, see docs/plan.md")
    yield calculated("memory_weights", msg("weights"), parts.weights, "bytes", msg("4 bytes a parameter"))
    yield calculated("memory_gradients", msg("gradients"), parts.gradients, "bytes", msg("4 bytes a parameter"))
    yield calculated("memory_optimizer", msg("optimizer"), parts.optimizer, "bytes", _optimizer_words(config))
    if parts.low_precision_copies:
        yield calculated(
            "memory_copies", msg("16-bit copies of the weights"), parts.low_precision_copies, "bytes", msg("2 bytes a parameter")
        )
    yield _prior("memory_activations", msg("activations"), parts.activations, msg("arXiv 2205.05198, fused attention"))
    whole = memory_of(config, shape, machine, config.batch_size, chunked=False).logits
    chunked = memory_of(config, shape, machine, config.batch_size, chunked=True).logits
    elements = msg("batch x context x vocabulary elements, held several times")
    yield _prior("memory_logits", msg("logits, held whole"), whole, elements)
    yield _prior("memory_logits_chunked", msg("logits, chunked head"), chunked, msg("the same for 1,024 tokens at a time"))
    if machine.kind == "cpu":
        yield calculated("memory_checkpoint", msg("copy of the state while a checkpoint is written"), checkpoint_bytes(shape), "bytes",
                         msg("weights and optimizer, 12 bytes a parameter"))  # fmt: skip
    yield _total(config, shape, machine, parts, formula)
    yield from _micro_batches(config, shape, machine)


def memory_of(config: Config, shape: Shape, machine: MachineFacts, batch_size: int, *, chunked: bool) -> Memory:
    return memory(
        shape, batch_size=batch_size, dtype=machine.dtype, dropout=config.dropout, chunked_head=chunked, on_gpu=machine.kind == "gpu",
        optimizer=config.optimizer,
    )  # fmt: skip


def checkpoint_bytes(shape: Shape) -> float:
    return 12.0 * parameters(shape).total


def peak_memory(config: Config, shape: Shape, machine: MachineFacts, batch_size: int | None = None) -> tuple[float, float, float]:
    """(expected, low, high) bytes at the peak of training."""
    size = config.batch_size if batch_size is None else batch_size
    copy = checkpoint_bytes(shape) if machine.kind == "cpu" else 0.0
    if machine.calibration is not None:
        seen = machine.calibration.memory_at(size)  # a checkpoint was written meanwhile, so its copy is in it
        return seen, seen * 0.95, seen * 1.1
    parts = memory_of(config, shape, machine, size, chunked=bool(config.chunked_head))
    varying = parts.activations + parts.logits
    fixed = parts.total - varying + copy
    return fixed + varying, fixed + PRIOR_RANGE[0] * varying, fixed + PRIOR_RANGE[1] * varying


def largest_micro_batch(config: Config, shape: Shape, machine: MachineFacts, *, chunked: bool | None = None) -> int | None:
    """The largest number of sequences that fits; 0 where not even one does; None where the memory is unknown."""
    room = usable_memory(machine)
    if room is None:
        return None
    asked = config if chunked is None else _with_head(config, chunked)

    def fits(size: int) -> bool:
        return peak_memory(asked, shape, machine, size)[2 if machine.calibration is None else 0] <= room

    if not fits(1):
        return 0
    size = 1
    while size < LARGEST_TRIED and fits(size * 2):
        size *= 2
    step = size // 2
    while step:
        if fits(size + step):
            size += step
        step //= 2
    return size


def usable_memory(machine: MachineFacts) -> float | None:
    return machine.memory_bytes * USABLE.get(machine.kind, 0.85) if machine.memory_bytes else None


def _total(config: Config, shape: Shape, machine: MachineFacts, parts: Memory, formula: Message) -> Row:
    expected, low, high = peak_memory(config, shape, machine)
    what = msg("memory at the peak, micro-batch of {size:count}", size=config.batch_size)
    if machine.calibration is not None:
        sizes = [size for size, _ in machine.calibration.memory_bytes]
        origin = msg("this machine, micro-batches of {sizes:count}; the line through them", sizes=sizes)
        return measured("memory_total", what, expected, "bytes", origin, low, high)
    return estimated("memory_total", what, expected, "bytes", formula, low, high)


def _micro_batches(config: Config, shape: Shape, machine: MachineFacts) -> Iterator[Row]:
    what = msg("largest micro-batch that fits")
    largest = largest_micro_batch(config, shape, machine)
    if largest is None:
        yield unknown("largest_micro_batch", what, "count", msg("the memory of this device is not known"))
    else:
        source = "measured" if machine.calibration is not None else "estimated"
        room = msg("{share:share} of {memory:bytes}", share=USABLE.get(machine.kind, 0.85), memory=machine.memory_bytes)
        yield Row("largest_micro_batch", what, largest, "count", source, room)  # type: ignore[arg-type]
        if not config.chunked_head and machine.calibration is None:
            with_chunks = largest_micro_batch(config, shape, machine, chunked=True)
            yield Row("largest_micro_batch_chunked", msg("the same with the chunked head"), with_chunks, "count", "estimated", room)
    yield _fastest(config, shape, machine, largest)


def _fastest(config: Config, shape: Shape, machine: MachineFacts, largest: int | None) -> Row:
    what = msg("fastest micro-batch at the same tokens per update")
    per_update = config.batch_size * config.gradient_accumulation_steps
    tune = msg("{command:code} tries them all", command="nanolens tune")
    if machine.calibration is not None:
        timed = [size for size, _ in machine.calibration.micro_s if per_update % size == 0 and (largest is None or size <= largest)]
        if len(timed) < 2:
            return unknown("fastest_micro_batch", what, "count", msg("only one size was timed; {tune}", tune=tune))
        best = min(timed, key=lambda size: machine.calibration.update_s(size, per_update // size))  # type: ignore[union-attr]
        return measured(
            "fastest_micro_batch", what, best, "count", msg("of the sizes timed ({sizes:count}); {tune}", sizes=sorted(timed), tune=tune)
        )
    if machine.device is None or not machine.device.bytes_per_s or not machine.device.peak(machine.dtype) or not largest:
        return unknown("fastest_micro_batch", what, "count", tune)
    sizes = [size for size in range(1, min(largest, per_update) + 1) if per_update % size == 0]
    launch_s = LAUNCH_S * KERNELS_PER_LAYER[machine.compiled and machine.device.kind == "gpu"] * (shape.n_layer + 2)
    enough = [
        size for size in sizes
        if micro_batch_time(shape, machine.device, batch_size=size, dtype=machine.dtype, dropout=config.dropout, compiled=machine.compiled)
        > 4 * launch_s and size * shape.block_size >= SATURATING_TOKENS
    ]  # fmt: skip
    best = enough[0] if enough else sizes[-1]
    origin = msg("the smallest that keeps the device busy; larger ones gain nothing by this estimate; {tune}", tune=tune)
    return Row("fastest_micro_batch", what, best, "count", "estimated", origin)


SATURATING_TOKENS = 8192
"""Rows of a matrix product from which a consumer GPU no longer gets faster."""


def _prior(key: str, what: Message, value: float, origin: Message) -> Row:
    return estimated(key, what, value, "bytes", origin, value * PRIOR_RANGE[0], value * PRIOR_RANGE[1])


def _optimizer_words(config: Config) -> Message:
    if config.optimizer == "muon":
        return msg("Muon: 4 bytes for each parameter of the blocks' matrices, 8 for the others")
    return msg("Adam's two moments, 8 bytes a parameter")


def _with_head(config: Config, chunked: bool) -> Config:
    return replace(config, chunked_head=chunked)
