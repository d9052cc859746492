"""How the loss goes where the log ends: it still falls, it stands still before its time, or it has finished."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, finding, rule
from nanolens.facts import locations
from nanolens.facts.case import ASSUMED_NOISE, Case
from nanolens.facts.expectation import Expected, expected_loss, top_of
from nanolens.facts.finding import Evidence, Figure, Sureness, known, see
from nanolens.facts.statistics import noise_of, trend
from nanolens.message import msg

LATE_FRAC = 0.5  # of the updates: what the end of a run is judged by
MANY_LATE = 8  # points from which their own order tells a trend; fewer are weighed against the scatter
FEWEST_LATE = 3
ASSUMED_BATCH_NOISE = 0.05  # of a batch loss, as a share of it, where the log does not show it
SIGMAS = 2.0
SOUND_SHARE = 0.5  # of what a sound run gains: with less, a run stands still
SLOWEST_FRAC, SLOWEST_POWER = 0.1, 0.1  # no known run falls more slowly than this power, on a tenth of its loss
USUAL_POWER = 0.2  # of the steps, with which the loss of small models nears its end
END_FRAC = 0.3  # of ln(vocabulary): where small models end, for letters (1.25 of 4.17) and for GPT-2's tokens (3.2)
HIGH_FRAC = 0.4  # of ln(vocabulary): clearly above that
WIDE_FRAC = 0.1  # of ln(vocabulary): an expectation with a wider spread tells nothing
AT_THE_END_FRAC = 0.2  # of the steps: what is looked at where a schedule has ended
NO_RATE = 0.02  # of the largest: below it a rate counts as gone
LOW_RATE = 0.11  # of the largest: where the usual schedules end
FEWEST_RATES = 3
LONG_ENOUGH = 300  # updates before which a level is part of the usual way down


@dataclass(frozen=True)
class Late:
    """The end of a curve."""

    what: str  # "val" or "loss"
    first: float  # step
    last: float
    fall: float  # nats between the two, by a straight line
    error: float  # one standard deviation of it
    level: float
    points: int
    sound: float  # nats that a sound run gains there at least
    is_ordered: bool  # each of the last points is lower than the one before: of four, by chance one time in 24

    @property
    def is_falling(self) -> bool:
        return self.fall > (1 if self.is_ordered else SIGMAS) * self.error and self.fall > 0.1 * self.sound

    @property
    def is_flat(self) -> bool:
        """Surely slower than a sound run: not merely too noisy to see."""
        return self.fall + SIGMAS * self.error < self.sound

    @property
    def interval(self) -> tuple[float, float]:
        return self.fall - SIGMAS * self.error, self.fall + SIGMAS * self.error


def late(case: Case, frac: float = LATE_FRAC) -> Late | None:
    """By the evaluations where there are enough of them, else by the batch losses."""
    series = [("val", *case.vals, case.eval_error), ("loss", *case.losses, None)]
    found = [end for what, x, y, noise in series if (end := _end_of(case, frac, what, x, y, noise)) is not None]
    # A series that stopped long before the run did tells nothing of its end.
    return next((end for end in found if end.last >= 0.7 * case.last_step), None)


def _end_of(case: Case, frac: float, what: str, x: np.ndarray, y: np.ndarray, noise: float | None) -> Late | None:
    """The last `frac` of its steps, three points at least; the first of all is no part of it."""
    if len(x) <= FEWEST_LATE:
        return None
    count = max(FEWEST_LATE, int((x >= x[-1] - frac * (x[-1] - x[0])).sum()))
    at, values = x[-count:], y[-count:]
    if at[-1] <= at[0]:
        return None
    length, level = float(at[-1] - at[0]), float(np.median(values[-3:]))
    slope = trend(at, values) if len(at) >= MANY_LATE else None
    if slope is not None:
        fall, error = -slope.slope * length, (slope.high - slope.low) * length / (2 * 1.96)
    else:
        fall, error = _line(at, values, _scatter(x, y, noise))
    is_ordered = bool((np.diff(y[-max(4, count) :]) < 0).all())
    sound = _sound_gain(case, at, values)
    return Late(what, float(at[0]), float(at[-1]), fall, error, level, len(at), sound, is_ordered)


def _scatter(x: np.ndarray, y: np.ndarray, noise: float | None) -> float:
    """Of one point; where there are too few points to see it, as much as is usual."""
    later = len(x) // 3 if len(x) >= 8 else 0
    seen = noise_of(x[later:], y[later:])
    assumed = ASSUMED_BATCH_NOISE * abs(float(np.median(y))) if noise is None else max(noise, 0.5 * ASSUMED_NOISE)
    return max(seen, 0.2 * assumed) if seen is not None else assumed


def _line(x: np.ndarray, y: np.ndarray, noise: float) -> tuple[float, float]:
    """The fall of a straight line through the points, and its standard error from the scatter of one."""
    centred = x - x.mean()
    squares, length = float(centred @ centred), float(x[-1] - x[0])
    return -float(centred @ (y - y.mean())) / squares * length, noise / math.sqrt(squares) * length


def _sound_gain(case: Case, x: np.ndarray, y: np.ndarray) -> float:
    """What a sound run gains over these updates at least: half of what is expected of it. Where recorded runs tell
    nothing of such a run, a slow power law down to where the losses of such vocabularies end."""
    start, end, level = max(float(x[0]), 1.0), max(float(x[-1]), 1.0), float(np.median(y))
    least = SLOWEST_FRAC * abs(level) * (1 - (start / end) ** SLOWEST_POWER)
    before, after = told(case, start), told(case, end)
    if before is not None and after is not None:
        return max(least, SOUND_SHARE * (before.loss - after.loss))
    top = None if case.is_pretrained or case.counts_epochs else top_of(case)
    if top is None:
        return least
    return max(least, SOUND_SHARE * USUAL_POWER * math.log(end / start) * (level - END_FRAC * top))


def told(case: Case, step: float) -> Expected | None:
    """What recorded runs tell of such a run, where it is not too far from them all."""
    expected, top = expected_loss(case, step), top_of(case)
    return expected if expected is not None and top is not None and expected.spread < WIDE_FRAC * top else None


def schedule_has_ended(case: Case) -> bool:
    """By the printed rates, or by the formula of a schedule that is known."""
    rates = case.steps.lr[case.rows("lr")]
    if len(rates) >= FEWEST_RATES:
        highest, later = float(rates.max()), float(rates[len(rates) // 2 :].max())
        if highest > 0 and rates[-1] <= NO_RATE * highest and rates[-1] < later:
            return True
    schedule = case.schedule
    if schedule is None or not schedule.decay_lr or schedule.learning_rate <= 0:
        return False
    is_low = schedule.min_lr <= LOW_RATE * schedule.learning_rate
    return is_low and case.last_step >= 0.98 * schedule.decay_ends


def decays_later(case: Case) -> bool:
    """The rate is still high, and its schedule will bring it down: a flat loss there is by design."""
    schedule, lr = case.schedule, case.lr_at(case.last_step)
    if schedule is None or not schedule.decay_lr or lr is None or schedule.learning_rate <= 0:
        return False
    is_between = 0.2 * schedule.decay_ends < case.last_step < 0.9 * schedule.decay_ends
    return is_between and lr >= 1.5 * max(schedule.min_lr, NO_RATE * schedule.learning_rate)


def is_as_known(case: Case) -> bool:
    """The lowest val loss is one that a known run of this config has."""
    reference = case.reference
    if reference is None or not len(case.vals[1]):
        return False
    good = reference.best_val if reference.best_val is not None else reference.end_val
    return good is not None and float(case.vals[1].min()) <= good + 5 * reference.spread


@rule("finished")
def schedule_is_over(case: Case) -> Answers:
    """The schedule is over, and the loss is flat."""
    end = late(case, AT_THE_END_FRAC) if schedule_has_ended(case) else None
    if end is None or end.is_falling:
        return
    rate, where = case.lr_at(case.last_step), msg("step {step:count}", case.last_step)
    if rate is not None:
        yield finding("finished", "likely", Seen(rate, case.peak_lr, where, case.last_step))


@rule("still_improving", needs=("has_a_curve",))
def still_falling(case: Case) -> Answers:
    """Is it still improving?"""
    has_ended = schedule_has_ended(case)
    end = late(case, AT_THE_END_FRAC if has_ended else LATE_FRAC)
    if end is None or not end.is_falling:
        return
    low, high = end.interval
    fall = Seen(end.fall, msg("0 for a run that has finished improving"), locations.steps(end.first, end.last))
    planned, name, sets = case.whole("max_iters"), "still_improving", None
    if has_ended or (planned is not None and case.last_step >= 0.98 * planned):
        name, sets = "still_improving.at_its_end", ("max_iters", planned, 2 * planned) if planned else None
    yield finding(name, "likely", fall, *_more(end), sets=sets, points=end.points, low=max(low, 0.0), high=high)


def _more(end: Late) -> list[Evidence]:
    """What as many updates again would bring, if the loss went on with the logarithm of the steps."""
    if end.first < 1:
        return []
    gain = end.fall * math.log(2) / math.log(end.last / end.first)
    how = msg("if the loss goes on falling with the logarithm of the steps; the rate's decay comes on top")
    where = msg("from step {first:count} to {last:count}", int(end.last), int(2 * end.last))
    return [see(msg("to be gained by as many steps again"), gain, msg("at the most"), where, how, "nats")]


@rule("still_improving", only=("schedule",))
def lr_left(case: Case) -> Answers:
    """A flat curve in the middle of a schedule: the decay that is still to come brings the loss down by itself."""
    end, step = late(case), case.last_step
    if decays_later(case) and len(case.curve[1]) and (end is None or not end.is_falling):
        schedule = known(case.schedule)
        where = msg("step {step:count} of {ends:count}", step, schedule.decay_ends)
        yield finding("still_improving.lr_left", "likely", Seen(case.lr_at(step), schedule.min_lr, where, step))


@rule("plateau", needs=("has_a_curve",))
def plateau(case: Case) -> Answers:
    """Flat where a sound run would still gain, and no schedule that would explain it."""
    end = late(case)
    if (
        end is None
        or case.is_pretrained
        or not end.is_flat
        or end.last < LONG_ENOUGH + (case.whole("warmup_iters") or 0)
    ):
        return
    if schedule_has_ended(case) or decays_later(case) or case.counts_epochs:
        return
    usual = _usual_level(case, end)
    if usual is None or end.level < float(str(usual.usual)):
        return  # as low as sound runs come: there it is the size or the text that holds it
    low, high = end.interval
    gained = Seen(end.fall, msg("{sound:nats} or more", end.sound), locations.steps(end.first, end.last), end.first)
    since, level = int(end.first), end.level
    yield finding("plateau", "likely", gained, usual, since=since, level=level, low=low, high=high)


def _usual_level(case: Case, end: Late) -> Evidence | None:
    """Where a run that has got as far as it can would stand."""
    expected, top, where = told(case, end.last), top_of(case), msg("step {step:count}", int(end.last))
    if expected is not None:
        how = msg("sound runs of what is known of this one; two of three lie within {spread:nats}", expected.spread)
        return see(msg("loss at the end"), end.level, expected.loss + expected.spread, where, how, "nats")
    if top is None:
        return None
    how = msg("small models of such a vocabulary end at {share:share} of its logarithm", END_FRAC)
    return see(msg("loss at the end"), end.level, HIGH_FRAC * top, where, how, "nats")


LARGEST_VOCABULARY = 262_144  # of the tokenizers in use
LONG_AFTER_START = 100  # updates
CLEARLY = 1.02  # times the loss of a guess


@rule("worse_than_guessing", needs=("losses>=2",))
def worse_than_guessing(case: Case) -> Answers:
    """Long after the start the loss is no lower than that of a guess among all tokens."""
    x, y = case.curve
    if len(y) < 2 or case.counts_epochs or x[-1] < LONG_AFTER_START + (case.whole("warmup_iters") or 0):
        return
    vocab: Figure | None = case.vocab_size
    guess, last = math.log(LARGEST_VOCABULARY if vocab is None else vocab.value), float(np.median(y[-3:]))
    if min(last, float(y[-1])) < 1.005 * guess:
        return
    sureness: Sureness = "certain" if last > CLEARLY * guess and not (vocab and case.is_vocab_guessed) else "likely"
    loss = Seen(last, msg("below {level:nats}", guess), msg("step {step:count}", int(x[-1])), x[-1])
    count = LARGEST_VOCABULARY if vocab is None else int(vocab.value)
    yield finding("worse_than_guessing", sureness, loss, step=int(x[-1]), vocab=count)
