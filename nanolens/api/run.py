"""A run, or the log of any trainer, as a Python object: `nanolens.Run("quickstart-1").steps.loss`."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nanolens.api import diagnosis_answer, explain, forecast, open_target
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.record import is_run
from nanolens.record.progress import Watching
from nanolens.record.store import find_run
from nanolens.record.write import read_run_file
from nanolens.show.answer import Answer

if TYPE_CHECKING:
    from pandas import DataFrame

    from nanolens.diagnosis import Diagnosis
    from nanolens.explanation.glossary import Term
    from nanolens.explanation.pick import Explanation
    from nanolens.facts.finding import Finding
    from nanolens.forecasting import Forecast, Refusal
    from nanolens.loaded import Model
    from nanolens.record.run import Evals, RunRecord, Steps


class Run:
    """A run folder or its name below `runs/`, `RUN@STEP` (the run as it stood then), or the log of any trainer.

    Columns are read when they are asked for; `refresh` reads them again while the run goes on."""

    def __init__(self, path: str | Path, *, config: str | None = None, hardware: str | None = None):
        """`config` and `hardware` say what the log of another trainer leaves out."""
        self.source = str(path)
        self._given = (config, hardware)
        is_log = Path(path).exists() and not is_run(Path(path))
        self._at = None if is_log else find_run(self.source)
        if self._at is None:
            self.columns  # noqa: B018  what cannot be read is reported now, and not at the first use

    def __repr__(self) -> str:
        return f"Run({self.source!r})"

    def _repr_html_(self) -> str:
        """For notebooks: the figures, the curve and the findings."""
        from nanolens.page.report import notebook_html

        return notebook_html(self.columns, self.findings())

    @property
    def name(self) -> str:
        return self.columns.name if self._at is None else self._at.folder.resolve().name

    @property
    def folder(self) -> Path:
        if self._at is None:
            what = msg("{source:code} is a log, not a run folder", self.source)
            raise fault(what, fix=msg("give the folder of a nanolens run"))
        return self._at.folder

    @cached_property
    def columns(self) -> RunRecord:
        return open_target(self.source, *self._given)

    @property
    def steps(self) -> Steps:
        """One row per update: `run.steps.loss` … are numpy arrays, `run.steps.to_pandas()` is a DataFrame."""
        return self.columns.steps

    @property
    def evals(self) -> Evals:
        """One row per evaluation: `run.evals.val`, `run.evals.val_se`, …"""
        return self.columns.evals

    @cached_property
    def facts(self) -> dict[str, Any]:
        """`run.json`: config, machine, data, sizes, versions."""
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
        """starting, running, finished, stopped, failed, gone (killed) or silent; unknown where a log does not say."""
        if self._at is None:
            return str(self.columns.get("state", "unknown"))
        seen = Watching(self.folder)
        seen.catch_up()
        return seen.state()

    def findings(self) -> Findings:
        """What `nanolens diagnose` says of it: a sequence of `Finding`s, which prints as the command does."""
        return Findings(diagnosis_answer(self.columns))

    def explain(self) -> Answer[Explanation] | Answer[Term]:
        """What `nanolens explain` says of it."""
        config, hardware = self._given
        return explain(self, config=config, hardware=hardware)

    def forecast(self, at: int | str | None = None) -> Answer[Forecast | Refusal]:
        """What `nanolens forecast` says of it."""
        return forecast(self, at, config=self._given[0])

    def frame(self, of: Literal["steps", "evals"] = "steps") -> DataFrame:
        """`steps` or `evals` as a pandas DataFrame."""
        return (self.steps if of == "steps" else self.evals).to_pandas()

    def to_pandas(self) -> DataFrame:
        """Both in one DataFrame by step, an evaluation's columns beside those of its update; where both have one of a
        name (`took_s`), the evaluation's is called `eval_took_s`."""
        steps, evals = (table.to_pandas().set_index("step") for table in (self.steps, self.evals))
        twice = {name: f"eval_{name}" for name in evals.columns if name in steps.columns}
        return steps.join(evals.rename(columns=twice), how="outer")

    def model(self, step: int | None = None, *, best: bool = False, device: str = "auto") -> Model:
        """The trained model: of a step, of the best evaluation, or the newest."""
        from nanolens.loaded import load

        return load(self.folder if step is None else f"{self.folder}@{step}", best=best, device=device)

    def refresh(self) -> Run:
        for name in ("columns", "facts"):
            self.__dict__.pop(name, None)
        return self


class Findings(tuple["Finding", ...]):
    """Findings in order; `str()` and notebooks show them in words, `diagnosis` also has what could not be checked."""

    answer: Answer[Diagnosis]

    def __new__(cls, answer: Answer[Diagnosis]) -> Findings:
        found = super().__new__(cls, answer.value.findings)
        found.answer = answer
        return found

    @property
    def diagnosis(self) -> Diagnosis:
        return self.answer.value

    @property
    def codes(self) -> list[str]:
        return [finding.code for finding in self]

    def __str__(self) -> str:
        return str(self.answer)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.answer.html()
