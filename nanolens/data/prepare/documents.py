"""Text on its way through `prepare`: documents in batches, where a long one may be cut, which split each belongs to,
and which were there before.

Readers pack documents end to end in one buffer of UTF-8: a Python object for each of millions would cost more than
encoding them. A document too long to be held travels in pieces.

A document's hash says whether two are equal and which split they belong to. 64 bits of sha256: among 100 million
documents the chance that any two different ones share a hash is 1 in 3,700. The split looks at the first megabyte only,
so that a document of many gigabytes need not be read before it is known where it goes. So the answer depends on nothing
but the document: not on the order of the files, the size of a batch, or which of many machines meets it; and equal
documents are never on both sides. A single document is cut at nine tenths of its characters, as nanoGPT does. Where
documents are few and uneven, chance would give a val split far too large or empty, and they are chosen to fit.

Duplicates are found exactly, by hash, 8 bytes a document, or nearly: by MinHash of the document's runs of five words,
where an estimated 80 % or more are shared; about 1 kB a document, which grows with the corpus. The first one stays."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from nanolens.data.token_files import Split
from nanolens.errors import require

# Of text, at which a batch is sent on: some 25 ms of encoding; gigatoken learns the words of each batch anew
BATCH_BYTES = 4 << 20
LONG_BYTES = 8 << 20  # documents beyond this travel in pieces


@dataclass(frozen=True)
class Documents:
    text: np.ndarray  # uint8: UTF-8 of all of them
    bounds: np.ndarray  # int64: document i is text[bounds[i]:bounds[i + 1]]
    hashes: np.ndarray | None = None  # uint64, where the reader knows them already
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
    key: int = 0  # what the whole document's split is decided by
    hash: int = 0  # of the whole document, known with its last piece

    @property
    def bounds(self) -> np.ndarray:
        return np.array([0, len(self.text)])


Batch = Documents | Piece


@dataclass
class DamageReport:
    """Rows and files that could not be used: all are counted, the first are named."""

    count: int = 0
    empty: int = 0  # documents without text: nothing is lost with them, but they are counted
    named: list[str] = field(default_factory=list)
    most_named: int = 100

    def row(self, place: str, reason: str, count: int = 1) -> None:
        self.count += count
        if len(self.named) < self.most_named:
            self.named.append(f"{place}: {reason}")


def pack(texts: Iterable[bytes], hashes: np.ndarray | None = None, read_bytes: int = 0) -> Documents:
    texts = list(texts)
    bounds = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return Documents(np.frombuffer(b"".join(texts), dtype=np.uint8), bounds, hashes, read_bytes)


def in_batches(documents: Documents, batch_bytes: int = BATCH_BYTES) -> Iterator[Documents]:
    """The same documents in batches of about `batch_bytes`, of which a few long rows would make one large one."""
    first, bounds = 0, documents.bounds
    while first < len(documents):
        start = bounds[first]
        end = max(first + 1, int(np.searchsorted(bounds, start + batch_bytes, side="right")) - 1)
        share = int(documents.read_bytes * (bounds[end] - start) / max(1, bounds[-1] - bounds[0]))
        yield Documents(documents.text[start : bounds[end]], bounds[first : end + 1] - start, read_bytes=share)
        first = end


def documents_of(text: np.ndarray, bounds: np.ndarray) -> list[memoryview]:
    view = text.data
    return [view[start:end] for start, end in itertools.pairwise(bounds.tolist())]


def characters_in(text: np.ndarray) -> int:
    """Characters that begin in these bytes of UTF-8."""
    return int(np.count_nonzero((text & 0xC0) != 0x80))


Row = tuple[bytes, int, int | None]  # a document, the bytes of the source read for it, and its hash where known


def packed(rows: Iterable[Row | Piece], batch_bytes: int = BATCH_BYTES) -> Iterator[Batch]:
    """Documents gathered into batches; long ones in pieces. All rows between two long ones have a hash, or none has."""
    waiting: list[Row] = []
    size = 0
    for row in itertools.chain(rows, [None]):
        is_short = isinstance(row, tuple) and len(row[0]) <= LONG_BYTES
        if waiting and (size >= batch_bytes or not is_short):
            texts, read, hashes = zip(*waiting, strict=True)
            yield pack(texts, None if hashes[0] is None else np.array(hashes, dtype=np.uint64), sum(read))
            waiting, size = [], 0
        if isinstance(row, Piece):
            yield row
        elif row is not None and is_short:
            waiting.append(row)
            size += len(row[0])
        elif row is not None:
            yield from pieces(iter((row[0],)), row[1])


def pieces(blocks: Iterator[bytes], read_bytes: int = 0, piece_bytes: int = BATCH_BYTES) -> Iterator[Piece]:
    """A document that comes in blocks, in pieces that can be encoded one by one. The first has all `read_bytes`."""
    left, is_first = b"", True
    for block in blocks:
        left += block
        while len(left) >= 2 * piece_bytes:
            cut = last_cut(left[:piece_bytes]) or first_cut(left, piece_bytes)
            if cut is None:
                break
            yield Piece(np.frombuffer(left[:cut], dtype=np.uint8), is_first, is_last=False, read_bytes=read_bytes)
            left, is_first, read_bytes = left[cut:], False, 0
    yield Piece(np.frombuffer(left, dtype=np.uint8), is_first, is_last=True, read_bytes=read_bytes)


_CUT = re.compile(rb"[^\x00-\x20\x7f][ \t\n]")
"""A space or line end after something that is not one: every tokenizer here begins a new token there."""


def last_cut(text: bytes) -> int | None:
    """The last place where `text` can be cut without changing any token; looks at its end only."""
    return max(_cuts(text, max(0, len(text) - (64 << 10))), default=None)


def first_cut(text: bytes, start: int) -> int | None:
    return next(_cuts(text, start), None)


def _cuts(text: bytes, start: int) -> Iterator[int]:
    places = (match.start() + 1 for match in _CUT.finditer(text, start))
    return (place for place in places if _is_visible_before(text, place))


def _is_visible_before(text: bytes, place: int) -> bool:
    """Whether the character that ends at `place` is not one of Unicode's own spaces."""
    if text[place - 1] < 0x80:
        return True
    start = place - 1
    while start > 0 and text[start] & 0xC0 == 0x80 and place - start < 4:
        start -= 1
    return not text[start:place].decode("utf-8", errors="replace").isspace()


