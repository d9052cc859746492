"""A run as the columns that charts draw: what each update recorded, against step, tokens, FLOPs or time, of which a
chart gets the visible stretch with no more points than a screen can show.

Of each bucket of the x axis the first, the last, the lowest and the highest point stay: a line through them covers the
same pixels as a line through all (M4; Jugel et al., 2014), and each was recorded, since none is a mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.timing import eval_seconds, is_first
from nanolens.record.events import PARTS
from nanolens.record.run import RunRecord
from nanolens.show.answer import JsonObject

POINTS_PER_BUCKET = 4


def chosen(x: np.ndarray, y: np.ndarray, low: float, high: float, buckets: int, log: bool = False) -> np.ndarray:
    """Indices to draw from `low` to `high`, and a neighbour on each side. `x` rises; a y not finite breaks the line."""
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
        if not finite.all():  # the gap stays: one point that is not finite, where the first of them is
            kept.append(start + int(finite.argmin()))
            at = start + np.flatnonzero(finite)
            piece = y[at]
        else:
            at = range(start, end)
        if len(at):
            kept += [int(at[pick]) for pick in (0, piece.argmin(), piece.argmax(), -1)]
    return np.unique(np.array(kept, np.int64))


def _edges(low: float, high: float, buckets: int, log: bool) -> np.ndarray:
    if log and high > 0:
        return np.geomspace(max(low, high * 1e-9, 1e-12), high, buckets + 1)[1:-1]
    return np.linspace(low, high, buckets + 1)[1:-1]


def mean_of_last(values: np.ndarray, window: int) -> np.ndarray:
    """At each finite value the mean of those among the last `window`; nothing comes from the future."""
    finite = np.isfinite(values)
    total = np.concatenate(([0.0], np.cumsum(np.where(finite, values, 0.0))))
    count = np.concatenate(([0], np.cumsum(finite)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    seen = count[ends] - count[starts]
    return np.where(finite, (total[ends] - total[starts]) / np.maximum(1, seen), np.nan)


CHART_AXES = ("step", "tokens", "flops", "time")


class Columns:
    def __init__(self, run: RunRecord):
        self.run = run
        self.case = Case(run)

    def __len__(self) -> int:
        return len(self.run.steps)

    @property
    def step(self) -> np.ndarray:
        return self.run.steps.step

    # --- axes

    @cached_property
    def axes(self) -> dict[str, np.ndarray]:
        found = {"step": self.step.astype(float), "tokens": self._tokens(), "time": self._time()}
        per_token = self.case.flops_per_token
        if found["tokens"] is not None and per_token is not None:
            found["flops"] = found["tokens"] * per_token.value
        return {name: at for name in CHART_AXES if (at := found.get(name)) is not None and (len(at) or name == "step")}

    def _tokens(self) -> np.ndarray | None:
        rows = self.run.steps
        if len(rows) and rows.step[0] == 1 and len(rows) == rows.step[-1] and np.isfinite(rows.tokens).all():
            return np.cumsum(rows.tokens)
        per_update = self.case.tokens_per_update
        return None if per_update is None or self.case.counts_epochs else per_update.value * self.step.astype(float)

    def _time(self) -> np.ndarray | None:
        """Seconds of work up to each row: by the clock, without the pauses between attempts; else of step times."""
        rows = self.run.steps
        if not len(rows):
            return None
        took = np.nan_to_num(self.case.steps.took_s)
        if np.isfinite(rows.at_s).all() and (np.diff(rows.at_s) >= 0).all():
            paused = np.zeros(len(rows))
            for mark in self.run.marks:
                if mark.kind in ("resume", "attempt"):
                    i = int(np.searchsorted(rows.line, mark.line))
                    if 0 < i < len(rows):
                        paused[i] += max(0.0, rows.at_s[i] - rows.at_s[i - 1] - took[i])
            return rows.at_s - rows.at_s[0] + took[0] - np.cumsum(paused)
        ordinary = self.case.step_time
        if ordinary is None:
            return None
        apart = np.maximum(1, np.diff(rows.step, prepend=rows.step[0] - 1))
        return np.cumsum(np.where(took > 0, took, ordinary.value) + (apart - 1) * ordinary.value)

    def place(self, steps: np.ndarray, axis: str) -> np.ndarray:
        """Where steps lie on an axis: on the straight line between the rows that tell it, and on beyond them."""
        at = self.axes.get(axis)
        if at is None or not len(at):
            return np.full(len(steps), np.nan)
        known = np.concatenate(([0.0], self.step)) if self.step[0] > 0 else self.step.astype(float)
        there = np.concatenate(([max(0.0, at[0] - _per_step(self.step, at))], at)) if self.step[0] > 0 else at
        placed = np.interp(steps, known, there)
        beyond = steps > known[-1]
        return np.where(beyond, there[-1] + (steps - known[-1]) * _per_step(self.step, at), placed)

    # --- what is drawn

    @cached_property
    def series(self) -> dict[str, np.ndarray]:
        rows = self.case.steps
        found = {"loss": rows.loss, "lr": rows.lr, "grad_norm": rows.grad_norm, "clipped": self._clipped()}
        found |= {"tokens_per_s": self._speed(), "mfu": self._mfu(), "memory": rows.memory_bytes}
        return {name: column for name, column in found.items() if np.isfinite(column).any()}

    def _clipped(self) -> np.ndarray:
        said, limit = self.case.steps.clipped, self.case.number("grad_clip")
        if np.isfinite(said).any() and limit != 0.0:
            return said
        norm = self.case.steps.grad_norm
        if not limit:
            return np.full(len(norm), np.nan)
        return np.where(np.isfinite(norm), (norm > limit).astype(float), np.nan)

    def _speed(self) -> np.ndarray:
        rows, per_update = self.case.steps, self.case.tokens_per_update
        tokens = np.where(np.isfinite(rows.tokens), rows.tokens, np.nan if per_update is None else per_update.value)
        return np.where(np.isfinite(rows.tokens_per_s), rows.tokens_per_s, tokens / rows.took_s)

    def _mfu(self) -> np.ndarray:
        """Against this device's own peak: the MFU of an ordinary step (see Case), scaled by the speed of each."""
        known, step_time, took = self.case.true_mfu, self.case.step_time, self.case.steps.took_s
        if known is None or step_time is None:
            return np.full(len(took), np.nan)
        return np.where(np.isfinite(took), known.value * step_time.value / took, np.nan)

    @cached_property
    def not_finite(self) -> list[tuple[int, int, str]]:
        """(first step, last step, "nan" or "inf") of the stretches whose loss was recorded and is no number."""
        rows = self.run.steps
        bad = np.isin(np.nan_to_num(rows.not_finite), (1.0, 3.0)) | np.isinf(rows.loss) | self.case.is_filtered_zero
        at = np.flatnonzero(bad)
        if not len(at):
            return []
        pieces = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
        return [
            (int(self.step[p[0]]), int(self.step[p[-1]]), "inf" if np.isinf(rows.loss[p[0]]) else "nan") for p in pieces
        ]

    # --- where the time went

    def time_bars(self, stretches: int) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
        """The last step of each stretch, and the seconds that each part of the run took of it."""
        rows, case = self.run.steps, self.case
        if not len(rows) or not np.isfinite(case.steps.took_s).any():
            return None
        ends = np.unique(np.linspace(rows.step[0], rows.step[-1], min(stretches, len(rows)) + 1).astype(int)[1:])
        home = np.minimum(np.searchsorted(ends, rows.step), len(ends) - 1)
        seconds = {part: np.zeros(len(ends)) for part in PARTS}
        apart = np.maximum(1, np.diff(rows.step, prepend=rows.step[0] - 1))
        took, data = np.nan_to_num(case.steps.took_s), np.nan_to_num(case.steps.data_s)
        ordinary = case.step_time.value if case.step_time is not None else 0.0
        whole = np.where(took > 0, took + (apart - 1) * (ordinary or 0.0), apart * ordinary)
        slow_rows, extra = eval_seconds(case)
        np.add.at(seconds["eval"], home[slow_rows], extra)
        whole[slow_rows] -= extra
        if case.run.conventions.time != "step_only" and ordinary:
            first = np.flatnonzero(is_first(case) & (took > 2 * ordinary))
            np.add.at(seconds["compile"], home[first], took[first] - ordinary)
            whole[first] -= took[first] - ordinary
        np.add.at(seconds["train"], home, np.maximum(0.0, whole - data))
        np.add.at(seconds["data"], home, data)
        self._add_interruptions(ends, seconds)
        self._add_other(ends, home, seconds)
        return ends, seconds

    def _add_interruptions(self, ends: np.ndarray, seconds: dict[str, np.ndarray]) -> None:
        def add(part: str, step: int, took_s: float) -> None:
            if np.isfinite(took_s) and took_s > 0:
                seconds[part][min(int(np.searchsorted(ends, max(1, step))), len(ends) - 1)] += took_s

        for step, took_s in zip(self.run.evals.step, self.case.evals.took_s, strict=True):
            add("eval", int(step), float(took_s))
        for mark in self.run.marks:
            if mark.kind in ("checkpoint", "sample", "compile") and mark.step is not None:
                add(mark.kind, mark.step, mark.took_s)

    def _add_other(self, ends: np.ndarray, home: np.ndarray, seconds: dict[str, np.ndarray]) -> None:
        """What the clock says and no part claims."""
        time = self.axes.get("time")
        if time is None or not np.isfinite(self.run.steps.at_s).all():
            return
        last = np.full(len(ends), np.nan)
        last[home] = time  # rows are in order: the last of each stretch stays
        spent = np.diff(np.concatenate(([0.0], last)))
        claimed = np.sum([seconds[part] for part in PARTS if part != "other"], axis=0)
        seconds["other"] = np.nan_to_num(np.maximum(0.0, spent - claimed))


