"""A law of how a loss falls under a known schedule of learning rates, and what the points seen so far leave open of it.

    L(t) = E + a S(t)^-b - c G(t)

S is the learning rate added up over the updates (a step at half the rate counts half), and G how much of the fall of the learning rate has
taken effect: each fall works with a delay, as in the multi-power law (arXiv 2503.12811). One curve tells little of E, b and c by
themselves, so they are not fitted to a point: a grid of (b, c, delay) is weighed by how well each explains the recent points and by what
other runs were like, E and a follow by least squares, and the future is a draw from all of them with resampled residuals (a block
bootstrap)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EXPONENTS = np.array([-1.5, -1.0, -0.7, -0.5, -0.3, -0.15, 0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.3])
GAINS = np.linspace(0.0, 2.0, 17)
"""c over the curve's slope per e-fold of S, as shares of `Habits.gain`."""
DELAYS = (0.15, 0.4)  # of a fall of the rate to take effect, as shares of S at the last point seen

EXPONENT, EXPONENT_SPREAD = 0.25, 0.8  # the centre, and the spread of its logarithm
GATHERING_WEIGHT, GATHERING_SPREAD = 0.3, 0.5
"""Of exponents below zero: a loss that falls faster with every e-fold, as it does before a young model has found what there is to learn."""


@dataclass(frozen=True)
class Habits:
    """What runs with an optimizer are like: the e-folds of training that a full decay of the rate wins, and how much that varies."""

    gain: float
    gain_spread: float


ADAM, MUON = Habits(2.0, 0.7), Habits(4.0, 1.5)
"""Chosen on small models that `bench/recorded.py tuning` and `seeds` train; the runs of bench/forecast.py are others."""

WINDOWS = (3.0, 4.0, 6.0, 10.0)
"""Points count from a third of S on, as older ones belong to another regime; where they are few, from further back."""
ENOUGH, FEWEST = 8, 6  # points
SMALLEST_NOISE = 0.003  # nats: no curve is known better
INDEPENDENT = 3.0  # neighbouring points count for one in so many
UNMODELLED, FEW_POINTS = 0.085, 12.0
"""Of the predicted change: what no law of this kind knows; twice as much where the law rests on no more than so many points."""
DRAWS = 1000
TAIL = 5  # the last fifth of the residuals shifts the curve to where it stands now


@dataclass(frozen=True)
class Progress:
    """S at each step, and the relative learning rate of each update, from the first on."""

    rates: np.ndarray

    def __post_init__(self) -> None:
        assert len(self.rates) and np.isfinite(self.rates).all() and self.rates.max() > 0

    @property
    def relative(self) -> np.ndarray:
        return self.rates / self.rates.max()

    @property
    def added_up(self) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(self.relative)])

    def effect(self, delay: float) -> np.ndarray:
        """G at each step: the fall of the rate since its peak, less what has not yet taken effect."""
        rates, S = self.relative, self.added_up
        fall = np.maximum(0.0, -np.diff(rates, prepend=rates[0]))
        fall[: int(np.argmax(rates)) + 1] = 0.0
        scaled = S / delay
        pending, waiting = np.zeros(len(rates)), 0.0
        # In blocks, so that the exponentials stay small however long the run is.
        for start in range(0, len(rates), 4096):
            end = min(start + 4096, len(rates))
            base = scaled[start]
            growth = np.exp(np.minimum(scaled[start:end] - base, 600.0))
            decay = np.exp(-np.minimum(scaled[start + 1 : end + 1] - base, 600.0))
            pending[start:end] = decay * (waiting + np.cumsum(fall[start:end] * growth))
            waiting = pending[end - 1]
        return np.concatenate([[0.0], np.cumsum(fall) - pending])


@dataclass(frozen=True)
class Draws:
    """Possible losses at the steps asked for, one row a draw."""

    losses: np.ndarray  # (draws, steps)
    points: int  # that were used
    residual: float  # root mean square about the best law

    def quantile(self, q: float) -> np.ndarray:
        return np.quantile(self.losses, q, axis=0)


