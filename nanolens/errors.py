"""The only error that a user is meant to read: one or more faults, each with what is wrong, where it came from and how to mend it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

from nanolens.message import Message, msg


@dataclass(frozen=True)
class Fault:
    what: Message
    where: Message | None = None
    fix: Message | None = None


class UserError(Exception):
    """Raised with every fault that was found, so that a user mends a config once and not five times."""

    exit_code = 1

    def __init__(self, *faults: Fault):
        assert faults, "a UserError needs at least one fault"
        self.faults = faults
        super().__init__("; ".join(str(fault.what) for fault in faults))


def fault(what: Message, *, where: Message | None = None, fix: Message | None = None) -> UserError:
    """A UserError of one fault, for the common `raise fault(...)`."""
    return UserError(Fault(what, where, fix))


def raise_if_any(faults: Iterable[Fault]) -> None:
    found = tuple(faults)
    if found:
        raise UserError(*found)


def require(module: str, extra: str) -> ModuleType:
    """An optional library, or the pip line that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module.split(".")[0]:
            raise  # it is there; something that it needs is not
        raise fault(
            msg("{module:code} is not installed", module=module),
            fix=msg("run {command:code}", command=f"pip install 'nanolens[{extra}]'"),
        ) from None
