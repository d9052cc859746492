"""The Python API: what the commands do, as functions. docs/python.md shows each of them at work.

    import nanolens

    run = nanolens.train("quickstart", max_iters=200)     # the settings of `nanolens train`, by name
    run.steps.loss, run.evals.val                           # columns (numpy); run.steps.to_pandas() as a DataFrame
    run.findings()                                          # what `nanolens diagnose` says
    nanolens.Run("runs/quickstart-1")                      # any run folder, its name below runs/, or the log of any trainer
    nanolens.load("quickstart-1").generate("def ", max_new_tokens=100)
    nanolens.compare("quickstart-1", "quickstart-2")       # and diagnose, explain, forecast, plan, send
    nanolens.start_run(config={"batch_size": 12})          # the same record from a loop that is not ours:
    nanolens.log(step=1, loss=4.17)                        # nanolens.end_run() is called by itself at the end

Nothing here imports torch until it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanolens.api.answers import compare as compare
    from nanolens.api.answers import diagnose as diagnose
    from nanolens.api.answers import explain as explain
    from nanolens.api.answers import forecast as forecast
    from nanolens.api.answers import plan as plan
    from nanolens.api.run import Run as Run
    from nanolens.api.run import train as train
    from nanolens.errors import UserError as UserError
    from nanolens.loaded import Model as Model
    from nanolens.loaded import load as load
    from nanolens.record.write import end_run as end_run
    from nanolens.record.write import log as log
    from nanolens.record.write import start_run as start_run
    from nanolens.trackers.sender import send as send

_HOMES = {
    "train": "nanolens.api.run",
    "Run": "nanolens.api.run",
    "load": "nanolens.loaded",
    "Model": "nanolens.loaded",
    "compare": "nanolens.api.answers",
    "diagnose": "nanolens.api.answers",
    "explain": "nanolens.api.answers",
    "forecast": "nanolens.api.answers",
    "plan": "nanolens.api.answers",
    "send": "nanolens.trackers.sender",
    "log": "nanolens.record.write",
    "start_run": "nanolens.record.write",
    "end_run": "nanolens.record.write",
    "UserError": "nanolens.errors",
}
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
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