def draws_of(
    seen: Progress, planned: Progress, steps: np.ndarray, losses: np.ndarray, wanted: np.ndarray, habits: Habits = ADAM,
    shift_error: float = 0.0, seed: int = 0,
) -> Draws | None:  # fmt: skip
    """Losses at the steps `wanted` under the rates `planned`, from the points (steps, losses) seen under the rates `seen`, which all may be
    too high or too low by `shift_error`.

    None where fewer than six points lie in the widest window, or none of the laws falls."""
    S, S_planned = seen.added_up[steps], planned.added_up[wanted]
    inside = next((within for window in WINDOWS if (within := S[-1] / window <= S).sum() >= ENOUGH), S[-1] / WINDOWS[-1] <= S)
    x, y = S[inside], losses[inside]
    n = len(x)
    if n < FEWEST:
        return None
    projections, residuals, weights, slopes = [], [], [], []
    for delay in DELAYS:
        effect, effect_planned = seen.effect(delay * S[-1])[steps][inside], planned.effect(delay * S[-1])[wanted]
        for b in EXPONENTS:
            power, power_planned = _fallen(x / x[-1], b), _fallen(np.maximum(S_planned, 1e-9) / x[-1], b)
            for gain in GAINS * habits.gain:
                column, future = power - gain * effect, power_planned - gain * effect_planned
                design = np.stack([np.ones(n), column], axis=1)
                solve = np.linalg.pinv(design)
                left = np.eye(n) - design @ solve
                now = left[-max(2, n // TAIL) :].mean(axis=0)
                projections.append(np.stack([np.ones(len(future)), future], axis=1) @ solve + now)
                residuals.append(left)
                slopes.append(solve[1])
                weights.append(_prior(b, gain, habits))
    return _drawn(np.array(projections), np.array(residuals), np.array(weights), np.array(slopes), y, shift_error, seed)


def _fallen(x: np.ndarray, b: float) -> np.ndarray:
    """x^-b, moved and scaled so that it falls by one an e-fold at x = 1 whatever b is; without an exponent, the logarithm."""
    return -np.log(x) if b == 0 else (x**-b - 1) / b


def _prior(b: float, gain: float, habits: Habits) -> float:
    if b > 0:
        exponent = np.exp(-0.5 * (np.log(b / EXPONENT) / EXPONENT_SPREAD) ** 2)
    else:
        exponent = GATHERING_WEIGHT * np.exp(-0.5 * (b / GATHERING_SPREAD) ** 2)
    return float(exponent * np.exp(-0.5 * ((gain - habits.gain) / habits.gain_spread) ** 2))


def _drawn(
    projections: np.ndarray, left: np.ndarray, prior: np.ndarray, slopes: np.ndarray, y: np.ndarray, shift_error: float, seed: int
) -> Draws | None:
    n = len(y)
    prior = prior * (slopes @ y > 0)  # laws under which the loss would rise are no laws of learning
    if not prior.any():
        return None
    residual = left @ y
    misfit = (residual**2).mean(axis=1)
    best = int(np.argmin(np.where(prior > 0, misfit, np.inf)))
    noise = max(float(misfit[best]), SMALLEST_NOISE**2)
    weight = prior * np.exp(-0.5 * n / INDEPENDENT * (misfit - misfit[best]) / noise)
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(weight), DRAWS, p=weight / weight.sum())
    resampled = y - residual[best] + _blocks(residual[best], rng) * np.sqrt(n / max(1, n - 3))
    drawn = np.einsum("dsn,dn->ds", projections[chosen], resampled)
    change = np.abs(np.median(drawn, axis=0) - y[-3:].mean())
    unmodelled = UNMODELLED * (1 + (FEW_POINTS / n) ** 2) * change
    drawn = drawn + rng.standard_normal((DRAWS, 1)) * np.sqrt(unmodelled**2 + noise + shift_error**2)  # one evaluation has its own noise
    return Draws(drawn, n, float(np.sqrt(misfit[best])))


def _blocks(residual: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Residuals drawn in blocks, since neighbours are alike."""
    n = len(residual)
    size = max(1, round(n ** (1 / 3)))
    starts = rng.integers(0, n, (DRAWS, -(-n // size)))
    places = ((starts[:, :, None] + np.arange(size)) % n).reshape(DRAWS, -1)[:, :n]
    return residual[places]
