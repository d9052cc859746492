"""Reads nanoGPT's meta.pkl without running anything in it.

A pickle is a program, and Python's own reader runs it: a meta.pkl from a stranger could delete files, or ask for all memory. This
reader knows only the instructions that build numbers, strings, lists, tuples, sets and dicts, and refuses the file at the first one
that names a function or a class. What it builds stays below a fixed amount of memory, and it gives up on files that no tokenizer can need.

The pickle inside a checkpoint of torch's also names functions. Its reader (`interop/torch_file.py`) hands in what a few of those names
stand for, as code of ours; every other name is refused as before.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanolens.errors import fault
from nanolens.message import msg

MOST_BYTES = 64 << 20
MOST_INSTRUCTIONS = 20_000_000
MOST_MEMORY = 128 << 20  # of all values together; a table of the 160,000 characters of Unicode takes 31 MB
VALUE_BYTES, SET_BYTES = 64, 216  # what Python takes for a small value, and for an empty set


class Refused(Exception):
    """The pickle holds something that is not plain data."""


def read_plain_pickle(path: Path) -> Any:
    """The value in the file, if it is made of plain data only."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise Refused(f"it is {size:,} bytes long")
        return plain_value(path.read_bytes())
    except Refused as reason:
        raise fault(
            msg("this pickle holds more than plain data, and was not opened: {reason}", reason=str(reason)),
            where=msg("{path:code}", path=str(path)),
            fix=msg(
                "prepare the data again with {command:code}; pickles can run code, so nanolens reads only plain ones",
                command="nanolens prepare",
            ),
        ) from None


@dataclass(frozen=True)
class Named:
    """A name in a pickle, with the code of ours that stands for it."""

    name: str
    make: Callable[..., Any]


def plain_value(payload: bytes, names: Mapping[str, Callable[..., Any]] | None = None, stored: Callable[[Any], Any] | None = None) -> Any:
    """The value that a pickle describes. `names` says what may be called, by "module name"; `stored` what a reference to outside means."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    taken = 0
    try:
        for count, (instruction, argument, _) in enumerate(pickletools.genops(io.BytesIO(payload))):
            if count > MOST_INSTRUCTIONS:
                raise Refused("it is too long")
            name = instruction.name
            if name in _PUSHES:
                stack.append(argument)
                taken += VALUE_BYTES + (len(argument) if isinstance(argument, (str, bytes)) else 0)
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name]())
                taken += SET_BYTES if name == "EMPTY_SET" else VALUE_BYTES
            elif name == "MARK":
                marks.append(len(stack))
            elif name in _COLLECTS:
                start = marks.pop()
                items = stack[start:]
                del stack[start:]
                _COLLECTS[name](stack, items)
            elif name in _TUPLES:
                size = _TUPLES[name]
                if len(stack) < size:
                    raise Refused("it is damaged")
                stack[-size:] = [tuple(stack[-size:])]
                taken += VALUE_BYTES
            elif name == "APPEND":
                item = stack.pop()
                _expect(stack[-1], list).append(item)
            elif name == "SETITEM":
                value, key = stack.pop(), stack.pop()
                _expect(stack[-1], dict)[_key(key)] = value
            elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("GET", "BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name == "POP":
                stack.pop()
            elif name == "STOP":
                break
            elif name == "GLOBAL" and names is not None and isinstance(argument, str) and argument in names:
                stack.append(Named(argument, names[argument]))
            elif name == "REDUCE" and names is not None:
                arguments, what = _expect(stack.pop(), tuple), _expect(stack.pop(), Named)
                stack.append(what.make(*arguments))
                taken += VALUE_BYTES * 4
            elif name == "BUILD" and names is not None:
                stack.pop()  # attributes of a dict of weights (versions of modules), of no use here
                _expect(stack[-1], dict)
            elif name == "BINPERSID" and stored is not None:
                stack.append(stored(stack.pop()))
                taken += VALUE_BYTES * 4
            elif name not in ("PROTO", "FRAME"):
                raise Refused(f"instruction {name} with {argument!r:.60}")
            if taken > MOST_MEMORY:
                raise Refused("its values would take too much memory")
        (value,) = stack
        return value
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise Refused(f"it is damaged ({error})") from None


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise Refused("it is damaged")
    return value


def _key(value: Any) -> Any:
    """What may stand as a key: a tuple of tuples of tuples, each twice the same, would take years to hash."""
    if not (value is None or isinstance(value, (str, bytes, int, float))):
        raise Refused(f"a {type(value).__name__} as a key")
    return value


def _append_dict(stack: list[Any], items: list[Any]) -> None:
    stack.append(dict(zip(map(_key, items[::2]), items[1::2], strict=True)))


def _set_items(stack: list[Any], items: list[Any]) -> None:
    _expect(stack[-1], dict).update(zip(map(_key, items[::2]), items[1::2], strict=True))


_PUSHES = frozenset(
    """INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8
    BINBYTES SHORT_BINBYTES BINBYTES8""".split()
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_COLLECTS: dict[str, Callable[[list[Any], list[Any]], None]] = {
    "DICT": _append_dict,
    "LIST": lambda stack, items: stack.append(items),
    "TUPLE": lambda stack, items: stack.append(tuple(items)),
    "SETITEMS": _set_items,
    "APPENDS": lambda stack, items: _expect(stack[-1], list).extend(items),
    "ADDITEMS": lambda stack, items: _expect(stack[-1], set).update(map(_key, items)),
    "POP_MARK": lambda stack, items: None,
}
