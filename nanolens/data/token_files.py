"""The files of a prepared folder, and what its JSON sidecar says; fingerprints of tokens.

    train.bin, val.bin         token ids, little-endian uint16 (uint32 where the vocabulary needs it), as in nanoGPT
    train.docs, val.docs       16 bytes per document: where it ends in the tokens, and its hash
    dataset.json               what is in the folder: counts, facts, tokenizer, damaged rows, choices
    sources.json               the files it was made from, each with its sha256
    tokenizer.nanolens.json    the tokenizer itself
    meta.pkl                   of a character-level dataset, so that nanoGPT can use it too

A fingerprint is a short name for data: equal names mean equal tokens, whatever file or number width they came in."""

from __future__ import annotations

import hashlib
import io
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nanolens.errors import fault
from nanolens.files import read_json
from nanolens.message import Message, msg

Split = Literal["train", "val"]
Sidecar = dict[str, Any]  # dataset.json; `prepare` writes it and lists its keys

FORMAT = 1
SIDECAR = "dataset.json"
SOURCES = "sources.json"
META = "meta.pkl"
INDEX = np.dtype([("end", "<u8"), ("hash", "<u8")])


def choice_made(what: str, value: object, because: Message) -> dict[str, object]:
    """What was decided without being asked, as the sidecar has it; `words` is the reason to be translated."""
    words = {"msgid": because.msgid, "args": dict(because.args)}
    return {"what": what, "value": value, "because": str(because), "words": words}


def tokens_file(folder: Path, split: Split | str) -> Path:
    return folder / f"{split}.bin"


def documents_file(folder: Path, split: Split | str) -> Path:
    return folder / f"{split}.docs"


class TokensOnDisk:
    """A token file of which only what is asked for is read; the pages of a memory map would count as memory."""

    def __init__(self, path: Path, dtype: np.dtype):
        self._path, self._dtype = path, dtype
        self._count = path.stat().st_size // dtype.itemsize

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(self._count)
        return np.fromfile(self._path, self._dtype, max(0, stop - start), offset=start * self._dtype.itemsize)


def read_sidecar(folder: Path) -> Sidecar | None:
    """What the folder says of itself, or None where it is not one of ours."""
    about = read_json(folder / SIDECAR)
    return about if about and isinstance(about.get("format"), int) else None


# Up to this many tokens each one counts; beyond, evenly spaced blocks do, so that 10 B tokens take no time either
_HASHED_WHOLE = 1 << 22
_HASH_BLOCK, _HASHED_BLOCKS = 1 << 14, 256


def fingerprint_of_tokens(tokens: np.ndarray | TokensOnDisk) -> str:
    """Of a split. A flipped bit in a large file is found by the folder's manifest, not by this."""
    digest = hashlib.sha256(f"tokens {len(tokens)}".encode())
    if len(tokens) <= _HASHED_WHOLE:
        starts = np.arange(0, len(tokens), _HASH_BLOCK)
    else:
        starts = np.linspace(0, len(tokens) - _HASH_BLOCK, _HASHED_BLOCKS).astype(np.int64)
    for start in starts:
        digest.update(tokens[start : start + _HASH_BLOCK].astype("<u4").tobytes())
    return digest.hexdigest()[:16]


def combined(*fingerprints: str) -> str:
    return hashlib.sha256(" ".join(fingerprints).encode()).hexdigest()[:16]


# --- nanoGPT's meta.pkl


class UnsafePickle(Exception):
    """The pickle holds something that is not plain data."""


MOST_PICKLE_BYTES = 64 << 20
# About 64 bytes each. A table of Unicode's 160,000 characters has 1 million, a checkpoint of 1,000 blocks 1.9 million.
MOST_INSTRUCTIONS = 2_000_000
# Of tuples of tuples that each hold the one before twice, the 200th would take years to hash; honest files share few
MOST_SHARED_TUPLES = 20
PLAIN_INSTRUCTIONS = frozenset(
    """PROTO FRAME STOP MARK PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET NONE NEWTRUE NEWFALSE INT BININT
    BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 BINBYTES
    SHORT_BINBYTES BINBYTES8 EMPTY_DICT EMPTY_LIST EMPTY_TUPLE EMPTY_SET DICT LIST TUPLE TUPLE1 TUPLE2 TUPLE3 SETITEM
    SETITEMS APPEND APPENDS ADDITEMS""".split()
)


def read_plain_pickle(path: Path) -> object:
    """The value in the file, if it is made of plain data only."""
    try:
        size = path.stat().st_size
        if size > MOST_PICKLE_BYTES:
            raise UnsafePickle(f"it is {size:,} bytes long")
        return plain_value(path.read_bytes())
    except UnsafePickle as reason:
        what = msg("this pickle contains more than plain data, and was not opened: {reason}", str(reason))
        fix = msg(
            "prepare the data again with {command:code}; pickles can run code, so nanolens reads only plain ones",
            "nanolens prepare",
        )
        raise fault(what, where=str(path), fix=fix) from None


def plain_value(payload: bytes) -> object:
    require_plain_pickle(payload)
    try:
        # Not the one in C: for an instruction of five bytes that names place 2**31 it would ask for 16 GB
        return pickle._Unpickler(io.BytesIO(payload)).load()
    except Exception as error:  # of a damaged pickle, nearly any
        raise UnsafePickle(f"it is damaged ({error})") from None


def require_plain_pickle(payload: bytes, callable_names: re.Pattern[str] | None = None) -> None:
    """Refuses a pickle that does more than build numbers, strings, lists, tuples, sets and dicts, or that would take
    much time or memory. It is a program, and this looks at its instructions without following any. The pickle in a file
    of torch's may also call what matches `callable_names` ("module name")."""
    is_tuple: dict[int, bool] = {}  # by place in the pickle's memo
    taken = shared = 0
    before = ""
    try:
        for instruction, argument, position in pickletools.genops(payload):
            name = instruction.name
            if callable_names is not None and name in ("GLOBAL", "REDUCE", "BUILD", "BINPERSID"):
                may_run = name != "GLOBAL" or callable_names.fullmatch(str(argument)) is not None
            else:
                may_run = name in PLAIN_INSTRUCTIONS and (name != "PROTO" or position == 0)
            if not may_run:
                raise UnsafePickle(f"instruction {name} with {argument!r:.60}")
            if name == "MEMOIZE" or name.endswith("PUT"):
                is_tuple[len(is_tuple) if argument is None else int(argument)] = "TUPLE" in before
            else:
                shared += name.endswith("GET") and is_tuple.get(int(argument or 0), False)
                before = name
            taken += 4 if name in ("EMPTY_SET", "REDUCE", "BINPERSID") else 1
            if taken > MOST_INSTRUCTIONS or shared > MOST_SHARED_TUPLES:
                raise UnsafePickle("it is too long")
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise UnsafePickle(f"it is damaged ({error})") from None
