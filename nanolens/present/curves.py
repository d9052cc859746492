"""Several curves over one another in a few rows of text: Braille in colours, or letters where there are neither."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from nanolens.present.curve import columns_of, draw

COLOURS = ("cyan", "yellow", "green", "magenta", "red", "blue")
MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Series:
    name: str
    xs: Sequence[float]
    ys: Sequence[float]


def overlaid(
    series: Sequence[Series], width: int, rows: int, *, plain: bool, low: float | None = None, high: float | None = None
) -> list[str]:
    """Lines of text, the scale of y at the left. Plain: a letter for each series, by its order. Else Braille with rich's colour tags."""
    points = [(x, y) for each in series for x, y in zip(each.xs, each.ys, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if len(points) < 2:
        return []
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    bottom = min(y for _, y in points) if low is None else low
    top = max(y for _, y in points) if high is None else high
    if last <= first or top <= bottom:
        return []
    layers = [_layer(each, first, last, bottom, top, width, rows, plain) for each in series]
    scale = [_label(top - (top - bottom) * i / (rows - 1)) if i % 2 == 0 else "" for i in range(rows)] if rows > 1 else [_label(top)]
    margin = max(len(label) for label in scale)
    merged = _merged_plain(layers, rows, width) if plain else _merged(layers, rows, width)
    return [f"{label:>{margin}} {line}".rstrip() for label, line in zip(scale, merged, strict=True)]


def _layer(each: Series, first: float, last: float, low: float, high: float, width: int, rows: int, plain: bool) -> list[str]:
    kept = [(x, min(max(y, low), high)) for x, y in zip(each.xs, each.ys, strict=True) if math.isfinite(x) and math.isfinite(y)]
    count = width if plain else 2 * width
    columns = columns_of([x for x, _ in kept], [y for _, y in kept], first, last, count) if kept else [math.nan] * count
    return draw(columns, rows, low, high, plain=plain)


def _merged_plain(layers: Sequence[list[str]], rows: int, width: int) -> list[str]:
    grid = [[" "] * width for _ in range(rows)]
    for mark, layer in zip(MARKS, layers, strict=False):
        for y, line in enumerate(layer):
            for x, dot in enumerate(line[:width]):
                if dot != " ":
                    grid[y][x] = mark if grid[y][x] in (" ", mark) else "*"
    return ["".join(row) for row in grid]


def _merged(layers: Sequence[list[str]], rows: int, width: int) -> list[str]:
    lines = []
    for y in range(rows):
        line = ""
        for x in range(width):
            bits = [ord(layer[y][x]) - 0x2800 if x < len(layer[y]) and layer[y][x] != " " else 0 for layer in layers]
            together = 0
            for each in bits:
                together |= each
            if not together:
                line += " "
                continue
            owner = max(range(len(bits)), key=lambda i: bits[i].bit_count())
            colour = COLOURS[owner % len(COLOURS)]
            line += f"[{colour}]{chr(0x2800 + together)}[/{colour}]"
        lines.append(line)
    return lines


def painted(text: str) -> str:
    """Rich's colour tags as a terminal takes them."""
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=10_000, highlight=False, legacy_windows=False)
    console.print(text, soft_wrap=True, end="")
    return console.file.getvalue()  # type: ignore[attr-defined]


def _label(value: float) -> str:
    from nanolens.show.words import show

    return show(value, "rough_nats")
