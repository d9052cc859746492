"""Documents in, token files out: reading and writing in this thread, hashing and encoding in others, in order.

Few batches are on the way at any time, so that memory does not grow with the corpus.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nanolens.data.dedup import Dedup, NearDuplicates, SeenHashes
from nanolens.data.documents import Batch, Documents, Piece
from nanolens.data.encoders import Encoder
from nanolens.data.hashing import KEY_BYTES, from_digest, hash_of, hashes_of, split_keys
from nanolens.data.split import FEW_DOCUMENTS, AtCharacter, SplitRule, cut_at_character
from nanolens.data.token_writer import Part, SplitWriter

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class Stages:
    """Seconds that threads spent in each kind of work; their sum is more than the time that passed where cores work side by side."""

    seconds: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, stage: str, since: float) -> float:
        now = time.perf_counter()
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - since
        return now


@dataclass
class Outcome:
    """What one pass over the documents found."""

    documents: int = 0
    repeated: int = 0  # left out as duplicates
    repeated_bytes: int = 0
    text_bytes: dict[str, int] = field(default_factory=lambda: {"train": 0, "val": 0})
    few_keys: list[np.ndarray] | None = field(default_factory=list)  # split keys and sizes of all documents, while they are few
    few_sizes: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True)
class Encoding:
    """How documents become tokens in one pass."""

    encoder: Callable[[], Encoder]  # waits until it is there
    rule: SplitRule
    end_of_document: int | None  # None: documents follow each other without a mark
    dtype: np.dtype
    vocab_size: int
    dedup: Dedup = "none"


def encode_all(
    batches: Iterable[Batch], how: Encoding, folder: Path, workers: int, stages: Stages, told: Callable[[int, int, int], None]
) -> tuple[Outcome, dict[str, SplitWriter]]:
    """Fills the token files in `folder`. `told(bytes read, documents, tokens)` is called after each batch."""
    if isinstance(how.rule, AtCharacter):
        batches = cut_at_character(batches, how.rule)
    writers = {split: SplitWriter(folder, split, how.dtype, how.vocab_size) for split in ("train", "val")}
    desk = _Desk(how, writers, stages)
    try:
        for result in in_order(_timed(_with_hashes(batches), stages), desk.encode, workers):
            started = time.perf_counter()
            desk.write(result)
            stages.add("write", started)
            told(result.read_bytes, desk.outcome.documents, sum(writer.tokens for writer in writers.values()))
    finally:
        for writer in writers.values():
            writer.close()
    if isinstance(how.rule, AtCharacter):
        desk.outcome.documents = 1  # the two were one
    return desk.outcome, writers


def in_order(items: Iterable[Item], work: Callable[[Item], Result], workers: int) -> Iterator[Result]:
    """`map` in threads: results in the order of the items, few items at a time."""
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > workers + 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class _Hashed:
    """A piece of a long document with what is known of the whole: the split key from its first piece on, the hash with its last."""

    piece: Piece
    key: int
    hash: int


@dataclass(frozen=True)
class _Encoded:
    ids: np.ndarray
    bounds: np.ndarray  # of the documents in ids
    sizes: np.ndarray  # bytes of text
    keys: np.ndarray
    hashes: np.ndarray
    signatures: list[Any] | None
    piece: Piece | None  # set where this is a part of one document
    read_bytes: int
    parts: dict[str, Part] | None  # what is to be written, where nothing is left to decide


class _Desk:
    """Encodes in any thread, decides and writes in one."""

    def __init__(self, how: Encoding, writers: dict[str, SplitWriter], stages: Stages):
        self.how, self.writers, self.stages = how, writers, stages
        self.outcome = Outcome()
        self.seen = SeenHashes() if how.dedup != "none" else None
        self.near = NearDuplicates() if how.dedup == "near" else None

    def encode(self, item: Documents | _Hashed) -> _Encoded:
        started = time.perf_counter()
        if isinstance(item, _Hashed):
            piece: Piece | None = item.piece
            text, bounds = item.piece.text, np.array([0, len(item.piece.text)])
            keys, hashes = np.array([item.key], dtype=np.uint64), np.array([item.hash], dtype=np.uint64)
        else:
            piece, text, bounds = None, item.text, item.bounds
            hashes = item.hashes if item.hashes is not None else hashes_of(text, bounds)
            keys = split_keys(text, bounds, hashes)
        signatures = self.near.signatures(text, bounds) if self.near and piece is None else None
        started = self.stages.add("hash", started)
        mark = self.how.end_of_document if piece is None or piece.is_last else None
        ids, id_bounds = self.how.encoder().encode(text, bounds, mark)
        started = self.stages.add("encode", started)
        read_bytes = (item.piece if isinstance(item, _Hashed) else item).read_bytes
        encoded = _Encoded(ids, id_bounds, np.diff(bounds), keys, hashes, signatures, piece, read_bytes, None)
        if self.seen is None:
            encoded = self._arranged(encoded, np.ones(len(keys), dtype=bool))
        self.stages.add("arrange", started)
        return encoded

    def write(self, encoded: _Encoded) -> None:
        if encoded.piece is not None:
            self._write_piece(encoded)
            return
        if encoded.parts is None:
            keep = ~self._repeated(encoded)
            encoded = self._arranged(encoded, keep)
        self._note_few(encoded)
        self.outcome.documents += len(encoded.keys)
        assert encoded.parts is not None
        for split, part in encoded.parts.items():
            self.writers[split].add(part)
            self.outcome.text_bytes[split] += part.text_bytes

    def _repeated(self, encoded: _Encoded) -> np.ndarray:
        assert self.seen is not None
        repeated = self.seen.add(encoded.hashes)
        if self.near:
            assert encoded.signatures is not None
            fresh = np.flatnonzero(~repeated)
            repeated[fresh] = self.near.add([encoded.signatures[place] for place in fresh])
        self.outcome.repeated += int(repeated.sum())
        self.outcome.repeated_bytes += int(encoded.sizes[repeated].sum())
        return repeated

    def _write_piece(self, encoded: _Encoded) -> None:
        """A long document is written as it comes; if it turns out to have been there before, it is taken back."""
        piece = encoded.piece
        assert piece is not None
        if encoded.parts is None:
            encoded = self._arranged(encoded, np.ones(1, dtype=bool))
        assert encoded.parts is not None
        ((split, part),) = encoded.parts.items()
        writer = self.writers[split]
        if piece.is_first:
            writer.mark()
        writer.add(part)
        writer.marked_bytes += part.text_bytes
        if piece.is_last:
            self.outcome.documents += 1
            if self.seen is not None and self.seen.add(encoded.hashes)[0]:
                self.outcome.repeated += 1
                self.outcome.repeated_bytes += writer.marked_bytes
                writer.roll_back()
            else:
                self.outcome.text_bytes[split] += writer.marked_bytes
            self._note_few(encoded, writer.marked_bytes)

    def _arranged(self, encoded: _Encoded, keep: np.ndarray) -> _Encoded:
        """Sorted by split, in the width of the file."""
        val = self._is_val(encoded)
        parts = {}
        for split, chosen in (("train", keep & ~val), ("val", keep & val)):
            if not chosen.any():
                continue
            parts[split] = self._part(encoded, np.flatnonzero(chosen))
        return replace(encoded, parts=parts, ids=encoded.ids[:0])

    def _is_val(self, encoded: _Encoded) -> np.ndarray:
        if isinstance(self.how.rule, AtCharacter):
            assert encoded.piece is not None
            return np.array([encoded.piece.split == "val"])
        return self.how.rule.is_val(encoded.keys)

    def _part(self, encoded: _Encoded, documents: np.ndarray) -> Part:
        ends_here = encoded.piece is None or encoded.piece.is_last
        starts, stops = encoded.bounds[documents], encoded.bounds[documents + 1]
        if len(documents) == len(encoded.keys):
            ids = encoded.ids.astype(self.how.dtype)
        else:
            slices = [encoded.ids[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
            ids = np.concatenate(slices, dtype=self.how.dtype, casting="unsafe")
        return Part(
            ids=ids,
            ends=np.cumsum(stops - starts) if ends_here else np.empty(0, dtype=np.int64),
            hashes=encoded.hashes[documents] if ends_here else encoded.hashes[:0],
            text_bytes=int(encoded.sizes[documents].sum()),
            counts=np.bincount(ids, minlength=self.how.vocab_size),
        )

    def _note_few(self, encoded: _Encoded, size: int | None = None) -> None:
        outcome = self.outcome
        if outcome.few_keys is None:
            return
        outcome.few_keys.append(encoded.keys)
        outcome.few_sizes.append(encoded.sizes if size is None else np.array([size]))
        if outcome.documents > FEW_DOCUMENTS:
            outcome.few_keys, outcome.few_sizes = None, []


def _timed(batches: Iterator[Item], stages: Stages) -> Iterator[Item]:
    started = time.perf_counter()
    for batch in batches:
        stages.add("read", started)
        yield batch
        started = time.perf_counter()


def _with_hashes(batches: Iterable[Batch]) -> Iterator[Documents | _Hashed]:
    """Pieces of long documents are hashed here, where they pass in order."""
    whole = hashlib.sha256()
    key = 0
    for batch in batches:
        if isinstance(batch, Documents):
            yield batch
            continue
        if batch.is_first:
            whole, key = hashlib.sha256(), hash_of(batch.text[:KEY_BYTES])
        whole.update(batch.text.data)
        yield _Hashed(batch, key, from_digest(whole.digest()) if batch.is_last else 0)
