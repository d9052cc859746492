"""Text files: each file is one document.

Line ends become `\\n` and a byte order mark goes, as in a file that Python opens as text. A file that is not UTF-8 text is counted and
named, not used.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from nanolens.data.compressed import Broken, open_raw
from nanolens.data.documents import BATCH_BYTES, LONG_BYTES, Batch, Damaged, pack, pieces
from nanolens.data.hashing import from_digest

BLOCK_BYTES = 1 << 20


def read_text_files(paths: list[Path], damaged: Damaged, digests: dict[Path, str]) -> Iterator[Batch]:
    """`digests` gets the sha256 of each file that was read whole."""
    waiting: list[bytes] = []
    hashes: list[int] = []
    size = read_bytes = 0
    for path in paths:
        try:
            raw_bytes = path.stat().st_size
            if raw_bytes > LONG_BYTES or path.suffix in (".gz", ".zst"):
                if waiting:
                    yield pack(waiting, np.array(hashes, dtype=np.uint64), read_bytes)
                    waiting, hashes, size, read_bytes = [], [], 0, 0
                yield from _long(path, damaged)
                continue
            raw = path.read_bytes()
        except OSError as error:
            damaged.row(str(path), error.strerror or str(error))
            continue
        digest = hashlib.sha256(raw).digest()
        digests[path] = digest.hex()
        text = normalised(raw)
        if problem := not_text(text):
            damaged.row(str(path), problem)
            continue
        if not text:
            damaged.empty += 1
            continue
        waiting.append(text)
        hashes.append(from_digest(digest if text is raw else hashlib.sha256(text).digest()))
        size += len(text)
        read_bytes += raw_bytes
        if size >= BATCH_BYTES:
            yield pack(waiting, np.array(hashes, dtype=np.uint64), read_bytes)
            waiting, hashes, size, read_bytes = [], [], 0, 0
    if waiting:
        yield pack(waiting, np.array(hashes, dtype=np.uint64), read_bytes)


def normalised(raw: bytes) -> bytes:
    text = raw.removeprefix(codecs.BOM_UTF8)
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return text


def not_text(text: bytes) -> str | None:
    """Why these bytes are not text, or None where they are."""
    if b"\0" in text:
        return f"not text: a zero byte at {text.index(0):,}"
    if text.isascii():
        return None
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte 0x{text[error.start]:02x} at {error.start:,}"
    return None


def count_characters(path: Path) -> int:
    """Of a text file as it would be read. Raises Broken where it is not text."""
    return sum(_characters(block) for block in blocks_of(path))


def blocks_of(path: Path) -> Iterator[bytes]:
    """A file of any length in blocks of normalised text, whole characters each. Raises Broken where it is not text."""
    with open_raw(path) as (file, _):
        decoder = codecs.getincrementaldecoder("utf-8")()
        done, is_first, half_line_end = 0, True, b""
        while raw := _read(file):
            raw, half_line_end = half_line_end + raw, b""
            if raw.endswith(b"\r"):
                raw, half_line_end = raw[:-1], b"\r"  # the \n may be in the next block
            text = _checked(decoder, raw, done, is_first)
            done, is_first = done + len(raw), is_first and not text
            yield text
        yield _checked(decoder, half_line_end, done, is_first, final=True)


def _long(path: Path, damaged: Damaged) -> Iterator[Batch]:
    # Read twice: a document is used whole or not at all, and its last byte may be the one that is not text.
    try:
        if not count_characters(path):
            damaged.empty += 1
            return
    except (Broken, OSError) as problem:
        damaged.row(str(path), str(problem))
        return
    yield from pieces(blocks_of(path), path.stat().st_size)


def _read(file: IO[bytes]) -> bytes:
    try:
        return file.read(BLOCK_BYTES)
    except (OSError, EOFError, ValueError) as error:
        raise Broken(f"it breaks off: {error}") from None


def _checked(decoder: codecs.IncrementalDecoder, raw: bytes, done: int, is_first: bool, final: bool = False) -> bytes:
    if b"\0" in raw:
        raise Broken(f"not text: a zero byte at {done + raw.index(0):,}")
    half = decoder.getstate()[0]  # the beginning of a character whose end is in this block
    if half or not raw.isascii():
        try:
            raw = decoder.decode(raw, final).encode()
        except UnicodeDecodeError as error:
            place = done - len(half) + error.start
            raise Broken(f"not UTF-8: byte 0x{error.object[error.start]:02x} at {place:,}") from None
    return normalised(raw) if is_first else raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw


def _characters(text: bytes) -> int:
    if text.isascii():
        return len(text)
    return int(np.count_nonzero((np.frombuffer(text, dtype=np.uint8) & 0xC0) != 0x80))
