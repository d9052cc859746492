"""The Python API: what the commands do, as functions.

    import nanoscope

    run = nanoscope.train("quickstart", max_iters=200)     # the settings of `nanoscope train`, by name
    run.steps.loss, run.evals.val                           # columns (numpy); run.frame("evals") as a DataFrame
    run.findings()                                          # what `nanoscope diagnose` says
    nanoscope.Run("runs/quickstart-1")                      # any run folder, or its name below runs/
    nanoscope.load("quickstart-1").generate("def ", max_new_tokens=100)
    nanoscope.start_run(config={"batch_size": 12})          # the same record from a loop that is not ours:
    nanoscope.log(step=1, loss=4.17)                        # nanoscope.end_run() is called by itself at the end

Nothing here imports torch until it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoscope.api.model import Model as Model
    from nanoscope.api.model import load as load
    from nanoscope.api.run import Run as Run
    from nanoscope.api.run import train as train
    from nanoscope.record.write import end_run as end_run
    from nanoscope.record.write import log as log
    from nanoscope.record.write import start_run as start_run

_HOMES = {
    "train": "nanoscope.api.run",
    "Run": "nanoscope.api.run",
    "load": "nanoscope.api.model",
    "Model": "nanoscope.api.model",
    "log": "nanoscope.record.write",
    "start_run": "nanoscope.record.write",
    "end_run": "nanoscope.record.write",
}
__all__ = ["Model", "Run", "end_run", "load", "log", "start_run", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
