"""What each try of a series gained, from all scores together.

Every try starts from a state (the baseline, or a change that was kept) and its score is the level of that state, less
what the change gains, plus noise. Most changes gain nothing, some a little, some do harm. How often, how much, and how
large the noise is, is not known: the answer is an average over a grid of such worlds, each weighed by how well it
explains the scores. Since whoever kept a change looked at nothing but these scores, that it was picked for its luck
needs no further correction: a lucky score is explained by luck, and the tries that were built on it show its level
again. (Gaussian spike and slab; exact sums over a lattice of levels, along the tree of states.)"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from nanolens.facts.statistics import MAD_TO_SD

NOISES = np.geomspace(0.5, 2.0, 9)  # over the first guess of the noise
GAIN_SIZES = np.array([0.7, 1.2, 1.8, 2.4, 3.0, 3.7, 4.6, 6.0, 9.0, 15.0, 40.0])  # likewise
GAIN_SIZES_PRIOR = np.array([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.7, 0.3])
SIZE_SPREAD = 0.1  # of the gains of one size, over that size
HARM_SIZES, HARM_SPREAD = np.array([2.0, 5.0, 12.0, 30.0, 80.0]), 0.3
GAINING = ((0.03, 1.0), (0.1, 4.0), (0.2, 1.0))  # share of changes that gain something, and its weight
HARMING = ((0.02, 1.0), (0.3, 1.0))
STEPS_PER_NOISE, HALF_WINDOW = 4, 24  # of the lattice of levels: ±6 of the first guess of the noise
MOST_GUESSES = 6
NEGLIGIBLE = 1e-3  # worlds that explain the scores so much worse than the best are left out
TINY = 1e-300


@dataclass(frozen=True)
class ScoredTry:
    score: float  # lower is better; the mean of its repeats
    repeats: int
    parent: int | None  # the try whose state it changed; None: a state of its own


@dataclass(frozen=True)
class KnownNoise:
    """Standard deviation between repeats, and how many degrees of freedom that is worth."""

    sd: float
    freedom: float


@dataclass(frozen=True)
class Gain:
    """What a change gained: chances that it gained, did nothing or did harm, and each one's mean and spread."""

    chances: tuple[float, float, float]
    means: tuple[float, float, float]
    sds: tuple[float, float, float]

    @property
    def odds(self) -> float:
        """The chance that it is a gain."""
        return self.chances[0]

    @property
    def mean(self) -> float:
        return sum(chance * mean for chance, mean in zip(self.chances, self.means, strict=True))

    @property
    def sd(self) -> float:
        squares = sum(c * (m**2 + s**2) for c, m, s in zip(self.chances, self.means, self.sds, strict=True))
        return math.sqrt(max(0.0, squares - self.mean**2))

    def quantile(self, share: float) -> float:
        low, high = -1.0, 1.0
        while self._below(low) > share or self._below(high) < share:
            low, high = 2 * low, 2 * high
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if self._below(middle) < share else (low, middle)
        return middle if abs(middle) > 1e-9 * max(self.sd, TINY) else 0.0

    def _below(self, value: float) -> float:
        def part(mean: float, sd: float) -> float:
            return 0.5 * math.erfc((mean - value) / (math.sqrt(2) * sd)) if sd > 0 else float(mean <= value)

        return sum(c * part(m, s) for c, m, s in zip(self.chances, self.means, self.sds, strict=True))


@dataclass(frozen=True)
class SeriesPosterior:
    noise: float
    noise_low: float
    noise_high: float  # 80 % interval
    gains: tuple[Gain | None, ...]  # one a try; None for a state of its own


def posterior(
    tries: Sequence[ScoredTry], known: KnownNoise | None = None, within: KnownNoise | None = None
) -> SeriesPosterior:
    """`known`: the noise from elsewhere; `within`: pooled from the repeats of these tries."""
    guess = first_guess(tries, known, within)
    for _ in range(MOST_GUESSES):
        worlds = _Worlds(guess, known, within)
        tree = _Tree(tries, worlds)
        noise = math.exp(float(worlds.weights(tree.evidence) @ np.log(worlds.noise)))
        if 0.8 < noise / guess < 1.25:
            break
        guess = noise
    weights = worlds.weights(tree.evidence)
    likely = _Worlds(guess, known, within, np.flatnonzero(weights > NEGLIGIBLE * weights.max()))
    low, high = (likely.noise_quantile(weights[likely.chosen], share) for share in (0.1, 0.9))
    return SeriesPosterior(noise, low, high, _Tree(tries, likely).gains())


