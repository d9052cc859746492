"""The machine at hand: device, precision, threads, and how fast it could be at best. Each choice is told with its reason."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nanolens.config.fields import Config
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.record.events import Chosen
from nanolens.sizing import hardware_named

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PEAK_TRIAL_S = 0.3
SOON_S = 0.012  # a 1024-wide matmul takes 18 ms on two good cores


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

    @property
    def needs_scaler(self) -> bool:
        return self.dtype == "float16"

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
        return _resident_bytes()

    def release_memory(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def choose_machine(config: Config, tell: Callable[[Chosen], None], remembered: dict | None = None, local_rank: int = 0) -> Machine:
    """`remembered` holds the choices of the run that is resumed: they are kept where the machine allows, so that numbers stay equal.
    `local_rank` counts the processes of this machine that train together: each takes a GPU of its own."""
    remembered = remembered or {}
    device = _device(config, tell)
    if device.type == "cuda" and device.index is None and local_rank:
        device = _asked_device(f"cuda:{local_rank}")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    dtype = _dtype(config, device, tell, remembered.get("dtype"))
    threads = _threads(config, tell, remembered.get("threads"))
    torch.set_num_threads(threads)
    if device.type == "cpu":
        return_large_blocks()
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    return Machine(device, dtype, threads, hardware=_name(device), memory_bytes=_memory(device))


def return_large_blocks() -> None:
    """Makes glibc give freed blocks of more than 4 MB back at once. By itself it keeps those of up to 32 MB in a heap that gradients and
    activations, coming and going, riddle with holes: 0.35 GB of 2.75 with GPT-2 124M. Other C libraries are left as they are."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(M_MMAP_THRESHOLD, 4 << 20)


M_MMAP_THRESHOLD = -3  # of malloc.h


def most_resident() -> int:
    """Bytes: the most that this process has held. Not by getrusage where it can be helped: on Linux that begins with what the process
    held that this one was forked from."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) << 10 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size << 10


def with_peak(machine: Machine) -> Machine:
    """The machine with its peak: from the table where the device is in it, else (and on every CPU) measured with a short matmul."""
    known = hardware_named(machine.hardware).device if machine.device.type != "cpu" else None
    peak = known.peak(machine.dtype) if known else None
    if known and peak:
        return replace(machine, peak_flops=peak, peak_origin=f"table: {known.name}, {known.source}")
    return replace(machine, peak_flops=measured_peak(machine), peak_origin=f"measured: a matmul on this machine, {machine.threads} threads")


def measured_peak(machine: Machine, budget_s: float = PEAK_TRIAL_S) -> float:
    """FLOP/s of the fastest square matmul seen within a fraction of a second. Sizes grow while one is over soon: a CPU that only imitates
    16 bit is told apart with small ones, a GPU needs large ones."""
    best, took_s = 0.0, 0.0
    size = 512 if machine.dtype == "float32" else 64  # a busy machine makes anything smaller look endless
    started_at_s = time.perf_counter()
    while took_s < SOON_S and size < 8192:
        size *= 2
        matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(0)).to(machine.device, DTYPES[machine.dtype])
        took_s = min(_matmul_s(machine, matrix) for _ in range(3))  # the very first one loads libraries
        best = max(best, 2 * size**3 / took_s)
    while time.perf_counter() - started_at_s < budget_s:
        best = max(best, 2 * size**3 / _matmul_s(machine, matrix))
    return best


def _matmul_s(machine: Machine, matrix: torch.Tensor) -> float:
    machine.synchronize()
    started_at_s = time.perf_counter()
    torch.mm(matrix, matrix)
    machine.synchronize()
    return time.perf_counter() - started_at_s


def _device(config: Config, tell: Callable[[Chosen], None]) -> torch.device:
    if config.device != "auto":
        return _asked_device(config.device)
    if torch.cuda.is_available():
        value, because = "cuda", "a CUDA device is there"
    elif torch.backends.mps.is_available():
        value, because = "mps", "an Apple GPU is there"
    else:
        value, because = "cpu", "no CUDA device and no Apple GPU found"
    tell(Chosen(what="device", value=value, because=because))
    return torch.device(value)


def _asked_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}.get(device.type, False)
        if there and device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            there = False
    except RuntimeError:
        there = False
    if not there:
        raise fault(
            msg("device = {name:code} is not there on this machine", name=name), fix=msg("use {option:code}", option="--device=auto")
        )
    return device


def _dtype(config: Config, device: torch.device, tell: Callable[[Chosen], None], remembered: str | None) -> str:
    if config.dtype != "auto":
        return config.dtype
    if remembered in DTYPES:
        value, because = remembered, "the run had it before"
    elif device.type == "cuda":
        has_bfloat16 = torch.cuda.get_device_capability(device)[0] >= 8
        value = "bfloat16" if has_bfloat16 else "float16"
        because = "this GPU computes it fast" if has_bfloat16 else "this GPU has no fast bfloat16"
    elif device.type == "mps":
        value, because = "float32", "16-bit arithmetic is no faster on this device"
    else:
        value, because = "float32", "16-bit arithmetic is not faster on most CPUs"
    tell(Chosen(what="dtype", value=value, because=because))
    return value


def _threads(config: Config, tell: Callable[[Chosen], None], remembered: int | None) -> int:
    if config.threads is not None:
        return config.threads
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if remembered:
        value, because = int(remembered), "the run had it before"
    elif asked.isdigit() and int(asked) > 0:
        value, because = int(asked), "OMP_NUM_THREADS says so"
    else:
        value, because = usable_cores(), "physical cores that this process may use"
    tell(Chosen(what="threads", value=value, because=because))
    return value


def usable_cores() -> int:
    """Physical cores, no more than the affinity mask and the container's quota allow."""
    import psutil

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
    return _cpu_name()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    import psutil

    return psutil.virtual_memory().total


def _resident_bytes() -> int:
    import psutil

    return psutil.Process().memory_info().rss
