"""A tracker while a run goes on: a process of its own that reads the record as it grows.

A library that hangs could hold Python's lock, or the end of the process; in another process it can hold neither. So the
training only starts that process, and at the end waits a few seconds for it. Whatever a tracker did not get by then is
reported, and `nanolens send` sends it. The process takes no more of the processor than the training leaves over, never
tries longer than the training lives, and ends without asking the library, which might not let it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from nanolens.config.fields import Config, Settings
from nanolens.message import Message, msg
from nanolens.record import EVENTS_FILE, tracker_file, tracker_output
from nanolens.record import events as e
from nanolens.record.store import as_typed
from nanolens.trackers import NAMES, SendState, is_installed, not_installed
from nanolens.trackers.sender import Notes, Sender, follow_record, reason_of

FINISHING_S = float(os.environ.get("NANOLENS_TRACKER_S") or 8.0)  # how long the end of a run waits for a tracker,
STOPPING_S = 3.0  # and when somebody asked for it to stop
ORPHAN_S = float(os.environ.get("NANOLENS_ORPHAN_S", "20"))  # how long the process may go on when the training is gone


def trackers_asked(config: Config) -> list[str]:
    asked = [name.strip() for name in config.trackers.split(",") if name.strip() not in ("", "none")]
    return list(dict.fromkeys([*asked, *(["wandb"] if config.wandb_log else [])]))


def check_trackers(settings: Settings) -> tuple[Message, ...]:
    """A library that is missing: an error where its name was typed now, a note where a config file has it."""
    notes = []
    for name in trackers_asked(settings.config):
        if is_installed(name):
            continue
        key = "wandb_log" if name == "wandb" and settings.config.wandb_log else "trackers"
        if settings.came_from.get(key, "").startswith("--"):
            raise not_installed(name)
        words = msg(
            "{tracker:code} is not installed, so nothing was sent to it; run {install:code}, then {send:code}",
            name,
            f"pip install 'nanolens[{name}]'",
            f"nanolens send RUN --to={name}",
        )
        notes.append(words)
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
        self._has_ended = self._is_shown = self._is_reported = self._was_killed = False
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
        if self._process is None or self._is_reported or self._has_ended:
            return
        sent = self._sent()
        because, look = sent.get("because", ""), sent.get("look")
        if look and not self._is_shown:
            self._is_shown = True
            self._emit(e.choice(self.name, look, msg("the run is sent there while it trains")))
        if self._process.poll() is not None or because:
            self._is_reported = True
            words = msg("{tracker}: {because}", self.name, because or msg("it ended by itself"))
            self._emit(e.Warned(step=self._step, code="tracker_failed", claim=str(words), words=words))

    def close(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(self._grace_s if self._has_ended else 0.0)
        except subprocess.TimeoutExpired:
            self._was_killed = True
            _end(self._process)

    def problem(self) -> Message | None:
        """What has to be said of it when the run is over; None where it has all of the run."""
        if self._process is None:
            return None
        sent = self._sent()
        because = sent.get("because", "")
        complaints = "; ".join(sent.get("complaints", ()))
        if sent.get("is_closed") and not because and not complaints:
            return None
        about = {
            "tracker": self.name,
            "missed": max(0, self._step - max(sent.get("step", -1), 0)),
            "steps": self._step,
            "send": f"nanolens send {as_typed(self.folder)} --to={self.name}",
        }
        if self._was_killed and not because:
            return msg(
                "{tracker:code} was not finished {waited:seconds} after the run and is missing {missed:count} of "
                "{steps:count step|steps}; {send:code} sends the rest",
                waited=self._grace_s,
                **about,
            )
        return msg(
            "{tracker:code} failed ({because}) and is missing {missed:count} of {steps:count step|steps}; {send:code} "
            "sends the rest",
            because=because or complaints or "it ended by itself",
            **about,
        )

    def _sent(self) -> SendState:
        sent = Notes(tracker_file(self.folder, self.name)).sent
        if self._process is not None and sent.get("pid") == self._process.pid:
            return sent
        return {"step": sent.get("step", -1)}  # an older attempt's file, as long as this one has not written


def tracker_places(folder: Path) -> list[str]:
    """Where to look at a run elsewhere: the address or the command of each tracker that has it."""
    every = [Notes(tracker_file(folder, name)).sent for name in NAMES]
    return [sent["look"] for sent in every if sent.get("is_closed") and "look" in sent]


def tracker_problems(trackers: Iterable[Tracking]) -> tuple[Message, ...]:
    return tuple(said for tracker in trackers if (said := tracker.problem()) is not None)


def _started(tracker: str, folder: Path) -> subprocess.Popen:
    output = tracker_output(folder, tracker)
    output.parent.mkdir(exist_ok=True)
    # Its own session: a Ctrl-C in the terminal is for the training, and all that a library starts can be ended
    # together.
    with open(output, "wb") as words:
        return subprocess.Popen(
            [sys.executable, "-m", "nanolens.trackers.live", tracker, str(folder), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=os.name != "nt",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )


def _end(process: subprocess.Popen) -> None:
    """Without asking: it had its time."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.name == "nt":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)


# --- the process itself


def main(tracker: str, run: str, parent: int) -> int:
    folder = Path(run)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(19)
    threading.Thread(target=_end_with, args=(parent,), name="parent", daemon=True).start()
    fresh: SendState = {"pid": os.getpid(), "because": "", "is_closed": False}
    try:
        sender = Sender(folder, tracker)
        sender.notes.write(fresh)
        sender.open()
        follow_record(sender, lambda: _is_over(folder, parent), retry=True)
    except BaseException as error:
        traceback.print_exc()
        Notes(tracker_file(folder, tracker)).write({**fresh, "because": reason_of(error)})
        return 1
    return 0


def _is_over(folder: Path, parent: int) -> bool:
    """Whether no more will be written: the run has ended, or its process is gone."""
    with contextlib.suppress(OSError), open(folder / EVENTS_FILE, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
        if file.read().rstrip(b"\n").rpartition(b"\n")[2].startswith(b'{"event":"run_ended"'):
            return True
    return not _lives(parent)


def _end_with(parent: int) -> None:
    while _lives(parent):
        time.sleep(1.0)
    time.sleep(ORPHAN_S)
    os._exit(3)


def _lives(parent: int) -> bool:
    return psutil.pid_exists(parent) if os.name == "nt" else os.getppid() == parent


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a library's own leave-taking may hang
