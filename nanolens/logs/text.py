"""Bytes that somebody saved -> text that rows can be searched in.

`\\r` stays in the text as a second kind of line end: a progress bar that redraws itself tells a row each time. Nothing
that is taken away holds a line end, so the number of a line stays that of the file."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*+[ -/]*+[@-~]?"  # colours, cursor movements
    r"|\x1b\][^\x07\x1b\r\n]*+(?:\x07|\x1b\\)?"  # window titles, links
    r"|\x1b[ -/]*+[0-~]?"
)
# What is left of a colour when a copy loses its escape character
_BARE_COLOURS = re.compile(r"\[(?:\d{1,3};){0,4}\d{0,3}m(?![\w\]])")
_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_BACKSPACES = re.compile(r"\x08++")
_REPLACED = (("\xa0", " "), ("\u2007", " "), ("\u202f", " "), ("\ufeff", ""), ("\u200b", ""), ("\x00", ""))
LONG_STRETCH = 100  # lines: a traceback between the rows of other ranks stays together


def decode(raw: bytes) -> str:
    """UTF-8, or what the byte-order mark says (PowerShell's `>` writes UTF-16); U+FFFD for what is no text."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if raw.startswith(mark):
            return raw[len(mark) :].decode(encoding, "replace")
    return raw.decode("utf-8", "replace")


def clean(text: str) -> str:
    """The text without what a terminal or a web page put around it. Line ends stay where they are."""
    for character, plain in _REPLACED:
        text = text.replace(character, plain)
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "[0m" in text or "[m" in text:
        text = _BARE_COLOURS.sub("", text)
    if "\x08" in text:
        text = _BACKSPACES.sub("\r", text)  # a bar drawn over with backspaces starts its line again
    if "," in text and not _POINT.search(text) and _COMMA.search(text):
        text = _BETWEEN.sub(".", text)
    return _with_ranks(text.replace("\r\n", "\n"))


# Decimals with a comma, where no number of the text has a point: 0,0003 has no thousands
_POINT, _BETWEEN = re.compile(r"\d\.\d"), re.compile(r"(?<=\d),(?=\d)")
_COMMA = re.compile(r"(?<![\d,])\d{1,3},(?:\d\d?|\d{4,9})(?![\d,])")


_LABEL = re.compile(r"^ {0,3}(\d{1,4}): (?=\S)", re.M)
LINES_LOOKED_AT, FEWEST_LABELLED = 60, 5


def _with_ranks(text: str) -> str:
    """`srun -l` puts the number of the task before each line: `3: step 10 …` becomes `[rank3]: step 10 …`."""
    head = [line for line in text[:20_000].split("\n")[: 4 * LINES_LOOKED_AT] if line.strip()][:LINES_LOOKED_AT]
    labels = [match[1] for line in head if (match := _LABEL.match(line))]
    if len(labels) < max(FEWEST_LABELLED, 0.9 * len(head)) or len(set(labels)) > len(labels) // 3:
        return text
    return _LABEL.sub(r"[rank\1]: ", text)


@dataclass(frozen=True)
class LogText:
    """A piece of cleaned text, and which lines of its source it is."""

    text: str
    first_line: int = 1  # the number that its first line has in the source
    offset: int = 0  # characters before it
    rows_alone: list[np.ndarray] = field(default_factory=list, compare=False)  # lines, from 0, with a row alone

    @cached_property
    def line_starts(self) -> np.ndarray:
        return np.concatenate(([0], np.flatnonzero(self.codes == ord("\n")) + 1))

    @cached_property
    def piece_starts(self) -> np.ndarray:
        """The same, where `\\r` ends a line too."""
        if "\r" not in self.text:
            return self.line_starts
        return np.concatenate(([0], np.flatnonzero((self.codes == ord("\n")) | (self.codes == ord("\r"))) + 1))

    def lines_at(self, offsets: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.line_starts, offsets, side="right") - 1 + self.first_line

    def place(self, offset: int) -> tuple[int, int]:
        """(line, offset) of a character in the source."""
        return int(self.lines_at(np.array(offset))), self.offset + offset

    @cached_property
    def besides_rows(self) -> list[LogText]:
        """Where all but rows is looked for: without long stretches of lines that hold a row and nothing else."""
        return self.without(np.concatenate([np.zeros(0, np.int64), *self.rows_alone]), LONG_STRETCH)

    def without(self, lines: np.ndarray, shortest: int = 1) -> list[LogText]:
        """The parts that are left without stretches of at least `shortest` of these lines, counted from 0."""
        is_out = np.zeros(len(self.line_starts), bool)
        is_out[lines] = True
        turns = np.flatnonzero(np.diff(is_out, prepend=False, append=False))
        starts, ends = turns[::2], turns[1::2]
        is_long = ends - starts >= shortest
        if not is_long.any():
            return [self]
        bounds = [*self.line_starts.tolist(), len(self.text)]
        firsts, lasts = [0, *ends[is_long].tolist()], [*starts[is_long].tolist(), len(bounds) - 1]
        return [
            LogText(self.text[bounds[first] : bounds[last]], self.first_line + first, self.offset + bounds[first])
            for first, last in zip(firsts, lasts, strict=True)
            if first < last
        ]

    @cached_property
    def codes(self) -> np.ndarray:
        if self.text.isascii():
            return np.frombuffer(self.text.encode(), np.uint8)
        return np.frombuffer(self.text.encode("utf-32-le", "surrogatepass"), np.uint32)


def lines_with(text: str, word: str, longest: int = 2000) -> Iterator[tuple[int, str]]:
    """(offset, line) of each line that holds `word`: a search at the speed of `str.find`, for words that are rare."""
    at = text.find(word)
    while at >= 0:
        start = text.rfind("\n", max(0, at - longest), at) + 1 or max(0, at - longest)
        end = text.find("\n", at, at + longest)
        end = min(len(text), at + longest) if end < 0 else end
        yield start, text[start:end]
        at = text.find(word, end)
