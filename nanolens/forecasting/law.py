"""A law of how a loss falls under a known schedule of learning rates, and what the points seen so far leave open of it.

    L(t) = E + a S(t)^-b - c G(t)

S is the learning rate added up over the updates (a step at half the rate counts half), and G how much of the fall of
the learning rate has taken effect: each fall works with a delay, as in the multi-power law (arXiv 2503.12811). One
curve tells little of E, b and c by themselves, so they are not fitted to a point: a grid of (b, c, delay) is weighed by
how well each explains the recent points and by what other runs were like, E and a follow by least squares, and the
future is a draw from all of them with resampled residuals (a block bootstrap)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

EXPONENTS = np.array(
    [-1.5, -1.0, -0.7, -0.5, -0.3, -0.15, 0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.3]
)
GAINS = np.linspace(0.0, 2.0, 17)  # c over the curve's slope per e-fold of S, as shares of `LawPriors.gain`
DELAYS = (0.15, 0.4)  # of a fall of the rate to take effect, as shares of S at the last point seen

EXPONENT, EXPONENT_SPREAD = 0.25, 0.8  # the centre, and the spread of its logarithm
GATHERING_WEIGHT, GATHERING_SPREAD = 0.3, 0.5
"""Of exponents below zero: a loss that falls faster with every e-fold, as that of a young model does."""


@dataclass(frozen=True)
class LawPriors:
    """What runs with an optimizer are like."""

    gain: float  # e-folds of training that a full decay of the rate wins
    gain_spread: float


ADAM, MUON = LawPriors(2.0, 0.7), LawPriors(4.0, 1.5)
"""Chosen on the models of `bench/recorded.py tuning` and `seeds`; the runs of bench/forecast.py are others."""

WINDOWS = (3.0, 4.0, 6.0, 10.0)
"""Points count from a third of S on, as older ones belong to another regime; where they are few, from further back."""
ENOUGH, FEWEST_FITTED_POINTS = 8, 6  # points
SMALLEST_NOISE = 0.003  # nats: no curve is known better
INDEPENDENT = 3.0  # neighbouring points count for one in so many
UNMODELLED, FEW_POINTS = 0.085, 12.0
"""Of the predicted change: what no law of this kind knows; twice as much where it rests on so few points."""
DRAWS = 1000
TAIL = 5  # the last fifth of the residuals shifts the curve to where it stands now


@dataclass(frozen=True)
class ScheduleProgress:
    """S at each step, and the relative learning rate of each update, from the first on."""

    lrs: np.ndarray

    def __post_init__(self) -> None:
        assert len(self.lrs) and np.isfinite(self.lrs).all() and self.lrs.max() > 0

    @property
    def relative(self) -> np.ndarray:
        return self.lrs / self.lrs.max()

    @property
    def added_up(self) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(self.relative)])

    def effect(self, delay: float) -> np.ndarray:
        """G at each step: the fall of the learning rate since its peak, less what has not yet taken effect."""
        lrs, S = self.relative, self.added_up
        fall = np.maximum(0.0, -np.diff(lrs, prepend=lrs[0]))
        fall[: int(np.argmax(lrs)) + 1] = 0.0
        scaled = S / delay
        pending, waiting = np.zeros(len(lrs)), 0.0
        # In blocks, so that the exponentials stay small however long the run is.
        for start in range(0, len(lrs), 4096):
            end = min(start + 4096, len(lrs))
            base = scaled[start]
            growth = np.exp(np.minimum(scaled[start:end] - base, 600.0))
            decay = np.exp(-np.minimum(scaled[start + 1 : end + 1] - base, 600.0))
            pending[start:end] = decay * (waiting + np.cumsum(fall[start:end] * growth))
            waiting = pending[end - 1]
        return np.concatenate([[0.0], np.cumsum(fall) - pending])


def draws_of(
    seen: ScheduleProgress,
    planned: ScheduleProgress,
    steps: np.ndarray,
    losses: np.ndarray,
    wanted: np.ndarray,
    priors: LawPriors = ADAM,
    shift_error: float = 0.0,
) -> tuple[np.ndarray, int] | None:
    """Possible losses at the steps `wanted` under the learning rates `planned`, one row a draw, and the number of
    points used; from the points (steps, losses) seen under the learning rates `seen`, which all may be too high or too
    low by `shift_error`. None where fewer than six points lie in the widest window, or none of the laws falls."""
    S = seen.added_up[steps]
    inside = next(
        (within for window in WINDOWS if (within := S[-1] / window <= S).sum() >= ENOUGH), S[-1] / WINDOWS[-1] <= S
    )
    y, n = losses[inside], int(inside.sum())
    if n < FEWEST_FITTED_POINTS:
        return None
    grid = zip(*_laws(seen, planned, steps[inside], wanted, priors), strict=True)
    projections, left, slopes, prior = map(np.array, grid)
    prior = prior * (slopes @ y > 0)  # laws under which the loss would rise are no laws of learning
    if not prior.any():
        return None
    residual = left @ y
    misfit = (residual**2).mean(axis=1)
    best = int(np.argmin(np.where(prior > 0, misfit, np.inf)))
    noise = max(float(misfit[best]), SMALLEST_NOISE**2)
    weight = prior * np.exp(-0.5 * n / INDEPENDENT * (misfit - misfit[best]) / noise)
    rng = np.random.default_rng(0)
    chosen = rng.choice(len(weight), DRAWS, p=weight / weight.sum())
    resampled = y - residual[best] + _blocks(residual[best], rng) * np.sqrt(n / max(1, n - 3))
    drawn = np.einsum("dsn,dn->ds", projections[chosen], resampled)
    change = np.abs(np.median(drawn, axis=0) - y[-3:].mean())
    unmodelled = UNMODELLED * (1 + (FEW_POINTS / n) ** 2) * change
    spread = np.sqrt(unmodelled**2 + noise + shift_error**2)  # one evaluation has its own noise
    return drawn + rng.standard_normal((DRAWS, 1)) * spread, n


def _laws(
    seen: ScheduleProgress, planned: ScheduleProgress, steps: np.ndarray, wanted: np.ndarray, priors: LawPriors
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
    """Each law of the grid, as what it makes of the losses at `steps`: (the losses at `wanted`, what it leaves
    unexplained, its slope), all three linear in them; and its prior."""
    x, ahead = seen.added_up[steps], planned.added_up[wanted]
    n = len(x)
    for delay in DELAYS:
        effect, effect_ahead = seen.effect(delay * x[-1])[steps], planned.effect(delay * x[-1])[wanted]
        for b in EXPONENTS:
            power, power_ahead = _fallen(x / x[-1], b), _fallen(np.maximum(ahead, 1e-9) / x[-1], b)
            for gain in GAINS * priors.gain:
                future = power_ahead - gain * effect_ahead
                design = np.stack([np.ones(n), power - gain * effect], axis=1)
                solve = np.linalg.pinv(design)
                left = np.eye(n) - design @ solve
                now = left[-max(2, n // TAIL) :].mean(axis=0)
                projection = np.stack([np.ones(len(future)), future], axis=1) @ solve + now
                yield projection, left, solve[1], _prior(b, gain, priors)


def _fallen(x: np.ndarray, b: float) -> np.ndarray:
    """x^-b, moved and scaled so that it falls by one an e-fold at x = 1 whatever b is; for b = 0 the logarithm."""
    return -np.log(x) if b == 0 else (x**-b - 1) / b


def _prior(b: float, gain: float, priors: LawPriors) -> float:
    if b > 0:
        exponent = np.exp(-0.5 * (np.log(b / EXPONENT) / EXPONENT_SPREAD) ** 2)
    else:
        exponent = GATHERING_WEIGHT * np.exp(-0.5 * (b / GATHERING_SPREAD) ** 2)
    return float(exponent * np.exp(-0.5 * ((gain - priors.gain) / priors.gain_spread) ** 2))


def _blocks(residual: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Residuals drawn in blocks, since neighbours are alike."""
    n = len(residual)
    size = max(1, round(n ** (1 / 3)))
    starts = rng.integers(0, n, (DRAWS, -(-n // size)))
    places = ((starts[:, :, None] + np.arange(size)) % n).reshape(DRAWS, -1)[:, :n]
    return residual[places]
