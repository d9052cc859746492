"""A curve in a few rows of text: Braille cells of two by four dots, or asterisks where the terminal has no Braille."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

# Bit of each dot within a Braille cell, by column and then from the top row down (Unicode 13, block 2800).
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def columns_of(xs: Sequence[float], ys: Sequence[float], first: float, last: float, count: int) -> list[float]:
    """`count` equal stretches of first..last, each with the mean of its points (finite, within the range); a straight line bridges gaps."""
    sums, counts = [0.0] * count, [0] * count
    scale, end = count / ((last - first) or 1.0), count - 1
    for x, y in zip(xs, ys, strict=True):
        i = int((x - first) * scale)
        if i > end:
            i = end
        sums[i] += y
        counts[i] += 1
    means = [total / n if n else math.nan for total, n in zip(sums, counts, strict=True)]
    return _bridged(means)


def draw(columns: Sequence[float], rows: int, low: float, high: float, *, plain: bool = False) -> list[str]:
    """The columns as `rows` lines of text; values beyond low..high are drawn at the edge. Braille holds two columns in a cell."""
    if plain:
        return _draw_plain(columns, rows, low, high)
    width = (len(columns) + 1) // 2
    cells = [[0] * width for _ in range(rows)]
    previous: int | None = None
    for x, value in enumerate(columns):
        if math.isnan(value):
            previous = None
            continue
        y = _height(value, low, high, rows * 4)
        for dot in _between(previous, y):
            cells[dot // 4][x // 2] |= _DOTS[x % 2][dot % 4]
        previous = y
    return ["".join(chr(0x2800 + bits) if bits else " " for bits in row) for row in cells]


def row_of(value: float, low: float, high: float, rows: int) -> int:
    """The line of text on which a value lies."""
    return _height(value, low, high, rows)


def _draw_plain(columns: Sequence[float], rows: int, low: float, high: float) -> list[str]:
    grid = [[" "] * len(columns) for _ in range(rows)]
    for x, value in enumerate(columns):
        if not math.isnan(value):
            grid[_height(value, low, high, rows)][x] = "*"
    return ["".join(row) for row in grid]


def _height(value: float, low: float, high: float, levels: int) -> int:
    """0 at the top, levels - 1 at the bottom."""
    share = (value - low) / (high - low) if high > low else 0.5
    return round((1 - min(1.0, max(0.0, share))) * (levels - 1))


def _between(previous: int | None, here: int) -> range:
    """The dots of one column that join it to the one before: a steep curve stays a line."""
    if previous is None or abs(previous - here) <= 1:
        return range(here, here + 1)
    return range(here, previous) if here < previous else range(previous + 1, here + 1)


def _bridged(values: list[float]) -> list[float]:
    out = list(values)
    known = [i for i, value in enumerate(values) if not math.isnan(value)]
    for a, b in itertools.pairwise(known):
        for i in range(a + 1, b):
            out[i] = values[a] + (values[b] - values[a]) * (i - a) / (b - a)
    return out
