"""`nanoscope.train` and `nanoscope.Run`: a run as a Python object."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoscope.api.folders import find_run
from nanoscope.config.fields import as_text

if TYPE_CHECKING:
    from nanoscope.analysis.finding import Finding
    from nanoscope.api.model import Model
    from nanoscope.record.events import Event
    from nanoscope.record.run import Evals, Steps
    from nanoscope.record.run import Run as Columns


def train(source: str | None = None, *, listeners: Sequence[Callable[[Event], Any]] = (), quiet: bool = False, **settings: Any) -> Run:
    """Trains as `nanoscope train` does and gives the run back: `nanoscope.train("quickstart", max_iters=200)`.

    `source` is a preset or a config file, and each further argument a setting by its name. `listeners` are called with each event
    (see `nanoscope.record.events`), each in a thread of its own. Unless `quiet`, nanoGPT's lines are printed. A mistake raises UserError;
    a run that failed raises RuntimeError with the reason; Ctrl-C saves and raises KeyboardInterrupt. Whatever was trained is on disk then.
    """
    from nanoscope.api.process import raise_if_signalled
    from nanoscope.api.training import plan_job, run_job
    from nanoscope.present.lines import LineView

    job = plan_job(source, [(key, as_text(value)) for key, value in settings.items()])

    def views(progress: Any, folder: Path) -> list[Callable[[Event], Any]]:
        lines = LineView(progress, sys.stdout, folder=str(folder), log_interval=job.settings.config.log_interval)
        return [*listeners, *([] if quiet else [lines])]

    ended = run_job(job, views)
    raise_if_signalled(ended.outcome.signal)
    if ended.outcome.why == "failed":
        raise RuntimeError(f"{ended.folder}: {ended.progress.because or 'the run failed'}")
    return Run(ended.folder)


class Run:
    """What a run folder holds. Columns are read when they are asked for; `refresh` reads them again while the run goes on."""

    def __init__(self, path: str | Path):
        self.folder = find_run(str(path)).folder

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def columns(self) -> Columns:
        from nanoscope.record.read import read_run

        return read_run(self.folder)

    @property
    def steps(self) -> Steps:
        """One row per update: `run.steps.loss` and the like are numpy arrays."""
        return self.columns.steps

    @property
    def evals(self) -> Evals:
        """One row per evaluation."""
        return self.columns.evals

    @cached_property
    def facts(self) -> dict[str, Any]:
        """`run.json`: config, machine, data, sizes, versions."""
        from nanoscope.record.write import read_run_file

        return read_run_file(self.folder)

    @property
    def config(self) -> dict[str, Any]:
        return self.facts["config"]

    @property
    def state(self) -> str:
        """starting, running, finished, stopped, failed, gone (killed without a word) or silent."""
        from nanoscope.api.watching import Watching

        seen = Watching(self.folder)
        seen.catch_up()
        return seen.state()

    def findings(self) -> Sequence[Finding]:
        """What `nanoscope diagnose` says of it."""
        from nanoscope.analysis.diagnose import diagnose

        return diagnose(self.columns).findings

    def frame(self, of: str = "steps") -> Any:
        """`steps` or `evals` as a pandas DataFrame."""
        from dataclasses import fields

        from nanoscope.errors import require

        rows: Any = {"steps": self.steps, "evals": self.evals}[of]
        columns = {field.name: getattr(rows, field.name) for field in fields(rows) if not isinstance(getattr(rows, field.name), tuple)}
        return require("pandas", "pandas").DataFrame(columns)

    def model(self, step: int | None = None, *, best: bool = False, device: str = "auto") -> Model:
        """The trained model: of a step, of the best evaluation, or the newest."""
        from nanoscope.api.model import load

        return load(self.folder if step is None else f"{self.folder}@{step}", best=best, device=device)

    def refresh(self) -> Run:
        for name in ("columns", "facts"):
            self.__dict__.pop(name, None)
        return self
