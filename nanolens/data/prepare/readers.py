"""What the user named, as a list of files in a fixed order, and the documents in them.

A folder stands for all files below it, in the order of their paths; names that begin with a dot are passed over.
`.jsonl` and `.parquet` are tables (a row is a document), everything else is text (a file is a document); each may end
in `.gz` or `.zst`.

Text: line ends become `\\n` and a byte order mark goes, as in a file that Python opens as text. A file that is not
UTF-8 text is counted and named, not used. JSON Lines: one key of each line holds a document. Parquet: a few thousand
rows at a time; the text stays in Arrow's buffers, and no Python string is made of any row."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Literal, cast

import msgspec
import numpy as np

from nanolens.data.prepare.documents import (
    BATCH_BYTES,
    LONG_BYTES,
    Batch,
    DamageReport,
    Documents,
    Piece,
    Row,
    characters_in,
    documents_of,
    from_digest,
    in_batches,
    packed,
    pieces,
)
from nanolens.errors import fault, require
from nanolens.message import msg

if TYPE_CHECKING:
    import pyarrow
    from _typeshed import WriteableBuffer

Kind = Literal["text", "jsonl", "parquet"]
STDIN = "-"


@dataclass(frozen=True)
class SourceFile:
    path: Path
    kind: Kind
    bytes: int
    modified_ns: int

    @property
    def is_compressed(self) -> bool:
        return self.kind == "parquet" or self.path.suffix in COMPRESSED


def find_files(given: Iterable[str | Path]) -> list[SourceFile]:
    found = []
    for name in given:
        path = Path(name)
        if path.is_dir():
            below = [file for file in sorted(path.rglob("*")) if file.is_file()]
            found += [file for file in below if not any(part[0] == "." for part in file.relative_to(path).parts)]
        elif path.is_file():
            found.append(path)
        else:
            fix = msg("check the path; it is relative to {here:code}", str(Path.cwd()))
            raise fault(msg("there is no such file or folder"), where=str(path), fix=fix)
    if not found:
        what = msg("there are no files in {given:code}", [str(name) for name in given])
        raise fault(what, fix=msg("name a folder that contains files"))
    return [_source(path) for path in found]


def read_documents(
    files: list[SourceFile], column: str | None, damaged: DamageReport, digests: dict[Path, str]
) -> Iterator[Batch]:
    """All documents in order. `digests` gets the sha256 of the files that were read whole on the way."""
    for kind, same in groupby(files, key=lambda file: file.kind):
        if kind == "text":
            yield from packed(read_text_files([file.path for file in same], damaged, digests))
        elif kind == "jsonl":
            for file in same:
                yield from packed(read_jsonl(file.path, column, damaged))
        else:
            for file in same:
                yield from read_parquet(file.path, column, damaged)


def spool_stdin(folder: Path) -> Path:
    """Standard input as a file: what is in it is known only at its end, and its length decides where it is split."""
    first = sys.stdin.buffer.readline()
    path = folder / ("stdin.jsonl" if first.lstrip().startswith(b"{") else "stdin.txt")
    with open(path, "wb") as file:
        file.write(first)
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return path


def _source(path: Path) -> SourceFile:
    about, name = path.stat(), path.name.lower()
    kind: Kind = "text"
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    if name.endswith((".jsonl", ".ndjson")):
        kind = "jsonl"
    elif name.endswith((".parquet", ".pq")):
        kind = "parquet"
    return SourceFile(path, kind, about.st_size, about.st_mtime_ns)


class BrokenFile(Exception):
    """A file that cannot be read to its end, with the reason."""


COMPRESSED = (".gz", ".zst")
BREAKS_OFF = (OSError, EOFError, ValueError, zlib.error)  # what reading a file raises that is damaged or cut off


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
    """zstandard has an error class of its own; here it is an OSError as from any other file."""

    def __init__(self, stream: io.RawIOBase, zstandard: ModuleType) -> None:
        self._stream, self._error = stream, zstandard.ZstdError

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        try:
            return self._stream.readinto(buffer)
        except self._error as error:
            raise OSError(f"damaged zstd data: {error}") from None


# --- text

BLOCK_BYTES = 1 << 20


def read_text_files(paths: list[Path], damaged: DamageReport, digests: dict[Path, str]) -> Iterator[Row | Piece]:
    """`digests` gets the sha256 of each file that was read whole."""
    for path in paths:
        try:
            raw_bytes = path.stat().st_size
            if raw_bytes > LONG_BYTES or path.suffix in COMPRESSED:
                yield from _long(path, damaged)
                continue
            raw = path.read_bytes()
        except OSError as error:
            damaged.row(str(path), error.strerror or str(error))
            continue
        digest = hashlib.sha256(raw).digest()
        digests[path] = digest.hex()
        try:
            text = _checked(codecs.getincrementaldecoder("utf-8")(), raw, 0, is_first=True, final=True)
        except BrokenFile as problem:
            damaged.row(str(path), str(problem))
            continue
        if text:
            yield text, raw_bytes, from_digest(digest if text == raw else hashlib.sha256(text).digest())
        else:
            damaged.empty += 1


def count_characters(path: Path) -> int:
    """Of a text file as it would be read. Raises BrokenFile where it is not text."""
    return sum(characters_in(np.frombuffer(block, dtype=np.uint8)) for block in blocks_of(path))


def blocks_of(path: Path) -> Iterator[bytes]:
    """A file of any length in blocks of normalised text, whole characters each. Raises BrokenFile if it is no text."""
    with open_raw(path) as (file, _):
        decoder = codecs.getincrementaldecoder("utf-8")()
        done, is_first, half_line_end = 0, True, b""
        while raw := _read(file):
            raw, half_line_end = half_line_end + raw, b""
            if raw.endswith(b"\r"):
                raw, half_line_end = raw[:-1], b"\r"  # the \n may be in the next block
            text = _checked(decoder, raw, done, is_first)
            done += len(raw)
            is_first = is_first and not text and done < len(codecs.BOM_UTF8)  # one mark is taken away, not two
            yield text
        yield _checked(decoder, half_line_end, done, is_first, final=True)


def _long(path: Path, damaged: DamageReport) -> Iterator[Piece]:
    # Read twice: a document is used whole or not at all, and its last byte may be the one that is not text.
    try:
        if not count_characters(path):
            damaged.empty += 1
            return
    except (BrokenFile, OSError) as problem:
        damaged.row(str(path), str(problem))
        return
    yield from pieces(blocks_of(path), path.stat().st_size)


def _read(file: IO[bytes]) -> bytes:
    try:
        return file.read(BLOCK_BYTES)
    except BREAKS_OFF as error:
        raise BrokenFile(f"it breaks off: {error}") from None


def _checked(decoder: codecs.IncrementalDecoder, raw: bytes, done: int, is_first: bool, final: bool = False) -> bytes:
    if b"\0" in raw:
        raise BrokenFile(f"not text: a zero byte at {done + raw.index(0):,}")
    half = decoder.getstate()[0]  # the beginning of a character whose end is in this block
    if half or not raw.isascii():
        try:
            raw = decoder.decode(raw, final).encode()
        except UnicodeDecodeError as error:
            place = done - len(half) + error.start
            raise BrokenFile(f"not UTF-8: byte 0x{error.object[error.start]:02x} at {place:,}") from None
    if is_first:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in raw else raw


# --- tables

USUAL = ("text", "content", "document", "body")


def choose_column(of_text: list[str], all_columns: list[str], path: Path) -> str:
    """One with a usual name, or the only one that holds text."""
    usual = [name for name in USUAL if name in of_text]
    if usual or len(of_text) == 1:
        return (usual or of_text)[0]
    fix = msg("name it: {option:code}", f"--text_column={of_text[0] if of_text else 'NAME'}")
    raise fault(msg("which column contains the text? Columns: {columns:code}", all_columns), where=str(path), fix=fix)


LONGEST_LINE = 1 << 30


def read_jsonl(path: Path, column: str | None, damaged: DamageReport) -> Iterator[Row]:
    decoder: msgspec.json.Decoder | None = None
    with open_raw(path) as (file, raw):
        before = 0
        for number, line in enumerate(_lines(file, path, damaged), 1):
            if line.isspace():
                continue
            try:
                decoder = decoder or _decoder(line, column, path)
                text = decoder.decode(line).text.encode()
            except (msgspec.DecodeError, UnicodeError) as error:
                damaged.row(f"{path} line {number:,}", str(error))
                continue
            if not text:
                damaged.empty += 1
                continue
            now = raw.tell()
            yield text, now - before, None
            before = now


def _lines(file: IO[bytes], path: Path, damaged: DamageReport) -> Iterator[bytes]:
    number = 0
    try:
        while line := file.readline(LONGEST_LINE):
            number += 1
            yield line
    except BREAKS_OFF as error:
        damaged.row(f"{path} after line {number:,}", f"it breaks off: {error}")


def _decoder(line: bytes, column: str | None, path: Path) -> msgspec.json.Decoder:
    """Builds one key; msgspec skips over the rest of a line."""
    if column is None:
        row = msgspec.json.decode(line, type=dict)
        column = choose_column([key for key, value in row.items() if isinstance(value, str)], list(row), path)
    return msgspec.json.Decoder(msgspec.defstruct("Row", [("text", str)], rename={"text": column}))


def read_parquet(path: Path, column: str | None, damaged: DamageReport) -> Iterator[Batch]:
    arrow, parquet = require("pyarrow", "data"), require("pyarrow.parquet", "data")
    try:
        # Read through a small buffer: a mapped file would count as our memory, page by page.
        file = parquet.ParquetFile(path, buffer_size=1 << 20)
    except (arrow.ArrowException, OSError) as error:
        damaged.row(str(path), f"not a readable parquet file: {_first_line(error)}")
        return
    with file:
        column = _text_column(file.schema_arrow, column, path, arrow)
        for group in range(file.num_row_groups):
            about, done, place = file.metadata.row_group(group), 0, f"{path} row group {group}"
            rows, columns = about.num_rows, [about.column(i) for i in range(about.num_columns)]
            text_bytes = next(each.total_uncompressed_size for each in columns if each.path_in_schema == column)
            at_once = max(1, min(rows, BATCH_BYTES * rows // max(1, text_bytes)))
            read_per_row = sum(each.total_compressed_size for each in columns) / max(1, rows)
            try:
                for batch in file.iter_batches(at_once, row_groups=[group], columns=[column], use_threads=False):
                    array = batch.column(0)
                    yield from _documents(array, place, done, damaged, int(read_per_row * len(array)), arrow)
                    done += len(array)
            except (arrow.ArrowException, OSError) as error:
                damaged.row(f"{place}, rows {done:,} to {rows - 1:,}", _first_line(error), rows - done)


def _documents(
    array: pyarrow.Array, place: str, first_row: int, damaged: DamageReport, read_bytes: int, arrow: ModuleType
) -> Iterator[Batch]:
    if array.type not in (arrow.string(), arrow.large_string()):
        array = array.cast(arrow.large_string())  # dictionary or view layouts
    # The text and the bounds of the rows in it, without a copy of the text
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64 if array.type == arrow.large_string() else np.int32)
    bounds = ends[array.offset : array.offset + len(array) + 1].astype(np.int64)
    text = np.frombuffer(data if data is not None else b"", dtype=np.uint8)[bounds[0] : bounds[-1]]
    bounds -= bounds[0]
    empty = bounds[:-1] == bounds[1:]
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    damaged.empty += int(np.count_nonzero(empty & ~nulls))
    bad = _not_utf8(array, text, bounds, arrow)
    for row, reason in (dict.fromkeys(np.flatnonzero(nulls).tolist(), "null") | bad).items():
        damaged.row(f"{place} row {first_row + row:,}", reason)
    if bad or np.any(np.diff(bounds) > LONG_BYTES):
        good = [row for row in np.flatnonzero(~empty).tolist() if row not in bad]
        documents = (text[bounds[row] : bounds[row + 1]].tobytes() for row in good)
        yield from packed((document, read_bytes * len(document) // len(text), None) for document in documents)
    elif np.any(~empty):
        # A row without text has no bytes, so leaving out its bound leaves out the row.
        yield from in_batches(Documents(text, np.concatenate([bounds[:1], bounds[1:][~empty]]), read_bytes=read_bytes))


def _not_utf8(array: pyarrow.Array, text: np.ndarray, bounds: np.ndarray, arrow: ModuleType) -> dict[int, str]:
    """Rows that are not UTF-8: parquet does not check what a writer called a string."""
    bad = {}
    try:
        array.validate(full=True)
    except arrow.ArrowInvalid:
        for row, document in enumerate(documents_of(text, bounds)):
            try:
                str(document, "utf-8")
            except UnicodeDecodeError as error:
                bad[row] = f"not UTF-8 at byte {error.start:,}"
    return bad


def _text_column(schema: pyarrow.Schema, column: str | None, path: Path, arrow: ModuleType) -> str:
    if column is None:
        text_types = (arrow.string(), arrow.large_string())
        return choose_column([field.name for field in schema if field.type in text_types], schema.names, path)
    if column not in schema.names:
        what = msg("there is no column {column:code}, only {columns:code}", column, schema.names)
        raise fault(what, where=str(path), fix=msg("name one of them with {option:code}", "--text_column"))
    return column


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200]