def first_guess(tries: Sequence[ScoredTry], known: KnownNoise | None, within: KnownNoise | None) -> float:
    if known is not None or within is not None:
        return pooled(known, within).sd
    moves = [(tries[each.parent].score - each.score) for each in tries if each.parent is not None]
    groups = [[t.score for t in tries if t.parent == state] for state in {t.parent for t in tries} - {None}]
    off = [score - float(np.median(group)) for group in groups if len(group) > 2 for score in group]
    seen = MAD_TO_SD * float(np.median(np.abs(off if len(off) > 4 else np.array(moves) / math.sqrt(2))))
    scale = max((abs(each.score) for each in tries), default=1.0) or 1.0
    return max(seen, 1e-6 * scale)


def pooled(one: KnownNoise | None, other: KnownNoise | None) -> KnownNoise:
    both = [each for each in (one, other) if each is not None]
    freedom = sum(each.freedom for each in both)
    return KnownNoise(math.sqrt(sum(each.freedom * each.sd**2 for each in both) / freedom), freedom)


class _Worlds:
    """Each world has a noise, a family of gain sizes, and shares of changes that gain and that harm."""

    def __init__(
        self, guess: float, known: KnownNoise | None, within: KnownNoise | None, chosen: np.ndarray | None = None
    ):
        self.guess, self.step = guess, guess / STEPS_PER_NOISE
        self.noises, self.sizes, self.harms = guess * NOISES, guess * GAIN_SIZES, guess * HARM_SIZES
        broad = GAIN_SIZES_PRIOR / GAIN_SIZES_PRIOR.sum()
        self.families = np.vstack([np.eye(len(GAIN_SIZES)), broad])
        family_prior = np.append(GAIN_SIZES_PRIOR, GAIN_SIZES_PRIOR.sum() / 2)
        grid = product(range(len(NOISES)), range(len(self.families)), GAINING, HARMING)
        rows = np.array([(s, f, g, h, math.log(wg * wh * family_prior[f])) for s, f, (g, wg), (h, wh) in grid])
        self.chosen = np.arange(len(rows)) if chosen is None else chosen
        rows = rows[self.chosen]
        self.of_noise, self.of_family = rows[:, 0].astype(int), rows[:, 1].astype(int)
        self.gaining, self.harming = rows[:, 2:3], rows[:, 3:4]
        self.noise = self.noises[self.of_noise]
        self.prior = rows[:, 4].copy()
        for each in (known, within):
            if each is not None:
                self.prior -= each.freedom * (np.log(self.noise / each.sd) + (each.sd / self.noise) ** 2 / 2)

    def weights(self, evidence: np.ndarray) -> np.ndarray:
        logs = self.prior + evidence
        found = np.exp(logs - logs.max())
        return found / found.sum()

    def noise_quantile(self, weights: np.ndarray, share: float) -> float:
        by_noise = np.bincount(self.of_noise, weights, len(self.noises))
        return float(np.interp(share, np.cumsum(by_noise) / by_noise.sum(), self.noises))


def _normal(apart: np.ndarray, variance: np.ndarray | float) -> np.ndarray:
    return np.exp(-(apart**2) / (2 * variance)) / np.sqrt(2 * np.pi * variance) + TINY


