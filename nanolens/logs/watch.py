"""Starts any trainer, shows what it prints as it prints it, and records that as a run.

A program whose output goes into a pipe keeps it back, 8 KB at a time; into a terminal it writes line by line. So it is
given a pseudo-terminal (on Windows, which has none, a pipe and PYTHONUNBUFFERED). What it prints is echoed byte for
byte, kept in the run folder, and read as any log is: each row becomes an event."""

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import IO

import numpy as np

from nanolens.config.fields import settings
from nanolens.diagnosis import FAULTS, diagnose
from nanolens.errors import UserError, fault
from nanolens.logs.reader import LogReader
from nanolens.message import Message, msg
from nanolens.record import OUTPUT_FILE, STOP_FILE
from nanolens.record import events as e
from nanolens.record.run import RunRecord
from nanolens.record.store import free_folder, training_here
from nanolens.record.write import Recorder, bare_evaluation, write_run_file

READ_EVERY_S = 0.5  # rows become events at most this long after they were printed
LOOK_EVERY_S = 2.0  # and the whole run is looked at this often, as long as that takes a twentieth of the time
COLUMNS = 200  # of the terminal that the program is given where we have none: progress bars and tables fit
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")  # Windows lacks some of them
_LOGGED = "loss lr grad_norm took_s tokens tokens_per_s mfu_frac loss_scale memory_bytes".split()

Look = Callable[[RunRecord], None]
Process = subprocess.Popen[bytes]


def watch_others(command: Sequence[str], tell: Callable[[Message], None]) -> tuple[int, Path]:
    """(exit code, run folder). `tell` gets what is certainly wrong while the command runs, each thing once."""
    folder = folder_for(command)
    told: set[str] = set()

    def look(run: RunRecord) -> None:
        for finding in diagnose(run).findings:
            if finding.sureness == "certain" and finding.code in FAULTS and finding.code not in told:
                told.add(finding.code)
                tell(msg("{claim} ({code:code})", finding.claim, finding.code))

    tell(msg("recording {command:code} in {folder:code}", command[0], str(folder)))
    return watch_command(command, folder=folder, look=look), folder


def watch_command(
    command: Sequence[str], *, folder: Path | None = None, echo: IO[bytes] | None = None, look: Look | None = None
) -> int:
    """Runs `command` to its end and gives its exit code (128 + the signal, where one ended it). `echo` gets what it
    prints (standard output where not given); `look` is called with the run now and then, and when it has ended."""
    folder = folder or folder_for(command)
    process, output = _start(command)
    try:
        with training_here(folder), _forwarding(process):
            recording = Recording(folder, command, look)
            try:
                _relay(process, output, recording, echo or sys.stdout.buffer)
            finally:
                _make_sure_it_ended(process, output)
                recording.end(process.returncode)
    finally:
        _make_sure_it_ended(process, output)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def folder_for(command: Sequence[str]) -> Path:
    """`runs/train-1` for `python train.py`: named after the script, numbered."""
    scripts = [Path(word).stem for word in command if word.endswith((".py", ".sh")) and "config" not in word]
    return free_folder(scripts[0] if scripts else Path(command[0]).stem)


