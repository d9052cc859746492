"""Fewer points, the same picture: of each bucket of the x axis the first, the last, the lowest and the highest point stay.

These are points of the record, never means: a value read off the chart is one that was written. A line through them covers the same
pixels as a line through all (M4; Jugel et al., 2014), so no spike is ever lost to a zoom level.
"""

from __future__ import annotations

import numpy as np

POINTS_PER_BUCKET = 4


def chosen(x: np.ndarray, y: np.ndarray, low: float, high: float, buckets: int, log: bool = False) -> np.ndarray:
    """Indices to draw between `low` and `high`, with one neighbour on either side. `x` rises; a y that is not finite breaks the line."""
    first = max(0, int(np.searchsorted(x, low, "left")) - 1)
    last = min(len(x), int(np.searchsorted(x, high, "right")) + 1)
    if last - first <= POINTS_PER_BUCKET * buckets:
        return np.arange(first, last)
    edges = first + np.searchsorted(x[first:last], _edges(low, high, buckets, log))
    edges = np.unique(np.concatenate(([first], edges, [last])))
    kept: list[int] = []
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        piece = y[start:end]
        finite = np.isfinite(piece)
        if not finite.any():
            kept.append(start)
            continue
        if not finite.all():  # the gap stays: one point that is not finite, where the first of them is
            kept.append(start + int(np.argmin(finite)))
            piece = np.where(finite, piece, np.nan)
            picks = (np.flatnonzero(finite)[0], np.nanargmin(piece), np.nanargmax(piece), np.flatnonzero(finite)[-1])
        else:
            picks = (0, piece.argmin(), piece.argmax(), end - start - 1)
        kept += [start + int(pick) for pick in picks]
    return np.unique(np.array(kept, np.int64))


def _edges(low: float, high: float, buckets: int, log: bool) -> np.ndarray:
    if log and high > 0:
        floor = max(low, high * 1e-9, 1e-12)
        return np.geomspace(floor, high, buckets + 1)[1:-1]
    return np.linspace(low, high, buckets + 1)[1:-1]


def mean_of_last(values: np.ndarray, window: int) -> np.ndarray:
    """At each place the mean of the finite values among the last `window`; nothing comes from the future. NaN where there is none."""
    finite = np.isfinite(values)
    total = np.concatenate(([0.0], np.cumsum(np.where(finite, values, 0.0))))
    count = np.concatenate(([0], np.cumsum(finite)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    seen = count[ends] - count[starts]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (total[ends] - total[starts]) / seen
    return np.where((seen > 0) & finite, means, np.nan)
