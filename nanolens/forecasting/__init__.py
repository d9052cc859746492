"""Where a curve is going, with an interval, or why that cannot be said."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanolens.errors import fault
from nanolens.facts.case import Case
from nanolens.facts.laws import FRESH_EPOCHS
from nanolens.facts.statistics import block_medians, noise_of, trend
from nanolens.forecasting.law import ADAM, MUON, ScheduleProgress, draws_of
from nanolens.forecasting.law import FEWEST_FITTED_POINTS as FEWEST
from nanolens.message import Message, msg
from nanolens.planning.budget import budget_named
from nanolens.record.run import RunRecord
from nanolens.sizing.schedule import Schedule, lr_of

REFUSALS = tomllib.loads(Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8"))
FARTHEST = 3.0  # times what was seen
FEWEST_POINTS = 8
FEWEST_ROWS = 60  # batch losses, where evaluations are too few
COVERAGE = 0.8
WARMED_UP = 3.0  # warm-ups: before, the curve is that of the warm-up
OVERFIT = 3.0  # standard errors above its minimum
# Nats: a young model first learns which token follows which, and rests there; beyond, it has found more
PAST_BIGRAM = 0.1
FAR_FROM_BIGRAM = 1.25  # times what was seen: a nearer end is near in loss, too
CURVE_BLOCKS = 40
MOST_POINTS = 96
FINEST = 20_000
CURVE = 60  # steps at which the band is given, for drawing


@dataclass(frozen=True)
class Forecast:
    at_step: int
    loss: float  # median
    low: float  # of the 80 % interval
    high: float
    now_step: int
    now_loss: float
    series: str  # "val", or "batch": the losses of the updates
    points: int
    schedule: Message  # what was taken for the learning rates ahead
    notes: tuple[Message, ...]
    curve: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # (steps, median, low, high)


@dataclass(frozen=True)
class Refusal:
    code: str
    because: Message
    instead: Message | None = None  # what would make it possible


class _Refused(Exception):
    """With the sentences that refusals.toml has for it, and the values that go into them."""

    def __init__(self, name: str, **values: object):
        about = REFUSALS[name]
        instead = Message(about["instead"], values) if "instead" in about else None
        self.refusal = Refusal(about.get("code", name), Message(about["because"], values), instead)


def forecast(run: RunRecord, at: int | None = None) -> Forecast | Refusal:
    """At the end that the run was planned for, or at another step."""
    case = Case(run)
    try:
        target = at if at is not None else case.whole("max_iters")
        if target is None:
            raise _Refused("no_target", option="--at=STEP")
        lrs = planned_lrs(case, case.last_step, target)
        _check_time(case, lrs, target)
        points = _points(case)
        _check_curve(case, points, target)
        found, bigram = _forecast(case, lrs, _past_bigram(case, points), target), case.bigram_nats
        # A fall that has yet to come down to the bigram level slows down there: no law of one piece goes through it.
        if bigram is not None and found.now_loss >= bigram + PAST_BIGRAM and found.loss <= bigram:
            raise _Refused("above_bigram_level", now=found.now_loss, bigram=bigram, level=bigram - PAST_BIGRAM)
        return found
    except _Refused as refused:
        return refused.refusal


@dataclass(frozen=True)
class LearningRates:
    seen: np.ndarray  # of each update from the first on, up to the last that was taken
    planned: np.ndarray  # of each update of the run that the forecast is for
    words: Message
    notes: tuple[Message, ...] = ()


def planned_lrs(case: Case, last: int, target: int) -> LearningRates:
    """Learning rates from the schedule, or as recorded where they stand still."""
    schedule = case.schedule
    if schedule is not None:
        seen, planned_end = lr_curve(schedule, max(last, 1)), case.whole("max_iters")
        if planned_end is not None and target > max(planned_end, last) and schedule.decay_lr:
            planned = lr_curve(stretched(schedule, target / planned_end), target)
            note = msg("a finished decay cannot be continued: the learning rate is already low")
            words = msg("a fresh run of that length, with the same schedule stretched")
            return LearningRates(seen, planned, words, (note,))
        words = msg("the run's own schedule ({shape})", schedule.shape if schedule.decay_lr else "constant")
        return LearningRates(seen, lr_curve(schedule, max(target, last)), words)
    recorded = case.steps.lr[np.isfinite(case.steps.lr)]
    if len(recorded) >= 8 and np.ptp(recorded[len(recorded) // 2 :]) < 1e-3 * recorded.max():
        constant = np.full(max(target, last), recorded[-1])
        note = msg("if the learning rate is going to decay, the loss will end lower")
        return LearningRates(constant[: max(last, 1)], constant, msg("constant, as recorded"), (note,))
    options = ("--learning_rate", "--min_lr", "--warmup_iters", "--lr_decay_iters", "--schedule")
    raise _Refused("no_schedule", options=options)


def lr_curve(schedule: Schedule, updates: int) -> np.ndarray:
    """Of each update; of very many, in between taken on straight lines."""
    places = np.unique(np.linspace(0, updates - 1, min(updates, FINEST)).astype(int))
    lrs = np.array([lr_of(schedule, int(step)) for step in places])
    return lrs if len(places) == updates else np.interp(np.arange(updates), places, lrs)


def stretched(schedule: Schedule, times: float) -> Schedule:
    """The same shape over more updates; the warm-up keeps its length."""
    return dataclasses.replace(schedule, decay_ends=round(schedule.decay_ends * times))


def _check_time(case: Case, lrs: LearningRates, target: int) -> None:
    last, warmup = case.last_step, _warmup(case)
    if lrs.planned.max() <= 0:
        raise _Refused("no_learning")
    if target <= last:
        raise _Refused("already_there", last=last, option="--at=STEP")
    if last < WARMED_UP * warmup:
        raise _Refused("warming_up", last=last, warmup=warmup, steps=int(WARMED_UP * warmup))
    if target > FARTHEST * last:
        steps = int(np.ceil(target / FARTHEST))
        raise _Refused("too_far", target=target, times=target / max(last, 1), farthest=FARTHEST, steps=steps)


def _warmup(case: Case) -> int:
    return case.schedule.warmup_iters if case.schedule is not None else 0


@dataclass(frozen=True)
class Points:
    step: np.ndarray
    loss: np.ndarray
    series: str
    offset: float = 0.0  # val over batch loss now, where the curve is that of the batch losses

    @property
    def now(self) -> float:
        return float(np.median(self.loss[-3:]))


def _points(case: Case) -> Points:
    """Evaluations where they are enough, else medians of the batch losses, shifted to the last evaluation."""
    first = max(1, _warmup(case))
    all_steps, all_vals = case.vals
    steps, vals = all_steps[all_steps > first], all_vals[all_steps > first]
    end = all_steps[-1] if len(all_steps) else 0
    if (steps >= end / 3).sum() >= FEWEST_POINTS:
        return Points(*_thinned(steps.astype(int), vals), "val")
    rows, losses = case.losses
    rows, losses = rows[rows > first], losses[rows > first]
    if len(rows) < FEWEST_ROWS:
        if len(all_steps) and (steps >= end / 10).sum() >= FEWEST:
            return Points(steps.astype(int), vals, "val")
        raise _Refused("too_few_points", evals=len(steps), rows=len(rows))
    # Medians over stretches of equal length: batch losses are noisy, and sometimes spike.
    x, y = block_medians(rows, losses, min(CURVE_BLOCKS, len(rows) // 5))
    if not (all_steps >= x[0]).any():
        # Evaluations before the first stretch say nothing about the distance of val from the batch losses.
        return Points(x.astype(int), y, "batch")
    offset = float(all_vals[-1] - y[np.argmin(np.abs(x - end))])
    return Points(x.astype(int), y + offset, "val", offset)


def _thinned(steps: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of neighbours, where there are more points than a curve needs."""
    if len(steps) <= MOST_POINTS:
        return steps, losses
    edges = np.linspace(0, len(steps), MOST_POINTS + 1).astype(int)[1:-1]
    means = [np.array([part.mean() for part in np.split(column, edges)]) for column in (steps, losses)]
    return means[0].astype(int), means[1]


