"""What an answer says, as parts that are written once and rendered as text for a pipe or a terminal, as Markdown and as
HTML. No frames, and words only in the last column of a table: terminals disagree on the width of Devanagari, so that
whatever has to line up after a Hindi word would not."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import IO, Literal, TypeAlias

from nanolens.message import Message
from nanolens.show.curves import COLOURS, CURVE_LETTERS, Series, overlaid
from nanolens.show.words import TIE, non_breaking

Role = Literal[
    "title", "head", "body", "quote", "note", "command", "certain", "likely", "possible", "good", "bad", "literal"
]
Text: TypeAlias = Message | str

_STYLES: dict[Role, str] = {
    "title": "bold underline",
    "head": "bold",
    "quote": "cyan",
    "note": "dim",
    "command": "green",
    "certain": "bold red",
    "likely": "bold yellow",
    "possible": "bold blue",
    "good": "bold green",
    "bad": "bold red",
}
LITERAL = ("quote", "command", "literal")
JOINERS = "\u200c\u200d"  # invisible, and part of how Devanagari is written
NARROWEST, WIDEST, PIPE_WIDTH = 30, 110, 100  # a line longer than this is hard to follow, whatever the terminal's width


@dataclass(frozen=True)
class TextBlock:
    """One paragraph. `mark` stands before its first line ("- " for a bullet); the others hang below the text."""

    text: Text
    role: Role = "body"
    indent: int = 0
    mark: str = ""


GAP = TextBlock("")


@dataclass(frozen=True)
class Table:
    """The columns in `left` are aligned to the left, numbers to the right."""

    header: Sequence[Text]
    rows: Sequence[Sequence[Text]]
    left: Sequence[int] = (0,)
    indent: int = 0


@dataclass(frozen=True)
class Chart:
    """Curves over one another: Braille in colours on a terminal, letters elsewhere."""

    title: Text | None
    series: Sequence[Series]
    names: Sequence[Text]  # in colours
    letters: Text | None = None  # what A, B, ... mean; the names, unless it is said otherwise
    after: Text = ""  # behind the legend


Part: TypeAlias = TextBlock | Table | Chart


def bullet(text: Text, role: Role = "body", indent: int = 2) -> TextBlock:
    return TextBlock(text, role, indent, "- ")


# --- as text


def plain(parts: Iterable[Part], width: int = 80, lang: str = "en") -> str:
    return "\n".join(line for part in parts for line, _ in _lines(part, width, lang)) + "\n"


def painted(parts: Iterable[Part], width: int = 80, lang: str = "en") -> str:
    """The same lines with colours, for a terminal."""
    from rich.console import Console
    from rich.text import Text as RichText

    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", width=10_000, legacy_windows=False)
    for part in parts:
        if isinstance(part, Chart):
            lines = [RichText.from_markup(line) for line, _ in _chart(part, lang, colours=True)]
        else:
            lines = [RichText(line, _STYLES.get(role, "")) for line, role in _lines(part, width, lang)]
        for line in lines:
            console.print(line, soft_wrap=True)
    return file.getvalue()


def for_stream(parts: Sequence[Part], stream: IO[str], lang: str = "en") -> str:
    """As the stream can show it: colours and its own width in a terminal, else plain text of 100 columns."""
    if not stream.isatty():
        return plain(parts, PIPE_WIDTH, lang)
    width = max(NARROWEST, min(shutil.get_terminal_size().columns, WIDEST))
    has_colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return (painted if has_colours else plain)(parts, width, lang)


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> list[list[str]]:
    """The cells of each row, filled up to the width of their column: those in `left` to the left."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    return [
        [padded(text, width, to_left=i in left) for i, (text, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    ]


def side_by_side(titles: Sequence[str], texts: Sequence[str], width: int) -> list[str]:
    size = (width - 3 * (len(texts) - 1)) // len(texts)
    columns = [
        [clean(title)[:size], "─" * size, *wrapped(text, size, 10_000)]
        for title, text in zip(titles, texts, strict=True)
    ]
    rows = zip_longest(*columns, fillvalue="")
    return [" │ ".join(padded(text, size) for text in row).rstrip() for row in rows]


def _lines(part: Part, width: int, lang: str) -> list[tuple[str, Role]]:
    if isinstance(part, Chart):
        return _chart(part, lang)
    if isinstance(part, Table):
        rows = [[clean(said(cell, lang)) for cell in row] for row in (part.header, *part.rows)]
        return [(" " * part.indent + "  ".join(row).rstrip(), "quote") for row in aligned(rows, part.left)]
    first = " " * part.indent + part.mark
    rest = " " * cells(first)
    text = non_breaking(part.text, lang) if isinstance(part.text, Message) else part.text
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        is_literal = part.role in LITERAL  # to be compared or copied: never broken
        lines += [clean(line)] if is_literal else filled(line, max(NARROWEST, width) - cells(first))
    return [(((rest if i else first) + line).rstrip(), part.role) for i, line in enumerate(lines)]


def _chart(part: Chart, lang: str, colours: bool = False) -> list[tuple[str, Role]]:
    lines = overlaid(part.series, width=72, rows=12, plain=not colours)
    if not lines:
        return []
    names = [clean(said(name, lang)) for name in part.names]
    if colours:
        from rich.markup import escape

        dyes = [COLOURS[i % len(COLOURS)] for i in range(len(names))]
        legend = "   ".join(f"[{dye}]{escape(name)}[/{dye}]" for dye, name in zip(dyes, names, strict=True))
    elif part.letters is not None:
        legend = said(part.letters, lang)
    else:
        legend = "   ".join(f"{mark} {name}" for mark, name in zip(CURVE_LETTERS, names, strict=False))
    after = f"   {said(part.after, lang)}" if part.after and (colours or part.letters is None) else ""
    title = [] if part.title is None else [said(part.title, lang)]
    body: Role = "body"
    return [(line, body) for line in [*title, *(f"  {line}" for line in lines), f"  {legend}{after}", ""]]


def said(text: Text, lang: str, code: Callable[[str], str] = str) -> str:
    """One text in the reader's language; `code` marks what is to be typed or read literally."""
    return non_breaking(text, lang, code).replace(TIE, " ") if isinstance(text, Message) else text


# --- columns of a terminal


def cells(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def padded(text: str, width: int, to_left: bool = True) -> str:
    gap = " " * (width - cells(text))
    return text + gap if to_left else gap + text


def clean(text: str) -> str:
    """One line without control characters: text from a log or a run folder may hold escape sequences."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in JOINERS else " " if c in "\n\t\u00a0" else "·" for c in text)


def cut(text: str, width: int) -> str:
    while cells(text) > width:
        text = text[: max(0, len(text) - max(1, (cells(text) - width) // 2))]
    return text


def filled(text: str, width: int) -> list[str]:
    """One paragraph as lines of whole words; a word that is wider than a line is not broken."""
    lines: list[str] = []
    line, used = "", 0
    for word in map(clean, text.split(" ")):
        size = cells(word)
        if line and used + 1 + size > width:
            lines.append(line)
            line, used = word, size
        else:
            line, used = (f"{line} {word}", used + 1 + size) if line else (word, size)
    return [*lines, line]


def wrapped(text: str, width: int, most: int) -> list[str]:
    """The first `most` lines of a text, its own line breaks kept, long lines broken at blanks."""
    lines: list[str] = []
    for line in text.strip("\n").splitlines():
        line = clean(line).rstrip()
        if not line and (not lines or not lines[-1]):
            continue
        while cells(line) > width and len(lines) < most:
            head = cut(line, width)
            at = head.rfind(" ") if " " in head[width // 2 :] else len(head)
            lines.append(line[:at].rstrip())
            line = line[at:].lstrip()
        lines.append(line)
        if len(lines) >= most:
            break
    return lines[:most]
