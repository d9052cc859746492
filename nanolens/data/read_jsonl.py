"""JSON Lines: each line is an object, and one of its keys holds a document."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from nanolens.data.compressed import Broken, open_raw
from nanolens.data.documents import Batch, Damaged, packed
from nanolens.data.text_column import choose_column

LONGEST_LINE = 1 << 30


def read_jsonl(path: Path, column: str | None, damaged: Damaged) -> Iterator[Batch]:
    yield from packed(_rows(path, column, damaged))


def _rows(path: Path, column: str | None, damaged: Damaged) -> Iterator[tuple[bytes, int]]:
    """Each document with the bytes of the file that were read since the last."""
    decoder: msgspec.json.Decoder | None = None
    with open_raw(path) as (file, raw):
        before = 0
        for number, line in enumerate(_lines(file, path, damaged), 1):
            if line.isspace():
                continue
            try:
                if decoder is None:
                    decoder = _decoder(column or _found_column(line, path))
                text = decoder.decode(line).text.encode()
            except (msgspec.DecodeError, UnicodeError) as error:
                damaged.row(f"{path} line {number:,}", str(error))
                continue
            if not text:
                damaged.empty += 1
                continue
            now = raw.tell()
            yield text, now - before
            before = now


def _lines(file: IO[bytes], path: Path, damaged: Damaged) -> Iterator[bytes]:
    number = 0
    try:
        while line := file.readline(LONGEST_LINE):
            number += 1
            yield line
    except (OSError, EOFError, ValueError, Broken, zlib.error) as error:
        damaged.row(f"{path} after line {number:,}", f"it breaks off: {error}")


def _found_column(line: bytes, path: Path) -> str:
    row = msgspec.json.decode(line, type=dict)
    return choose_column([key for key, value in row.items() if isinstance(value, str)], list(row), path)


def _decoder(column: str) -> msgspec.json.Decoder:
    # Only the one key is built; msgspec skips over the rest of the line.
    return msgspec.json.Decoder(msgspec.defstruct("Row", [("text", str)], rename={"text": column}))
