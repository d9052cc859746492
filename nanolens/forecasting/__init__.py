"""Where a curve is going, with an interval, or why that cannot be said.

answer = forecast(run)                  # at the end that the run was planned for
answer = forecast(run, at=20_000)       # or elsewhere, up to three times what was seen
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.statistics import block_medians, noise_of, trend
from nanolens.forecasting.law import ADAM, FEWEST, MUON, Progress, draws_of
from nanolens.message import Message, msg
from nanolens.record.run import Run
from nanolens.sizing import Schedule, rate_of

FARTHEST = 3.0  # times what was seen
FEWEST_POINTS = 8
FEWEST_ROWS = 60  # batch losses, where evaluations are too few
COVERAGE = 0.8
WARMED_UP = 3.0  # warm-ups: before, the curve is that of the warm-up
MANY_EPOCHS = 4.0
OVERFIT = 3.0  # standard errors above its minimum
PAST_BIGRAM = 0.1  # nats: a young model first learns which token follows which, and rests there; beyond, it has found more
FAR_FROM_BIGRAM = 1.25  # times what was seen: a nearer end is near in loss, too
BLOCKS = 40
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


def forecast(run: Run, at: int | None = None) -> Forecast | Refusal:
    case = Case(run)
    last = case.last_step
    target = at if at is not None else case.whole("max_iters")
    if target is None:
        return Refusal("no_target", msg("the length of the run is not known"), msg("give {option:code}", option="--at=STEP"))
    rates = rates_of(case, last, target)
    early = _too_early(case, last, target, rates)
    if early is not None:
        return early
    assert isinstance(rates, Rates)
    points = _points(case)
    if isinstance(points, Refusal):
        return points
    wrong = _cannot_be_extrapolated(case, points, target)
    if wrong is not None:
        return wrong
    found = _forecast(case, rates, _past_bigram(case, points), target)
    return _crosses_bigram(case, found) or found if isinstance(found, Forecast) else found


def _crosses_bigram(case: Case, found: Forecast) -> Refusal | None:
    """A fall that has not come down to the bigram level yet slows down there: no law of one piece goes through it."""
    bigram = case.bigram_nats
    if bigram is None or found.now_loss < bigram + PAST_BIGRAM or found.loss > bigram:
        return None
    return Refusal(
        "bigram_level",
        msg(
            "the loss ({now:nats}) has still to pass {bigram:nats}, what the token before alone tells on this text, where every "
            "curve slows down",
            now=found.now_loss, bigram=bigram,
        ),
        msg("ask again when the loss has come below {level:nats}", level=bigram - PAST_BIGRAM),
    )  # fmt: skip


@dataclass(frozen=True)
class Rates:
    seen: np.ndarray  # of each update from the first on, up to the last that was taken
    planned: np.ndarray  # of each update of the run that the forecast is for
    words: Message
    notes: tuple[Message, ...] = ()


def rates_of(case: Case, last: int, target: int) -> Rates | Refusal:
    """Learning rates from the schedule, or as recorded where they stand still."""
    schedule = case.schedule
    if schedule is not None:
        seen = rates_by(schedule, max(last, 1))
        planned_end = case.whole("max_iters")
        if planned_end is not None and target > max(planned_end, last) and schedule.decay_lr:
            longer = stretched(schedule, target / planned_end)
            words = msg("a fresh run of that length with the same schedule, stretched")
            return Rates(seen, rates_by(longer, target), words, (msg("a finished decay cannot be continued: the rate has come down"),))
        return Rates(
            seen,
            rates_by(schedule, max(target, last)),
            msg("the run's own schedule ({shape})", shape=schedule.shape if schedule.decay_lr else "constant"),
        )
    recorded = case.steps.rate[np.isfinite(case.steps.rate)]
    if len(recorded) >= 8 and np.ptp(recorded[len(recorded) // 2 :]) < 1e-3 * recorded.max():
        constant = np.full(max(target, last), recorded[-1])
        return Rates(
            constant[: max(last, 1)],
            constant,
            msg("constant, as recorded"),
            (msg("if the learning rate is going to fall, the loss will end lower"),),
        )
    return Refusal(
        "no_schedule",
        msg("the schedule of learning rates is not known, and a loss falls faster when the rate comes down"),
        msg("give {options:code}", options=("--learning_rate", "--min_lr", "--warmup_iters", "--lr_decay_iters", "--schedule")),
    )


def rates_by(schedule: Schedule, updates: int) -> np.ndarray:
    """Of each update; of very many, in between taken on straight lines."""
    places = np.unique(np.linspace(0, updates - 1, min(updates, FINEST)).astype(int))
    rates = np.array([rate_of(schedule, int(step)) for step in places])
    return rates if len(places) == updates else np.interp(np.arange(updates), places, rates)


def stretched(schedule: Schedule, times: float) -> Schedule:
    """The same shape over more updates; the warm-up keeps its length."""
    return dataclasses.replace(schedule, decay_ends=round(schedule.decay_ends * times))


def _too_early(case: Case, last: int, target: int, rates: Rates | Refusal) -> Refusal | None:
    if isinstance(rates, Refusal):
        return rates
    if rates.planned.max() <= 0:
        return Refusal("no_learning", msg("the learning rate is zero: nothing will change"))
    if target <= last:
        return Refusal(
            "already_there",
            msg("the run is already at step {last:count}", last=last),
            msg("give a later step with {option:code}", option="--at=STEP"),
        )
    warmup = case.schedule.warmup_iters if case.schedule is not None else 0
    if last < WARMED_UP * warmup:
        return Refusal(
            "warming_up",
            msg("the run has hardly left its warm-up ({last:count} of {warmup:count} updates)", last=last, warmup=warmup),
            msg("ask again after {steps:count} updates", steps=int(WARMED_UP * warmup)),
        )
    if target > FARTHEST * last:
        return Refusal(
            "too_far",
            msg(
                "step {target:count} is {times:times} what was seen; beyond {farthest:times} one curve says nothing",
                target=target,
                times=target / last,
                farthest=FARTHEST,
            ),
            msg("ask again after {steps:count} updates", steps=int(np.ceil(target / FARTHEST))),
        )
    return None


@dataclass(frozen=True)
class Points:
    step: np.ndarray
    loss: np.ndarray
    series: str
    offset: float = 0.0  # val over batch loss now, where the curve is that of the batch losses


def _points(case: Case) -> Points | Refusal:
    """Evaluations where they are enough, else means of the batch losses over stretches, shifted to the last evaluation."""
    warmup = case.schedule.warmup_iters if case.schedule is not None else 0
    steps, vals = case.vals
    kept = steps > max(1, warmup)
    late = steps[kept] >= (steps[-1] / 3 if len(steps) else 0)
    if late.sum() >= FEWEST_POINTS:
        return Points(*_thinned(steps[kept].astype(int), vals[kept]), "val")
    steps_b, losses = case.losses
    after = steps_b > max(1, warmup)
    if after.sum() < FEWEST_ROWS and len(steps) and (steps[kept] >= steps[-1] / 10).sum() >= FEWEST:
        return Points(steps[kept].astype(int), vals[kept], "val")
    if after.sum() < FEWEST_ROWS:
        return Refusal(
            "too_few_points",
            msg(
                "there are {evals:count} evaluations and {rows:count} losses behind the warm-up, too few for a curve",
                evals=int(kept.sum()),
                rows=int(after.sum()),
            ),
            msg("evaluate more often, or ask again later"),
        )
    x, y = _stretches(steps_b[after], losses[after])
    beside = steps >= x[0]  # evaluations before the first stretch say nothing about the distance of val from the batch losses
    if not beside.any():
        return Points(x.astype(int), y, "batch")
    offset = float(vals[-1] - y[np.argmin(np.abs(x - steps[-1]))])
    return Points(x.astype(int), y + offset, "val", offset)


def _thinned(steps: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of neighbours, where there are more points than a curve needs."""
    if len(steps) <= MOST_POINTS:
        return steps, losses
    edges = np.linspace(0, len(steps), MOST_POINTS + 1).astype(int)
    pairs = list(itertools.pairwise(edges))
    return np.array([int(steps[a:b].mean()) for a, b in pairs]), np.array([losses[a:b].mean() for a, b in pairs])


