"""The machine at hand: device, precision, threads, and how fast it could be at best. And seconds of work on it: the
arithmetic under every measurement of speed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
import torch

from nanolens.config.fields import Config
from nanolens.errors import fault
from nanolens.message import Message, msg
from nanolens.record.events import Chosen, choice
from nanolens.sizing.devices import hardware_named

Value = TypeVar("Value", str, int)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PEAK_TRIAL_S = 0.3
SOON_S = 0.012  # a 1024-wide matmul takes 18 ms on two good cores
MEDIAN_ERROR = 1.4826 * 1.2533  # MAD as a standard deviation, and the median's error over the mean's
M_MMAP_THRESHOLD = -3  # of malloc.h


@dataclass(frozen=True)
class Machine:
    device: torch.device
    dtype: str
    threads: int
    hardware: str  # name of the device as its maker gives it
    memory_bytes: int | None
    peak_flops: float | None = None
    peak_origin: str = ""  # "table: …", "measured: …", or empty where the peak is not known

    def autocast(self) -> AbstractContextManager[object]:
        if self.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.dtype])

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def memory_in_use(self) -> int | None:
        """Resident bytes of this process on a CPU; on a GPU the peak that was allocated since the last call."""
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            return peak
        if self.device.type == "mps":
            return torch.mps.driver_allocated_memory()
        return psutil.Process().memory_info().rss


def choose_machine(
    config: Config, tell: Callable[[Chosen], None], remembered: Mapping[str, object] | None = None, local_rank: int = 0
) -> Machine:
    """`remembered` holds the choices of the run that is resumed: they are kept where the machine allows, so that
    numbers stay equal. `local_rank` counts the processes on this machine that train together: each takes one GPU."""
    remembered = remembered or {}

    def choose(what: str, value: Value, because: Message) -> Value:
        tell(choice(what, value, because))
        return value

    device = _device(config.device if config.device != "auto" else choose("device", *_best_device()))
    if device.type == "cuda" and device.index is None and local_rank:
        device = _device(f"cuda:{local_rank}")
    dtype = config.dtype if config.dtype != "auto" else choose("dtype", *_best_dtype(device, remembered.get("dtype")))
    threads = config.threads if config.threads is not None else choose("threads", *_threads(remembered.get("threads")))
    torch.set_num_threads(threads)
    if device.type == "cpu":
        return_large_blocks()
    memory_bytes: int = psutil.virtual_memory().total
    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        memory_bytes = torch.cuda.get_device_properties(device).total_memory
    return Machine(device, dtype, threads, _name(device), memory_bytes)


def _best_device() -> tuple[str, Message]:
    """And why it is."""
    if torch.cuda.is_available():
        return "cuda", msg("a CUDA device was found")
    if torch.backends.mps.is_available():
        return "mps", msg("an Apple GPU was found")
    return "cpu", msg("no CUDA device and no Apple GPU found")


def _device(name: str) -> torch.device:
    with contextlib.suppress(RuntimeError):
        device = torch.device(name)
        count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
        if (device.index or 0) < count.get(device.type, 0):
            return device
    what = msg("device = {name:code} is not available on this machine", name)
    raise fault(what, fix=msg("use {option:code}", "--device=auto"))


def _best_dtype(device: torch.device, remembered: object) -> tuple[str, Message]:
    if isinstance(remembered, str) and remembered in DTYPES:
        return remembered, msg("the run had it before")
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8:
        return "bfloat16", msg("this GPU computes it fast")
    if device.type == "cuda":
        return "float16", msg("this GPU has no fast bfloat16")
    if device.type == "mps":
        return "float32", msg("16-bit arithmetic is no faster on this device")
    return "float32", msg("16-bit arithmetic is not faster on most CPUs")


def _threads(remembered: object) -> tuple[int, Message]:
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if isinstance(remembered, int) and remembered:
        return remembered, msg("the run had it before")
    if asked.isdigit() and int(asked) > 0:
        return int(asked), msg("{variable:code} says so", "OMP_NUM_THREADS")
    return usable_cores(), msg("physical cores that this process may use")


def usable_cores() -> int:
    """Physical cores, no more than the affinity mask and the container's quota allow."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    physical = psutil.cpu_count(logical=False) or allowed
    return max(1, min(physical, allowed, _quota() or allowed))


def _quota() -> int | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, int(quota) // int(period)) if quota != "max" else None
    except (OSError, ValueError):
        return None


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def return_large_blocks() -> None:
    """Makes glibc give freed blocks of more than 4 MB back at once. By itself it keeps those of up to 32 MB in a heap
    that gradients and activations, coming and going, riddle with holes: 0.35 GB of 2.75 with GPT-2 124M."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, 4 << 20)


def most_resident() -> int:
    """Bytes: the most that this process has held. Not by getrusage where it can be helped: on Linux that begins with
    what the process held that this one was forked from."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) << 10 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size << 10


def with_peak(machine: Machine) -> Machine:
    """The machine with its peak: from the table where it has the device, else (and on every CPU) of a short matmul."""
    known = hardware_named(machine.hardware).device if machine.device.type != "cpu" else None
    peak = known.peak(machine.dtype) if known else None
    if known and peak:
        return replace(machine, peak_flops=peak, peak_origin=f"table: {known.name}, {known.source}")
    threads = "1 thread" if machine.threads == 1 else f"{machine.threads} threads"
    origin = f"measured: a matmul on this machine, {threads}"
    return replace(machine, peak_flops=measured_peak(machine), peak_origin=origin)


def measured_peak(machine: Machine, budget_s: float = PEAK_TRIAL_S) -> float:
    """FLOP/s of the fastest square matmul seen within a fraction of a second. Sizes grow while one is over soon: a CPU
    that only imitates 16 bit is recognised with small ones, a GPU needs large ones."""
    best, took_s = 0.0, 0.0
    size = 512 if machine.dtype == "float32" else 64  # a busy machine makes anything smaller look endless
    started_at_s = time.perf_counter()
    while took_s < SOON_S and size < 8192:
        size *= 2
        matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
        matrix = matrix.to(machine.device, DTYPES[machine.dtype])
        matmul = partial(torch.mm, matrix, matrix)
        took_s = min(seconds_of(machine, matmul) for _ in range(3))  # the very first one loads libraries
        best = max(best, 2 * size**3 / took_s)
    while time.perf_counter() - started_at_s < budget_s:
        best = max(best, 2 * size**3 / seconds_of(machine, matmul))
    return best


def seconds_of(machine: Machine, work: Callable[[], object]) -> float:
    """With the device waited for before and after."""
    machine.synchronize()
    started_at_s = time.perf_counter()
    work()
    machine.synchronize()
    return time.perf_counter() - started_at_s


def repeated(measure: Callable[[], float], budget_s: float, at_least: int, at_most: int) -> list[float]:
    """As many measurements as fit into the budget, within those bounds."""
    times: list[float] = []
    until_s = time.perf_counter() + budget_s
    while len(times) < at_least or (time.perf_counter() < until_s and len(times) < at_most):
        times.append(measure())
    return times


def relative_error(values: Sequence[float]) -> float:
    """Relative standard error of the median."""
    middle = statistics.median(values)
    return MEDIAN_ERROR * statistics.median(abs(each - middle) for each in values) / middle / len(values) ** 0.5
