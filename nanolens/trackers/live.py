"""A tracker while a run goes on: a process of its own that reads the record as it grows.

A library that hangs could hold Python's lock, or the end of the process; in another process it can hold neither. So the training only
starts that process and, at the end, waits a few seconds for it. Whatever a tracker did not get by then is counted and told, and
`nanolens send` sends it: the record is complete in any case.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.config.settings import Settings
from nanolens.interop.trackers import NAMES, is_installed, not_installed
from nanolens.message import Message, msg
from nanolens.record import events as e
from nanolens.record.layout import tracker_file, tracker_output
from nanolens.record.store import as_typed

if TYPE_CHECKING:
    from nanolens.config.fields import Config

FINISHING_S = float(os.environ.get("NANOLENS_TRACKER_S") or 8.0)  # how long the end of a run waits for a tracker,
STOPPING_S = 3.0  # and when somebody asked for it to stop
LOOKED_AT_EVERY_S = 0.1


def trackers_asked(config: Config) -> list[str]:
    asked = [name.strip() for name in config.trackers.split(",") if name.strip() not in ("", "none")]
    return list(dict.fromkeys([*asked, *(["wandb"] if config.wandb_log else [])]))


def check_trackers(settings: Settings) -> tuple[Message, ...]:
    """A library that is missing: an error for whoever typed its name now, a note where a config file has it."""
    notes = []
    for name in trackers_asked(settings.config):
        if is_installed(name):
            continue
        key = "wandb_log" if name == "wandb" and settings.config.wandb_log else "trackers"
        if settings.came_from.get(key, "").startswith("--"):
            raise not_installed(name)
        wanted = {"tracker": name, "install": f"pip install 'nanolens[{name}]'", "send": f"nanolens send RUN --to={name}"}
        notes.append(msg("{tracker:code} is not installed, so nothing was sent to it; after {install:code}, {send:code} does it", **wanted))
    return tuple(notes)


def tracking(config: Config, folder: Path, emit: Callable[[e.Event], None]) -> list[Tracking]:
    return [Tracking(name, folder, emit) for name in trackers_asked(config) if is_installed(name)]


class Tracking:
    """A listener that starts the tracker's process when the run starts, and sees to its end."""

    poll_s = 0.5
    patience_s = FINISHING_S + 2.0

    def __init__(self, tracker: str, folder: Path, emit: Callable[[e.Event], None] = lambda event: None):
        assert tracker in NAMES
        self.name, self.folder, self._emit = tracker, folder, emit
        self._process: subprocess.Popen | None = None
        self._step = 0
        self._has_ended = self._is_shown = self._is_told = self._was_killed = False
        self._grace_s = FINISHING_S

    def __call__(self, event: e.Event) -> None:
        self._step = getattr(event, "step", self._step)
        if isinstance(event, e.RunStarted) and self._process is None:
            self._process = _started(self.name, self.folder)
        elif isinstance(event, e.RunEnded):
            self._has_ended = True
            self._grace_s = FINISHING_S if event.why == "finished" else STOPPING_S

    def tick(self) -> None:
        """Says once where the run can be looked at, and once when the tracker is not coming along."""
        if self._process is None or self._is_told or self._has_ended:
            return
        kept = self._kept()
        because = str(kept.get("because") or "")
        if kept.get("look") and not self._is_shown:
            self._is_shown = True
            self._emit(e.Chosen(what=self.name, value=str(kept["look"]), because="the run is sent there as it goes on"))
        if self._process.poll() is not None or because:
            self._is_told = True
            claim = f"{self.name}: {because or 'it ended by itself'}"
            self._emit(e.Warned(step=self._step, code="tracker_failed", claim=claim))

    def close(self) -> None:
        if self._process is None:
            return
        until_s = time.monotonic() + (self._grace_s if self._has_ended else 0.0)
        while self._process.poll() is None and time.monotonic() < until_s:
            time.sleep(LOOKED_AT_EVERY_S)
        if self._process.poll() is None:
            self._was_killed = True
            _end(self._process)

    def told(self) -> Message | None:
        """What has to be said of it when the run is over; None where it has all of the run."""
        if self._process is None:
            return None
        kept = self._kept()
        step, because = int(kept.get("step", -1)), str(kept.get("because") or "")
        if kept.get("is_closed") and not because and not kept.get("complaints"):
            return None
        complaints = "; ".join(kept.get("complaints") or ())
        about = {
            "tracker": self.name, "missed": max(0, self._step - max(step, 0)), "steps": self._step,
            "send": f"nanolens send {as_typed(self.folder)} --to={self.name}",
        }  # fmt: skip
        if self._was_killed and not because:
            return msg(
                "{tracker:code} was not done {waited:seconds} after the run and lacks {missed:count} of {steps:count} steps; "
                "{send:code} sends the rest",
                waited=self._grace_s, **about,
            )  # fmt: skip
        return msg(
            "{tracker:code} failed ({because}) and lacks {missed:count} of {steps:count} steps; {send:code} sends the rest",
            because=because or complaints or "it ended by itself", **about,
        )  # fmt: skip

    def _kept(self) -> dict[str, Any]:
        try:
            kept = json.loads(tracker_file(self.folder, self.name).read_bytes())
            # An older attempt's file, as long as this one has not written.
            return kept if self._process is not None and kept.get("pid") == self._process.pid else {"step": kept.get("step", -1)}
        except (OSError, ValueError):
            return {}


def tracker_places(folder: Path) -> list[str]:
    """Where to look at a run elsewhere: the address or the command of each tracker that has it."""
    found = []
    for name in NAMES:
        try:
            kept = json.loads(tracker_file(folder, name).read_bytes())
            if kept.get("is_closed"):
                found.append(str(kept["look"]))
        except (OSError, ValueError, KeyError, AttributeError):
            continue
    return found


def told_of(trackers: Iterable[Tracking]) -> tuple[Message, ...]:
    return tuple(said for tracker in trackers if (said := tracker.told()) is not None)


def _started(tracker: str, folder: Path) -> subprocess.Popen:
    output = tracker_output(folder, tracker)
    output.parent.mkdir(exist_ok=True)
    # Its own session: a Ctrl-C in the terminal is for the training, and all that a library starts can be ended together.
    own: dict[str, Any] = (
        {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP} if os.name == "nt" else {"start_new_session": True}  # type: ignore[attr-defined]
    )
    with open(output, "wb") as words:
        return subprocess.Popen(
            [sys.executable, "-m", "nanolens.api.tracker_process", tracker, str(folder), str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=words, stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}, **own,
        )  # fmt: skip


def _end(process: subprocess.Popen) -> None:
    """Without asking: it had its time."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.name == "nt":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)
