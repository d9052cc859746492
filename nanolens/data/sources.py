"""What the user named, as a list of files in a fixed order, and the documents in them.

A folder stands for all files below it, in the order of their paths; names that begin with a dot are passed over. `.jsonl` and
`.parquet` are tables (a row is a document), everything else is text (a file is a document); each may end in `.gz` or `.zst`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from nanolens.data.compressed import COMPRESSED
from nanolens.data.documents import Batch, Damaged
from nanolens.data.read_jsonl import read_jsonl
from nanolens.data.read_parquet import read_parquet
from nanolens.data.read_text import read_text_files
from nanolens.errors import fault
from nanolens.message import msg

Kind = Literal["text", "jsonl", "parquet"]
STDIN = "-"


@dataclass(frozen=True)
class SourceFile:
    path: Path
    kind: Kind
    bytes: int
    modified_ns: int


def find_files(given: Iterable[str | Path]) -> list[SourceFile]:
    """Every file that the given paths stand for."""
    found = []
    for name in given:
        path = Path(name)
        if path.is_dir():
            found += [_source(file) for file in sorted(path.rglob("*")) if file.is_file() and not _is_hidden(file.relative_to(path))]
        elif path.is_file():
            found.append(_source(path))
        else:
            raise fault(
                msg("there is no such file or folder"),
                where=msg("{path:code}", path=str(path)),
                fix=msg("check the path; it is looked for from {here:code}", here=str(Path.cwd())),
            )
    if not found:
        raise fault(msg("there are no files in {given:code}", given=[str(name) for name in given]), fix=msg("name a folder that has some"))
    return found


def read_documents(files: list[SourceFile], column: str | None, damaged: Damaged, digests: dict[Path, str]) -> Iterator[Batch]:
    """All documents in order. `digests` gets the sha256 of the files that were read whole on the way."""
    for kind, same in groupby(files, key=lambda file: file.kind):
        if kind == "text":
            yield from read_text_files([file.path for file in same], damaged, digests)
        else:
            read = read_jsonl if kind == "jsonl" else read_parquet
            for file in same:
                yield from read(file.path, column, damaged)


def spool_stdin(folder: Path) -> Path:
    """Standard input as a file: what is in it is known only at its end, and its length decides where it is split."""
    first = sys.stdin.buffer.readline()
    path = folder / ("stdin.jsonl" if first.lstrip().startswith(b"{") else "stdin.txt")
    with open(path, "wb") as file:
        file.write(first)
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return path


def _source(path: Path) -> SourceFile:
    about = path.stat()
    return SourceFile(path, _kind(path), about.st_size, about.st_mtime_ns)


def _kind(path: Path) -> Kind:
    name = path.name.lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    if name.endswith((".parquet", ".pq")):
        return "parquet"
    return "text"


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
