"""How long an update would take on a named device, from its rated peak and its memory bandwidth.

A micro-batch costs its matrix products at a share of the peak, plus the bytes that everything between them moves. Attention is counted with
its causal half, which fused kernels skip. The constants were chosen once and held against measured runs (see MEASURED), which take between
0.93 and 1.26 of the middle. So the range is the middle times and divided by the square root of two: at its end twice as long as at its
start. It is an estimate for a card that nobody has measured, no more."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nanolens.sizing.devices import Device
from nanolens.sizing.flops import flops_per_token
from nanolens.sizing.parameters import parameters
from nanolens.sizing.shape import Shape

ATTAINABLE = {"gpu": 0.85, "apple": 0.55}  # share of the rated peak that large matrix products reach
LIMITED_BY_POWER = {
    "H100": 0.65,
    "H100 SXM": 0.65,
    "H100 PCIe": 0.6,
    "H100 NVL": 0.6,
    "H200": 0.65,
    "H800": 0.65,
    "GH200": 0.65,
    "B200": 0.6,
    "T4": 0.5,
    "L4": 0.5,
    "A10": 0.6,
}
"""Cards whose power limit lowers the clock long before the rated peak."""

ACTIVATION_BYTES = {True: 100.0, False: 200.0}  # per layer, channel and token in 16 bit, forward and backward; compiled or not
LOGIT_BYTES = {True: 12.0, False: 24.0}  # per vocabulary entry and token
DROPOUT_BYTES = 1.25  # masks are made, kept and read again
OPTIMIZER_BYTES = 32.0  # per parameter: weight, gradient and both moments read, three of them written, the gradient cleared
LAUNCH_S = 5e-6
KERNELS_PER_LAYER = {True: 40, False: 110}
RANGE = math.sqrt(2.0)
HIGHEST_EFFICIENCY = 0.95  # of the rated peak; nobody has shown more


@dataclass(frozen=True)
class UpdateTime:
    seconds: float  # the middle
    low_s: float
    high_s: float
    efficiency: float  # FLOPs of the usual convention over peak x time, at the middle
    low_efficiency: float
    high_efficiency: float
    micro_batch_s: float  # the middle; without the optimizer


def update_time(
    shape: Shape,
    device: Device,
    *,
    batch_size: int,
    accumulation: int,
    dtype: str,
    dropout: float = 0.0,
    compiled: bool = True,
    devices: int = 1,
) -> UpdateTime | None:
    """None where the device has no peak for this precision or no known bandwidth. `accumulation` counts micro-batches over all devices."""
    peak = device.peak(dtype)
    if not peak or not device.bytes_per_s:
        return None
    each = math.ceil(accumulation / devices)
    micro_s = micro_batch_time(shape, device, batch_size=batch_size, dtype=dtype, dropout=dropout, compiled=compiled)
    seconds = each * micro_s + OPTIMIZER_BYTES * parameters(shape).total / device.bytes_per_s
    counted = flops_per_token(shape).training * batch_size * shape.block_size * each
    efficiency = counted / (peak * seconds)
    high_efficiency = min(efficiency * RANGE, HIGHEST_EFFICIENCY)
    low_efficiency = efficiency / RANGE
    return UpdateTime(
        seconds=seconds, low_s=counted / (peak * high_efficiency), high_s=seconds * RANGE, efficiency=efficiency,
        low_efficiency=low_efficiency, high_efficiency=high_efficiency, micro_batch_s=micro_s,
    )  # fmt: skip


def micro_batch_time(shape: Shape, device: Device, *, batch_size: int, dtype: str, dropout: float = 0.0, compiled: bool = True) -> float:
    """Forward and backward of one micro-batch, seconds."""
    peak, bandwidth = device.peak(dtype), device.bytes_per_s
    assert peak and bandwidth, "ask update_time, which says None"
    is_compiled = compiled and device.kind == "gpu"
    attainable = LIMITED_BY_POWER.get(device.name, ATTAINABLE.get(device.kind, 0.5))
    matmul_s = flops_per_token(shape).training_causal / (peak * attainable)
    width = 2.0 if dtype == "float32" else 1.0
    moved = ACTIVATION_BYTES[is_compiled] * shape.n_layer * shape.n_embd * (DROPOUT_BYTES if dropout else 1.0)
    moved += LOGIT_BYTES[is_compiled] * shape.vocab_size
    on_device_s = batch_size * shape.block_size * (matmul_s + width * moved / bandwidth)
    return max(on_device_s, LAUNCH_S * KERNELS_PER_LAYER[is_compiled] * (shape.n_layer + 2))


MEASURED = (
    ("6 x 384, V 65, T 256, batch 64, dropout 0.2, RTX 4070 Ti", 0.0332, "a user's log"),
    ("12 x 384, V 50304, T 1024, batch 16 x 32, RTX 4070", 3.90, "a user's log"),
    ("12 x 768, V 50304, T 1024, batch 8 x 64, RTX 4070", 9.34, "a user's log"),
    ("18 x 896, V 50304, T 1024, batch 2 x 4, not compiled, RTX 4070", 0.328, "a published log"),
    ("12 x 768, V 50304, T 1024, batch 12 x 5 on each of 8, A100", 0.250, "nanoGPT's README"),
    ("6 x 384, V 65, T 256, batch 64, dropout 0.2, float32, M3 Max", 0.221, "a published log"),
)
"""What the constants were held against: config and card, seconds an update, source."""
