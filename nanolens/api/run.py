"""`nanolens.train` and `nanolens.Run`: a run as a Python object."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from nanolens.config.fields import as_text
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.record.store import RunAt, find_run

if TYPE_CHECKING:
    from nanolens.analysis.explanation import Explanation
    from nanolens.api.answers import Told
    from nanolens.diagnosis import Diagnosis
    from nanolens.facts.finding import Finding
    from nanolens.forecasting import Forecast, Refusal
    from nanolens.loaded import Model
    from nanolens.record.events import Event
    from nanolens.record.run import Evals, Steps
    from nanolens.record.run import Run as Columns


def train(source: str | None = None, *, listeners: Sequence[Callable[[Event], Any]] = (), quiet: bool = False, **settings: Any) -> Run:
    """Trains as `nanolens train` does and gives the run back: `nanolens.train("quickstart", max_iters=200)`.

    `source` is a preset or a config file, and each further argument a setting by its name. `listeners` are called with each event
    (see `nanolens.record.events`), each in a thread of its own. Unless `quiet`, nanoGPT's lines are printed. A mistake raises UserError;
    a run that failed raises RuntimeError with the reason; Ctrl-C saves and raises KeyboardInterrupt. Whatever was trained is on disk then.
    """
    from nanolens.api.training import plan_job, run_job
    from nanolens.session.detach import raise_if_signalled
    from nanolens.show.lines import LineView

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
    """A run folder or its name below `runs/`, `RUN@STEP` (the run as it stood then), or the log of any trainer.

    Columns are read when they are asked for; `refresh` reads them again while the run goes on.
    """

    def __init__(self, path: str | Path, *, config: str | None = None, hardware: str | None = None):
        """`config` and `hardware` say what the log of another trainer leaves out."""
        self.source = str(path)
        self._given = (config, hardware)
        self._at = _found(self.source)
        if self._at is None:
            self.columns  # noqa: B018  what cannot be read is told now, and not at the first use

    def __repr__(self) -> str:
        return f"Run({self.source!r})"

    def _repr_html_(self) -> str:
        """For notebooks: the figures, the curve and the findings. The picture is made by `present.report_card`."""
        from nanolens.present.report_card import notebook_html

        return notebook_html(self.columns, self.findings())

    @property
    def name(self) -> str:
        return self.columns.name if self._at is None else self._at.folder.resolve().name

    @property
    def folder(self) -> Path:
        if self._at is None:
            raise fault(
                msg("{source:code} is a log, not a run folder", source=self.source), fix=msg("give the folder of a run of nanolens")
            )
        return self._at.folder

    @cached_property
    def columns(self) -> Columns:
        from nanolens.api.sources import open_run

        return open_run(self.source, *self._given)

    @property
    def steps(self) -> Steps:
        """One row per update: `run.steps.loss` and the like are numpy arrays, `run.steps.to_pandas()` is a DataFrame."""
        return self.columns.steps

    @property
    def evals(self) -> Evals:
        """One row per evaluation: `run.evals.val`, `run.evals.val_se`, …"""
        return self.columns.evals

    @cached_property
    def facts(self) -> dict[str, Any]:
        """`run.json`: config, machine, data, sizes, versions."""
        from nanolens.record.write import read_run_file

        return read_run_file(self.folder)

    @property
    def config(self) -> dict[str, Any]:
        """The settings; of another trainer's log, whatever is known."""
        if self._at is None:
            return {key: known.value for key, known in self.columns.known.items()}
        return self.facts["config"]

    @property
    def samples(self) -> dict[int, str]:
        """The texts written on the way, by step."""
        return {mark.step: mark.text for mark in self.columns.marks if mark.kind == "sample" and mark.step is not None}

    @property
    def state(self) -> str:
        """starting, running, finished, stopped, failed, gone (killed without a word) or silent; unknown for a log that does not say."""
        if self._at is None:
            return str(self.columns.get("state", "unknown"))
        from nanolens.api.watching import Watching

        seen = Watching(self.folder)
        seen.catch_up()
        return seen.state()

    def findings(self) -> Findings:
        """What `nanolens diagnose` says of it: a sequence of `Finding`s, which prints as the command does."""
        from nanolens.api.answers import told_diagnosis
        from nanolens.diagnosis import diagnose

        return Findings(told_diagnosis(diagnose(self.columns)))

    def explain(self) -> Told[Explanation]:
        """What `nanolens explain` says of it."""
        from nanolens.api.answers import explain

        config, hardware = self._given
        return explain(self, config=config, hardware=hardware)

    def forecast(self, at: int | str | None = None) -> Told[Forecast | Refusal]:
        """What `nanolens forecast` says of it."""
        from nanolens.api.answers import forecast

        return forecast(self, at, config=self._given[0])

    def frame(self, of: str = "steps") -> Any:
        """`steps` or `evals` as a pandas DataFrame."""
        tables: dict[str, Steps | Evals] = {"steps": self.steps, "evals": self.evals}
        return tables[of].to_pandas()

    def to_pandas(self) -> Any:
        """Both in one DataFrame by step, an evaluation's columns beside those of its update; where both have one of a name (`took_s`), the
        evaluation's is called `eval_took_s`."""
        steps, evals = self.steps.to_pandas().set_index("step"), self.evals.to_pandas().set_index("step")
        return steps.join(evals.rename(columns={name: f"eval_{name}" for name in evals.columns if name in steps.columns}), how="outer")

    def model(self, step: int | None = None, *, best: bool = False, device: str = "auto") -> Model:
        """The trained model: of a step, of the best evaluation, or the newest."""
        from nanolens.loaded import load

        return load(self.folder if step is None else f"{self.folder}@{step}", best=best, device=device)

    def refresh(self) -> Run:
        for name in ("columns", "facts"):
            self.__dict__.pop(name, None)
        return self


class Findings(Sequence["Finding"]):
    """Findings, one after the other; `str()` and notebooks show them in words, `diagnosis` also holds what could not be checked."""

    def __init__(self, told: Told[Diagnosis]):
        self._told = told
        self.diagnosis = told.value

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | Sequence[Finding]:
        return self.diagnosis.findings[index]

    def __len__(self) -> int:
        return len(self.diagnosis.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.diagnosis.findings)

    @property
    def codes(self) -> list[str]:
        return [finding.code for finding in self]

    def __str__(self) -> str:
        return str(self._told)

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return self._told._repr_markdown_()


def _found(source: str) -> RunAt | None:
    """The run folder that a name means; None where it is the path of something else."""
    from nanolens.record.layout import is_run

    path = Path(source)
    return None if path.exists() and not is_run(path) else find_run(source)
