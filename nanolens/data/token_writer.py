"""The files of one split: its tokens, and where its documents end."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanolens.data.sidecar import INDEX, documents_file, tokens_file


class SplitWriter:
    """Takes tokens in order; can take back a document that was long enough to come in pieces."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype, vocab_size: int):
        self._tokens = open(tokens_file(folder, split), "wb")  # noqa: SIM115  closed by whoever made the writer
        self._index = open(documents_file(folder, split), "wb")  # noqa: SIM115
        self._width = dtype.itemsize
        self.name = tokens_file(folder, split).name
        self._digest = hashlib.sha256()
        self._was_rolled_back = False
        self.tokens = self.documents = 0
        self.counts = np.zeros(vocab_size, dtype=np.int64)
        self.marked_bytes = 0
        self._marked: tuple[int, int, np.ndarray] | None = None

    def add(self, part: Part) -> None:
        self._tokens.write(part.ids.data)
        self._digest.update(part.ids.data)
        index = np.empty(len(part.ends), dtype=INDEX)
        index["end"], index["hash"] = part.ends + self.tokens, part.hashes
        self._index.write(index.tobytes())
        self.tokens += len(part.ids)
        self.documents += len(index)
        self.counts += part.counts

    def mark(self) -> None:
        """A long document begins here."""
        self._marked = (self.tokens, self.documents, self.counts.copy())
        self.marked_bytes = 0

    def roll_back(self) -> None:
        """As if nothing had been added since the mark."""
        assert self._marked is not None
        self.tokens, self.documents, self.counts = self._marked
        self._tokens.seek(self.tokens * self._width)
        self._tokens.truncate()
        self._index.seek(self.documents * INDEX.itemsize)
        self._index.truncate()
        self._marked = None
        self._was_rolled_back = True

    def sha256(self) -> str | None:
        """Of the token file, where it was written in one go."""
        return None if self._was_rolled_back else self._digest.hexdigest()

    def close(self) -> None:
        self._tokens.close()
        self._index.close()


@dataclass(frozen=True)
class Part:
    """Tokens for one split, ready to write."""

    ids: np.ndarray
    ends: np.ndarray
    hashes: np.ndarray
    text_bytes: int
    counts: np.ndarray
