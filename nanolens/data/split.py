"""Which documents are for validation.

By the document's hash, so that the answer depends on nothing but the document: not on the order of the files, the size of a batch,
or which of many machines meets it; and equal documents are never on both sides. A single document is cut at nine tenths of its
characters, as nanoGPT does. Where documents are few and uneven, chance would give a val split far too large or empty, and the
documents are chosen to fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from nanolens.data.documents import Batch, Documents, Piece

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
    """These documents."""

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
    """In the order of their hashes, each document that still fits; if none does, the smallest of all.

    Equal documents have one key and count together, so that they stay on one side.
    """
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
    for piece in _as_pieces(batches):
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


def _as_pieces(batches: Iterable[Batch]) -> Iterator[Piece]:
    for batch in batches:
        if isinstance(batch, Documents):
            assert len(batch) == 1, "more than one document"
            yield Piece(batch.text, True, True, read_bytes=batch.read_bytes)
        else:
            yield batch