class _Tree:
    """Sums over all levels: from the leaves to the first state (`evidence`), and back (`gains`)."""

    def __init__(self, tries: Sequence[ScoredTry], worlds: _Worlds):
        self.tries, self.worlds = tries, worlds
        self.children: dict[int, list[int]] = {i: [] for i in range(len(tries))}
        for i, each in enumerate(tries):
            if each.parent is not None:
                self.children[each.parent].append(i)
        self.centre = [self._centre(i) for i in range(len(tries))]
        self.inside: dict[int, np.ndarray] = {}  # of a state: all that lies below it, its own score included
        self.message: dict[int, np.ndarray] = {}  # of a try to its state's level
        self.log_scale = np.zeros(len(worlds.noise))
        # A try comes after its state, so that the last comes first.
        for i in reversed(range(len(tries))):
            if self.children[i] or tries[i].parent is None:
                self.inside[i] = self._inside(i)
            if tries[i].parent is not None:
                self.message[i] = self._message(i)
        self.evidence = self.log_scale + sum(
            np.log(self.inside[i].sum(axis=1)) for i, each in enumerate(tries) if each.parent is None
        )

    def _centre(self, i: int) -> int:
        """In steps of the lattice: the own score, or what those built on it have in the middle."""
        each, below = self.tries[i], [self.tries[child].score for child in self.children[i]]
        score = each.score if each.repeats else float(np.median(below))
        return round(score / self.worlds.step)

    def _levels(self, i: int) -> np.ndarray:
        return (self.centre[i] + np.arange(-HALF_WINDOW, HALF_WINDOW + 1)) * self.worlds.step

    def _inside(self, i: int) -> np.ndarray:
        each, worlds = self.tries[i], self.worlds
        logs = sum((np.log(self.message[child]) for child in self.children[i]), np.zeros((len(worlds.noise), 1)))
        if each.repeats:
            own = _normal(each.score - self._levels(i), (worlds.noises**2 / each.repeats)[:, None])
            logs = logs + np.log(own)[worlds.of_noise]
        logs = np.broadcast_to(logs, (len(worlds.noise), 2 * HALF_WINDOW + 1))
        top = logs.max(axis=1, keepdims=True)
        self.log_scale += top[:, 0]
        return np.exp(logs - top)

    def _message(self, i: int) -> np.ndarray:
        null, gain, harm = self._parts(i)
        worlds = self.worlds
        return (1 - worlds.gaining - worlds.harming) * null + worlds.gaining * gain + worlds.harming * harm + TINY

    def _parts(self, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How well nothing, a gain and harm explain what was seen, at each level of its state."""
        return self._state_parts(i) if i in self.inside else self._leaf_parts(i)

    def _leaf_parts(self, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        worlds = self.worlds
        apart = self._levels(self._parent(i)) - self.tries[i].score
        variance = (worlds.noises**2 / self.tries[i].repeats)[:, None]
        of_size = _normal(apart - worlds.sizes[:, None], (variance + (SIZE_SPREAD * worlds.sizes) ** 2)[:, :, None])
        gain = np.einsum("fm,smg->sfg", worlds.families, of_size)
        harm = _normal(apart + worlds.harms[:, None], (variance + (HARM_SPREAD * worlds.harms) ** 2)[:, :, None]).mean(
            axis=1
        )
        s = worlds.of_noise
        return _normal(apart, variance)[s], gain[s, worlds.of_family], harm[s]

    def _state_parts(self, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        inside, (gains, harm) = self.inside[i], self._steps_to(i)
        found = np.empty_like(inside)
        for family in np.unique(self.worlds.of_family):
            rows = self.worlds.of_family == family
            found[rows] = inside[rows] @ gains[family].T
        return self._shifted(i), found, inside @ harm.T

    def _shifted(self, i: int) -> np.ndarray:
        """The state's inside on the lattice of the state before: the level where nothing was gained."""
        shift, inside = self.centre[self._parent(i)] - self.centre[i], self.inside[i]
        at = np.arange(inside.shape[1]) + shift
        fits = (at >= 0) & (at < inside.shape[1])
        return np.where(fits, inside[:, np.clip(at, 0, inside.shape[1] - 1)], 0.0)

    def _steps_to(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Chance of each step from a level before (rows) to one after: of the families of gains, and of harm."""
        worlds, apart = self.worlds, self._gained(i)
        of_size = _normal(apart - worlds.sizes[:, None, None], (SIZE_SPREAD * worlds.sizes[:, None, None]) ** 2)
        of_harm = _normal(apart + worlds.harms[:, None, None], (HARM_SPREAD * worlds.harms[:, None, None]) ** 2)
        return np.einsum("fm,mgh->fgh", worlds.families, of_size) * worlds.step, of_harm.mean(axis=0) * worlds.step

    def _gained(self, i: int) -> np.ndarray:
        return self._levels(self._parent(i))[:, None] - self._levels(i)[None, :]

    def _parent(self, i: int) -> int:
        parent = self.tries[i].parent
        assert parent is not None
        return parent

    @cached_property
    def _outside(self) -> dict[int, np.ndarray]:
        """Of a state: what all but those below it say about its level, its own score left out."""
        found: dict[int, np.ndarray] = {}
        for i, each in enumerate(self.tries):
            if i in self.inside and each.parent is None:
                found[i] = np.ones_like(self.inside[i])
            elif i in self.inside:
                before, (gains, harm) = self._without(i, found), self._steps_to(i)
                null = self._shifted_down(i, before)
                gain = np.einsum("tg,tgh->th", before, gains[self.worlds.of_family])
                worlds = self.worlds
                mixed = (1 - worlds.gaining - worlds.harming) * null + worlds.gaining * gain
                mixed = mixed + worlds.harming * (before @ harm)
                found[i] = mixed / mixed.max(axis=1, keepdims=True).clip(TINY)
        return found

    def _shifted_down(self, i: int, before: np.ndarray) -> np.ndarray:
        shift = self.centre[i] - self.centre[self._parent(i)]
        at = np.arange(before.shape[1]) + shift
        fits = (at >= 0) & (at < before.shape[1])
        return np.where(fits, before[:, np.clip(at, 0, before.shape[1] - 1)], 0.0)

    def _without(self, i: int, outside: dict[int, np.ndarray]) -> np.ndarray:
        """What all but this try say about the level it started from."""
        parent = self._parent(i)
        logs = np.log(outside[parent] + TINY) + np.log(self.inside[parent] + TINY) - np.log(self.message[i])
        return np.exp(logs - logs.max(axis=1, keepdims=True))

    def gains(self) -> tuple[Gain | None, ...]:
        weights = self.worlds.weights(self.evidence)
        return tuple(None if each.parent is None else self._gain(i, weights) for i, each in enumerate(self.tries))

    def _gain(self, i: int, weights: np.ndarray) -> Gain:
        worlds, before = self.worlds, self._without(i, self._outside)
        total = (before * self.message[i]).sum(axis=1)
        scaled = before * (weights / total)[:, None]  # its sums with the parts are chances
        shares = (worlds.gaining, 1 - worlds.gaining - worlds.harming, worlds.harming)
        null, gain, harm = self._parts(i)
        chances = [float((scaled * share * part).sum()) for share, part in zip(shares, (gain, null, harm), strict=True)]
        moments = (self._state_moments if i in self.inside else self._leaf_moments)(i, scaled)
        means, sds = [], []
        for chance, (first, second) in zip(chances, moments, strict=True):
            means.append(first / max(chance, TINY))
            sds.append(math.sqrt(max(0.0, second / max(chance, TINY) - means[-1] ** 2)))
        whole = sum(chances)
        return Gain(tuple(chance / whole for chance in chances), tuple(means), tuple(sds))  # type: ignore[arg-type]

    def _leaf_moments(self, i: int, scaled: np.ndarray) -> list[tuple[float, float]]:
        """Sums of the gain and of its square under each explanation, weighed by their chances."""
        worlds, apart = self.worlds, self._levels(self._parent(i)) - self.tries[i].score
        variance = (worlds.noises**2 / self.tries[i].repeats)[:, None]

        def sums(sizes: np.ndarray, spreads: np.ndarray, mixing: np.ndarray, share: np.ndarray) -> tuple[float, float]:
            squares, each = (spreads**2)[:, None], variance[:, :, None]
            mean = (sizes[:, None] * each + apart * squares) / (each + squares)
            fits = _normal(apart - sizes[:, None], each + squares)
            rest = each * squares / (each + squares)
            parts = [np.einsum("fm,smg->sfg", mixing, fits * m) for m in (mean, mean**2 + rest)]
            at = (worlds.of_noise, worlds.of_family if len(mixing) > 1 else 0)
            return tuple(float((scaled * share * part[at]).sum()) for part in parts)  # type: ignore[return-value]

        gain = sums(worlds.sizes, SIZE_SPREAD * worlds.sizes, worlds.families, worlds.gaining)
        even = np.full((1, len(worlds.harms)), 1 / len(worlds.harms))
        return [gain, (0.0, 0.0), sums(-worlds.harms, HARM_SPREAD * worlds.harms, even, worlds.harming)]

    def _state_moments(self, i: int, scaled: np.ndarray) -> list[tuple[float, float]]:
        inside, apart, (gains, harm) = self.inside[i], self._gained(i), self._steps_to(i)
        found = []
        for steps, share in ((gains[self.worlds.of_family], self.worlds.gaining), (harm[None], self.worlds.harming)):
            both = [
                float(((scaled * share)[:, None, :] @ (steps * power) @ inside[:, :, None]).sum())
                for power in (apart, apart**2)
            ]
            found.append((both[0], both[1]))
        return [found[0], (0.0, 0.0), found[1]]