class Recording:
    """What a watched program prints, on its way into a run folder."""

    def __init__(self, folder: Path, command: Sequence[str], look: Look | None):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._command, self._look = folder, list(command), look
        self._reader = LogReader(name=folder.name)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._output = open(folder / OUTPUT_FILE, "ab")  # noqa: SIM115 - it stays open as long as the program runs
        self._recorder = Recorder(folder)
        self._facts: dict[str, object] = {}
        self._starts, self._last_step, self._last_eval = 1, 0, -1
        self._best, self._marks_told, self._is_new = float("inf"), 0, False
        self._started_s = self._looked_at_s = time.monotonic()
        self._read_at_s = 0.0
        self._write_facts(None)
        self._recorder(e.RunStarted(step=0, pid=os.getpid()))

    def take(self, printed: bytes) -> None:
        self._output.write(printed)
        self._reader.feed(self._decode(printed))
        self._is_new = True

    def tick(self) -> None:
        now_s = time.monotonic()
        if not self._is_new or now_s - self._read_at_s < READ_EVERY_S:
            return
        started_s = time.thread_time()
        run = self._record(whole=False)
        if run is not None and self._look is not None and now_s - self._looked_at_s >= LOOK_EVERY_S and len(run.steps):
            self._look(run)
            self._looked_at_s = time.monotonic()
        # A long log costs more to go over: never above a twentieth of the time
        self._read_at_s = time.monotonic() + 20 * (time.thread_time() - started_s)

    def end(self, code: int) -> None:
        self._reader.feed(self._decode(b"", True))
        self._output.close()
        run = self._record(whole=True)
        why = "finished" if code == 0 else "stopped" if code < 0 or code in (130, 143) else "failed"
        errors = [mark.text for mark in run.marks if mark.kind in ("error", "out_of_memory")] if run is not None else []
        because = "" if code == 0 else f"{errors[-1] if errors else ''} (exit code {code})".strip()
        wall_s = time.monotonic() - self._started_s
        self._recorder(e.RunEnded(step=self._last_step, why=why, because=because, wall_s=wall_s))
        self._recorder.close()
        if run is not None and self._look is not None:
            self._look(run)

    def _record(self, *, whole: bool) -> RunRecord | None:
        self._is_new = False
        try:
            runs = self._reader.runs(whole=whole)
        except UserError:
            return None  # two trainers speak: which one to believe is not ours to say, so only the output is kept
        run = runs[-1]
        starts = sum(each.reading.attempts for each in runs)
        if starts > self._starts:
            self._starts = starts
            self._begin_again(run)
        self._write_facts(run)
        for event in self._new_events(run):
            self._recorder(event)
        return run

    def _begin_again(self, run: RunRecord) -> None:
        """The program went back to a step: what it did beyond it before counts no more."""
        begins = [mark.step for mark in run.marks if mark.kind in ("attempt", "resume") and mark.step is not None]
        first = int(run.steps.step[0]) - 1 if len(run.steps) else 0
        step = begins[-1] if begins and run.reading.attempts > 1 else first
        self._last_step, self._last_eval = step, step - 1
        self._recorder(e.RunStarted(step=step, pid=os.getpid()))

    def _new_events(self, run: RunRecord) -> Iterator[e.Event]:
        """Rows that were not told yet, in the order of their steps."""
        new_evals = np.flatnonzero(run.evals.step > self._last_eval).tolist()
        new_steps = np.flatnonzero(run.steps.step > self._last_step).tolist()
        rows: list[e.Logged | e.Evaluated | e.CheckpointSaved] = []
        rows += [event for i in new_evals for event in self._evaluation(run, i)]
        rows += [_logged(run, i) for i in new_steps]
        for mark in run.marks[self._marks_told :]:
            step = mark.step or 0
            if mark.kind == "checkpoint":
                rows.append(e.CheckpointSaved(step=step, bytes=0, stall_s=0.0))
            elif mark.kind not in ("attempt", "resume", "ended"):  # those are told as a start and an end
                rows.append(e.Logged(step=step, values={"mark": mark.kind, "text": mark.text}))
        self._marks_told = len(run.marks)
        yield from sorted(rows, key=lambda event: event.step)  # of one step first evaluations, last marks
        self._last_step = int(max(run.steps.step[-1:].tolist(), default=self._last_step))
        self._last_eval = int(max(run.evals.step[-1:].tolist(), default=self._last_eval))

    def _evaluation(self, run: RunRecord, i: int) -> Iterator[e.Evaluated | e.Logged]:
        evals, step = run.evals, int(run.evals.step[i])
        code = int(np.nan_to_num(evals.not_finite[i]))
        bits = float(evals.val_bits_per_byte[i])
        for split, bit in (("train", 1), ("val", 2)):
            loss = float(getattr(evals, split)[i])
            if np.isfinite(loss) or code & bit:
                is_best = split == "val" and loss < self._best
                self._best = loss if is_best else self._best
                yield bare_evaluation(step, split, loss, is_best=is_best)
        if np.isfinite(bits):
            yield e.Logged(step=step, values={"val_bits_per_byte": bits})

    def _write_facts(self, run: RunRecord | None) -> None:
        """`run.json` as far as it is known; again whenever the output has told more."""
        known = run.known if run is not None else {}
        plain = {name: fact for name, fact in known.items() if _is_plain(fact.value)}
        is_known = run is not None and run.conventions.trainer != "unknown"
        words = asdict(run.conventions) if run is not None and is_known else {"trainer": "unknown"}
        facts: dict[str, object] = {
            "command": shlex.join(self._command),
            "config": {name: fact.value for name, fact in plain.items() if name in settings()},
            "came_from": {name: fact.where or fact.origin for name, fact in known.items() if name in settings()},
            "words": words,
            "known": {name: asdict(fact) for name, fact in plain.items()},
        }
        if facts != self._facts:
            write_run_file(self.folder, facts)
            self._facts = facts


