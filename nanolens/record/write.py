"""Writing the record of a run: `run.json` once, `events.jsonl` one line at a time.

`run.json` holds what a run was asked to be and what it ran on:

    {"format": 1, "name": …, "created_at_s": …,
     "config": {every setting},  "came_from": {setting: where its value came from},  "preset": …,
     "data": {"fingerprint": …, "tokenizer_fingerprint": …, "facts": {train_tokens, val_tokens, …}},
     "machine": {"hardware", "device", "dtype", "threads", "peak_flops", "peak_origin", …},
     "versions": {"nanolens", "torch", …},
     "sizes": {"vocab_size", "parameters_total", "parameters", "flops_per_token", "tokens_per_update"},
     "parent": null | {"run": folder, "step": …}}

A failure to write an event never stops a training: it is counted and told in the run's last event (`events_lost`).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from nanolens import files
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.record import events
from nanolens.record.layout import EVENTS_FILE, PID_FILE, RUN_FILE, RUNS, STOP_FILE, is_run

Emit = Callable[[events.Event], None]


class Recorder:
    """Called with an event, appends it to the run's record, stamped with the time and the attempt. Opens the file at the first event."""

    def __init__(self, run: Path):
        self.run = run
        self.attempt = 1
        self.events_lost = 0
        self.lost_because = ""
        self._file: int | None = None
        self._line_is_open = False  # a full disk cut the last line short
        self._encode = msgspec.json.Encoder().encode

    def __call__(self, event: events.Event) -> None:
        changes: dict[str, Any] = {"attempt": self.attempt}
        if isinstance(event, events.RunEnded):
            changes |= {"events_lost": event.events_lost + self.events_lost, "lost_because": event.lost_because or self.lost_because}
        try:
            if self._file is None:
                self._open()
                changes["attempt"] = self.attempt
            assert self._file is not None
            stamped = msgspec.structs.replace(event, at_s=event.at_s or time.time(), **changes)
            line = (b"\n" if self._line_is_open else b"") + self._encode(writable(stamped)) + b"\n"
            # One write() to a file opened for appending: lines of two processes never mix, and a kill tears at most the last one.
            written = os.write(self._file, line)
            self._line_is_open = written < len(line)
            if self._line_is_open:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:  # a full disk must not end a training
            self.events_lost += 1
            self.lost_because = self.lost_because or str(error)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        self.run.mkdir(parents=True, exist_ok=True)
        path = self.run / EVENTS_FILE
        self.attempt = mend(path) + 1
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def fan_out(*listeners: Emit) -> Emit:
    """One emit function for several listeners, called in order."""

    def emit(event: events.Event) -> None:
        for listener in listeners:
            listener(event)

    return emit


def mend(path: Path) -> int:
    """Ends a line that a kill tore, so that the next event stands on its own; gives the last attempt's number (0: no events)."""
    try:
        with open(path, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - (1 << 20))
            file.seek(start)
            tail = file.read()
            if tail and not tail.endswith(b"\n"):
                file.write(b"\n")
    except FileNotFoundError:
        return 0
    for line in reversed(tail.splitlines()):
        with contextlib.suppress(ValueError, AttributeError):
            return int(json.loads(line).get("attempt", 1))
    return 1 if size else 0


def writable(event: events.Event) -> events.Event:
    """The event with numbers that JSON lacks as strings."""
    values = {name: getattr(event, name) for name in event.__struct_fields__}
    changes = {name: _spelled(value) for name, value in values.items() if not _is_writable(value)}
    return msgspec.structs.replace(event, **changes) if changes else event


def _is_writable(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (list, dict)):
        return all(_is_writable(x) for x in (value.values() if isinstance(value, dict) else value))
    return True


def _spelled(value: Any) -> Any:
    if isinstance(value, list):
        return [_spelled(x) for x in value]
    if isinstance(value, dict):
        return {key: _spelled(x) for key, x in value.items()}
    return value if _is_writable(value) else str(value)


def write_run_file(run: Path, facts: Mapping[str, Any]) -> None:
    """Writes `run.json`; a run that is resumed keeps its creation time and parent."""
    kept: dict[str, Any] = {}
    if is_run(run):
        old = read_run_file(run)
        kept = {key: old[key] for key in ("created_at_s", "parent") if key in old}
    whole = {"format": 1, "name": run.name, "created_at_s": time.time(), "parent": None, **facts, **kept}
    files.write_whole(run / RUN_FILE, json.dumps(whole, indent=1, default=str))


def read_run_file(run: Path) -> dict[str, Any]:
    """What `run.json` says; a UserError where there is none that can be read."""
    try:
        facts = json.loads((run / RUN_FILE).read_bytes())
        if not isinstance(facts, dict):
            raise ValueError("not a JSON object")
        return facts
    except FileNotFoundError:
        raise fault(
            msg("{folder:code} holds no run", folder=str(run)), fix=msg("{command:code} lists the runs there are", command="nanolens runs")
        ) from None
    except (OSError, ValueError) as error:
        raise fault(
            msg("{path:code} cannot be read: {error}", path=str(run / RUN_FILE), error=str(error)),
            fix=msg("restore the file from a copy, or start a new run"),
        ) from None