def _stretches(steps: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Medians over stretches of equal length: batch losses are noisy, and sometimes spike."""
    count = min(BLOCKS, len(steps) // 5)
    return block_medians(steps, losses, count)


def _cannot_be_extrapolated(case: Case, points: Points, target: int) -> Refusal | None:
    tail = case.steps.loss[-max(1, len(case.steps) // 20) :]
    if len(tail) and not np.isfinite(tail).all() and len(case.steps) > 20:
        return Refusal("not_finite", msg("the losses are no longer finite"), msg("see {command:code}", command="nanolens diagnose"))
    noise = noise_of(points.step, points.loss) or 0.0
    lowest, now = float(points.loss.min()), float(np.median(points.loss[-3:]))
    error = max(noise, case.eval_noise.value / 4 if case.eval_noise is not None else 0.0, 0.003)
    if now > lowest + OVERFIT * error and points.step[-1] > points.step[int(np.argmin(points.loss))] * 1.2:
        return Refusal(
            "rising",
            msg(
                "the loss is {above:nats} above its minimum of step {step:count}: no law of learning describes a rise",
                above=now - lowest,
                step=int(points.step[int(np.argmin(points.loss))]),
            ),
            msg("see {command:code}", command="nanolens diagnose"),
        )
    bigram = case.bigram_nats
    is_far = target > FAR_FROM_BIGRAM * points.step[-1]
    if bigram is not None and is_far and bigram - PAST_BIGRAM < now < bigram + PAST_BIGRAM:
        return Refusal(
            "bigram_level",
            msg(
                "the loss ({now:nats}) is still near {bigram:nats}, what the token before alone tells on this text: what a model "
                "learns after that level cannot be read off the curve before it",
                now=now, bigram=bigram,
            ),
            msg("ask again when the loss has come below {level:nats}", level=bigram - PAST_BIGRAM),
        )  # fmt: skip
    epochs = case.epochs_at(target)
    gap = _gap_grows(case)
    if epochs is not None and epochs > MANY_EPOCHS and gap:
        return Refusal(
            "overfitting",
            msg(
                "at that step the data would have been seen {epochs:about} times, and the gap between train and val is "
                "growing: when val turns cannot be told from one curve",
                epochs=epochs,
            ),
        )
    return None


def _past_bigram(case: Case, points: Points) -> Points:
    """Without the points on the way to the bigram level, where that is known and enough are left: they lie on another curve."""
    bigram = case.bigram_nats
    if bigram is None:
        return points
    above = np.flatnonzero(points.loss > bigram)
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


def _forecast(case: Case, rates: Rates, points: Points, target: int) -> Forecast | Refusal:
    last = int(points.step[-1])
    seen, planned = Progress(rates.seen[: max(last, 1)]), Progress(rates.planned)
    wanted = np.unique(np.linspace(min(last, target), target, CURVE).astype(int))
    # A curve that was shifted to one evaluation stands as badly as that one and the stretch beside it are known.
    shift_error = (noise_of(points.step, points.loss) or 0.0) if points.offset else 0.0
    found = draws_of(seen, planned, points.step, points.loss, wanted, MUON if case.text("optimizer") == "muon" else ADAM, shift_error)
    if found is None:
        return Refusal("no_law", msg("the recent points do not fall, so there is nothing to continue"))
    low, high = (1 - COVERAGE) / 2, (1 + COVERAGE) / 2
    curve = (wanted, found.quantile(0.5), found.quantile(low), found.quantile(high))
    notes = [*rates.notes, msg("E and the exponent cannot both be told from one curve: the interval is wide for a reason")]
    if points.offset:
        notes.append(msg("evaluations are few: the shape is that of the batch losses, shifted to the last evaluation"))
    epochs = case.epochs_at(target)
    if epochs is not None and epochs > 1:
        notes.append(msg("by then the data will have been seen {epochs:about} times; the law knows of no overfitting", epochs=epochs))
    return Forecast(
        at_step=target,
        loss=float(curve[1][-1]),
        low=float(curve[2][-1]),
        high=float(curve[3][-1]),
        now_step=last,
        now_loss=float(np.median(points.loss[-3:])),
        series=points.series,
        points=found.points,
        schedule=rates.words,
        notes=tuple(notes),
        curve=curve,
    )
