"""A Run as the columns that charts draw: what each update told, against step, tokens, FLOPs or time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.timing import eval_seconds, is_first
from nanolens.record.events import PARTS
from nanolens.record.run import Run

AXES = ("step", "tokens", "flops", "time")
SERIES = ("loss", "rate", "grad_norm", "clipped", "tokens_per_s", "mfu", "memory")


@dataclass(frozen=True)
class Bars:
    """Seconds by part of the run, for stretches of steps."""

    ends: np.ndarray  # last step of each stretch
    seconds: dict[str, np.ndarray]


class Columns:
    def __init__(self, run: Run):
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
        """The place of each row on each axis that is known."""
        found = {"step": self.step.astype(float), "tokens": self._tokens(), "time": self._time()}
        per_token = self.case.flops_per_token
        if found["tokens"] is not None and per_token is not None:
            found["flops"] = found["tokens"] * per_token.value
        return {name: at for name in AXES if (at := found.get(name)) is not None and (len(at) or name == "step")}

    def _tokens(self) -> np.ndarray | None:
        rows = self.run.steps
        if len(rows) and rows.step[0] == 1 and len(rows) == rows.step[-1] and np.isfinite(rows.tokens).all():
            return np.cumsum(rows.tokens)
        per_update = self.case.tokens_per_update
        return None if per_update is None or self.case.counts_epochs else per_update.value * self.step.astype(float)

    def _time(self) -> np.ndarray | None:
        """Seconds of work up to each row: by the clock, without the pauses between two attempts; else added up from the step times."""
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
        """Each column that says anything."""
        rows = self.case.steps
        found = {
            "loss": rows.loss,
            "rate": rows.rate,
            "grad_norm": rows.grad_norm,
            "clipped": self._clipped(),
            "tokens_per_s": self._speed(),
            "mfu": self._mfu(),
            "memory": rows.memory_bytes,
        }
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
        """Against this device's own peak: the MFU of an ordinary step (Case says by which formula), scaled by the speed of each."""
        known, step_time, speed = self.case.true_mfu, self.case.step_time, self._speed()
        if known is None or step_time is None:
            return np.full(len(speed), np.nan)
        took = self.case.steps.took_s
        return np.where(np.isfinite(took), known.value * step_time.value / took, np.nan)

    @cached_property
    def not_finite(self) -> list[tuple[int, int, str]]:
        """(first step, last step, "nan" or "inf") of the stretches whose loss was told and is no number."""
        rows = self.run.steps
        bad = np.isin(np.nan_to_num(rows.not_finite), (1.0, 3.0)) | np.isinf(rows.loss) | self.case.is_filtered_zero
        at = np.flatnonzero(bad)
        if not len(at):
            return []
        pieces = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
        return [(int(self.step[p[0]]), int(self.step[p[-1]]), "inf" if np.isinf(rows.loss[p[0]]) else "nan") for p in pieces]

    # --- where the time went

    def bars(self, stretches: int) -> Bars | None:
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
        if case.run.words.time != "step_only" and ordinary:
            first = np.flatnonzero(is_first(case) & (took > 2 * ordinary))
            np.add.at(seconds["compile"], home[first], took[first] - ordinary)
            whole[first] -= took[first] - ordinary
        np.add.at(seconds["train"], home, np.maximum(0.0, whole - data))
        np.add.at(seconds["data"], home, data)
        self._add_interruptions(ends, seconds)
        self._add_other(ends, home, seconds)
        return Bars(ends, seconds)

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