@contextlib.contextmanager
def training_here(run: Path) -> Iterator[None]:
    """Marks the folder as being trained in by this process, and refuses where another living process is."""
    other = living_process(run)
    if other is not None and other != os.getpid():
        raise fault(
            msg("process {pid:code} is already training in {folder:code}", pid=other, folder=str(run)),
            fix=msg("watch it with {watch:code}, or stop it with {stop:code}", watch=f"nanolens watch {run}", stop=f"nanolens stop {run}"),
        )
    (run / STOP_FILE).unlink(missing_ok=True)  # a request that an earlier process did not live to see
    files.write_whole(run / PID_FILE, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started_at_s": time.time()}))
    done = threading.Event()
    threading.Thread(target=_show_life, args=(run / PID_FILE, done), name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        for name in (PID_FILE, STOP_FILE):
            with contextlib.suppress(OSError):
                (run / name).unlink(missing_ok=True)


HEARTBEAT_S, DEAD_AFTER_S = 20.0, 120.0


def _show_life(claim: Path, done: threading.Event) -> None:
    """Touches the claim now and then: whoever looks from another machine, or another container, cannot ask for the process."""
    while not done.wait(HEARTBEAT_S):
        with contextlib.suppress(OSError):
            os.utime(claim)


def living_process(run: Path) -> int | None:
    """The id of the process that is training in this folder, None where none is (or it died without a word)."""
    try:
        claim = json.loads((run / PID_FILE).read_bytes())
        pid, host = int(claim["pid"]), claim["host"]
        silent_s = time.time() - (run / PID_FILE).stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if host != socket.gethostname():
        return pid if silent_s < DEAD_AFTER_S else None
    import psutil

    try:
        # A process id is used again after a restart: one that began after the claim was written is not the one that wrote it.
        return pid if psutil.Process(pid).create_time() <= claim.get("started_at_s", math.inf) + 1 else None
    except psutil.Error:
        return None


def move_aside(run: Path) -> Path:
    """Renames the folder of an old run to the first free `NAME.old-N`, and gives that."""
    number = 1
    while (aside := run.with_name(f"{run.name}.old-{number}")).exists():
        number += 1
    os.rename(run, aside)
    return aside


# --- the same record from a loop that is not ours

_own_loop: Recorder | None = None
_own_step = 0


def start_run(folder: str | Path | None = None, config: Mapping[str, Any] | None = None, **facts: Any) -> Path:
    """Begins a record for a loop that is not ours: a new folder (`runs/log-1`, … unless given), with what is known of the run.

    `config` may hold nanoGPT's names (batch_size, block_size, learning_rate, max_iters, …): the more it says, the more can be explained.
    """
    global _own_loop, _own_step
    end_run()
    run = Path(folder) if folder is not None else _free_folder()
    if is_run(run):
        raise fault(msg("{folder:code} already holds a run", folder=str(run)), fix=msg("give another folder"))
    run.mkdir(parents=True, exist_ok=True)
    words = {"trainer": "own loop", "loss": "unknown", "time": "unknown"}
    write_run_file(run, {"config": dict(config or {}), "words": words, **facts})
    _own_loop, _own_step = Recorder(run), 0
    files.write_whole(run / PID_FILE, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started_at_s": time.time()}))
    _own_loop(events.RunStarted(step=0, pid=os.getpid()))
    atexit.register(end_run)
    return run


def log(step: int | None = None, **values: float | int | str) -> None:
    """Adds a line to the record of a loop that is not ours: `nanolens.log(step=10, loss=3.2, lr=6e-4, grad_norm=0.9, took_s=0.4)`.

    `step` counts the updates done; without it the calls are counted. `val_loss` (and with it `train_loss`) is an evaluation of the
    weights at this step. The first call begins a run, if `start_run` did not.
    """
    global _own_step
    if _own_loop is None:
        start_run()
    assert _own_loop is not None
    _own_step = _own_step + 1 if step is None else int(step)
    plain = {name: _plain(value) for name, value in values.items()}
    if "val_loss" in plain:
        for split in ("train", "val"):
            if f"{split}_loss" in plain:
                loss = plain.pop(f"{split}_loss")
                _own_loop(
                    events.Evaluated(step=_own_step, split=split, loss=loss, standard_error="nan", batch_losses=[], batches="", tokens=0)
                )
    if plain:
        _own_loop(events.Logged(step=_own_step, values=plain))


def end_run(why: str = "finished", because: str = "") -> None:
    """Ends the record that `start_run` or `log` began; called by itself when Python ends."""
    global _own_loop
    if _own_loop is None:
        return
    recorder, _own_loop = _own_loop, None
    recorder(events.RunEnded(step=_own_step, why=why, because=because))
    recorder.close()
    (recorder.run / PID_FILE).unlink(missing_ok=True)


def _plain(value: Any) -> float | str:
    """A number or text; a tensor of one element is its number."""
    if isinstance(value, str):
        return value
    return float(value)


def _free_folder() -> Path:
    number = 1
    while (folder := Path(RUNS) / f"log-{number}").exists():
        number += 1
    return folder
