"""nanolens trains small GPTs on the machine you have, and makes every number of the training understood."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanolens.api import Model as Model
    from nanolens.api import Run as Run
    from nanolens.api import UserError as UserError
    from nanolens.api import compare as compare
    from nanolens.api import diagnose as diagnose
    from nanolens.api import end_run as end_run
    from nanolens.api import explain as explain
    from nanolens.api import forecast as forecast
    from nanolens.api import load as load
    from nanolens.api import log as log
    from nanolens.api import plan as plan
    from nanolens.api import send as send
    from nanolens.api import start_run as start_run
    from nanolens.api import train as train

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
    """The Python API (see `nanolens.api`), fetched when it is asked for: `import nanolens` costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nanolens import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _TrainRoom(ModuleType):
    """`nanolens.train` is a function for whoever uses nanolens and a room for whoever builds it; this lets the one name be both."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        from nanolens import api

        return api.train(*args, **settings)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        if name == "train" and isinstance(value, ModuleType):  # the import system has just bound the subpackage here
            value.__class__ = _TrainRoom
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
