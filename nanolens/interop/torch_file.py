"""Files that `torch.save` wrote, read without running anything in them.

Such a file is a zip archive: `data.pkl`, a pickle that describes the values, and one uncompressed entry for the numbers of each tensor.
torch's own loader trusts the sizes that it finds there, or the code. This one follows only the instructions of `data/unpickle.py`, knows a
dozen names, compares each size with the size of the file, and reads a tensor when it is asked for: what a checkpoint claims can be compared
with what it should hold before any memory is taken.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nanolens.data.unpickle import MOST_BYTES, Named, Refused, plain_value
from nanolens.errors import UserError, fault
from nanolens.message import msg

if TYPE_CHECKING:
    from torch import Tensor

MOST_DIRECTORY_BYTES = 4 << 20  # of the archive's list of entries; a model of 1,000 blocks with its optimizer has 3 MB
DTYPES = {
    "torch FloatStorage": ("float32", 4), "torch DoubleStorage": ("float64", 8), "torch HalfStorage": ("float16", 2),
    "torch BFloat16Storage": ("bfloat16", 2), "torch LongStorage": ("int64", 8), "torch IntStorage": ("int32", 4),
    "torch ShortStorage": ("int16", 2), "torch CharStorage": ("int8", 1), "torch ByteStorage": ("uint8", 1),
    "torch BoolStorage": ("bool", 1),
}  # fmt: skip


@dataclass(frozen=True)
class Numbers:
    """Where in the file the numbers of a storage are."""

    path: Path
    dtype: str
    start: int
    count: int


@dataclass(frozen=True)
class Stored:
    """A tensor that has not been read yet."""

    numbers: Numbers
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self) -> Tensor:
        import torch

        whole = torch.empty(self.numbers.count, dtype=getattr(torch, self.numbers.dtype))
        with open(self.numbers.path, "rb") as file:
            file.seek(self.numbers.start)
            if whole.numel():
                file.readinto(memoryview(whole.view(torch.uint8).numpy()))  # type: ignore[arg-type]
        return whole.as_strided(self.shape, self.stride, self.offset).clone(memory_format=torch.contiguous_format)


def read_torch_file(path: Path) -> Any:
    """The values in the file: plain data, with a `Stored` where a tensor is."""
    try:
        return _read(path)
    except Refused as reason:
        raise unreadable(path, str(reason)) from None
    except (OSError, zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, EOFError) as error:
        raise unreadable(path, f"it is damaged ({error})") from None


def unreadable(path: Path, reason: str) -> UserError:
    return fault(
        msg("this checkpoint is not what torch.save writes of tensors and plain data, and was not opened: {reason}", reason=reason),
        where=msg("{path:code}", path=str(path)),
        fix=msg("a pickle can run code, so only plain ones are read; get the file again from where it was written"),
    )


def _read(path: Path) -> Any:
    if not path.is_file():
        raise Refused("it is not a file")
    size = path.stat().st_size
    with open(path, "rb") as file:
        _require_small_directory(file, size)
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            if any(entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size for entry in entries.values()):
                raise Refused("an entry is compressed")
            if len(entries) != len(archive.infolist()) or sum(entry.file_size for entry in entries.values()) > size:
                raise Refused("its entries overlap")
            main = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
            if len(main) != 1:
                raise Refused("it holds no data.pkl")
            root = main[0].removesuffix("data.pkl")
            if entries[main[0]].file_size > MOST_BYTES:
                raise Refused(f"its data.pkl is {entries[main[0]].file_size:,} bytes long")
            if root + "byteorder" in entries and archive.read(entries[root + "byteorder"])[:8] != b"little":
                raise Refused("its numbers are big-endian")
            payload = archive.read(entries[main[0]])
        return plain_value(payload, NAMES, _numbers_in(path, file, size, root, entries))


def _require_small_directory(file: IO[bytes], size: int) -> None:
    """Python's zipfile keeps the whole list of entries, however long the file says that it is."""
    file.seek(max(0, size - 22 - 65535 - 20))
    tail = file.read()
    at = len(tail) - 22 if tail[-22:-18] == b"PK\x05\x06" else tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        raise Refused("it is not a zip archive; files of torch before 1.6 cannot be read")
    (length,) = struct.unpack("<I", tail[at + 12 : at + 16])
    if at >= 20 and tail[at - 20 : at - 16] == b"PK\x06\x07":
        (where,) = struct.unpack("<Q", tail[at - 12 : at - 4])
        if where > size - 56:
            raise Refused("its list of entries is not where it should be")
        file.seek(where)
        (length,) = struct.unpack("<Q", file.read(56)[40:48])
    if length > MOST_DIRECTORY_BYTES:
        raise Refused(f"its list of entries is {length:,} bytes long")


def _numbers_in(path: Path, file: IO[bytes], size: int, root: str, entries: dict[str, zipfile.ZipInfo]) -> Callable[[Any], Numbers]:
    def find(reference: Any) -> Numbers:
        """`reference` is ("storage", type, key, device, count)."""
        if not (isinstance(reference, tuple) and len(reference) == 5 and reference[0] == "storage" and isinstance(reference[1], Named)):
            raise Refused("a reference to something that is not numbers")
        _, kind, key, _, count = reference
        entry = entries.get(f"{root}data/{key}") if isinstance(key, str) else None
        if entry is None or kind.name not in DTYPES:
            raise Refused(f"it lacks the numbers {key!r:.40}")
        dtype, width = DTYPES[kind.name]
        if type(count) is not int or count * width != entry.file_size:
            raise Refused(f"the numbers {key!r:.40} have {entry.file_size:,} bytes, and it says {count!r:.40} of {width} bytes each")
        file.seek(entry.header_offset)
        header = file.read(30)
        if header[:4] != b"PK\x03\x04":
            raise Refused("an entry is not where its list says")
        start = entry.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
        if start + entry.file_size > size:
            raise Refused(f"the numbers {key!r:.40} end behind the end of the file")
        return Numbers(path, dtype, start, count)

    return find


def _tensor(numbers: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> Stored:
    if not isinstance(numbers, Numbers) or not _are_sizes((offset,)) or not _are_sizes(shape) or not _are_sizes(stride):
        raise Refused("a tensor without a shape")
    if len(shape) != len(stride) or len(shape) > 8:
        raise Refused("a tensor with an impossible shape")
    last = offset + sum((length - 1) * step for length, step in zip(shape, stride, strict=True)) if math.prod(shape) else 0
    if math.prod(shape) > numbers.count or last >= max(1, numbers.count):
        raise Refused(f"a tensor of shape {str(shape)[:60]} with {numbers.count:,} numbers")
    return Stored(numbers, offset, shape, stride)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is int and 0 <= value < 1 << 48 for value in values)


def _parameter(tensor: Any, *rest: Any) -> Stored:
    if not isinstance(tensor, Stored):
        raise Refused("a parameter without numbers")
    return tensor


def _dict(*items: Any) -> dict[str, Any]:
    if items:
        raise Refused("an OrderedDict with arguments")
    return {}


def _never(*arguments: Any) -> Any:
    raise Refused("a storage that is not in the file")


NAMES: dict[str, Callable[..., Any]] = {
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_parameter": _parameter,
    "collections OrderedDict": _dict,
    **dict.fromkeys(DTYPES, _never),
}
