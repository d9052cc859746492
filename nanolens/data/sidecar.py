"""The files of a prepared folder, and what its JSON sidecar says.

train.bin, val.bin            token ids, little-endian uint16 (uint32 where the vocabulary needs it), as nanoGPT reads them
train.docs, val.docs          16 bytes a document: where it ends in the tokens, and its hash
dataset.json                  what is in the folder: counts, facts, tokenizer, damaged rows, choices
sources.json                  the files it was made from, each with its sha256
tokenizer.nanolens.json      the tokenizer itself
meta.pkl                      of a character-level dataset, so that nanoGPT can use it too
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from nanolens.data.documents import Split

FORMAT = 1
SIDECAR = "dataset.json"
SOURCES = "sources.json"
META = "meta.pkl"
INDEX = np.dtype([("end", "<u8"), ("hash", "<u8")])


def tokens_file(folder: Path, split: Split | str) -> Path:
    return folder / f"{split}.bin"


def documents_file(folder: Path, split: Split | str) -> Path:
    return folder / f"{split}.docs"


class TokensOnDisk:
    """A token file of which only what is asked for is read. A memory map would do, but each page that is looked at counts as memory."""

    def __init__(self, path: Path, dtype: np.dtype):
        self._path, self._dtype = path, dtype
        self._count = path.stat().st_size // dtype.itemsize

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(self._count)
        return np.fromfile(self._path, dtype=self._dtype, count=max(0, stop - start), offset=start * self._dtype.itemsize)


def read_sidecar(folder: Path) -> dict[str, Any] | None:
    """What the folder says of itself, or None where it is not one of ours."""
    try:
        about = json.loads((folder / SIDECAR).read_bytes())
        return about if isinstance(about, dict) and isinstance(about.get("format"), int) else None
    except (OSError, ValueError):
        return None
