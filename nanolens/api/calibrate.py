"""A few seconds of a config's own model on this machine: how long its micro-batches take, and how much memory.

The measuring happens in a process of its own, as training does: its memory is then what training will need, and running out of it harms
nobody. See `calibration_worker.py` for what is timed.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from typing import Any

from nanolens.config.fields import Config
from nanolens.message import Message, msg
from nanolens.planning.figures import Calibration

BUDGET_S = 6.0  # of timed work; building the model and importing libraries come on top
PATIENCE_S = 180.0


def calibrate(config: Config, vocab_size: int, dataset: str = "", budget_s: float = BUDGET_S) -> Calibration | Message:
    """The measurement, or why there is none. `dataset` is the prepared folder, where there is one."""
    started_at_s = time.time()
    question = {
        "config": dataclasses.asdict(config),
        "vocab_size": vocab_size,
        "dataset": dataset,
        "budget_s": budget_s,
        "started_at_s": started_at_s,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "nanolens.api.calibration_worker"], input=json.dumps(question), capture_output=True, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return msg("the measurement was given up after {seconds:seconds}: this model is too slow for this machine", seconds=PATIENCE_S)
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return _failure(done.returncode, done.stderr)
    return calibration_from(found, time.time() - started_at_s)


def calibration_from(found: dict, took_s: float) -> Calibration:
    pairs: dict[str, Any] = {
        key: tuple((int(size), float(value)) for size, value in found[key]) for key in ("micro_s", "forward_s", "memory_bytes")
    }
    single = ("optimizer_s", "base_bytes", "stall_s", "write_s", "sample_s", "start_s", "end_s", "scatter", "peak_flops", "achieved_flops")
    return Calibration(**pairs, **{name: found[name] for name in single}, layers_timed=tuple(found["layers_timed"]), took_s=took_s)


def _failure(code: int, stderr: str) -> Message:
    last = stderr.strip().splitlines()[-1] if stderr.strip() else ""
    if code < 0 or "MemoryError" in last or "can't allocate memory" in last or "out of memory" in last:
        return msg(
            "the measurement ran out of memory: this model does not fit on this machine ({problem})", problem=last or f"signal {-code}"
        )
    return msg("the measurement failed: {problem}", problem=last)
