"""Curves in a few rows of text: Braille cells of two by four dots, in colours where there are several; asterisks, or a
letter for each curve, where there is no Braille."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from nanolens.show.words import show

# Bit of each dot within a Braille cell, by column and then from the top row down (Unicode 13, block 2800).
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def columns_of(xs: Sequence[float], ys: Sequence[float], first: float, last: float, count: int) -> list[float]:
    """The mean of the finite points in each of `count` equal stretches of first..last; a straight line bridges gaps."""
    home = np.minimum((np.asarray(xs, float) - first) * (count / ((last - first) or 1.0)), count - 1).astype(int)
    sums, counts = np.bincount(home, ys, count), np.bincount(home, minlength=count)
    known = np.flatnonzero(counts)
    if not len(known):
        return [math.nan] * count
    return np.interp(np.arange(count), known, sums[known] / counts[known], math.nan, math.nan).tolist()


def draw(columns: Sequence[float], rows: int, low: float, high: float, *, plain: bool = False) -> list[str]:
    """The columns as `rows` lines of text, two to a Braille cell; values beyond low..high are drawn at the edge."""
    across, down = (1, 1) if plain else (2, 4)
    cells = [[0] * -(-len(columns) // across) for _ in range(rows)]
    previous: int | None = None
    for x, value in enumerate(columns):
        y = None if math.isnan(value) else row_of(value, low, high, rows * down)
        if y is not None:
            for dot in [y] if plain else _between(previous, y):
                cells[dot // down][x // across] |= _DOTS[x % across][dot % down]
        previous = y
    return ["".join(" " if not bits else "*" if plain else chr(0x2800 + bits) for bits in row) for row in cells]


def row_of(value: float, low: float, high: float, levels: int) -> int:
    """The line of text on which a value lies: 0 at the top, levels - 1 at the bottom."""
    share = (value - low) / (high - low) if high > low else 0.5
    return round((1 - min(1.0, max(0.0, share))) * (levels - 1))


def _between(previous: int | None, here: int) -> range:
    """The dots of one column that join it to the one before: a steep curve stays a line."""
    if previous is None or abs(previous - here) <= 1:
        return range(here, here + 1)
    return range(here, previous) if here < previous else range(previous + 1, here + 1)


COLOURS = ("cyan", "yellow", "green", "magenta", "red", "blue")
CURVE_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Series:
    name: str
    xs: Sequence[float]
    ys: Sequence[float]


def overlaid(series: Sequence[Series], width: int, rows: int, *, plain: bool) -> list[str]:
    """Lines of text, the scale of y at the left; plain, or with rich's colour tags."""
    points = [np.array([each.xs, each.ys], float) for each in series]
    points = [each[:, np.isfinite(each).all(axis=0)] for each in points]
    every = np.concatenate([np.zeros((2, 0)), *points], axis=1)
    if every.shape[1] < 2:
        return []
    (first, bottom), (last, top) = every.min(axis=1), every.max(axis=1)
    if last <= first or top <= bottom:
        return []
    curves = [columns_of(xs, ys, first, last, width if plain else 2 * width) for xs, ys in points]
    layers = [draw(columns, rows, bottom, top, plain=plain) for columns in curves]
    levels = [top - (top - bottom) * i / max(1, rows - 1) for i in range(rows)]
    scale = ["" if i % 2 else show(level, "rough_nats") for i, level in enumerate(levels)]
    margin = max(map(len, scale))
    place = _lettered if plain else _coloured
    merged = ["".join(map(place, zip(*lines, strict=True))) for lines in zip(*layers, strict=True)]
    return [f"{label:>{margin}} {line}".rstrip() for label, line in zip(scale, merged, strict=True)]


def _lettered(marks: Sequence[str]) -> str:
    """One place of the picture, from what each curve has there."""
    letters = [letter for letter, mark in zip(CURVE_LETTERS, marks, strict=False) if mark != " "]
    return "*" if len(letters) > 1 else "".join(letters) or " "


def _coloured(marks: Sequence[str]) -> str:
    """The same with the dots of all, in the colour of the curve that has most of them."""
    dots = [0 if mark == " " else ord(mark) - 0x2800 for mark in marks]
    if not any(dots):
        return " "
    colour = COLOURS[max(range(len(dots)), key=lambda i: dots[i].bit_count()) % len(COLOURS)]
    return f"[{colour}]{chr(0x2800 + reduce(or_, dots))}[/{colour}]"
