"""One class per tracker. Each library is imported when its tracker is opened."""

from __future__ import annotations

import contextlib
import html
import io
import json
import math
import netrc
import os
import re
import secrets
import time
import urllib.parse
import warnings
from collections.abc import Mapping, Sequence

from nanolens.errors import require
from nanolens.trackers import MetricRow, RunEnd, RunInfo, SendState, Tracker

METRICS_AT_ONCE, PARAMETERS_AT_ONCE, LONGEST_PARAMETER = 1000, 100, 6000  # MLflow's limits
REACHED = "nanolens.step"
_STATES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class TensorBoard(Tracker):
    """TensorBoard's event files, written with tensorboardX: one event a step, which holds all its numbers, in float32
    whoever writes them. Going on after a break opens a further file in the same folder and begins it with a session
    mark, at which TensorBoard forgets what older files say from that step on."""

    can_rewind = True

    def open(self, about: RunInfo, sent: SendState) -> SendState:
        require("tensorboardX", "tensorboard")
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        self._summary, self._proto, self.folder = summary, event_pb2, about.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        number = int(sent.get("files", 0)) + 1
        # The name is made of the second and this suffix: two files of one second would be one.
        self._writer = EventsWriter(str(self.folder / "events"), f".{number:04d}")
        if sent.get("files"):
            self.rewind(int(sent.get("step", -1)))
        else:
            settings = about.config.items()
            rows = [f"| {key} | {json.dumps(value, ensure_ascii=False, default=str)} |" for key, value in settings]
            self._texts({"config": "\n".join(["| setting | value |", "|---|---|", *rows])}, 0, about.started_at_s)
            plain = {
                key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
                for key, value in settings
            }
            for part in summary.hparams(plain, {"val/loss": None, "batch/loss": None})[:2]:  # for its HPARAMS tab
                self._write(0, about.started_at_s, summary=part)
        return {"files": number}

    def add(self, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            if row.values:
                self._numbers(row.values, row.step, row.at_s)
            self._texts(row.texts, row.step, row.at_s)
        self._writer.flush()

    def rewind(self, step: int) -> None:
        session = self._proto.SessionLog
        self._write(step + 1, math.nan, session_log=session(status=session.START))

    def close(self, ending: RunEnd) -> None:
        self._texts(ending.texts, ending.step, math.nan)
        summary = {
            f"summary/{key}": float(value) for key, value in ending.summary.items() if not isinstance(value, str)
        }
        self._numbers(summary, ending.step, math.nan)
        self._writer.close()

    def look(self) -> str:
        return f"tensorboard --logdir {self.folder}"

    def _write(self, step: int, at_s: float, **what: object) -> None:
        at_s = at_s if math.isfinite(at_s) else time.time()
        self._writer.write_event(self._proto.Event(step=step, wall_time=at_s, **what))

    def _numbers(self, numbers: Mapping[str, float], step: int, at_s: float) -> None:
        summary = self._summary.Summary
        values = [summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        self._write(step, at_s, summary=summary(value=values))

    def _texts(self, texts: Mapping[str, str], step: int, at_s: float) -> None:
        for tag, text in texts.items():
            self._write(step, at_s, summary=self._summary.text(tag, text))


class WandB(Tracker):
    """Weights & Biases: online where this machine has a key of W&B (`wandb login`, WANDB_API_KEY), else offline;
    WANDB_MODE overrules both. An offline run lies in the run folder until `wandb sync` sends it. The run's id is ours
    and is kept, so that a resumed training goes on in the same W&B run. W&B takes steps in rising order only."""

    def open(self, about: RunInfo, sent: SendState) -> SendState:
        self._wandb = wandb = require("wandb", "wandb")
        self._mode = os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline")
        run_id = sent.get("id") or secrets.token_hex(4)
        quiet = dict.fromkeys(("silent", "disable_git", "disable_code", "x_disable_stats", "x_disable_meta"), True)
        self._run = wandb.init(
            mode=self._mode,
            project=about.project,
            name=about.name,
            id=run_id,
            resume="allow",
            config=dict(about.config),
            dir=os.environ.get("WANDB_DIR") or str(about.folder),
            settings=wandb.Settings(console="off", init_timeout=60, **quiet),
        )
        return {"id": run_id, "mode": self._mode}

    def add(self, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            data: dict[str, object] = {**row.values, "iter": row.step}
            data |= {
                name: self._wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False)
                for name, text in row.texts.items()
            }
            if math.isfinite(row.at_s):
                data["_timestamp"] = row.at_s
            self._run.log(data, step=row.step)

    def close(self, ending: RunEnd) -> None:
        for key, value in {**ending.summary, "state": ending.state, **ending.texts}.items():
            self._run.summary[key] = value
        self._run.finish(exit_code=1 if ending.state == "failed" else 0)

    def look(self) -> str:
        return str(self._run.url) if self._mode == "online" else f"wandb sync {self._run.settings.sync_dir}"


def _has_key() -> bool:
    """Whether there is a key in the environment or where `wandb login` puts it; whether it is valid, W&B says."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urllib.parse.urlparse(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    for place in filter(None, (os.environ.get("NETRC"), "~/.netrc", "~/_netrc")):
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if netrc.netrc(os.path.expanduser(place)).authenticators(host):
                return True
    return False


class Trackio(Tracker):
    """A database on this machine (or a Hugging Face Space, where TRACKIO_SPACE_ID names one), shown by `trackio show`.
    trackio does not raise when it cannot write: it warns. What it warned of is reported with the result."""

    def open(self, about: RunInfo, sent: SendState) -> SendState:
        self._trackio = trackio = require("trackio", "trackio")
        self._project = about.project
        self._warned = warnings.catch_warnings(record=True)
        self._warnings = self._warned.__enter__() or []
        warnings.simplefilter("always")
        with contextlib.redirect_stdout(io.StringIO()):  # it greets
            self._run = trackio.init(
                project=about.project,
                name=sent.get("run") or about.name,
                config=dict(about.config),
                resume="allow" if sent.get("run") else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        # Trackio itself knows the last step that reached its database
        return {"run": self._run.name, "step": self._run._next_step - 1 if sent.get("run") else -1}

    def add(self, rows: Sequence[MetricRow]) -> None:
        for row in rows:
            texts = {name: self._trackio.Markdown(text) for name, text in row.texts.items()}
            self._run.log({**row.values, **texts}, step=row.step)

    def close(self, ending: RunEnd) -> None:
        summary = {f"summary/{key}": value for key, value in {**ending.summary, "state": ending.state}.items()}
        texts = {name: self._trackio.Markdown(text) for name, text in ending.texts.items()}
        self._run.log({**summary, **texts}, step=ending.step)
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()  # and not the run's own: Python's end would finish it once more
        self.complaints = [str(warning.message) for warning in self._warnings]
        self._warned.__exit__(None, None, None)

    def look(self) -> str:
        return f'trackio show --project "{self._project}"'


class MLflow(Tracker):
    """Wherever MLFLOW_TRACKING_URI points (without it, MLflow's own default). MLflow keeps what was logged twice for a
    step: after each batch a tag notes the step reached, from which a broken-off sending goes on."""

    def open(self, about: RunInfo, sent: SendState) -> SendState:
        require("mlflow", "mlflow")
        from mlflow import MlflowClient, get_tracking_uri
        from mlflow.entities import Param

        self._client, self._uri = MlflowClient(), get_tracking_uri()
        if sent.get("id"):
            self._id = str(sent["id"])
            return {"id": self._id, "step": int(self._client.get_run(self._id).data.tags.get(REACHED, -1))}
        found = self._client.get_experiment_by_name(about.project)
        experiment_id = self._client.create_experiment(about.project) if found is None else found.experiment_id
        started_ms = int(about.started_at_s * 1000) if math.isfinite(about.started_at_s) else None
        self._id = self._client.create_run(experiment_id, run_name=about.name, start_time=started_ms).info.run_id
        settings = [
            Param(key, json.dumps(value, default=str).strip('"')[:LONGEST_PARAMETER])
            for key, value in about.config.items()
        ]
        for start in range(0, len(settings), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=settings[start : start + PARAMETERS_AT_ONCE])
        return {"id": self._id}

    def add(self, rows: Sequence[MetricRow]) -> None:
        from mlflow.entities import Metric, RunTag

        batch: list[Metric] = []
        reached = 0
        for row in rows:
            at_ms = int((row.at_s if math.isfinite(row.at_s) else time.time()) * 1000)
            metrics = [Metric(_allowed(name), value, at_ms, row.step) for name, value in row.values.items()]
            if batch and len(batch) + len(metrics) > METRICS_AT_ONCE:
                self._client.log_batch(self._id, metrics=batch, tags=[RunTag(REACHED, str(reached))])
                batch = []
            batch += metrics
            reached = row.step
            for name, text in row.texts.items():
                self._client.log_text(self._id, text, f"{name}/step-{row.step:06d}.md")
        if batch:
            self._client.log_batch(self._id, metrics=batch, tags=[RunTag(REACHED, str(reached))])

    def close(self, ending: RunEnd) -> None:
        for name, text in ending.texts.items():
            self._client.log_text(self._id, text, f"{name}.md")
        for name, value in ending.summary.items():
            if isinstance(value, str):
                self._client.set_tag(self._id, f"nanolens.{name}", value)
            else:
                self._client.log_metric(self._id, _allowed(f"summary/{name}"), value, step=ending.step)
        if ending.state in _STATES:
            self._client.set_terminated(self._id, _STATES[ending.state])

    def look(self) -> str:
        is_here = "://" not in self._uri or self._uri.startswith(("sqlite", "file"))
        return f'mlflow ui --backend-store-uri "{self._uri}"' if is_here else self._uri


def _allowed(name: str) -> str:
    """MLflow takes letters, digits and a few signs."""
    return re.sub(r"[^\w./ :-]", "_", name)


TRACKERS = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio, "mlflow": MLflow}
