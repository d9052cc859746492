"""Bytes that somebody saved -> text that rows can be searched in.

What terminals, shells and web pages leave behind is taken away first: byte-order marks, ANSI colours, the hard spaces of a web page.
`\\r` stays in the text as a second kind of line end: a progress bar that redraws itself tells a row each time. Nothing that is taken away
holds a line end, so the number of a line stays that of the file.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*+[ -/]*+[@-~]?"  # colours, cursor movements
    r"|\x1b\][^\x07\x1b\r\n]*+(?:\x07|\x1b\\)?"  # window titles, links
    r"|\x1b[ -/]*+[0-~]?"
)
_BARE_COLOURS = re.compile(r"\[(?:\d{1,3};){0,4}\d{0,3}m(?![\w\]])")  # what is left of a colour when a copy loses its escape character
_BACKSPACES = re.compile(r"\x08++")
_REPLACED = (("\xa0", " "), ("\u2007", " "), ("\u202f", " "), ("\ufeff", ""), ("\u200b", ""), ("\x00", ""))

LONG_STRETCH = 100  # lines; what stands nearer together, such as a traceback between the rows of other ranks, stays together


def decode(raw: bytes) -> str:
    """UTF-8, or what the byte-order mark says (PowerShell's `>` writes UTF-16); bytes that are no text become U+FFFD."""
    for mark, encoding in ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if raw.startswith(mark):
            return raw[len(mark) :].decode(encoding, "replace")
    return raw.decode("utf-8", "replace")


def clean(text: str) -> str:
    """The text without what a terminal or a web page put around it. Line ends stay where they are."""
    for character, plain in _REPLACED:
        if character in text:
            text = text.replace(character, plain)
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "[0m" in text or "[m" in text:
        text = _BARE_COLOURS.sub("", text)
    if "\x08" in text:
        text = _BACKSPACES.sub("\r", text)  # a bar drawn over with backspaces starts its line again
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
    return text


@dataclass(frozen=True)
class Text:
    """A piece of cleaned text, and which lines of its source it is."""

    text: str
    first_line: int = 1  # the number that its first line has in the source
    offset: int = 0  # characters before it
    rows_alone: list[np.ndarray] = field(default_factory=list, compare=False)  # lines, from 0, that hold a row and nothing else

    @cached_property
    def line_starts(self) -> np.ndarray:
        """Offset of each line's first character."""
        return np.concatenate(([0], self._positions("\n") + 1))

    @cached_property
    def piece_starts(self) -> np.ndarray:
        """The same, where `\\r` ends a line too."""
        if "\r" not in self.text:
            return self.line_starts
        return np.union1d(self.line_starts, self._positions("\r") + 1)

    def lines_at(self, offsets: np.ndarray) -> np.ndarray:
        """The source's line number of each offset."""
        return np.searchsorted(self.line_starts, offsets, side="right") - 1 + self.first_line

    def line_at(self, offset: int) -> int:
        return int(np.searchsorted(self.line_starts, offset, side="right")) - 1 + self.first_line

    def piece_around(self, offset: int) -> tuple[int, int]:
        """Start and end of the line (or redraw) that holds an offset."""
        index = int(np.searchsorted(self.piece_starts, offset, side="right"))
        end = int(self.piece_starts[index]) - 1 if index < len(self.piece_starts) else len(self.text)
        return int(self.piece_starts[index - 1]), end

    @cached_property
    def besides_rows(self) -> list[Text]:
        """The text in parts, without long stretches of lines that hold a row and nothing else: all but rows is looked for there only."""
        is_row = np.zeros(len(self.line_starts) + 1, bool)
        for lines in self.rows_alone:
            is_row[lines] = True
        turns = np.flatnonzero(np.diff(is_row, prepend=False))
        starts, ends = turns[::2], turns[1::2]
        is_long = ends - starts >= LONG_STRETCH
        if not is_long.any():
            return [self]
        ends_of_text = np.append(self.line_starts, len(self.text))
        firsts, lasts = np.append(0, ends[is_long]), np.append(starts[is_long], len(self.line_starts))
        return [
            Text(self.text[ends_of_text[first] : ends_of_text[last]], self.first_line + first, self.offset + int(ends_of_text[first]))
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
            if first < last
        ]

    @cached_property
    def codes(self) -> np.ndarray:
        """Each character as a number."""
        if self.text.isascii():
            return np.frombuffer(self.text.encode(), np.uint8)
        return np.frombuffer(self.text.encode("utf-32-le", "surrogatepass"), np.uint32)

    def _positions(self, character: str) -> np.ndarray:
        return np.flatnonzero(self.codes == ord(character))


def lines_with(text: str, word: str, longest: int = 2000):
    """(offset, line) of each line that holds `word`: a search at the speed of `str.find`, for words that are rare."""
    at = text.find(word)
    while at >= 0:
        start = text.rfind("\n", max(0, at - longest), at) + 1 or max(0, at - longest)
        end = text.find("\n", at, at + longest)
        end = min(len(text), at + longest) if end < 0 else end
        yield start, text[start:end]
        at = text.find(word, end)
