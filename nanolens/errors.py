"""The only error that a user is meant to read: one or more faults, each with what is wrong, where, and a fix."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

from nanolens.message import Message, msg


@dataclass(frozen=True)
class Fault:
    what: Message
    where: Message | str | None = None  # a str is what was typed: an option, a path, a line of a file
    fix: Message | None = None


class UserError(Exception):
    """Raised with every fault that was found, so that a user fixes a config once and not five times."""

    exit_code = 1

    def __init__(self, *faults: Fault):
        assert faults, "a UserError needs at least one fault"
        self.faults = faults
        super().__init__("; ".join(str(fault.what) for fault in faults))


def fault(what: Message, *, where: Message | str | None = None, fix: Message | None = None) -> UserError:
    """A UserError of one fault, for the common `raise fault(...)`."""
    return UserError(Fault(what, where, fix))


def raise_if_any(faults: Iterable[Fault]) -> None:
    if found := tuple(faults):
        raise UserError(*found)


def require(module: str, extra: str) -> ModuleType:
    """An optional library, or the pip line that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module.split(".")[0]:
            raise  # it is there; something that it needs is not
        fix = msg("run {command:code}", f"pip install 'nanolens[{extra}]'")
        raise fault(msg("{module:code} is not installed", module), fix=fix) from None
