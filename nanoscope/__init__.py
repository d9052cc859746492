"""nanoscope trains small GPTs on the machine you have, and makes every number of the training understood."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoscope.api import Model as Model
    from nanoscope.api import Run as Run
    from nanoscope.api import UserError as UserError
    from nanoscope.api import compare as compare
    from nanoscope.api import diagnose as diagnose
    from nanoscope.api import end_run as end_run
    from nanoscope.api import explain as explain
    from nanoscope.api import forecast as forecast
    from nanoscope.api import load as load
    from nanoscope.api import log as log
    from nanoscope.api import plan as plan
    from nanoscope.api import send as send
    from nanoscope.api import start_run as start_run
    from nanoscope.api import train as train

__all__ = [
    "Model",
    "Run",
    "UserError",
    "compare",
    "diagnose",
    "end_run",
    "explain",
    "forecast",
    "load",
    "log",
    "plan",
    "send",
    "start_run",
    "train",
]


def __getattr__(name: str) -> Any:
    """The Python API (see `nanoscope.api`), fetched when it is asked for: `import nanoscope` costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nanoscope import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _TrainRoom(ModuleType):
    """`nanoscope.train` is a function for whoever uses nanoscope and a room for whoever builds it; this lets the one name be both."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        from nanoscope import api

        return api.train(*args, **settings)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        if name == "train" and isinstance(value, ModuleType):  # the import system has just bound the subpackage here
            value.__class__ = _TrainRoom
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
