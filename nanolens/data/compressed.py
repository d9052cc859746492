"""Files that may be compressed, by the end of their name."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from nanolens.errors import require


class Broken(Exception):
    """A file that cannot be read to its end, with the reason."""


COMPRESSED = (".gz", ".zst")


@contextmanager
def open_raw(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The contents, uncompressed, and the file as it is on disk, whose position tells how much of it was read."""
    with open(path, "rb") as raw:
        if path.suffix == ".gz":
            with gzip.open(raw) as file:
                yield cast(IO[bytes], file), raw
        elif path.suffix == ".zst":
            zstandard = require("zstandard", "data")
            with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as stream:
                yield cast(IO[bytes], io.BufferedReader(_errors_as_os(stream, zstandard), 1 << 20)), raw
        else:
            yield raw, raw


class _errors_as_os(io.RawIOBase):
    """zstandard has an error class of its own; here it is an OSError as from any other file. A stream that breaks off is one too."""

    def __init__(self, stream, zstandard):
        self._stream, self._error = stream, zstandard.ZstdError

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        try:
            return self._stream.readinto(buffer)
        except self._error as error:
            raise OSError(f"damaged zstd data: {error}") from None