def _per_step(step: np.ndarray, at: np.ndarray) -> float:
    if len(step) < 2:
        return float(at[-1]) / max(1, int(step[-1]))
    return float((at[-1] - at[0]) / (step[-1] - step[0]))


MOST_BUCKETS = 2000
MOST_TAIL = 2000  # new rows that are sent one by one; more, and the page is told to ask again
CURSOR_PLACES = 400
MOST_EVALS = 2000
MOST_STRETCHES = 500  # of losses that are not finite
CLIP_WINDOW = 50  # updates over which the share of clipped ones is taken, at least
SPARK_POINTS = 48


@dataclass(frozen=True)
class SeriesQuery:
    axis: str = "step"
    low: float | None = None
    high: float | None = None
    buckets: int = 400
    smooth: int = 0
    log: bool = False
    names: tuple[str, ...] = ()  # none: all

    @staticmethod
    def of(query: Mapping[str, str]) -> SeriesQuery:
        """From the parameters of a request; what makes no sense becomes the default."""
        return SeriesQuery(
            axis=query.get("x", "step"),
            low=_number(query.get("from")),
            high=_number(query.get("to")),
            buckets=int(min(MOST_BUCKETS, max(10, _number(query.get("buckets")) or 400))),
            smooth=int(min(1e6, max(0, _number(query.get("smooth")) or 0))),
            log=query.get("log") == "1",
            names=tuple(name for name in query.get("names", "").split(",") if name),
        )


