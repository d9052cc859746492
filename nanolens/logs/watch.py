"""Starts any trainer, shows what it prints as it prints it, and records that as a run.

A program whose output goes into a pipe keeps it back, 8 KB at a time; into a terminal it writes line by line. So it is given a terminal
(a pseudo-terminal; on Windows, which has none of that kind, a pipe and PYTHONUNBUFFERED). What it prints is echoed byte for byte, kept in
the run folder, and read as any log is: each row becomes an event, so that `watch`, `diagnose` and the page treat the run like one of ours.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import IO, Any

import numpy as np

from nanolens.config.fields import settings
from nanolens.errors import UserError, fault
from nanolens.interop.logs import Given, LogReader
from nanolens.message import msg
from nanolens.record import events as e
from nanolens.record.layout import OUTPUT_FILE, RUNS, STOP_FILE
from nanolens.record.run import Run
from nanolens.record.write import Recorder, training_here, write_run_file

READ_EVERY_S = 0.5  # rows become events at most this long after they were printed
LOOK_EVERY_S = 2.0  # and the whole run is looked at this often, as long as that takes no more than a twentieth of the time
COLUMNS = 200  # of the terminal that the program is given where we have none: progress bars and tables fit
FORWARDED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]

Look = Callable[[Run], None]


def watch_command(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    echo: IO[bytes] | None = None,
    look: Look | None = None,
    given: Given | None = None,
    lang: str = "en",
) -> int:
    """Runs `command` to its end and gives its exit code (128 + the signal, where one ended it).

    `folder` becomes the run folder (`runs/NAME-N` after the program's name where not given), `echo` gets what it prints, and `look` is
    called with the run as it stands now and then, and once more when it has ended.
    """
    folder = folder or free_folder(command)
    child = _start(command)
    try:
        with training_here(folder), _forwarding(child):
            recording = Recording(folder, command, given or Given(), look)
            try:
                _relay(child, recording, echo or sys.stdout.buffer)
            finally:
                _make_sure_it_ended(child)
                recording.end(child.process.returncode)
    finally:
        _make_sure_it_ended(child)
    code = child.process.returncode
    return code if code >= 0 else 128 - code


def free_folder(command: Sequence[str]) -> Path:
    """`runs/train-1` for `python train.py`: named after the script, numbered."""
    scripts = [Path(word).stem for word in command if word.endswith((".py", ".sh")) and "config" not in word]
    name = scripts[0] if scripts else Path(command[0]).stem
    number = 1
    while (folder := Path(RUNS) / f"{name}-{number}").exists():
        number += 1
    return folder


class Recording:
    """What a watched program prints, on its way into a run folder."""

    def __init__(self, folder: Path, command: Sequence[str], given: Given, look: Look | None):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._command = list(command)
        self._look = look
        self._reader = LogReader(given, name=folder.name)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._output = open(folder / OUTPUT_FILE, "ab")  # noqa: SIM115 - it stays open as long as the program runs
        self._recorder = Recorder(folder)
        self._facts: dict[str, Any] = {}
        self._starts, self._last_step, self._last_eval = 1, 0, -1
        self._best = float("inf")
        self._marks_told = 0
        self._started_s = time.monotonic()
        self._read_at_s, self._looked_at_s = 0.0, time.monotonic()
        self._is_new = False
        self._write_facts(None)
        self._recorder(e.RunStarted(step=0, pid=os.getpid()))

    def take(self, printed: bytes) -> None:
        self._output.write(printed)
        self._reader.feed(self._decode(printed))
        self._is_new = True

    def tick(self) -> None:
        """Reads what is new, now and then."""
        now_s = time.monotonic()
        if not self._is_new or now_s - self._read_at_s < READ_EVERY_S:
            return
        started_s = time.thread_time()
        run = self._record(whole=False)
        if run is not None and self._look is not None and now_s - self._looked_at_s >= LOOK_EVERY_S and len(run.steps):
            self._look(run)
            self._looked_at_s = time.monotonic()
        cost_s = time.thread_time() - started_s
        self._read_at_s = time.monotonic() + 20 * cost_s  # a long log costs more to go over: never above a twentieth of the time

    def end(self, code: int) -> None:
        self._reader.feed(self._decode(b"", True))
        self._output.close()
        run = self._record(whole=True)
        why = "finished" if code == 0 else "stopped" if code < 0 or code in (130, 143) else "failed"
        errors = [mark.text for mark in run.marks if mark.kind in ("error", "out_of_memory")] if run is not None else []
        because = "" if code == 0 else f"{errors[-1] if errors else ''} (exit code {code})".strip()
        self._recorder(e.RunEnded(step=self._last_step, why=why, because=because, wall_s=time.monotonic() - self._started_s))
        self._recorder.close()
        if run is not None and self._look is not None:
            self._look(run)

    def _record(self, *, whole: bool) -> Run | None:
        self._is_new = False
        try:
            runs = self._reader.runs(whole=whole)
        except UserError:  # two trainers speak: which one to believe is not ours to say, so the output is kept and nothing else
            return None
        run = runs[-1]
        starts = sum(each.reading.attempts for each in runs)
        if starts > self._starts:
            self._starts = starts
            self._begin_again(run)
        self._write_facts(run)
        for event in self._new_events(run):
            self._recorder(event)
        return run

    def _begin_again(self, run: Run) -> None:
        """The program went back to a step: what it did beyond it before counts no more."""
        begins = [mark.step for mark in run.marks if mark.kind in ("attempt", "resume") and mark.step is not None]
        first = int(run.steps.step[0]) - 1 if len(run.steps) else 0
        step = begins[-1] if begins and run.reading.attempts > 1 else first
        self._last_step, self._last_eval = step, step - 1
        self._recorder(e.RunStarted(step=step, pid=os.getpid()))

    def _new_events(self, run: Run) -> Iterator[e.Event]:
        """Rows that were not told yet, in the order of their steps."""
        rows: list[tuple[int, int, e.Event]] = []
        for i in np.flatnonzero(run.evals.step > self._last_eval).tolist():
            rows += [(int(run.evals.step[i]), 0, event) for event in self._evaluation(run, i)]
        for i in np.flatnonzero(run.steps.step > self._last_step).tolist():
            rows.append((int(run.steps.step[i]), 1, _logged(run, i)))
        for mark in run.marks[self._marks_told :]:
            if mark.kind == "checkpoint":
                rows.append((mark.step or 0, 2, e.CheckpointSaved(step=mark.step or 0, bytes=0, stall_s=0.0)))
            elif mark.kind not in ("attempt", "resume", "ended"):  # those are told as a start and an end
                rows.append((mark.step or 0, 2, e.Logged(step=mark.step or 0, values={"mark": mark.kind, "text": mark.text})))
        self._marks_told = len(run.marks)
        for _, _, event in sorted(rows, key=lambda row: row[:2]):
            yield event
        self._last_step = int(max(run.steps.step[-1:].tolist(), default=self._last_step))
        self._last_eval = int(max(run.evals.step[-1:].tolist(), default=self._last_eval))

    def _evaluation(self, run: Run, i: int) -> Iterator[e.Event]:
        evals, step = run.evals, int(run.evals.step[i])
        code = int(np.nan_to_num(evals.not_finite[i]))
        bits = float(evals.val_bits_per_byte[i])
        for split, bit in (("train", 1), ("val", 2)):
            loss = float(getattr(evals, split)[i])
            if np.isfinite(loss) or code & bit:
                is_best = split == "val" and loss < self._best
                self._best = min(self._best, loss) if split == "val" else self._best
                yield e.Evaluated(
                    step=step, split=split, loss=loss, standard_error=float("nan"), batch_losses=[], batches="", tokens=0, is_best=is_best
                )
        if np.isfinite(bits):
            yield e.Logged(step=step, values={"val_bits_per_byte": bits})

    def _write_facts(self, run: Run | None) -> None:
        """`run.json` as far as it is known; again whenever the output has told more."""
        known = run.known if run is not None else {}
        facts: dict[str, Any] = {
            "command": shlex.join(self._command),
            "config": {name: fact.value for name, fact in known.items() if name in settings() and _is_plain(fact.value)},
            "came_from": {name: fact.where or fact.origin for name, fact in known.items() if name in settings()},
            "words": asdict(run.words) if run is not None and run.words.trainer != "unknown" else {"trainer": "unknown"},
            "known": {name: asdict(fact) for name, fact in known.items() if _is_plain(fact.value)},
        }
        if facts != self._facts:
            write_run_file(self.folder, facts)
            self._facts = facts


def _logged(run: Run, i: int) -> e.Logged:
    """A row as the log tells it: what it does not say is left out."""
    steps = run.steps
    code = int(np.nan_to_num(steps.not_finite[i]))
    values: dict[str, Any] = {"printed": int(steps.printed[i])}
    for name in ("loss", "rate", "grad_norm", "took_s", "tokens", "tokens_per_s", "mfu_frac", "loss_scale", "memory_bytes"):
        value = float(getattr(steps, name)[i])
        if np.isfinite(value) or code & {"loss": 1, "grad_norm": 2}.get(name, 0):
            values[name] = value
    return e.Logged(step=int(steps.step[i]), values=values)


def _is_plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, (list, tuple)) and all(_is_plain(item) for item in value))


class _Child:
    """A started program and the end of its output that we read."""

    def __init__(self, process: subprocess.Popen, output: int):
        self.process, self.output = process, output
        self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            if self.process.stdout is not None:
                self.process.stdout.close()
            else:
                os.close(self.output)


def _start(command: Sequence[str]) -> _Child:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # Our terminal's keys must reach the program once, through us; with the terminal as its input it would be stopped by it.
    source: Any = subprocess.DEVNULL if sys.stdin is None or _is_terminal(sys.stdin) else None
    try:
        if os.name != "posix":
            process = subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
            assert process.stdout is not None
            return _Child(process, process.stdout.fileno())
        ours, theirs = _terminal()
        try:
            process = subprocess.Popen(command, stdin=source, stdout=theirs, stderr=theirs, env=environment, process_group=0)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return _Child(process, ours)
    except OSError as error:
        raise fault(
            msg("{command:code} cannot be started: {problem}", command=command[0], problem=(error.strerror or str(error)).lower()),
            fix=msg("give the command as you would type it, after two dashes: {example:code}", example="nanolens watch -- python train.py"),
        ) from None


def _terminal() -> tuple[int, int]:
    """A pseudo-terminal that changes nothing of what is written to it, as wide as ours."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST  # no carriage return before each line end
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    columns, lines = COLUMNS, 50
    with contextlib.suppress(OSError, ValueError):
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    return ours, theirs


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except ValueError:  # closed
        return False


def _relay(child: _Child, recording: Recording, echo: IO[bytes]) -> None:
    """Passes on what is printed until the program has ended and nothing more comes."""
    stop = recording.folder / STOP_FILE
    was_asked = False
    while True:
        printed = _read(child)
        if printed:
            _write(echo, printed)
            recording.take(printed)
        recording.tick()
        if not printed and child.process.poll() is not None:
            break
        if not was_asked and stop.exists():
            was_asked = True
            _signal_group(child.process, signal.SIGINT)


def _make_sure_it_ended(child: _Child) -> None:
    """Nothing that we started lives on behind us, whatever went wrong here."""
    if child.process.poll() is None:
        _signal_group(child.process, signal.SIGTERM)
        child.process.wait()
    child.close()


def _read(child: _Child) -> bytes:
    """What is there within a tenth of a second; nothing once the other end is closed."""
    try:
        if os.name == "posix" and not select.select([child.output], [], [], 0.1)[0]:
            return b""
        printed = os.read(child.output, 1 << 16)
    except OSError:  # Linux reports the other end's closing so
        printed = b""
    if not printed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(0.1)
    return printed


def _write(echo: IO[bytes], printed: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ValueError):  # nobody looks any more; the training goes on and is still recorded
        echo.write(printed)
        echo.flush()


@contextlib.contextmanager
def _forwarding(child: _Child) -> Iterator[None]:
    """Signals that are meant to end or wake the program reach it, once, and leave us to write down how it ended."""

    def forward(number: int, frame: FrameType | None) -> None:
        _signal_group(child.process, number)

    before: Mapping[int, Any] = {}
    with contextlib.suppress(ValueError):  # not in the main thread: signals are somebody else's business
        before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal_group(process: subprocess.Popen, number: int) -> None:
    """To the program and those that it started; torchrun starts one for each device."""
    with contextlib.suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
