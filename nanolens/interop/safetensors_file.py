"""Weights in safetensors files that strangers wrote: the header is looked at before the library or any memory is asked for.

The library itself checks that the tensors lie one behind the other and fill the file. What it does not ask is how long the list is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.errors import UserError, fault
from nanolens.message import msg

if TYPE_CHECKING:
    from torch import Tensor

MOST_HEADER_BYTES = 8 << 20  # a GPT of 1,000 blocks has 2 MB
MOST_JSON_BYTES = 64 << 20
DTYPES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}  # those that weights are in, with their bytes


def read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Each tensor's name with its dtype and shape."""
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MOST_HEADER_BYTES):
                raise ValueError(f"its header claims {length:,} bytes, in a file of {size:,}")
            header = parsed(file.read(length))
        tensors = {name: about for name, about in header.items() if name != "__metadata__"}
        found = {name: _about(name, about) for name, about in tensors.items()}
        _require_places(tensors, found, size - 8 - length)
        return found
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise unreadable(path, str(error)) from None


def read_tensors(path: Path, names: Collection[str]) -> dict[str, Tensor]:
    """The named tensors, each as it is in the file."""
    from safetensors import SafetensorError, safe_open

    read_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, RuntimeError, ValueError, MemoryError) as error:
        raise unreadable(path, str(error)) from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a stranger."""
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        if path.stat().st_size > MOST_JSON_BYTES:
            raise ValueError(f"it is {path.stat().st_size:,} bytes long")
        return parsed(path.read_bytes())
    except (OSError, ValueError) as error:
        raise unreadable(path, str(error)) from None


def parsed(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    return value


def _about(name: str, about: Any) -> tuple[str, tuple[int, ...]]:
    shape = about["shape"] if isinstance(about, Mapping) else None
    if not isinstance(shape, list) or len(shape) > 8 or not all(type(length) is int and 0 <= length < 1 << 48 for length in shape):
        raise ValueError(f"{name[:60]!r} has no shape")
    return str(about["dtype"])[:20], tuple(shape)


def _require_places(tensors: Mapping[str, Any], found: Mapping[str, tuple[str, tuple[int, ...]]], size: int) -> None:
    """Each tensor in its own place within the file."""
    end_before = 0
    for start, end, name in sorted((*_place(name, about), name) for name, about in tensors.items()):
        dtype, shape = found[name]
        if start < end_before or end > size:
            raise ValueError(f"the numbers of {name[:60]!r} overlap others, or end behind the end of the file")
        if dtype in DTYPES and math.prod(shape) * DTYPES[dtype] != end - start:
            raise ValueError(f"{name[:60]!r} of shape {str(shape)[:60]} has {end - start:,} bytes")
        end_before = end


def _place(name: str, about: Mapping[str, Any]) -> tuple[int, int]:
    places = about["data_offsets"]
    if not isinstance(places, list) or len(places) != 2 or not all(type(place) is int and place >= 0 for place in places):
        raise ValueError(f"{name[:60]!r} has no place in the file")
    if places[0] > places[1]:
        raise ValueError(f"{name[:60]!r} ends before it begins")
    return places[0], places[1]


def unreadable(path: Path, problem: str) -> UserError:
    return fault(
        msg("{file:code} cannot be read: {problem}", file=str(path), problem=problem[:300]),
        fix=msg("get the file again from where it was written"),
    )