# --- hashes, and which documents are for validation

KEY_BYTES = 1 << 20


def hashes_of(text: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    digests = b"".join(hashlib.sha256(document).digest()[:8] for document in documents_of(text, bounds))
    return np.frombuffer(digests, dtype="<u8")


def split_keys(text: np.ndarray, bounds: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """What the split is decided by: a document's hash, or that of its beginning where it is long."""
    keys = hashes.copy()
    for place in np.flatnonzero(np.diff(bounds) > KEY_BYTES):
        keys[place] = hash_of(text[bounds[place] : bounds[place] + KEY_BYTES])
    return keys


def with_hashes(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Pieces of long documents with their hashes: these are found where the pieces pass in order."""
    for batch in batches:
        if isinstance(batch, Piece):
            if batch.is_first:
                whole, key = hashlib.sha256(), hash_of(batch.text[:KEY_BYTES])
            whole.update(batch.text.data)
            batch = replace(batch, key=key, hash=from_digest(whole.digest()) if batch.is_last else 0)
        yield batch


def hash_of(text: np.ndarray) -> int:
    return from_digest(hashlib.sha256(text.data).digest())


def from_digest(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little")


SINGLE_TRAIN_FRAC = 0.9
FEW_DOCUMENTS = 10_000
OFF_BY = 2.0  # a val split this many times too large or too small is chosen anew, where documents are few


@dataclass(frozen=True)
class ByHash:
    """The share `val_frac` of all possible hashes."""

    val_frac: float

    def is_val(self, keys: np.ndarray) -> np.ndarray:
        return keys < np.uint64(min(int(self.val_frac * 2.0**64), 2**64 - 1))


@dataclass(frozen=True)
class ByChoice:
    val_keys: tuple[int, ...]

    def is_val(self, keys: np.ndarray) -> np.ndarray:
        return np.isin(keys, np.array(self.val_keys, dtype=np.uint64))


@dataclass(frozen=True)
class AtCharacter:
    """The single document, cut before this character."""

    place: int


SplitRule = ByHash | ByChoice | AtCharacter


def fits(val_bytes: int, all_bytes: int, val_frac: float) -> bool:
    wanted = val_frac * all_bytes
    return wanted / OFF_BY <= val_bytes <= wanted * OFF_BY


def choose(keys: np.ndarray, sizes: np.ndarray, val_frac: float) -> ByChoice:
    """In the order of their hashes, each document that still fits; if none does, the smallest of all. Equal documents
    have one key and count together."""
    keys, place = np.unique(keys, return_inverse=True)
    sizes = np.bincount(place, weights=sizes)
    wanted = val_frac * sizes.sum()
    chosen, have = [], 0.0
    for key, size in zip(keys.tolist(), sizes.tolist(), strict=True):
        if have < wanted and have + size <= wanted * 1.5:
            chosen.append(key)
            have += size
    return ByChoice(tuple(chosen) or (int(keys[np.argmin(sizes)]),))


def cut_at_character(batches: Iterable[Batch], rule: AtCharacter) -> Iterator[Piece]:
    """The single document as two, of which the second is for validation."""
    done = 0
    for batch in batches:
        assert isinstance(batch, Piece) or len(batch) == 1, "more than one document"
        piece = batch if isinstance(batch, Piece) else Piece(batch.text, True, True, read_bytes=batch.read_bytes)
        begins = np.flatnonzero((piece.text & 0xC0) != 0x80)
        here = rule.place - done
        done += len(begins)
        if here >= len(begins):
            yield replace(piece, split="train", is_last=done == rule.place)
        elif here <= 0:
            yield replace(piece, split="val", is_first=here == 0)
        else:
            cut = begins[here]
            yield Piece(piece.text[:cut], piece.is_first, True, "train", piece.read_bytes)
            yield Piece(piece.text[cut:], True, piece.is_last, "val")


# --- documents that were there before

Dedup = Literal["none", "exact", "near"]

RUN = 5  # words
MINHASH_SEED = 42  # the one that rensa's deduplicator expects
# 32 bands of 4: a pair that is 80 % alike becomes a candidate in all but 1 of 10 million cases
SIGNATURE, BANDS, ALIKE = 128, 32, 0.8


class SeenHashes:
    """A growing set of hashes, in sorted arrays that are merged as they pile up: no Python object per document."""

    def __init__(self) -> None:
        self._sorted: list[np.ndarray] = []

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """Which of these were there before, in earlier calls or earlier in this one."""
        _, first, place = np.unique(hashes, return_index=True, return_inverse=True)
        repeated = first[place] != np.arange(len(hashes))
        for known in self._sorted:
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            repeated |= known[at] == hashes
        fresh = np.sort(hashes[~repeated])
        if len(fresh):
            self._sorted.append(fresh)
        while len(self._sorted) > 1 and len(self._sorted[-2]) <= 2 * len(self._sorted[-1]):
            self._sorted.append(np.sort(np.concatenate([self._sorted.pop(), self._sorted.pop()])))
        return repeated


class NearDuplicates:
    """Finds documents that share most of their runs of words with an earlier one."""

    def __init__(self) -> None:
        self._rensa = require("rensa", "data")
        self._known = self._rensa.RMinHashDeduplicator(ALIKE, num_perm=SIGNATURE, use_lsh=True, num_bands=BANDS)
        self._count = 0

    def signatures(self, text: np.ndarray, bounds: np.ndarray) -> list:
        """Of each document; may run in several threads."""
        runs = [run_hashes(text[start:end]).view("V8").tolist() for start, end in itertools.pairwise(bounds.tolist())]
        return self._rensa.RMinHash.from_token_sets(runs, num_perm=SIGNATURE, seed=MINHASH_SEED)

    def add(self, signatures: list) -> np.ndarray:
        """Which of these are near an earlier one."""
        numbered = [(str(self._count + place), signature) for place, signature in enumerate(signatures)]
        self._count += len(signatures)
        return ~np.array(self._known.add_pairs(numbered), dtype=bool)


_MULTIPLIER = 0x9E3779B97F4A7C15 | 1  # odd, so that it has an inverse modulo 2**64
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)
_SPACES = np.zeros(256, dtype=bool)
_SPACES[[9, 10, 11, 12, 13, 32]] = True


def run_hashes(text: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each run of RUN words; of all words where there are fewer. A word is hashed as a polynomial in a
    fixed odd number modulo 2**64: all of them come from one running sum."""
    edges = np.flatnonzero(np.diff(_SPACES[text], prepend=True, append=True))
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        powers = _powers(_MULTIPLIER, len(text))
        summed = np.concatenate([np.zeros(1, np.uint64), np.cumsum((text.astype(np.uint64) + np.uint64(1)) * powers)])
        words = (summed[ends] - summed[starts]) * _powers(_INVERSE, len(text) + 1)[starts]
        width = min(RUN, len(words))
        runs = np.zeros(len(words) - width + 1, dtype=np.uint64)
        for place in range(width):
            runs = (runs ^ words[place : place + len(runs)]) * np.uint64(0xBF58476D1CE4E5B9)
            runs ^= runs >> np.uint64(29)
    return runs


_tables: dict[int, np.ndarray] = {}


def _powers(base: int, count: int) -> np.ndarray:
    table = _tables.get(base)
    if table is None or len(table) < count:
        table = np.full(max(count, 1 << 16), base, dtype=np.uint64)
        table[0] = 1
        table = _tables[base] = np.cumprod(table, dtype=np.uint64)
    return table[:count]
