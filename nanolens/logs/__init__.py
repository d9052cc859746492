"""Foreign logs in: the text that any trainer printed becomes a Run. The format is recognised from the text."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nanolens.logs.given import Given
from nanolens.logs.reader import LogReader, read_source
from nanolens.logs.trainers import FORMAT_NAMES as FORMATS
from nanolens.record.run import RunRecord


def read_log(
    source: str | bytes | Path, given: Given | None = None, *, format: str | None = None, name: str | None = None
) -> RunRecord:
    """The run that a log tells of. `source` is a text, or the path of a file or folder.

    A log with several runs gives the longest one, and says so in its reading; `read_logs` gives them all."""
    return longest(read_logs(source, given, format=format, name=name))


def longest(runs: Sequence[RunRecord]) -> RunRecord:
    return max(runs, key=lambda run: (len(run.steps) + len(run.evals), *run.steps.step[-1:], *run.evals.step[-1:]))


def read_logs(
    source: str | bytes | Path, given: Given | None = None, *, format: str | None = None, name: str | None = None
) -> list[RunRecord]:
    """All runs that a log tells of, in its order. In the config a table named like a run (`A` for `# run A: …`) speaks
    for that run alone. `format` is asked for where the text alone does not decide; a user types --log_format=NAME."""
    facts = dict(given.facts) if given else {}
    asked = facts.pop("log_format", None)
    is_collecting = gc.isenabled()
    gc.disable()  # very many small objects, none in a circle: to look for circles takes a fifth of the time
    try:
        about = replace(given or Given(), facts=facts)
        return read_source(source, about, format=format or (str(asked) if asked else None), name=name)
    finally:
        if is_collecting:
            gc.enable()


__all__ = ["FORMATS", "Given", "LogReader", "longest", "read_log", "read_logs"]
