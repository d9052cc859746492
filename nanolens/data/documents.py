"""Text on its way through `prepare`, and where a long text may be cut.

Readers pack documents end to end in one buffer of UTF-8: a corpus has millions of documents, and a Python object for each would
cost more than encoding them. A document too long to be held travels in pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Split = Literal["train", "val"]

BATCH_BYTES = 4 << 20  # of text, at which a batch is sent on: some 25 ms of encoding; gigatoken learns the words of each batch anew
LONG_BYTES = 8 << 20  # documents beyond this travel in pieces


@dataclass(frozen=True)
class Documents:
    """Whole documents that follow each other."""

    text: np.ndarray  # uint8: UTF-8 of all of them
    bounds: np.ndarray  # int64: document i is text[bounds[i]:bounds[i + 1]]
    hashes: np.ndarray | None = None  # uint64 (see `hashing.py`), where the reader knows them already
    read_bytes: int = 0  # bytes of the source that were read for them, for the progress bar

    def __len__(self) -> int:
        return len(self.bounds) - 1


@dataclass(frozen=True)
class Piece:
    """A part of a long document, cut where its tokens are cut anyway."""

    text: np.ndarray
    is_first: bool
    is_last: bool
    split: Split | None = None  # already decided; else by the document's hash
    read_bytes: int = 0


Batch = Documents | Piece


@dataclass
class Damaged:
    """Rows and files that could not be used: all are counted, the first are named."""

    count: int = 0
    empty: int = 0  # documents without text: nothing is lost with them, but they are counted
    named: list[str] = field(default_factory=list)
    most_named: int = 100

    def row(self, place: str, reason: str, count: int = 1) -> None:
        self.count += count
        if len(self.named) < self.most_named:
            self.named.append(f"{place}: {reason}")


def pack(texts: list[bytes], hashes: np.ndarray | None = None, read_bytes: int = 0) -> Documents:
    bounds = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in texts], out=bounds[1:])
    return Documents(np.frombuffer(b"".join(texts), dtype=np.uint8), bounds, hashes, read_bytes)


def in_batches(documents: Documents, batch_bytes: int = BATCH_BYTES) -> Iterator[Documents]:
    """The same documents in batches of about `batch_bytes`: a few long rows among short ones would make a large batch."""
    first, last = 0, len(documents)
    while first < last:
        limit = documents.bounds[first] + batch_bytes
        end = max(first + 1, int(np.searchsorted(documents.bounds, limit, side="right")) - 1)
        start, stop = documents.bounds[first], documents.bounds[end]
        share = int(documents.read_bytes * (stop - start) / max(1, documents.bounds[-1] - documents.bounds[0]))
        yield Documents(documents.text[start:stop], documents.bounds[first : end + 1] - start, read_bytes=share)
        first = end


def packed(rows: Iterable[tuple[bytes, int]], batch_bytes: int = BATCH_BYTES) -> Iterator[Batch]:
    """Documents, each with the bytes read for it, gathered into batches; long ones in pieces."""
    waiting: list[bytes] = []
    size = read_bytes = 0
    for text, read in rows:
        if len(text) > LONG_BYTES:
            if waiting:
                yield pack(waiting, read_bytes=read_bytes)
                waiting, size, read_bytes = [], 0, 0
            yield from pieces(iter((text,)), read)
            continue
        waiting.append(text)
        size += len(text)
        read_bytes += read
        if size >= batch_bytes:
            yield pack(waiting, read_bytes=read_bytes)
            waiting, size, read_bytes = [], 0, 0
    if waiting:
        yield pack(waiting, read_bytes=read_bytes)


def pieces(blocks: Iterator[bytes], read_bytes: int = 0, piece_bytes: int = BATCH_BYTES) -> Iterator[Piece]:
    """A document that comes in blocks of any size, in pieces that can be encoded one by one. `read_bytes` is of the whole document."""
    left = b""
    is_first = True
    for block in blocks:
        left += block
        while len(left) >= 2 * piece_bytes:
            cut = last_cut(left[:piece_bytes]) or first_cut(left, piece_bytes)
            if cut is None:
                break
            yield Piece(np.frombuffer(left[:cut], dtype=np.uint8), is_first, is_last=False, read_bytes=read_bytes if is_first else 0)
            left, is_first = left[cut:], False
    yield Piece(np.frombuffer(left, dtype=np.uint8), is_first, is_last=True, read_bytes=read_bytes if is_first else 0)


_CUT = re.compile(rb"[^\x00-\x20\x7f][ \t\n]")
"""A space or line end after something that is not one: every tokenizer here begins a new token there, whatever comes before or after."""


def last_cut(text: bytes) -> int | None:
    """The last place where `text` can be cut without changing any token; looks at its end only."""
    start = max(0, len(text) - (64 << 10))
    found = [match.start() + 1 for match in _CUT.finditer(text, start)]
    return next((place for place in reversed(found) if _is_visible_before(text, place)), None)


def first_cut(text: bytes, start: int) -> int | None:
    return next((match.start() + 1 for match in _CUT.finditer(text, start) if _is_visible_before(text, match.start() + 1)), None)


def _is_visible_before(text: bytes, place: int) -> bool:
    """Whether the character that ends at `place` is not one of Unicode's own spaces."""
    if text[place - 1] < 0x80:
        return True
    start = place - 1
    while start > 0 and text[start] & 0xC0 == 0x80 and place - start < 4:
        start -= 1
    return not text[start:place].decode("utf-8", errors="replace").isspace()
