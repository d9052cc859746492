"""Statistics that hold for training curves: noisy, autocorrelated, with outliers, sometimes of a million points.

Everything here is a function of arrays and meets the non-finite number first (it is dropped, or the answer is None).
Series are thinned to block medians before a test, because neighbouring losses share their weights and a test for
independent points would find a trend in anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95  # of the intervals that are shown
MAD_TO_SD = 1.4826  # of a normal distribution
TREND_BLOCKS = 24  # points that a trend test sees: enough for power, few enough to be nearly independent


@dataclass(frozen=True)
class Trend:
    """A robust slope per unit of x, with its 95 % interval, and the chance of so strong an order in pure noise."""

    slope: float
    low: float
    high: float
    p: float
    points: int

    @property
    def is_falling(self) -> bool:
        return self.high < 0 and self.p < 0.05

    @property
    def is_rising(self) -> bool:
        return self.low > 0 and self.p < 0.05


def trend(x: np.ndarray, y: np.ndarray, blocks: int = TREND_BLOCKS) -> Trend | None:
    """Theil-Sen slope with Mann-Kendall's test, on block medians. None below four points."""
    x, y = finite_pairs(x, y)
    if len(x) > blocks:
        x, y = block_medians(x, y, blocks)
    n = len(x)
    if n < 4 or x[-1] == x[0]:
        return None
    i, j = np.triu_indices(n, 1)
    apart = x[j] - x[i]
    kept = apart != 0
    slopes = np.sort((y[j] - y[i])[kept] / apart[kept])
    order = float(np.sign(slopes).sum())
    variance = n * (n - 1) * (2 * n + 5) / 18
    variance *= _autocorrelation_factor(y - np.median(slopes) * x)
    z = (order - math.copysign(1, order)) / math.sqrt(variance) if order else 0.0
    half = 1.96 * math.sqrt(variance)
    pairs = len(slopes)
    low = slopes[max(0, int((pairs - half) // 2))]
    high = slopes[min(pairs - 1, int((pairs + half) // 2))]
    return Trend(float(np.median(slopes)), float(low), float(high), math.erfc(abs(z) / math.sqrt(2)), n)


def finite_pairs(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(x, float), np.asarray(y, float)
    kept = np.isfinite(x) & np.isfinite(y)
    return x[kept], y[kept]


def block_medians(x: np.ndarray, y: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    edges = np.linspace(0, len(x), blocks + 1).astype(int)
    pairs = [(np.median(x[a:b]), np.median(y[a:b])) for a, b in pairwise(edges) if b > a]
    return np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])


def stretches(inside: np.ndarray) -> list[tuple[int, int]]:
    """Where unbroken stretches of True begin, and where they have ended."""
    edges = np.flatnonzero(np.diff(np.r_[False, inside, False].astype(int)))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _autocorrelation_factor(residuals: np.ndarray) -> float:
    """How much wider the order statistic of an autocorrelated series is (first-order; Hamed and Rao's idea)."""
    if len(residuals) < 8:
        return 1.0
    centred = residuals - residuals.mean()
    power = float((centred**2).sum())
    if power <= 0:
        return 1.0
    r = min(max(float((centred[1:] * centred[:-1]).sum()) / power, 0.0), 0.9)
    return (1 + r) / (1 - r)


def noise_of(x: np.ndarray, y: np.ndarray) -> float | None:
    """Standard deviation of the scatter about a smooth curve: each point against the line between its two neighbours.
    None below five points."""
    x, y = finite_pairs(x, y)
    if len(x) < 5:
        return None
    left, right = x[:-2], x[2:]
    width = np.where(right > left, right - left, 1.0)
    share = (x[1:-1] - left) / width
    off = y[1:-1] - (y[:-2] * (1 - share) + y[2:] * share)
    scale = np.sqrt(1 + share**2 + (1 - share) ** 2)
    return MAD_TO_SD * float(np.median(np.abs(off / scale)))


def spread_of(values: np.ndarray) -> float:
    """The standard deviation of a normal distribution with this median distance from the median."""
    return MAD_TO_SD * float(np.median(np.abs(values - np.median(values))))


def standard_error(values: np.ndarray) -> float | None:
    """Of the mean of independent batches: sd / sqrt(n). None below two."""
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def mean_error(series: np.ndarray) -> float | None:
    """Standard error of the mean of an autocorrelated series, by non-overlapping block means. None below eight
    points."""
    series = np.asarray(series, float)
    series = series[np.isfinite(series)]
    n = len(series)
    if n < 8:
        return None
    size = max(1, round(n ** (1 / 3)))
    count = n // size
    means = series[: count * size].reshape(count, size).mean(axis=1)
    return float(means.std(ddof=1) / math.sqrt(count))


def t_quantile(probability: float, degrees: float) -> float:
    from scipy.special import stdtrit  # scipy.stats would cost a second at each start

    return float(stdtrit(degrees, probability))


def bias_of_minimum(count: int) -> float:
    """How far below the truth the smallest of `count` equally noisy values lies on average, in standard deviations:
    1.54 of 10."""
    if count < 2:
        return 0.0
    return -NormalDist().inv_cdf((1 - 0.375) / (count + 0.25))  # Blom's approximation


@dataclass(frozen=True)
class Shift:
    """The place where a series changes its level most, and by how much."""

    at: int  # index of the first point of the new level
    before: float
    after: float
    p: float


def change_point(y: np.ndarray) -> Shift | None:
    """Pettitt's rank test for one shift of the level. None below eight points. For a series of any length it looks at
    400 block medians."""
    y = np.asarray(y, float)
    where = np.flatnonzero(np.isfinite(y))
    if len(where) < 8:
        return None
    values = y[where]
    positions = where.astype(float)
    if len(values) > 400:
        positions, values = block_medians(positions, values, 400)
    n = len(values)
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable") + 1
    k = np.arange(1, n)
    statistic = 2 * np.cumsum(ranks)[:-1] - k * (n + 1)
    best = int(np.argmax(np.abs(statistic)))
    p = min(1.0, 2 * math.exp(-6 * float(statistic[best]) ** 2 / (n**3 + n**2)))
    at = int(positions[best + 1])
    return Shift(at, float(np.median(y[where][where < at])), float(np.median(y[where][where >= at])), p)


def spikes(y: np.ndarray, window: int = 15, sigmas: float = 8.0, floor: float = 0.0) -> np.ndarray:
    """Indices that stand `sigmas` (and at least `floor`) above what comes before and above what comes after.

    Both sides count, so that a steep fall is not its own spike. The scatter is that of the wider neighbourhood about
    its own median. Non-finite values are another symptom's business."""
    y = np.asarray(y, float)
    where = np.flatnonzero(np.isfinite(y))
    if len(where) < 4 * window:
        return np.zeros(0, int)
    values = y[where]
    half = window // 2
    middle = running_median(values, window)
    before = np.r_[np.full(half + 1, np.inf), middle[: -half - 1]]  # the window that ends just before the point
    after = np.r_[middle[half + 1 :], np.full(half + 1, -np.inf)]
    spread = MAD_TO_SD * _wide_median(np.abs(values - middle), 16 * window)
    off = values - np.maximum(before, after)
    return where[(off > sigmas * spread) & (off > floor) & (spread > 0)]


def running_median(values: np.ndarray, size: int) -> np.ndarray:
    """Centred, of an odd window; the ends are mirrored. By numpy alone: scipy.ndimage would take longer to import than
    to compute."""
    half = size // 2
    padded = np.pad(values, half, mode="reflect" if len(values) > half else "edge")
    return np.concatenate(
        [_medians(padded[at : at + PIECE + 2 * half], size) for at in range(0, max(1, len(values)), PIECE)]
    )


PIECE = 20_000  # points at once: few enough to stay in the processor's cache


def _medians(padded: np.ndarray, size: int) -> np.ndarray:
    """Of each window of an odd size, for all windows at once, by forgetting: of half of the window and two more neither
    the smallest nor the largest can be the median, so both go, the next one comes, and so on. Ten times as fast as
    sorting each window for itself."""
    count = len(padded) - size + 1
    columns = [padded[at : at + count] for at in range(size)]
    kept, rest = columns[: size // 2 + 2], columns[size // 2 + 2 :]
    while len(kept) > 2:
        # The largest moves to the end, the smallest to the front.
        for i in (*range(1, len(kept)), *range(len(kept) - 2, 0, -1)):
            kept[i - 1], kept[i] = np.minimum(kept[i - 1], kept[i]), np.maximum(kept[i - 1], kept[i])
        kept = kept[1:-1]
        if rest:
            kept.append(rest.pop(0))
    return np.array(kept[0])


def _wide_median(values: np.ndarray, size: int) -> np.ndarray:
    """A median over a wide window, of the medians of short blocks: it changes slowly, so that this is near enough and
    far cheaper."""
    block = max(1, min(size, len(values)) // 8)
    count = len(values) // block
    medians = np.median(values[: count * block].reshape(count, block), axis=1)
    smooth = running_median(medians, min(9, count - 1 | 1)) if count > 2 else np.full(count, np.median(values))
    return np.pad(np.repeat(smooth, block), (0, len(values) - count * block), mode="edge")


def printed_decimals(values: np.ndarray, fewest: int, most: int) -> int | None:
    """Digits after the point with which numbers were printed."""
    for decimals in range(fewest, most + 1):
        if np.allclose(values, np.round(values, decimals), rtol=0, atol=1e-9):
            return decimals
    return None


def fall_per_efold(steps: np.ndarray, losses: np.ndarray) -> float | None:
    """Nats that a loss falls while the steps grow by a factor of e; 0 where it rises. None below two points."""
    return max(0.0, -float(np.polyfit(np.log(steps), losses, 1)[0])) if len(steps) > 1 else None


def paired_difference(a: np.ndarray, b: np.ndarray) -> tuple[float, float] | None:
    """Mean of a - b over the same batches, and its standard error."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    if len(a) != len(b):
        return None
    difference = a - b
    error = standard_error(difference)
    return None if error is None else (float(np.nanmean(difference)), error)
