"""Columns of text that line up."""

from __future__ import annotations

from collections.abc import Sequence

from nanoscope.present.live import cells


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Lines of a table; the columns in `left` are aligned to the left, numbers to the right."""
    widths = [max(cells(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        pieces = []
        for i, text in enumerate(row):
            gap = " " * (widths[i] - cells(text))
            pieces.append(text + gap if i in left else gap + text)
        lines.append("  ".join(pieces).rstrip())
    return lines
