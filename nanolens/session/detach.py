"""Training that outlives its terminal, and asking it to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nanolens import files
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.record import EVENTS_FILE, OUTPUT_FILE, STOP_FILE, is_run
from nanolens.record.store import living_process

START_S = 20.0  # how long to wait for a background run to begin before leaving it alone
SIGNAL_AFTER_S = 2.0  # the file is seen within a micro-batch; elsewhere (compiling, preparing) it takes the signal


@dataclass(frozen=True)
class BackgroundRun:
    pid: int
    log: Path
    has_started: bool  # False: it is still getting ready
    exit_code: int | None = None  # of one that has already ended
    words: str = ""  # what it said, if it ended badly


def detach(folder: Path, arguments: Sequence[str]) -> BackgroundRun:
    """Starts `nanolens ARGUMENTS` in a session of its own, its output in the run folder, until the run has begun."""
    log = folder / OUTPUT_FILE
    seen, said_before = _size(folder / EVENTS_FILE), _size(log)
    if os.name == "nt":
        apart = {"creationflags": subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP}  # type: ignore[attr-defined]
    else:
        apart = {"start_new_session": True}  # a closing terminal hangs up its own session only
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "nanolens", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            **apart,
        )
    has_started = False
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and not has_started and process.poll() is None:
        time.sleep(0.1)
        has_started = _size(folder / EVENTS_FILE) > seen and living_process(folder) == process.pid
    exit_code = process.poll()
    process.returncode = exit_code or 0  # it goes on without us: Popen need not warn that it is still running
    words = log.read_bytes()[said_before:][:20_000].decode(errors="replace").strip() if exit_code else ""
    if exit_code and not is_run(folder):  # a run that never began leaves nothing behind; its words have been read
        log.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
    return BackgroundRun(process.pid, log, has_started, exit_code, words)


def stop(folder: Path, wait_s: float) -> bool:
    """Asks the process that trains in `folder` to save and stop; True when it has ended within `wait_s`."""
    pid = living_process(folder)
    if pid is None:
        fix = msg("{command:code} shows the state of each run", "nanolens runs")
        raise fault(msg("{run:code} is not training now", str(folder)), fix=fix)
    files.write_whole(folder / STOP_FILE, "")
    asked_at_s = time.monotonic()
    is_signalled = False
    while living_process(folder) == pid:
        waited_s = time.monotonic() - asked_at_s
        if waited_s > wait_s:
            return False
        if waited_s > SIGNAL_AFTER_S and not is_signalled and living_process(folder, only_here=True) == pid:
            is_signalled = True
            with contextlib.suppress(ProcessLookupError, PermissionError):  # another user's: the file has to do
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.1)
    # Where it died before it saw the file, the next attempt shall not stop for it.
    (folder / STOP_FILE).unlink(missing_ok=True)
    return True


def raise_if_signalled(number: int | None) -> None:
    """The loop has taken a signal as the wish to save and stop; the program that called it is to stop as well."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number is not None:
        raise SystemExit(128 + number)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
