"""All runs at a glance, without torch."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from nanolens.record import glance


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
    """Oldest first, so that the newest stands where the eye is after a long table. A long run costs no more than a short one."""
    return [_row(seen) for seen in glance.list_runs(root)]


def _row(seen: glance.Glance) -> Row:
    return Row(
        seen.folder, seen.state, seen.step, seen.max_iters, seen.loss, seen.best_val, seen.tokens_per_s, seen.changed_at_s,
        _bytes_in(seen.folder), seen.warnings,
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
