"""Columns of text that line up."""

from __future__ import annotations

from collections.abc import Sequence

from nanolens.show.live import cells, clean, wrapped


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


def side_by_side(titles: Sequence[str], texts: Sequence[str], width: int) -> list[str]:
    """Texts in columns of equal width, each under its title."""
    room = (width - 3 * (len(texts) - 1)) // len(texts)
    columns = [[clean(title)[:room], "─" * room, *wrapped(text, room, 10_000)] for title, text in zip(titles, texts, strict=True)]
    height = max(map(len, columns))
    lines = []
    for y in range(height):
        cut = [column[y] if y < len(column) else "" for column in columns]
        lines.append(" │ ".join(text + " " * (room - cells(text)) for text in cut).rstrip())
    return lines