def _check_curve(case: Case, points: Points, target: int) -> None:
    tail = case.steps.loss[-max(1, len(case.steps) // 20) :]
    if not np.isfinite(tail).all() and len(case.steps) > 20:
        raise _Refused("not_finite", command="nanolens diagnose")
    noise = noise_of(points.step, points.loss) or 0.0
    lowest, lowest_at = float(points.loss.min()), int(points.step[int(np.argmin(points.loss))])
    error = max(noise, case.eval_noise.value / 4 if case.eval_noise is not None else 0.0, 0.003)
    if points.now > lowest + OVERFIT * error and points.step[-1] > lowest_at * 1.2:
        raise _Refused("rising", above=points.now - lowest, step=lowest_at, command="nanolens diagnose")
    bigram, is_far = case.bigram_nats, target > FAR_FROM_BIGRAM * points.step[-1]
    if bigram is not None and is_far and abs(points.now - bigram) < PAST_BIGRAM:
        raise _Refused("bigram_level", now=points.now, bigram=bigram, level=bigram - PAST_BIGRAM)
    epochs = case.epochs_at(target)
    if epochs is not None and epochs > FRESH_EPOCHS and _gap_grows(case):
        raise _Refused("overfitting", epochs=epochs)


def _past_bigram(case: Case, points: Points) -> Points:
    """Without the points on the way to the bigram level, which lie on another curve, where enough others are left."""
    level = np.inf if case.bigram_nats is None else case.bigram_nats
    above = np.flatnonzero(points.loss > level)
    first = int(above[-1]) + 1 if len(above) else 0
    if len(points.loss) - first < FEWEST:
        return points
    return dataclasses.replace(points, step=points.step[first:], loss=points.loss[first:])


def _gap_grows(case: Case) -> bool:
    both = np.isfinite(case.evals.train) & np.isfinite(case.evals.val)
    step, gap = case.evals.step[both], (case.evals.val - case.evals.train)[both]
    if len(gap) < 4:
        return False
    half = len(gap) // 2
    found = trend(np.log(np.maximum(step[half:], 1)), gap[half:])
    return found is not None and found.is_rising and float(np.median(gap[-3:])) > 0.1


def _forecast(case: Case, lrs: LearningRates, points: Points, target: int) -> Forecast:
    last = int(points.step[-1])
    seen, planned = ScheduleProgress(lrs.seen[: max(last, 1)]), ScheduleProgress(lrs.planned)
    wanted = np.unique(np.linspace(min(last, target), target, CURVE).astype(int))
    # A curve that was shifted to one evaluation stands as badly as that one and the stretch beside it are known.
    shift_error = (noise_of(points.step, points.loss) or 0.0) if points.offset else 0.0
    priors = MUON if case.text("optimizer") == "muon" else ADAM
    draws = draws_of(seen, planned, points.step, points.loss, wanted, priors, shift_error)
    if draws is None:
        raise _Refused("no_law")
    losses, used = draws
    median, low, high = np.quantile(losses, (0.5, (1 - COVERAGE) / 2, (1 + COVERAGE) / 2), axis=0)
    loss, lowest, highest = (float(band[-1]) for band in (median, low, high))
    notes = (*lrs.notes, *_notes(points, case.epochs_at(target)))
    curve = (wanted, median, low, high)
    return Forecast(target, loss, lowest, highest, last, points.now, points.series, used, lrs.words, notes, curve)


def _notes(points: Points, epochs: float | None) -> Iterator[Message]:
    yield msg("one curve cannot determine both E and the exponent: that is why the interval is wide")
    if points.offset:
        yield msg(
            "there are few evaluations: the curve's shape comes from the batch losses, shifted to the last evaluation"
        )
    if epochs is not None and epochs > 1:
        yield msg(
            "by then the data will have been seen {epochs:about} times; the scaling law does not account for "
            "overfitting",
            epochs,
        )


def step_named(text: str, run: RunRecord) -> int:
    """What `--at` means for a run: `20000` is a step, `500Mtok` the step at which so many tokens have been seen."""
    plain = text.replace(",", "").replace("_", "")
    if plain.isdigit() and int(plain) > 0:
        return int(plain)
    budget = budget_named(text) if any(map(str.isalpha, text)) else None
    if budget is None or budget.kind != "tokens":
        what = msg("{text:code} is neither a step nor a number of tokens", text)
        raise fault(what, where="--at", fix=msg("write {examples:code}", ("20000", "500Mtok")))
    per_update = Case(run).tokens_per_update
    if per_update is None or per_update.value <= 0:
        raise fault(msg("the tokens per update of this run are unknown"), where="--at", fix=msg("give a step instead"))
    return max(1, round(budget.amount / per_update.value))
