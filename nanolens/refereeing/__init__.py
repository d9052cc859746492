"""What was really learned from many tries: which changes gained more than luck, what they are worth once corrected for
having been picked, and what to repeat next. The share of the changes called a gain that are none is bounded over the
whole series, at whatever point it is stopped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nanolens.comparison.verdict import PRIOR_WEIGHT, seeds_needed
from nanolens.facts.statistics import CONFIDENCE
from nanolens.message import Message, msg
from nanolens.refereeing.levels import Gain, KnownNoise, ScoredTry, posterior
from nanolens.refereeing.series import CONFOUNDERS, NOT_A_GAIN, Series, Try, differing, noise_within
from nanolens.refereeing.sources import read_series

FALSE_SHARE = 0.09
"""Expected share of the changes called a gain that are none. Measured over series whose noise had to be guessed too,
it stays below a tenth (bench/referee.py)."""
HARM_SURENESS = 0.9
SETTLED = 0.02  # chance of a wrong decision below which a repeat is not worth its time
KNOWN_NOISE_FREEDOM = 8  # degrees of freedom with which the noise is known to a quarter: 1 / sqrt(2 x 8)

Decision = Literal["gain", "not_shown", "harm", "not_counted", "failed", "baseline"]


@dataclass(frozen=True)
class TryVerdict:
    of: Try
    name: str
    what: Message | str
    decision: Decision
    because: tuple[Message, ...]
    claimed: float | None  # by its score against that of what it changed
    gain: float | None  # shrunk: expected, given the whole series
    low: float | None
    high: float | None  # 95 % interval
    odds: float | None  # chance that it is a gain
    posterior: Gain | None = None

    @property
    def was_kept(self) -> bool:
        return self.of.status == "kept"


@dataclass(frozen=True)
class NoiseFloor:
    sd: float  # between repeats of one run
    low: float
    high: float  # 80 % interval
    origins: tuple[Message, ...]
    repeats: int  # of the baseline, that would make it known to a quarter; 0 where it is
    seconds: float | None  # that those would take


@dataclass(frozen=True)
class Repeat:
    """Runs a side that decide, in 80 of 100 cases, whether these changes gain what they seem to."""

    names: tuple[str, ...]
    gain: float
    runs: int
    seconds: float | None


@dataclass(frozen=True)
class Refereed:
    series: Series
    noise: NoiseFloor
    verdicts: tuple[TryVerdict, ...]
    false_share: float  # expected, of those called a gain
    luck: tuple[float, float] | None  # what the kept changes that are not shown are worth together, ±
    leaders: Repeat | None
    first: Repeat | None
    together: Repeat | None

    def those(self, decision: Decision) -> list[TryVerdict]:
        return [each for each in self.verdicts if each.decision == decision]

    @property
    def kept(self) -> list[TryVerdict]:
        """What was claimed: the changes that were kept."""
        return [each for each in self.verdicts if each.was_kept and each.decision != "baseline"]


def refereed(source: str, score: str | None = None, better: str | None = None) -> Refereed:
    return referee(read_series(source, score, better))


def referee(series: Series) -> Refereed:
    tries = series.tries
    places = [i for i, each in enumerate(tries) if _is_scored(tries, i)]
    scored = [_scored(series, i, places) for i in places]
    within = noise_within(tries)
    known = KnownNoise(_known_spread(series), PRIOR_WEIGHT) if series.spread else None
    found = posterior(scored, known, KnownNoise(*within) if within else None)
    gains: dict[int, Gain | None] = dict(zip(places, found.gains, strict=True))
    held = _held(gains)
    verdicts = tuple(_verdict(series, i, gains.get(i), i in held) for i in range(len(tries)))
    seconds = _median([each.seconds for each in tries if each.seconds is not None])
    freedom = (within[1] if within else 0) + (PRIOR_WEIGHT if known else 0)
    missing = max(0, math.ceil(KNOWN_NOISE_FREEDOM - freedom)) if within is None or freedom < KNOWN_NOISE_FREEDOM else 0
    floor = NoiseFloor(
        found.noise,
        found.noise_low,
        found.noise_high,
        tuple(_origins(series, within)),
        missing,
        _times(missing, seconds),
    )
    chances = [1 - gain.odds for i in held if (gain := gains[i]) is not None]
    unsure = [each for each in verdicts if each.was_kept and each.decision in ("not_shown", "harm") and each.posterior]
    luck = (
        (sum(v.gain or 0.0 for v in unsure), 2 * math.sqrt(sum(v.posterior.sd**2 for v in unsure if v.posterior)))
        if unsure
        else None
    )
    repeats = _Repeats(found.noise, seconds)
    return Refereed(
        series,
        floor,
        verdicts,
        float(np.mean(chances)) if chances else 0.0,
        luck,
        repeats.leaders(verdicts),
        repeats.first(verdicts),
        repeats.of(unsure) if len(unsure) > 1 else None,
    )


def _is_scored(tries: Sequence[Try], i: int) -> bool:
    """A try that is not counted matters only where others were built on it: then it is a level of its own."""
    return bool(tries[i].scores) and (tries[i].is_counted or any(each.parent == i for each in tries))


def _scored(series: Series, i: int, places: Sequence[int]) -> ScoredTry:
    each = series.tries[i]
    is_change = each.parent is not None and each.is_counted
    parent = places.index(each.parent) if is_change and each.parent is not None else None
    return ScoredTry(series.toward_lower(each.score), len(each.scores), parent)


def _known_spread(series: Series) -> float:
    """Between repeats, the evaluation's own error included where runs were evaluated on batches of their own."""
    assert series.spread is not None
    errors = [each.error for each in series.tries if each.error is not None]
    shared = len({each.settings.get("eval_iters") for each in series.tries}) == 1 and bool(errors)
    return series.spread[0] if shared or not errors else math.hypot(series.spread[0], float(np.median(errors)))


