"""Timing a model on this machine, in a process of its own: its memory is then what training will need, and running out
of it harms nobody.

`ask` starts that process, which gets one question as JSON on stdin and prints a line of JSON for each thing that the
`measured` of the module asked yields. One that dies has said what it measured before, and that is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import json
import math
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nanolens.config.fields import Config

Values = dict[str, Any]  # a question or an answer: whatever JSON can say


@dataclass(frozen=True)
class SizeTrial:
    """One micro-batch size: what was measured, or why it was not tried."""

    size: int  # sequences in the micro-batch
    accumulation: int  # micro-batches in an update
    memory_bytes: float = math.nan  # peak of the process; where it was not tried, what was expected
    update_s: float | None = None
    scatter: float = 0.0  # relative standard error of update_s
    skipped: str = ""  # "", "memory", "time", "slower" or "died"
    is_again: bool = False  # a contender, timed in turns with the others
    tokens_per_s: float | None = None


@dataclass(frozen=True)
class Reply:
    answers: list[Values]
    code: int  # of the process's end
    problem: str  # the last line on stderr, or the code
    is_late: bool  # stopped when the patience was over


def ask(
    module: Literal["calibrate", "timed", "selftest"],
    config: Config,
    question: Mapping[str, object],
    *,
    patience_s: float = threading.TIMEOUT_MAX,
    each: Callable[[Values], None] = lambda answer: None,
) -> Reply:
    """`each` hears every answer as it comes."""
    answers: list[Values] = []
    late = threading.Event()
    command = [sys.executable, "-c", "from nanolens.measure import answer_question; answer_question()"]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdin and process.stdout

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(patience_s, end)
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps({"module": module, "config": dataclasses.asdict(config), **question}))
                process.stdin.close()
            for line in process.stdout:
                if line.startswith('{"kind": '):
                    answers.append(json.loads(line))
                    each(answers[-1])
            code = process.wait()
        finally:
            timer.cancel()
            process.kill()  # an interrupt shall not have to wait for it
        errors.seek(0)
        last_lines = errors.read().strip().splitlines()[-1:]
    return Reply(answers, code, last_lines[0] if last_lines else f"exit code {code}", late.is_set())


def answer_question() -> None:
    """The measuring process."""
    with contextlib.suppress(OSError):
        # Should memory run out all the same, whatever else takes it: then this process is the one to go. Linux only;
        # elsewhere it is luck.
        Path("/proc/self/oom_score_adj").write_text("1000")
    question = json.loads(sys.stdin.read())
    module = importlib.import_module(f"nanolens.measure.{question['module']}")
    for kind, found in itertools.chain(module.measured(Config(**question["config"]), question), [("done", {})]):
        print(json.dumps({"kind": kind, **found}), flush=True)
