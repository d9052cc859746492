"""MLflow, wherever MLFLOW_TRACKING_URI points (without it, MLflow's own default).

MLflow keeps what was logged twice for a step: after each batch a tag notes the step reached, from which a broken-off sending goes on.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nanolens.errors import require
from nanolens.interop.trackers import About, Ending, Row

METRICS_AT_ONCE = 1000  # MLflow's limit for one call
PARAMETERS_AT_ONCE = 100
LONGEST_PARAMETER = 6000
REACHED = "nanolens.step"
_STATES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow:
    can_rewind = False

    def open(self, about: About, kept: Mapping[str, Any]) -> dict[str, Any]:
        require("mlflow", "mlflow")
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.entities import Param

        self._client, self._project = MlflowClient(), about.project
        self._uri = get_tracking_uri()
        self._last_step = int(kept.get("step") or 0)
        if kept.get("id"):
            self._id = str(kept["id"])
            reached = self._client.get_run(self._id).data.tags.get(REACHED)
            return {"id": self._id, **({"step": int(reached)} if reached is not None else {})}
        experiment = self._client.get_experiment_by_name(about.project)
        experiment_id = experiment.experiment_id if experiment is not None else self._client.create_experiment(about.project)
        started_ms = int(about.started_at_s * 1000) if math.isfinite(about.started_at_s) else None
        self._id = self._client.create_run(experiment_id, run_name=about.name, start_time=started_ms).info.run_id
        settings = [Param(key, json.dumps(value, default=str).strip('"')[:LONGEST_PARAMETER]) for key, value in about.config.items()]
        for start in range(0, len(settings), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=settings[start : start + PARAMETERS_AT_ONCE])
        return {"id": self._id}

    def add(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric, RunTag

        batch: list[Metric] = []
        for row in rows:
            at_ms = int((row.at_s if math.isfinite(row.at_s) else time.time()) * 1000)
            metrics = [Metric(_allowed(name), value, at_ms, row.step) for name, value in row.values.items()]
            if len(batch) + len(metrics) > METRICS_AT_ONCE:
                self._client.log_batch(self._id, metrics=batch, tags=[RunTag(REACHED, str(self._last_step))])
                batch = []
            batch += metrics
            self._last_step = row.step
            for name, text in row.texts.items():
                self._client.log_text(self._id, text, f"{name}/step-{row.step:06d}.md")
        if batch:
            self._client.log_batch(self._id, metrics=batch, tags=[RunTag(REACHED, str(self._last_step))])

    def rewind(self, step: int) -> None:
        pass

    def close(self, ending: Ending) -> None:
        for name, text in ending.texts.items():
            self._client.log_text(self._id, text, f"{name}.md")
        for name, value in ending.summary.items():
            if isinstance(value, str):
                self._client.set_tag(self._id, f"nanolens.{name}", value)
            else:
                self._client.log_metric(self._id, _allowed(f"summary/{name}"), value, step=self._last_step)
        if ending.state in _STATES:
            self._client.set_terminated(self._id, _STATES[ending.state])

    def look(self) -> str:
        return (
            f'mlflow ui --backend-store-uri "{self._uri}"'
            if "://" not in self._uri or self._uri.startswith(("sqlite", "file"))
            else self._uri
        )


def _allowed(name: str) -> str:
    """MLflow takes letters, digits and a few signs."""
    return "".join(letter if letter.isalnum() or letter in "_-./ :" else "_" for letter in name)