def _held(gains: dict[int, Gain | None]) -> set[int]:
    """The largest set whose expected share of false gains is within FALSE_SHARE. It holds at every point of a series:
    chances that are given all scores so far do not depend on when one looks."""
    order = sorted((i for i, gain in gains.items() if gain is not None), key=lambda i: -gains[i].odds)  # type: ignore[union-attr]
    false = 0.0
    held: set[int] = set()
    for i in order:
        false += 1 - gains[i].odds  # type: ignore[union-attr]
        if false > FALSE_SHARE * (len(held) + 1):
            break
        held.add(i)
    return held


def _verdict(series: Series, i: int, gain: Gain | None, is_held: bool) -> TryVerdict:
    each = series.tries[i]
    because = tuple(CONFOUNDERS[name] for name in each.confounders)
    before = None if each.parent is None else series.tries[each.parent].score
    is_compared = before is not None and bool(each.scores)
    claimed = (
        series.toward_lower(before) - series.toward_lower(each.score) if is_compared and before is not None else None
    )
    shown = (None, None, None, None)
    if gain is not None:
        tail = (1 - CONFIDENCE) / 2
        shown = (gain.mean, gain.quantile(tail), gain.quantile(1 - tail), gain.odds)  # type: ignore[assignment]
    return TryVerdict(each, each.name, differing(each), _decision(each, gain, is_held), because, claimed, *shown, gain)


def _decision(each: Try, gain: Gain | None, is_held: bool) -> Decision:
    if not each.scores:
        return "failed"
    if each.parent is None:
        return "baseline"
    if set(each.confounders) & set(NOT_A_GAIN) or gain is None:
        return "not_counted"
    if is_held:
        return "gain"
    return "harm" if gain.chances[2] > HARM_SURENESS else "not_shown"


def _origins(series: Series, within: tuple[float, int] | None) -> list[Message]:
    found = []
    if within is not None:
        repeated = sum(len(each.scores) > 1 for each in series.tries)
        found.append(
            msg(
                "{sd:about} between the repeats of {count:count try|tries} ({freedom:count} degrees of freedom)",
                within[0],
                repeated,
                within[1],
            )
        )
    if series.spread is not None:
        found.append(series.spread[1])
        errors = [each.error for each in series.tries if each.error is not None]
        if errors:
            found.append(msg("error of one evaluation, {error:nats}", float(np.median(errors))))
    found.append(
        msg(
            "the scatter of {count:count score|scores}, most of which changed nothing",
            sum(each.is_counted for each in series.tries),
        )
    )
    return found


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _times(runs: int, seconds: float | None) -> float | None:
    return None if seconds is None else runs * seconds


@dataclass(frozen=True)
class _Repeats:
    noise: float
    seconds: float | None  # of one run

    def of(self, verdicts: Sequence[TryVerdict], gain: float | None = None) -> Repeat | None:
        expected = sum(each.gain or 0.0 for each in verdicts) if gain is None else gain
        if expected <= 0:
            return None
        runs = seeds_needed(self.noise, expected)
        return Repeat(tuple(each.name for each in verdicts), expected, runs, _times(2 * runs, self.seconds))

    def leaders(self, verdicts: Sequence[TryVerdict]) -> Repeat | None:
        """The two with the largest gains over the same state."""
        best = sorted(
            (each for each in verdicts if each.decision in ("gain", "not_shown")), key=lambda v: -(v.gain or 0.0)
        )
        pairs = [(a, b) for a in best[:1] for b in best[1:] if a.of.parent == b.of.parent and (b.gain or 0.0) > 0]
        if not pairs:
            return None
        ahead, behind = pairs[0]
        return self.of((ahead, behind), (ahead.gain or 0.0) - (behind.gain or 0.0))

    def first(self, verdicts: Sequence[TryVerdict]) -> Repeat | None:
        """The undecided one that has most to lose: the chance of a wrong decision times the gain at stake."""

        def at_stake(each: TryVerdict) -> float:
            gain = each.posterior
            return 0.0 if gain is None else min(gain.odds, 1 - gain.odds) * gain.means[0]

        unsure = [each for each in verdicts if each.odds is not None and SETTLED < each.odds < 1 - SETTLED]
        open_ones = [each for each in unsure if each.decision in ("not_shown", "gain")]
        chosen = max(open_ones, key=at_stake, default=None)
        if chosen is None or chosen.posterior is None or at_stake(chosen) <= 0:
            return None
        return self.of((chosen,), chosen.posterior.means[0])
