"""Writing the record of a run: `run.json` once, `events.jsonl` one line at a time.

`run.json` holds what a run was asked to be and what it ran on:

    {"format": 1, "name": …, "created_at_s": …,
     "config": {every setting},  "came_from": {setting: where its value came from},  "preset": …,
     "data": {"fingerprint": …, "tokenizer_fingerprint": …, "facts": {train_tokens, val_tokens, …}},
     "machine": {"hardware", "device", "dtype", "threads", "peak_flops", "peak_origin", …},
     "versions": {"nanolens", "torch", …},
     "sizes": {"vocab_size", "parameters_total", "parameters", "flops_per_token", "tokens_per_update"},
     "parent": null | {"run": folder, "step": …}}

A failure to write an event never stops a training: it is counted and reported in the last event (`events_lost`)."""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from nanolens import files
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.record import EVENTS_FILE, RUN_FILE, events, is_run
from nanolens.record.store import free_folder, training_here

Emit = Callable[[events.Event], object]


class Recorder:
    """Stamps an event with time and attempt, appends it to the record, and gives it as written."""

    def __init__(self, run: Path):
        self.run = run
        self.attempt = 1
        self.events_lost = 0
        self.lost_because = ""
        self._file: int | None = None
        self._line_is_open = False  # a full disk cut the last line short

    def __call__(self, event: events.Event) -> events.Event:
        if isinstance(event, events.RunEnded):
            lost, because = event.events_lost + self.events_lost, event.lost_because or self.lost_because
            event = replace(event, events_lost=lost, lost_because=because)
        try:
            if self._file is None:
                self.run.mkdir(parents=True, exist_ok=True)
                self.attempt = end_torn_line(self.run / EVENTS_FILE) + 1
                self._file = os.open(self.run / EVENTS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            event = replace(event, attempt=self.attempt, at_s=event.at_s or time.time())
            line = (b"\n" if self._line_is_open else b"") + encoded(event) + b"\n"
            # One write() at the end of the file: lines of two processes never mix, a kill tears at most the last one.
            written = os.write(self._file, line)
            self._line_is_open = written < len(line)
            if self._line_is_open:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:  # a full disk must not end a training
            self.events_lost += 1
            self.lost_because = self.lost_because or str(error)
        return event

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = None


def end_torn_line(path: Path) -> int:
    """Ends a line that a kill tore; gives the last attempt's number (0: no events)."""
    try:
        with open(path, "rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - (1 << 20)))
            tail = file.read()
            if tail and not tail.endswith(b"\n"):
                file.write(b"\n")
    except FileNotFoundError:
        return 0
    for line in reversed(tail.splitlines()):
        with contextlib.suppress(ValueError, AttributeError):
            return int(json.loads(line).get("attempt", 1))
    return 1 if size else 0


_encode = msgspec.json.Encoder(enc_hook=str).encode


def encoded(event: events.Event) -> bytes:
    """As JSON, with "nan", "inf" and "-inf". msgspec writes null for them: only an event with a null is searched."""
    line = _encode(event)
    return line if b"null" not in line else _encode(_spelled(msgspec.to_builtins(event, enc_hook=str)))


def _spelled(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list):
        return [_spelled(each) for each in value]
    if isinstance(value, dict):
        return {key: _spelled(each) for key, each in value.items()}
    return value


_BARE = events.Evaluated(step=0, split="", loss="nan", standard_error="nan", batch_losses=[], batches="", tokens=0)


def bare_evaluation(step: int, split: str, loss: events.Number, **known: object) -> events.Evaluated:
    """An evaluation by somebody else, who gives its loss and not the losses of its batches."""
    return replace(_BARE, step=step, split=split, loss=loss, **known)


def write_run_file(run: Path, facts: Mapping[str, object]) -> None:
    """Writes `run.json`; a run that is resumed keeps its creation time and parent."""
    old: Mapping[str, object] = read_run_file(run) if is_run(run) else {}
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
            msg("{folder:code} contains no run", str(run)),
            fix=msg("{command:code} lists the existing runs", "nanolens runs"),
        ) from None
    except (OSError, ValueError) as error:
        raise fault(
            msg("{path:code} cannot be read: {error}", str(run / RUN_FILE), str(error)),
            fix=msg("restore the file from a backup, or start a new run"),
        ) from None


# --- a training loop that is not ours: `nanolens.start_run`, `nanolens.log` and `nanolens.end_run`

_own_loop: Recorder | None = None
_own_step = 0
_claim = contextlib.ExitStack()  # on the run folder, until the record ends


def start_run(folder: str | Path | None = None, config: Mapping[str, object] | None = None, **facts: object) -> Path:
    """Begins a record for a loop that is not ours: a new folder (`runs/log-1`, … unless given), with what is known of
    the run.

    `config` may hold nanoGPT's names (batch_size, block_size, learning_rate, max_iters, …): the more it says, the more
    can be explained."""
    global _own_loop, _own_step
    end_run()
    run = Path(folder) if folder is not None else free_folder("log")
    if is_run(run):
        raise fault(msg("{folder:code} already contains a run", str(run)), fix=msg("give another folder"))
    run.mkdir(parents=True, exist_ok=True)
    words = {"trainer": "own loop", "loss": "unknown", "time": "unknown"}
    write_run_file(run, {"config": dict(config or {}), "words": words, **facts})
    _own_loop, _own_step = Recorder(run), 0
    _claim.enter_context(training_here(run))
    _own_loop(events.RunStarted(step=0, pid=os.getpid()))
    atexit.register(end_run)
    return run


def log(step: int | None = None, **values: float | int | str) -> None:
    """Adds a line to the record of a loop that is not ours: `nanolens.log(step=10, loss=3.2, lr=6e-4, grad_norm=0.9,
    took_s=0.4)`.

    `step` counts the updates done; without it the calls are counted. `val_loss` (and with it `train_loss`) is an
    evaluation of the weights at this step. The first call begins a run, if `start_run` did not."""
    global _own_step
    if _own_loop is None:
        start_run()
    assert _own_loop is not None
    _own_step = _own_step + 1 if step is None else int(step)
    # A tensor of one element is its number.
    plain = {name: value if isinstance(value, str) else float(value) for name, value in values.items()}
    if "val_loss" in plain:
        for split in ("train", "val"):
            if (loss := plain.pop(f"{split}_loss", None)) is not None:
                _own_loop(bare_evaluation(_own_step, split, loss))
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
    _claim.close()
