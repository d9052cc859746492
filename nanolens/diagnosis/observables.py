"""What can be seen of a run, in terms without a scale: losses as shares of ln(vocabulary), rates over the common rate,
times over each other. Each observable is a number or, where the run does not show it, absent. What each speaks for is
learned from recorded runs of known cause (weights.json), not written down here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.expectation import Expected, Moments, expected_loss, top_of
from nanolens.facts.laws import usual_rate
from nanolens.facts.statistics import noise_of
from nanolens.facts.timing import is_first, ordinary
from nanolens.message import Message, msg
from nanolens.sizing.schedule import lr_of


@dataclass(frozen=True)
class View:
    """A run's curves in the units of the observables."""

    case: Case
    moments: Moments | None = None

    @cached_property
    def top(self) -> float | None:
        return top_of(self.case)

    @cached_property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """The losses of updates; those of evaluations where there are too few."""
        steps, losses = self.case.losses
        return (steps, losses) if len(steps) >= min(4, len(self.case.curve[0])) else self.case.curve

    @cached_property
    def end(self) -> float | None:
        y = self.curve[1]
        return float(np.median(y[-max(3, len(y) // 10) :])) if len(y) else None

    def level(self, frac: float) -> tuple[float, float] | None:
        """(step, loss) about there in the run, where five losses or more show it."""
        x, y = self.curve
        if len(y) < 8:
            return None
        wide = max(1, len(y) // 16)
        at = int(np.searchsorted(x, frac * x[-1]))
        part = slice(max(0, at - wide), at + wide + 1)
        return (float(np.median(x[part])), float(np.median(y[part]))) if len(y[part]) else None

    @cached_property
    def levels(self) -> np.ndarray:
        """Running medians of the curve, of a width that leaves eight of them or more."""
        y = self.curve[1]
        wide = max(1, min(9, len(y) // 8))
        return np.array([np.median(y[at : at + wide]) for at in range(0, len(y) - wide + 1, max(1, wide // 2))])

    @cached_property
    def noise(self) -> float | None:
        return noise_of(*self.curve)

    def expected(self, step: float) -> Expected | None:
        return expected_loss(self.case, step, self.moments)

    @cached_property
    def gaps(self) -> np.ndarray:
        """Val above train at each evaluation after the first updates."""
        case = self.case
        kept = [row for row in case.paired_evals if case.evals.step[row] > 0]
        return case.evals.val[kept] - case.train_at_evals[kept]

    @cached_property
    def times(self) -> np.ndarray:
        """Of ordinary updates on a CPU: the recorded runs know no other machine."""
        case = self.case
        return case.steps.took_s[ordinary(case)] if case.is_cpu else np.zeros(0)

    @cached_property
    def norms(self) -> np.ndarray:
        norms = self.case.steps.grad_norm
        return norms[np.isfinite(norms)]


Measure = Callable[[View], float | None]


@dataclass(frozen=True)
class Observable:
    name: str
    what: Message
    kind: str  # of message.KINDS
    measure: Measure


OBSERVABLES: dict[str, Observable] = {}


def observable(what: Message, kind: str = "number") -> Callable[[Measure], Measure]:
    def keep(measure: Measure) -> Measure:
        name = measure.__name__
        OBSERVABLES[name] = Observable(name, what, kind, measure)
        return measure

    return keep


def observed(view: View) -> Mapping[str, float]:
    seen = {name: each.measure(view) for name, each in OBSERVABLES.items()}
    return {name: float(value) for name, value in seen.items() if value is not None and math.isfinite(value)}


def _share(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole


def _log10(value: float | None) -> float | None:
    return None if value is None or not value > 0 else math.log10(value)


# --- the loss


@observable(msg("first loss over that of random guessing"))
def first_over_guessing(view: View) -> float | None:
    case = view.case
    return None if case.is_vocab_guessed or case.is_pretrained else _share(case.first_loss, case.ln_vocab)


@observable(msg("first loss over accumulation steps x that of random guessing"))
def first_over_summed(view: View) -> float | None:
    case, count = view.case, view.case.whole("gradient_accumulation_steps")
    if count is None or count < 2 or case.ln_vocab is None or case.first_loss is None or case.is_vocab_guessed:
        return None
    return case.first_loss / (count * case.ln_vocab)


@observable(msg("first loss over the loss after the first updates"))
def first_over_second(view: View) -> float | None:
    first, y = view.case.first_loss, view.curve[1]
    return None if first is None or len(y) < 8 else _share(first, float(np.median(y[1:4])))


@observable(msg("loss at the end, as a share of random guessing"))
def end_over_guessing(view: View) -> float | None:
    return _share(view.end, view.top)


@observable(msg("lowest loss, as a share of random guessing"))
def lowest_over_guessing(view: View) -> float | None:
    return _share(float(view.levels.min()), view.top) if len(view.levels) else None


@observable(msg("loss at the end above the unigram level, as a share of random guessing"))
def end_above_unigram(view: View) -> float | None:
    level = view.case.unigram_nats
    return None if level is None or view.end is None else _share(view.end - level, view.top)


@observable(msg("loss at the end above the bigram level, as a share of random guessing"))
def end_above_bigram(view: View) -> float | None:
    level = view.case.bigram_nats
    return None if level is None or view.end is None else _share(view.end - level, view.top)


def _off(view: View, place: tuple[float, float] | None) -> float | None:
    """Standard deviations above a sound run."""
    expected = None if place is None else view.expected(place[0])
    return None if place is None or expected is None else (place[1] - expected.loss) / expected.spread


@observable(msg("loss at the end above a sound run's, in its standard deviations"))
def end_off(view: View) -> float | None:
    x = view.curve[0]
    return None if view.end is None or not len(x) else _off(view, (float(x[-1]), view.end))


@observable(msg("loss in the middle above a sound run's, in its standard deviations"))
def middle_off(view: View) -> float | None:
    return _off(view, view.level(0.5))


@observable(msg("loss after a tenth above a sound run's, in its standard deviations"))
def early_off(view: View) -> float | None:
    return _off(view, view.level(0.1))


@observable(msg("fall since a tenth of the run, as a share of what a sound run falls"))
def fall_over_expected(view: View) -> float | None:
    early, x = view.level(0.1), view.curve[0]
    if early is None or view.end is None:
        return None
    one, other = view.expected(early[0]), view.expected(float(x[-1]))
    if one is None or other is None or one.loss - other.loss < 0.02 * one.loss:
        return None
    return (early[1] - view.end) / (one.loss - other.loss)


@observable(msg("fall of the loss over the second half, as a share of random guessing"))
def late_fall(view: View) -> float | None:
    middle = view.level(0.5)
    return None if middle is None or view.end is None else _share(middle[1] - view.end, view.top)


@observable(msg("fall over the second half, as a share of what a sound run falls"))
def late_fall_over_expected(view: View) -> float | None:
    middle, x = view.level(0.5), view.curve[0]
    if middle is None or view.end is None:
        return None
    one, other = view.expected(middle[0]), view.expected(float(x[-1]))
    if one is None or other is None or one.loss - other.loss < 0.01 * one.loss:
        return None
    return (middle[1] - view.end) / (one.loss - other.loss)


@observable(msg("loss of the updates over the train loss of the evaluations"))
def update_over_eval(view: View) -> float | None:
    case, (steps, losses) = view.case, view.case.losses
    rows = np.flatnonzero(np.isfinite(case.evals.train) & (case.evals.train > 0.05))
    near = [np.abs(steps - case.evals.step[row]).argmin() for row in rows] if len(steps) >= 4 else []
    return float(np.median(losses[near] / case.evals.train[rows])) if len(near) >= 2 else None


@observable(msg("fall of the loss over the first tenth, as a share of random guessing"))
def early_fall(view: View) -> float | None:
    early, first = view.level(0.1), view.case.first_loss
    return None if early is None or first is None else _share(first - early[1], view.top)


@observable(msg("loss at the end above its lowest level, as a share of random guessing"))
def rise(view: View) -> float | None:
    return None if not len(view.levels) or view.end is None else _share(view.end - float(view.levels.min()), view.top)


@observable(msg("highest loss above the first one, as a share of random guessing"))
def highest(view: View) -> float | None:
    first, levels = view.case.first_loss, view.levels
    return None if first is None or len(levels) < 3 else _share(float(levels[1:].max()) - first, view.top)


@observable(msg("largest rise between neighbouring levels, in units of their scatter"))
def jump_sigmas(view: View) -> float | None:
    noise, levels = view.noise, view.levels
    return None if not noise or len(levels) < 6 else float(np.log10(max(0.1, np.diff(levels)[1:].max() / noise)))


@observable(msg("largest rise between neighbouring levels, as a share of random guessing"))
def jump(view: View) -> float | None:
    return _share(float(np.diff(view.levels)[1:].max()), view.top) if len(view.levels) >= 6 else None


@observable(msg("scatter of the losses, as a share of the loss"))
def scatter(view: View) -> float | None:
    return _log10(_share(view.noise, view.end))


@observable(msg("scatter of the losses x sqrt(tokens of an update), as a share of the loss"))
def scatter_per_token(view: View) -> float | None:
    tokens = view.case.micro_batch_tokens
    return (
        None
        if tokens is None or not view.noise or not view.end
        else _log10(view.noise / abs(view.end) * math.sqrt(tokens))
    )


@observable(msg("share of losses that equal the one before to the last digit"), "share")
def equal(view: View) -> float | None:
    y = view.curve[1]
    return float(np.mean(np.diff(y) == 0)) if len(y) >= 2 else None


@observable(msg("share of the run since which the loss has not fallen beyond its scatter"), "share")
def flat_share(view: View) -> float | None:
    x, y = view.curve
    noise = view.noise
    if len(y) < 12 or noise is None or view.end is None:
        return None
    above = np.flatnonzero(y > view.end + 3 * noise + 0.005 * abs(view.end))
    return float(1 - x[above[-1]] / x[-1]) if len(above) else 1.0


@observable(msg("share of losses that are no number"), "share")
def not_finite(view: View) -> float | None:
    case = view.case
    return len(case.not_finite_rows) / len(case.steps) if len(case.steps) else None


# --- gradients


@observable(msg("gradient norm (log10 of the median)"))
def norm(view: View) -> float | None:
    return _log10(float(np.median(view.norms))) if len(view.norms) >= 3 else None


@observable(msg("largest gradient norm over the median (log10)"))
def largest_norm(view: View) -> float | None:
    norms = view.norms[1:]
    return _log10(_share(float(norms.max()), float(np.median(norms)))) if len(norms) >= 5 else None


@observable(msg("gradient norm at the end over that at the start (log10)"))
def norm_growth(view: View) -> float | None:
    norms, part = view.norms, max(2, len(view.norms) // 5)
    return _log10(_share(float(np.median(norms[-part:])), float(np.median(norms[:part])))) if len(norms) >= 8 else None


@observable(msg("halvings of the loss scale"))
def scale_fall(view: View) -> float | None:
    scales = view.case.steps.loss_scale[view.case.rows("loss_scale")]
    return float(np.log2(scales.max() / scales[-1])) if len(scales) >= 2 else None


# --- val beside train


@observable(msg("val above train at the last evaluation, as a share of random guessing"))
def gap(view: View) -> float | None:
    return _share(float(np.median(view.gaps[-2:])), view.top) if len(view.gaps) else None


@observable(msg("val above train at the first evaluation, as a share of random guessing"))
def first_gap(view: View) -> float | None:
    return _share(float(np.median(view.gaps[:2])), view.top) if len(view.gaps) >= 3 else None


@observable(msg("growth of the gap between val and train, as a share of random guessing"))
def gap_growth(view: View) -> float | None:
    gaps = view.gaps
    return _share(float(np.median(gaps[-2:]) - np.median(gaps[:2])), view.top) if len(gaps) >= 3 else None


@observable(msg("val above its lowest, as a share of random guessing"))
def val_rise(view: View) -> float | None:
    vals = view.case.vals[1]
    return _share(float(np.median(vals[-2:]) - vals.min()), view.top) if len(vals) >= 3 else None


@observable(msg("val above train before the first update, as a share of random guessing"))
def gap_before(view: View) -> float | None:
    case = view.case
    at_0 = [row for row in case.both_splits if case.evals.step[row] == 0]
    return _share(float(case.evals.val[at_0[0]] - case.evals.train[at_0[0]]), view.top) if at_0 else None


@observable(msg("val at the end above a sound run's, in its standard deviations"))
def val_off(view: View) -> float | None:
    steps, vals = view.case.vals
    return _off(view, (float(steps[-1]), float(np.median(vals[-2:])))) if len(vals) else None


@observable(msg("gap of val after several passes over the data, as a share of random guessing"))
def gap_of_repeated(view: View) -> float | None:
    epochs = view.case.epochs
    return gap(view) if epochs is not None and epochs > 4 else None


# --- settings


@observable(msg("learning rate over the common one (log10)"))
def rate(view: View) -> float | None:
    case, size, peak = view.case, view.case.parameters, view.case.peak_lr
    if not case.is_adam or case.is_pretrained or size is None or not peak:
        return None
    return math.log10(peak / usual_rate(size.value))


@observable(msg("learning rate (log10), where the size is not known"))
def bare_rate(view: View) -> float | None:
    case = view.case
    return _log10(case.peak_lr) if case.parameters is None and case.is_adam and case.is_from_scratch else None


@observable(msg("tokens of an update (log10)"))
def tokens(view: View) -> float | None:
    per_update = view.case.tokens_per_update
    return None if per_update is None else math.log10(per_update.value)


@observable(msg("dropout"))
def dropout(view: View) -> float | None:
    return view.case.number("dropout")


@observable(msg("width of the model (log2)"))
def width(view: View) -> float | None:
    wide = view.case.whole("n_embd")
    return None if wide is None else math.log2(wide)


@observable(msg("passes over the training split (log10)"))
def passes(view: View) -> float | None:
    return _log10(view.case.epochs)


@observable(msg("warm-up as a share of the run"), "share")
def warmup(view: View) -> float | None:
    return _share(view.case.number("warmup_iters"), view.case.number("max_iters"))


@observable(msg("whether a rate that decays begins at its peak"))
def begins_at_peak(view: View) -> float | None:
    case, warm = view.case, view.case.whole("warmup_iters")
    return None if warm is None or case.get("decay_lr") is False or case.is_pretrained else float(warm == 0)


@observable(msg("share of the run at the lowest learning rate"), "share")
def time_at_floor(view: View) -> float | None:
    case, ends, planned = view.case, view.case.whole("lr_decay_iters"), view.case.max_iters
    return None if ends is None or not planned or case.get("decay_lr") is False else max(0.0, 1 - ends / planned)


@observable(msg("learning rate at the end over its peak"), "share")
def rate_left(view: View) -> float | None:
    case, length = view.case, view.case.max_iters
    if case.schedule is not None and length and case.schedule.learning_rate:
        return lr_of(case.schedule, length) / case.schedule.learning_rate
    return None


@observable(msg("largest rise of the printed learning rate after the warm-up (log10)"))
def rate_jump(view: View) -> float | None:
    rates = view.case.steps.lr[view.case.rows("lr")]
    top = int(np.argmax(rates)) if len(rates) else 0
    return float(np.log10(rates[top] / rates[top - 1])) if top > 2 and rates[top - 1] > 0 else None


@observable(msg("length of the run (log10 of updates)"))
def length(view: View) -> float | None:
    return _log10(float(view.case.max_iters or view.case.last_step))


# --- times


@observable(msg("time of an update at the end over that at the start (log10)"))
def slowing(view: View) -> float | None:
    took = view.times
    part = max(2, len(took) // 4)
    return _log10(_share(float(np.median(took[-part:])), float(np.median(took[:part])))) if len(took) >= 8 else None


@observable(msg("scatter of the time of an update, as a share of it (log10)"))
def unsteadiness(view: View) -> float | None:
    took = view.times
    return (
        _log10(_share(float(np.quantile(took, 0.9) - np.median(took)), float(np.median(took))))
        if len(took) >= 8
        else None
    )


@observable(msg("FLOP/s reached (log10)"))
def flops(view: View) -> float | None:
    case, took, per_update, cost = (
        view.case,
        view.case.step_time,
        view.case.tokens_per_update,
        view.case.flops_per_token,
    )
    if took is None or per_update is None or cost is None or not case.is_cpu:
        return None
    return _log10(per_update.value * cost.value / took.value)


@observable(msg("share of time waiting for data"), "share")
def waiting(view: View) -> float | None:
    case, took = view.case, view.case.steps
    both = np.isfinite(took.data_s) & np.isfinite(took.took_s) & ~is_first(case)
    return float(np.median(took.data_s[both] / took.took_s[both])) if both.sum() >= 3 else None


# --- resumes


@observable(msg("loss after a resume above that before, in units of its scatter"))
def resume_jump(view: View) -> float | None:
    case, noise = view.case, view.noise
    steps, losses = case.losses
    found = []
    for mark in case.marks("resume", "attempt"):
        before, after = losses[steps <= (mark.step or 0)][-6:], losses[steps > (mark.step or 0)][:6]
        if mark.step and len(before) >= 2 and len(after) >= 2 and noise:
            found.append(float(np.median(after) - np.median(before)) / noise)
    return max(found, default=None)


@observable(msg("rise of an evaluation at a resume, as a share of random guessing"))
def resume_eval(view: View) -> float | None:
    found = [mark.now - mark.was for mark in view.case.marks("resume", "attempt") if np.isfinite(mark.now - mark.was)]
    return _share(max(found), view.top) if found else None


# --- distances, in either direction


def _distance(name: str, from_: float) -> Measure:
    return lambda view: None if (value := OBSERVABLES[name].measure(view)) is None else abs(value - from_)


for _name, _of, _from, _what in (
    ("rate_off", "rate", 0.0, msg("distance of the learning rate from the common one (log10)")),
    ("end_off_either_way", "end_off", 0.0, msg("distance of the end from a sound run's, in its standard deviations")),
    ("end_off_guessing", "end_over_guessing", 1.0, msg("distance of the end from random guessing, as a share of it")),
    ("end_off_unigram", "end_above_unigram", 0.0, msg("distance of the end from the unigram level")),
    ("end_off_bigram", "end_above_bigram", 0.0, msg("distance of the end from the bigram level")),
    ("first_off_summed", "first_over_summed", 1.0, msg("distance of the first loss from a sum over micro-batches")),
):
    OBSERVABLES[_name] = Observable(_name, _what, "number", _distance(_of, _from))
