"""One side of a comparison: a run, or several runs that differ by their seed only, with everything that two sides are measured by."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.statistics import mean_error
from nanolens.facts.timing import eval_seconds, instant_mfu
from nanolens.record.run import Run
from nanolens.sizing.power import board_watts

AXES = ("steps", "tokens", "flops", "time", "energy")


@dataclass(frozen=True)
class Group:
    """Runs that count as repeats of one another."""

    name: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Curve:
    """Val losses of a side by step: the mean over its runs at the steps that all of them evaluated."""

    step: np.ndarray
    val: np.ndarray

    def __len__(self) -> int:
        return len(self.step)


class Side:
    def __init__(self, group: Group, name: str = "", *, by_batch_loss: bool = False):
        """`by_batch_loss`: the losses of the updates stand in for evaluations that were not made."""
        assert group.runs, "a side needs a run"
        self.by_batch_loss = by_batch_loss
        self.name = name or group.name  # short, for sentences
        self.title = group.name
        self.cases = tuple(Case(run) for run in group.runs)
        self.case = self.cases[0]

    @property
    def runs(self) -> int:
        return len(self.cases)

    # --- losses

    @cached_property
    def vals(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """(steps, losses) of each run: its evaluations, or means of its batch losses over stretches of steps."""
        if self.by_batch_loss:
            return tuple((steps, means) for steps, means, _ in map(_stretches, self.cases))
        return tuple(case.vals for case in self.cases)

    @cached_property
    def eval_error(self) -> float | None:
        """Standard error of one value of the curve."""
        if self.by_batch_loss:
            errors = np.concatenate([error for _, _, error in map(_stretches, self.cases)])
            return float(errors[-1]) if len(errors) and np.isfinite(errors[-1]) else None
        return self.case.eval_noise.value if self.case.eval_noise is not None else None

    @cached_property
    def curve(self) -> Curve:
        vals = [dict(zip(*each, strict=True)) for each in self.vals]
        shared = sorted(set.intersection(*(set(each) for each in vals))) if vals else []
        return Curve(np.array(shared, float), np.array([np.mean([each[step] for each in vals]) for step in shared]))

    @property
    def last_val(self) -> float | None:
        return float(self.curve.val[-1]) if len(self.curve) else None

    @cached_property
    def best(self) -> tuple[int, float] | None:
        """(step, val) of the lowest evaluation."""
        if not len(self.curve):
            return None
        at = int(np.argmin(self.curve.val))
        return int(self.curve.step[at]), float(self.curve.val[at])

    def val_at(self, step: float) -> np.ndarray | None:
        """The val loss of each of this side's runs at that step, or None where one of them has no evaluation there."""
        found = []
        for steps, vals in self.vals:
            at = np.flatnonzero(steps == step)
            if not len(at):
                return None
            found.append(vals[at[-1]])
        return np.array(found)

    def batch_losses_at(self, step: float) -> list[tuple[str, np.ndarray]] | None:
        """(fingerprint, loss of each val batch) of each run at that step, where they were kept."""
        found = []
        for case in () if self.by_batch_loss else self.cases:
            evals = case.evals
            at = np.flatnonzero((evals.step == step) & np.isfinite(evals.val))
            if not len(at) or len(evals.val_batch_losses) <= at[-1] or len(evals.batches) <= at[-1]:
                return None
            if not evals.batches[at[-1]] or len(evals.val_batch_losses[at[-1]]) < 2:
                return None
            found.append((evals.batches[at[-1]], np.asarray(evals.val_batch_losses[at[-1]], float)))
        return found or None

    # --- what it cost

    def per_step(self, axis: str) -> float | None:
        """How much of the axis one update takes; None where that is not known."""
        case, tokens = self.case, self.tokens_per_update
        if axis == "steps":
            return 1.0
        if axis == "tokens":
            return tokens
        if axis == "flops":
            return tokens * case.flops_per_token.value if tokens and case.flops_per_token else None
        if axis == "time":
            return self.step_s
        watts = self.watts
        return self.step_s * watts if self.step_s and watts else None

    @property
    def printed_parameters(self) -> int | None:
        """As nanoGPT prints them, where it trained this: without the position table."""
        counted = self.case.counted if self.case.run.words.trainer == "nanogpt" else None
        return counted.as_nanogpt_prints if counted is not None else None

    @property
    def tokens_per_update(self) -> float | None:
        known = self.case.tokens_per_update
        return known.value if known is not None and known.value > 0 else None

    @cached_property
    def step_s(self) -> float | None:
        found = [case.step_time.value for case in self.cases if case.step_time is not None]
        return float(np.median(found)) if found else None

    @cached_property
    def watts(self) -> float | None:
        """Rated power of all devices together."""
        case = self.case
        if (given := case.number("watts")) is not None:
            return given
        if case.device is None or not case.devices:
            return None
        board = board_watts(case.device.name)
        return board * case.devices if board else None

    @property
    def last_step(self) -> int:
        return max(case.last_step for case in self.cases)

    def total(self, axis: str) -> float | None:
        each = self.per_step(axis)
        return None if each is None else each * self.last_step

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens_per_update / self.step_s if self.tokens_per_update and self.step_s else None

    @property
    def micro_batch_s(self) -> float | None:
        """Seconds of one micro-batch on one device."""
        accumulation, devices = self.case.whole("gradient_accumulation_steps"), self.case.devices or 1
        return self.step_s * devices / accumulation if self.step_s and accumulation else None

    @property
    def flops_per_s(self) -> float | None:
        case = self.case
        return self.tokens_per_s * case.flops_per_token.value if self.tokens_per_s and case.flops_per_token else None

    @property
    def mfu(self) -> float | None:
        known = self.case.true_mfu
        return known.value if known is not None and known.value > 0 else None

    @property
    def printed_mfu(self) -> float | None:
        return instant_mfu(self.case)

    @property
    def eval_s(self) -> float | None:
        """Seconds of one evaluation, as recorded or as the slow lines show it."""
        recorded = self.case.evals.took_s[np.isfinite(self.case.evals.took_s)]
        if len(recorded):
            return float(np.median(recorded))
        extra = eval_seconds(self.case)[1]
        return float(np.median(extra)) if len(extra) else None

    @property
    def epochs(self) -> float | None:
        tokens, data = self.total("tokens"), self.case.dataset_tokens
        return tokens / data.value if tokens and data is not None else None

    @property
    def device_name(self) -> str:
        case = self.case
        return case.text("hardware") or case.text("device")


STRETCHES = 24


def _stretches(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(last step, mean, standard error of the mean) of the batch losses over stretches of steps that double every few."""
    steps, losses = case.losses
    if len(steps) < 8:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    ends = np.unique(np.round(np.geomspace(max(2.0, steps[0]), 2.0 ** np.ceil(np.log2(steps[-1])), STRETCHES)))
    found = []
    for first, last in itertools.pairwise(ends):
        inside = losses[(steps > first) & (steps <= last)]
        if len(inside) >= 4 and last <= steps[-1]:
            error = mean_error(inside)
            found.append((last, float(inside.mean()), float(inside.std(ddof=1) / np.sqrt(len(inside))) if error is None else error))
    columns = np.array(found).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]
