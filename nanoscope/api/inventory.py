"""All runs at a glance, without torch."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from nanoscope.api.folders import find_runs
from nanoscope.api.watching import Watching
from nanoscope.errors import UserError


@dataclass(frozen=True)
class Row:
    folder: Path
    state: str  # of present.live.STATES, or "unreadable"
    step: int = 0
    max_iters: int | None = None
    loss: float = math.nan
    best_val: float = math.nan
    tokens_per_s: float = math.nan
    changed_at_s: float = math.nan
    bytes: int = 0
    warnings: int = 0


def list_runs(root: Path | None = None) -> list[Row]:
    """Oldest first, so that the newest stands where the eye is after a long table."""
    return [_row(folder) for folder in find_runs(root)]


def _row(folder: Path) -> Row:
    size = _bytes_in(folder)
    try:
        seen = Watching(folder)
        seen.catch_up()
    except UserError:
        return Row(folder, "unreadable", bytes=size)
    it = seen.progress
    best = it.best
    return Row(
        folder, seen.state(), it.step, it.about.max_iters, it.loss, best.val if best else math.nan, it.tokens_per_s, it.last_at_s, size,
        warnings=len(it.notices),
    )  # fmt: skip


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue  # deleted while we were looking: a checkpoint that was replaced
    return total
