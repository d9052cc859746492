"""The Python API: what the commands do, as functions. docs/python.md shows each of them at work.

    import nanoscope

    run = nanoscope.train("quickstart", max_iters=200)     # the settings of `nanoscope train`, by name
    run.steps.loss, run.evals.val                           # columns (numpy); run.steps.to_pandas() as a DataFrame
    run.findings()                                          # what `nanoscope diagnose` says
    nanoscope.Run("runs/quickstart-1")                      # any run folder, its name below runs/, or the log of any trainer
    nanoscope.load("quickstart-1").generate("def ", max_new_tokens=100)
    nanoscope.compare("quickstart-1", "quickstart-2")       # and diagnose, explain, forecast, plan, send
    nanoscope.start_run(config={"batch_size": 12})          # the same record from a loop that is not ours:
    nanoscope.log(step=1, loss=4.17)                        # nanoscope.end_run() is called by itself at the end

Nothing here imports torch until it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoscope.api.answers import compare as compare
    from nanoscope.api.answers import diagnose as diagnose
    from nanoscope.api.answers import explain as explain
    from nanoscope.api.answers import forecast as forecast
    from nanoscope.api.answers import plan as plan
    from nanoscope.api.model import Model as Model
    from nanoscope.api.model import load as load
    from nanoscope.api.run import Run as Run
    from nanoscope.api.run import train as train
    from nanoscope.api.sending import send as send
    from nanoscope.errors import UserError as UserError
    from nanoscope.record.write import end_run as end_run
    from nanoscope.record.write import log as log
    from nanoscope.record.write import start_run as start_run

_HOMES = {
    "train": "nanoscope.api.run",
    "Run": "nanoscope.api.run",
    "load": "nanoscope.api.model",
    "Model": "nanoscope.api.model",
    "compare": "nanoscope.api.answers",
    "diagnose": "nanoscope.api.answers",
    "explain": "nanoscope.api.answers",
    "forecast": "nanoscope.api.answers",
    "plan": "nanoscope.api.answers",
    "send": "nanoscope.api.sending",
    "log": "nanoscope.record.write",
    "start_run": "nanoscope.record.write",
    "end_run": "nanoscope.record.write",
    "UserError": "nanoscope.errors",
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
