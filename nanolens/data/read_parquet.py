"""Parquet files, one row group after the other, and of each only a few thousand rows at a time: never the whole file in memory.

The text column stays in Arrow's buffers: no Python string is made of any row.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nanolens.data.documents import BATCH_BYTES, LONG_BYTES, Batch, Damaged, Documents, in_batches, pack, pieces
from nanolens.data.text_column import choose_column, require_column
from nanolens.errors import require


def read_parquet(path: Path, column: str | None, damaged: Damaged) -> Iterator[Batch]:
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
            yield from _row_group(file, group, column, path, damaged, arrow)


def _row_group(file: Any, group: int, column: str, path: Path, damaged: Damaged, arrow: Any) -> Iterator[Batch]:
    about = file.metadata.row_group(group)
    chunk = next(about.column(i) for i in range(about.num_columns) if about.column(i).path_in_schema == column)
    rows_at_once = max(1, min(about.num_rows, BATCH_BYTES * about.num_rows // max(1, chunk.total_uncompressed_size)))
    read_per_row = sum(about.column(i).total_compressed_size for i in range(about.num_columns)) / max(1, about.num_rows)
    done = 0
    try:
        for rows in file.iter_batches(batch_size=rows_at_once, row_groups=[group], columns=[column], use_threads=False):
            array = rows.column(0)
            yield from _documents(array, f"{path} row group {group}", done, damaged, int(read_per_row * len(array)), arrow)
            done += len(array)
    except (arrow.ArrowException, OSError) as error:
        lost = about.num_rows - done
        damaged.row(f"{path} row group {group}, rows {done:,} to {about.num_rows - 1:,}", _first_line(error), lost)


def _documents(array: Any, place: str, first_row: int, damaged: Damaged, read_bytes: int, arrow: Any) -> Iterator[Batch]:
    if array.type not in (arrow.string(), arrow.large_string()):
        array = array.cast(arrow.large_string())  # dictionary or view layouts
    text, bounds = _buffers(array, arrow)
    empty = bounds[:-1] == bounds[1:]
    if array.null_count:
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(nulls).tolist():
            damaged.row(f"{place} row {first_row + row:,}", "null")
        damaged.empty += int(np.count_nonzero(empty & ~nulls))
    else:
        damaged.empty += int(np.count_nonzero(empty))
    bad = _not_utf8(array, text, bounds, arrow)
    for row, reason in bad.items():
        damaged.row(f"{place} row {first_row + row:,}", reason)
    if bad or np.any(np.diff(bounds) > LONG_BYTES):
        yield from _one_by_one(text, bounds, set(bad), read_bytes)
    elif np.any(~empty):
        # A row without text has no bytes, so leaving out its bound leaves out the row.
        yield from in_batches(Documents(text, np.concatenate([bounds[:1], bounds[1:][~empty]]), read_bytes=read_bytes))


def _one_by_one(text: np.ndarray, bounds: np.ndarray, leave_out: set[int], read_bytes: int) -> Iterator[Batch]:
    """The rare case of rows that are damaged or long."""
    for row in range(len(bounds) - 1):
        document = text[bounds[row] : bounds[row + 1]].tobytes()
        share = int(read_bytes * len(document) / max(1, bounds[-1] - bounds[0]))
        if row in leave_out or not document:
            continue
        if len(document) > LONG_BYTES:
            yield from pieces(iter((document,)), share)
        else:
            yield pack([document], read_bytes=share)


def _buffers(array: Any, arrow: Any) -> tuple[np.ndarray, np.ndarray]:
    """The text and the bounds of the rows in it, without a copy of the text."""
    wide = array.type == arrow.large_string()
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    text = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return text[bounds[0] : bounds[-1]], bounds - bounds[0]


def _not_utf8(array: Any, text: np.ndarray, bounds: np.ndarray, arrow: Any) -> dict[int, str]:
    """Rows that are not UTF-8: parquet does not check what a writer called a string."""
    try:
        array.validate(full=True)
        return {}
    except arrow.ArrowInvalid:
        pass
    bad = {}
    for row in range(len(bounds) - 1):
        try:
            text[bounds[row] : bounds[row + 1]].tobytes().decode()
        except UnicodeDecodeError as error:
            bad[row] = f"not UTF-8 at byte {error.start:,}"
    return bad


def _text_column(schema: Any, column: str | None, path: Path, arrow: Any) -> str:
    if column is not None:
        require_column(column, schema.names, path)
        return column
    types = arrow.types
    of_text = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
    return choose_column(of_text, schema.names, path)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200]
