"""TensorBoard's event files, written with tensorboardX: one event a step, which holds all its numbers.

TensorBoard keeps scalars in float32, whoever writes them. Going on after a break opens a further file in the same folder and begins it with
a session mark, at which TensorBoard forgets what older files say from that step on.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nanolens.errors import require
from nanolens.interop.trackers import About, Ending, Row


class TensorBoard:
    can_rewind = True

    def open(self, about: About, kept: Mapping[str, Any]) -> dict[str, Any]:
        require("tensorboardX", "tensorboard")
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._session = event_pb2.SessionLog
        self.folder = about.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        number = int(kept.get("files", 0)) + 1
        # The name is made of the second and this suffix: two files of one second would be one.
        self._writer = EventsWriter(str(self.folder / "events"), f".{number:04d}")
        self._last_step = int(kept.get("step") or 0)
        if kept.get("files"):
            self.rewind(int(kept.get("step", -1)))
        else:
            self._texts({"config": _table(about.config)}, 0, about.started_at_s)
            self._hyperparameters(about)
        return {"files": number}

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.values:
                values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in row.values.items()]
                self._write(row.step, row.at_s, summary=self._summary(value=values))
            self._texts(row.texts, row.step, row.at_s)
            self._last_step = row.step
        self._writer.flush()

    def rewind(self, step: int) -> None:
        self._write(step + 1, math.nan, session_log=self._session(status=self._session.START))

    def close(self, ending: Ending) -> None:
        self._texts(ending.texts, self._last_step, math.nan)
        summary = {key: value for key, value in ending.summary.items() if not isinstance(value, str)}
        values = [self._summary.Value(tag=f"summary/{tag}", simple_value=float(value)) for tag, value in summary.items()]
        self._write(self._last_step, math.nan, summary=self._summary(value=values))
        self._writer.close()

    def look(self) -> str:
        return f"tensorboard --logdir {self.folder}"

    def _write(self, step: int, at_s: float, **what: Any) -> None:
        self._writer.write_event(self._event(step=step, wall_time=at_s if math.isfinite(at_s) else time.time(), **what))

    def _texts(self, texts: Mapping[str, str], step: int, at_s: float) -> None:
        from tensorboardX.summary import text as text_summary

        for tag, text in texts.items():
            self._write(step, at_s, summary=text_summary(tag, text))

    def _hyperparameters(self, about: About) -> None:
        """For TensorBoard's HPARAMS tab."""
        from tensorboardX.summary import hparams

        plain = {key: value if isinstance(value, bool | int | float | str) else json.dumps(value) for key, value in about.config.items()}
        for summary in hparams(plain, {"val/loss": None, "batch/loss": None})[:2]:
            self._write(0, about.started_at_s, summary=summary)


def _table(config: Mapping[str, Any]) -> str:
    rows = [f"| {key} | {json.dumps(value, ensure_ascii=False, default=str)} |" for key, value in config.items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])
