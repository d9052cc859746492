"""What the charts of one run ask for: the visible stretch of its columns, with no more points than a screen can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nanolens.page.series import AXES, Columns
from nanolens.present.dashboard.decimate import chosen, mean_of_last

MOST_BUCKETS = 2000
MOST_TAIL = 2000  # new rows that are sent one by one; more, and the page is told to ask again
PLACES = 400  # (step, x) pairs by which the page finds the place of a step on another axis
CLIP_WINDOW = 50  # updates over which the share of clipped ones is taken, at least
SPARK_BUCKETS = 24


@dataclass(frozen=True)
class Wanted:
    """A look at a run: which axis, between where, how fine, how smooth."""

    axis: str = "step"
    low: float | None = None
    high: float | None = None
    buckets: int = 400
    smooth: int = 0
    log: bool = False
    names: tuple[str, ...] = ()  # none: all

    @staticmethod
    def of(query: Any) -> Wanted:
        """From the parameters of a request; what makes no sense becomes the default."""
        return Wanted(
            axis=query.get("x") if query.get("x") in AXES else "step",
            low=_number(query.get("from")),
            high=_number(query.get("to")),
            buckets=int(min(MOST_BUCKETS, max(10, _number(query.get("buckets")) or 400))),
            smooth=int(min(1e6, max(0, _number(query.get("smooth")) or 0))),
            log=query.get("log") == "1",
            names=tuple(name for name in (query.get("names") or "").split(",") if name),
        )


def series_of(columns: Columns, wanted: Wanted) -> dict[str, Any]:
    axis = wanted.axis if wanted.axis in columns.axes else "step"
    x = columns.axes[axis]
    low = float(x[0]) if wanted.low is None and len(x) else wanted.low or 0.0
    high = float(x[-1]) if wanted.high is None and len(x) else wanted.high or 0.0
    found = {}
    for name, column in drawn(columns, wanted).items():
        kept = chosen(x, column, low, high, wanted.buckets, wanted.log)
        found[name] = {"x": x[kept].tolist(), "y": column[kept].tolist(), "step": columns.step[kept].tolist()}
    rows = np.unique(np.linspace(0, len(x) - 1, min(PLACES, len(x))).astype(int)) if len(x) else np.zeros(0, int)
    return {
        "axis": axis,
        "axes": list(columns.axes),
        "rows": len(columns),
        "last": int(columns.step[-1]) if len(columns) else 0,
        "series": found,
        "places": {"step": columns.step[rows].tolist(), "x": x[rows].tolist()},
        "not_finite": [{"from": first, "to": last, "is": kind} for first, last, kind in columns.not_finite[:500]],
        "evals": evals_of(columns),
        "smooth": wanted.smooth,
    }


def drawn(columns: Columns, wanted: Wanted) -> dict[str, np.ndarray]:
    """The columns as they are drawn: the loss also smoothed, clipping as a share."""
    found = dict(columns.series)
    if "loss" in found and wanted.smooth > 1:
        found["smoothed"] = mean_of_last(found["loss"], wanted.smooth)
    if "clipped" in found:
        found["clipped"] = mean_of_last(found["clipped"], max(CLIP_WINDOW, wanted.smooth))
    if wanted.names:
        found = {name: column for name, column in found.items() if name in wanted.names}
    return found


def evals_of(columns: Columns) -> dict[str, Any]:
    evals = columns.case.evals
    rows = np.arange(len(evals))
    if len(rows) > 2000:
        rows = chosen(evals.step.astype(float), evals.val, 0, float(evals.step[-1]), 500)
    names = ("train", "val", "train_se", "val_se", "val_bits_per_byte")
    return {"step": evals.step[rows].tolist(), **{name: getattr(evals, name)[rows].tolist() for name in names}}


def tail_of(columns: Columns, wanted: Wanted, since: int) -> dict[str, Any] | None:
    """The rows after a step, all of them; None where they are so many that the page had better ask for the whole again."""
    axis = wanted.axis if wanted.axis in columns.axes else "step"
    first = int(np.searchsorted(columns.step, since, "right"))
    if len(columns) - first > MOST_TAIL:
        return None
    x = columns.axes[axis][first:].tolist()
    return {
        "axis": axis,
        "rows": len(columns),
        "last": int(columns.step[-1]) if len(columns) else 0,
        "x": x,
        "step": columns.step[first:].tolist(),
        "series": {name: column[first:].tolist() for name, column in drawn(columns, wanted).items()},
        "evals": evals_of(columns),
        "not_finite": [{"from": a, "to": b, "is": kind} for a, b, kind in columns.not_finite[-500:]],
    }


def spark(columns: Columns) -> list[list[float]]:
    """A tiny curve: (x, y) pairs between 0 and 1, the lowest loss at 0, the range that of all but the first twentieth."""
    steps, losses = columns.case.losses
    if len(steps) < 2:
        steps, losses = columns.case.vals
    if len(steps) < 2:
        return []
    kept = chosen(steps, losses, float(steps[0]), float(steps[-1]), SPARK_BUCKETS)
    x, y = steps[kept], losses[kept]
    later = losses[len(losses) // 20 :]
    low, high = float(losses.min()), float(later.max())
    height = np.clip((y - low) / (high - low), 0, 1) if high > low else np.zeros(len(y))
    width = (x - x[0]) / (x[-1] - x[0]) if x[-1] > x[0] else np.zeros(len(x))
    return np.round(np.stack([width, height], axis=1), 3).tolist()


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and np.isfinite(value) else None
