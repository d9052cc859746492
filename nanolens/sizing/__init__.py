"""How large, how costly and how fast: arithmetic on shapes, schedules and devices, without torch.

shape = shape_of(config, vocab_size)
parameters(shape).total            flops_per_token(shape).training
memory(shape, batch_size=16, …)    rate_at(config, step)            hardware_named("1x RTX 4070 Ti 12GB")
"""

from nanolens.sizing.devices import DEVICES, Device, Hardware, hardware_named
from nanolens.sizing.flops import Flops, flops_per_token
from nanolens.sizing.memory import Memory, memory
from nanolens.sizing.parameters import Parameters, matmul_parameters, parameters
from nanolens.sizing.schedule import Schedule, rate_at, rate_of, schedule_of
from nanolens.sizing.shape import GPT2_FAMILY, Shape, shape_of

__all__ = [
    "DEVICES",
    "GPT2_FAMILY",
    "Device",
    "Flops",
    "Hardware",
    "Memory",
    "Parameters",
    "Schedule",
    "Shape",
    "flops_per_token",
    "hardware_named",
    "matmul_parameters",
    "memory",
    "parameters",
    "rate_at",
    "rate_of",
    "schedule_of",
    "shape_of",
]