Curve: TypeAlias = dict[str, list[float]]


def series_of(columns: Columns, wanted: SeriesQuery) -> JsonObject:
    axis = _known_axis(columns, wanted)
    return {
        **_shared(columns, axis, columns.not_finite[:MOST_STRETCHES]),
        "axes": list(columns.axes),
        "series": curves_of(columns, wanted),
        "places": places_of(columns, axis),
        "smooth": wanted.smooth,
    }


def tail_of(columns: Columns, wanted: SeriesQuery, since: int) -> JsonObject | None:
    """The rows after a step, all of them; None where so many are new that the page should ask for the whole again."""
    axis = _known_axis(columns, wanted)
    first = int(np.searchsorted(columns.step, since, "right"))
    if len(columns) - first > MOST_TAIL:
        return None
    return {
        **_shared(columns, axis, columns.not_finite[-MOST_STRETCHES:]),
        "x": columns.axes[axis][first:].tolist(),
        "step": columns.step[first:].tolist(),
        "series": {name: column[first:].tolist() for name, column in drawn(columns, wanted).items()},
    }


def _known_axis(columns: Columns, wanted: SeriesQuery) -> str:
    return wanted.axis if wanted.axis in columns.axes else "step"


def _shared(columns: Columns, axis: str, not_finite: list[tuple[int, int, str]]) -> JsonObject:
    return {
        "axis": axis,
        "rows": len(columns),
        "last": int(columns.step[-1]) if len(columns) else 0,
        "evals": evals_of(columns),
        "not_finite": [{"from": first, "to": last, "is": kind} for first, last, kind in not_finite],
    }


