"""trackio: a database on this machine (or a Hugging Face Space, where TRACKIO_SPACE_ID names one), shown by `trackio show`.

trackio does not raise when it cannot write: it warns. What it warned of is told with the result.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from nanolens.errors import require
from nanolens.interop.trackers import About, Ending, Row


class Trackio:
    can_rewind = False
    complaints: Sequence[str] = ()

    def open(self, about: About, kept: Mapping[str, Any]) -> dict[str, Any]:
        self._trackio = trackio = require("trackio", "trackio")
        self._project = about.project
        self._warned = warnings.catch_warnings(record=True)
        self._warnings = self._warned.__enter__() or []
        warnings.simplefilter("always")
        with contextlib.redirect_stdout(io.StringIO()):  # it greets
            self._run = trackio.init(
                project=about.project, name=kept.get("run") or about.name, config=dict(about.config),
                resume="allow" if kept.get("run") else "never", embed=False, auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip
        self._last_step = int(kept.get("step") or 0)
        found = {"run": self._run.name}
        last = self._run._next_step - 1 if kept.get("run") else -1  # trackio itself knows the last step that reached its database
        return {**found, "step": last} if last >= 0 else found

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            texts = {name: self._trackio.Markdown(text) for name, text in row.texts.items()}
            self._run.log({**row.values, **texts}, step=row.step)
            self._last_step = row.step

    def rewind(self, step: int) -> None:
        pass

    def close(self, ending: Ending) -> None:
        summary = {f"summary/{key}": value for key, value in {**ending.summary, "state": ending.state}.items()}
        texts = {name: self._trackio.Markdown(text) for name, text in ending.texts.items()}
        self._run.log({**summary, **texts}, step=self._last_step)
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()  # and not the run's own: Python's end would finish it once more
        self.complaints = [str(warning.message) for warning in self._warnings]
        self._warned.__exit__(None, None, None)

    def look(self) -> str:
        return f'trackio show --project "{self._project}"'
