"""nanolens trains small GPTs on the machine you have, and makes every number of the training understood.

    import nanolens

    run = nanolens.train("quickstart", max_iters=200)      # the settings of `nanolens train`, by name
    run.steps.loss, run.evals.val                          # columns (numpy); run.steps.to_pandas() as a DataFrame
    run.findings()                                         # what `nanolens diagnose` says
    nanolens.Run("runs/quickstart-1")                      # any run folder, its name below runs/, or any trainer's log
    nanolens.load("quickstart-1").generate("def ", max_new_tokens=100)
    nanolens.compare("quickstart-1", "quickstart-2")       # and a function for every other command
    nanolens.start_run(config={"batch_size": 12})          # the same record from a loop that is not ours:
    nanolens.log(step=1, loss=4.17)                        # nanolens.end_run() is called automatically at the end

`import nanolens` costs nothing: each name is fetched from its home when it is first asked for, and torch with it only
where it is needed. docs/python.md shows each of them at work.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers and editors; what is public stands in _HOMES
    from nanolens.api import *  # noqa: F403
    from nanolens.api.run import Run as Run
    from nanolens.api.training import *  # noqa: F403
    from nanolens.errors import UserError as UserError
    from nanolens.loaded import Model as Model
    from nanolens.loaded import load as load
    from nanolens.record.write import end_run as end_run
    from nanolens.record.write import log as log
    from nanolens.record.write import start_run as start_run
    from nanolens.show.answer import Answer as Answer

_HOMES = {
    "nanolens.api": "compare dashboard diagnose explain forecast plot referee report runs",
    "nanolens.api.run": "Run",
    "nanolens.api.training": """export import_ plan prepare probe sample selftest send stop sweep train try_ tune
        verify watch""",
    "nanolens.errors": "UserError",
    "nanolens.loaded": "Model load",
    "nanolens.show.answer": "Answer",
    "nanolens.record.write": "end_run log start_run",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