def _logged(run: RunRecord, i: int) -> e.Logged:
    """A row as the log tells it: what it does not say is left out."""
    steps = run.steps
    code = int(np.nan_to_num(steps.not_finite[i]))
    values: dict[str, float | str] = {"printed": int(steps.printed[i])}
    for name in _LOGGED:
        value = float(getattr(steps, name)[i])
        if np.isfinite(value) or code & {"loss": 1, "grad_norm": 2}.get(name, 0):
            values[name] = value
    return e.Logged(step=int(steps.step[i]), values=values)


def _is_plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str)) or (
        isinstance(value, (list, tuple)) and all(_is_plain(item) for item in value)
    )


def _start(command: Sequence[str]) -> tuple[Process, IO[bytes]]:
    """The program, and the end of its output that we read."""
    # Our terminal's keys must reach the program once, through us; with the terminal as its input they would stop it.
    source = subprocess.DEVNULL if sys.stdin is None or _is_terminal(sys.stdin) else None
    ours = theirs = group = None
    try:
        if os.name == "posix":
            (ours, theirs), group = _terminal(), 0
        process = subprocess.Popen(
            command,
            stdin=source,
            stdout=theirs or subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            process_group=group,
        )
    except OSError as error:
        if ours is not None:
            ours.close()
        raise fault(
            msg("{command:code} cannot be started: {problem}", command[0], (error.strerror or str(error)).lower()),
            fix=msg(
                "give the command as you would type it, after two dashes: {example:code}",
                "nanolens watch -- python train.py",
            ),
        ) from None
    finally:
        if theirs is not None:
            theirs.close()
    output = ours or process.stdout
    assert output is not None
    return process, output


def _terminal() -> tuple[IO[bytes], IO[bytes]]:
    """Our end and the program's of a pseudo-terminal that changes nothing of what is written to it, as wide as ours."""
    import pty
    import termios

    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(theirs)
    modes[1] &= ~termios.OPOST  # no carriage return before each line end
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    columns, lines = COLUMNS, 50
    with contextlib.suppress(OSError, ValueError):
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    termios.tcsetwinsize(theirs, (lines, columns))
    return open(ours, "rb", buffering=0), open(theirs, "wb", buffering=0)


def _is_terminal(stream: IO[str]) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _relay(process: Process, output: IO[bytes], recording: Recording, echo: IO[bytes]) -> None:
    """Passes on what is printed until the program has ended and nothing more comes."""
    was_asked = False
    while True:
        has_ended = process.poll() is not None  # asked before reading: its last words may come just after a look
        printed = _read(process, output)
        if printed:
            with contextlib.suppress(BrokenPipeError, ValueError):  # nobody looks any more; it is still recorded
                echo.write(printed)
                echo.flush()
            recording.take(printed)
        recording.tick()
        if has_ended and not printed:
            break
        if not was_asked and (recording.folder / STOP_FILE).exists():
            was_asked = True
            _signal_group(process, signal.SIGINT)


def _make_sure_it_ended(process: Process, output: IO[bytes]) -> None:
    """Nothing that we started lives on behind us, whatever went wrong here."""
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        process.wait()
    output.close()


def _read(process: Process, output: IO[bytes]) -> bytes:
    """What is there within a tenth of a second; nothing once the other end is closed."""
    try:
        if os.name == "posix" and not select.select([output], [], [], 0.1)[0]:
            return b""
        printed = os.read(output.fileno(), 1 << 16)
    except OSError:  # Linux reports the other end's closing so
        printed = b""
    if not printed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    return printed


@contextlib.contextmanager
def _forwarding(process: Process) -> Iterator[None]:
    """Signals that are meant to end or wake the program reach it, once, and leave us to write down how it ended."""

    def forward(number: int, frame: FrameType | None) -> None:
        _signal_group(process, number)

    before = {}
    with contextlib.suppress(ValueError):  # not in the main thread: signals are somebody else's business
        numbers = [getattr(signal, name) for name in _FORWARDED if hasattr(signal, name)]
        before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal_group(process: Process, number: int) -> None:
    """To the program and those that it started; torchrun starts one for each device."""
    with contextlib.suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
