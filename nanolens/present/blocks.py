"""Text in blocks: laid out to a width, plain for a pipe, painted for a terminal.

No frames and no columns: terminals disagree on the width of Devanagari, so whatever has to line up after a Hindi word would not.
"""

from __future__ import annotations

import io
import os
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Literal

from nanolens.show.words import TIE

Role = Literal["title", "head", "body", "quote", "note", "command", "certain", "likely", "possible", "good", "bad"]

_STYLES: dict[str, str] = {
    "title": "bold underline", "head": "bold", "body": "", "quote": "cyan", "note": "dim", "command": "green",
    "certain": "bold red", "likely": "bold yellow", "possible": "bold blue", "good": "bold green", "bad": "bold red",
}  # fmt: skip
NARROWEST, WIDEST = 30, 110  # a line longer than this is hard to follow, whatever the terminal's width


@dataclass(frozen=True)
class Block:
    """One paragraph. `mark` stands before its first line; the others hang below the text."""

    text: str
    role: Role = "body"
    indent: int = 0
    mark: str = ""


GAP = Block("")


def plain(blocks: Iterable[Block], width: int = 80) -> str:
    return "\n".join(line for block in blocks for line in _laid_out(block, width)) + "\n"


def painted(blocks: Iterable[Block], width: int = 80) -> str:
    """The same lines with colours, for a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=10_000, highlight=False, legacy_windows=False)
    for block in blocks:
        for line in _laid_out(block, width):
            console.print(Text(line, style=_STYLES[block.role]), soft_wrap=True, markup=False, emoji=False)
    return console.file.getvalue()  # type: ignore[attr-defined]


def for_stream(blocks: Sequence[Block], stream: IO[str]) -> str:
    """As the stream can show it: colours and its own width in a terminal, plain text of 100 columns into a file or a pipe."""
    if not stream.isatty():
        return plain(blocks, 100)
    width = max(NARROWEST, min(shutil.get_terminal_size().columns, WIDEST))
    return plain(blocks, width) if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else painted(blocks, width)


def width_of(text: str) -> int:
    """Columns that the text takes at most: marks that stand above or below a letter take none, wide letters two."""
    if text.isascii():
        return len(text)
    return sum(_width_of_letter(letter) for letter in text)


def _width_of_letter(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1


def _laid_out(block: Block, width: int) -> list[str]:
    first = " " * block.indent + block.mark
    rest = " " * width_of(first)
    if block.role in ("quote", "command"):  # to be compared or copied: never broken
        return [(first if i == 0 else rest) + _clean(line) for i, line in enumerate(block.text.splitlines() or [""])]
    lines: list[str] = []
    for line in block.text.splitlines() or [""]:
        lines += _broken(line, max(NARROWEST, width) - width_of(first))
    return [((first if i == 0 else rest) + line).rstrip() for i, line in enumerate(lines)]


def _broken(text: str, width: int) -> list[str]:
    lines, line, used = [], "", 0
    for word in text.split(" "):
        word = _clean(word)
        size = width_of(word)
        if line and used + 1 + size > width:
            lines.append(line)
            line, used = word, size
        else:
            line, used = (f"{line} {word}", used + 1 + size) if line else (word, size)
    return [*lines, line]


def _clean(text: str) -> str:
    """Ties become spaces; control characters from a foreign log must not steer the reader's terminal."""
    return "".join(letter for letter in text.replace(TIE, " ") if letter == "\t" or unicodedata.category(letter) != "Cc")