def curves_of(columns: Columns, wanted: SeriesQuery) -> dict[str, Curve]:
    x = columns.axes[_known_axis(columns, wanted)]
    low = float(x[0]) if wanted.low is None and len(x) else wanted.low or 0.0
    high = float(x[-1]) if wanted.high is None and len(x) else wanted.high or 0.0
    found = {}
    for name, column in drawn(columns, wanted).items():
        kept = chosen(x, column, low, high, wanted.buckets, wanted.log)
        found[name] = {"x": x[kept].tolist(), "y": column[kept].tolist(), "step": columns.step[kept].tolist()}
    return found


def places_of(columns: Columns, axis: str) -> Curve:
    """(step, x) pairs by which the page finds the place of a step on another axis."""
    x = columns.axes[axis]
    rows = np.unique(np.linspace(0, len(x) - 1, min(CURSOR_PLACES, len(x))).astype(int))
    return {"step": columns.step[rows].tolist(), "x": x[rows].tolist()}


def drawn(columns: Columns, wanted: SeriesQuery) -> dict[str, np.ndarray]:
    """The columns as they are drawn: the loss also smoothed, clipping as a share."""
    found = dict(columns.series)
    if "loss" in found and wanted.smooth > 1:
        found["smoothed"] = mean_of_last(found["loss"], wanted.smooth)
    if "clipped" in found:
        found["clipped"] = mean_of_last(found["clipped"], max(CLIP_WINDOW, wanted.smooth))
    if wanted.names:
        found = {name: column for name, column in found.items() if name in wanted.names}
    return found


def evals_of(columns: Columns) -> Curve:
    evals = columns.case.evals
    rows = np.arange(len(evals))
    if len(rows) > MOST_EVALS:
        rows = chosen(evals.step.astype(float), evals.val, 0, float(evals.step[-1]), MOST_EVALS // POINTS_PER_BUCKET)
    names = ("step", "train", "val", "train_se", "val_se", "val_bits_per_byte")
    return {name: getattr(evals, name)[rows].tolist() for name in names}


def spark(columns: Columns) -> list[list[float]]:
    """A tiny curve: (share of the way, loss), smoothed, so that it shows where the loss goes and not its noise."""
    steps, losses = columns.case.losses
    if len(steps) < 2:
        steps, losses = columns.case.vals
    if len(steps) < 2:
        return []
    smooth = mean_of_last(losses, max(1, len(losses) // SPARK_POINTS))
    kept = np.unique(np.linspace(0, len(steps) - 1, SPARK_POINTS).astype(int))
    x, y = steps[kept], smooth[kept]
    width = (x - x[0]) / (x[-1] - x[0]) if x[-1] > x[0] else np.zeros(len(x))
    return np.round(np.stack([width, y], axis=1)[np.isfinite(y)], 4).tolist()


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and np.isfinite(value) else None
