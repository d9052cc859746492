"""Foreign logs in: the text that any trainer printed becomes a Run.

One file for each trainer says how its rows look and what its words mean in ours. The format is recognised from the text.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nanolens.interop.logs.given import Given
from nanolens.interop.logs.reader import LogReader
from nanolens.interop.logs.recognise import DOORS
from nanolens.interop.logs.sources import read_source
from nanolens.record.run import Run

FORMATS = tuple(door.name for door in DOORS)


def read_log(
    source: str | bytes | Path,
    *,
    config: Mapping[str, object] | None = None,
    hardware: str | None = None,
    given: Mapping[str, object] | None = None,
    comments: Sequence[str] = (),
    config_where: Mapping[str, str] | None = None,
    format: str | None = None,
    name: str | None = None,
) -> Run:
    """The run that a log tells of. `source` is a text, or the path of a file or folder.

    `config` is what a config file says (any trainer's names), `config_where` the place of each key in it and `comments` its comments;
    `given` what the user adds by `--key=value`. `format` names a door where the text alone does not decide. A log with several runs
    gives the one that got furthest, and says so in its reading; `read_logs` gives them all.
    """
    runs = read_logs(
        source, config=config, hardware=hardware, given=given, comments=comments, config_where=config_where, format=format, name=name
    )
    return max(runs, key=_how_far)  # of equals the first


def read_logs(
    source: str | bytes | Path,
    *,
    config: Mapping[str, object] | None = None,
    hardware: str | None = None,
    given: Mapping[str, object] | None = None,
    comments: Sequence[str] = (),
    config_where: Mapping[str, str] | None = None,
    format: str | None = None,
    name: str | None = None,
) -> list[Run]:
    """All runs that a log tells of, in its order. In `config` a table named like a run (`A` for `# run A: …`) speaks for that run alone."""
    facts = dict(given or {})
    asked = facts.pop("log_format", None)  # typed as --log_format=NAME
    about = Given(dict(config or {}), dict(config_where or {}), tuple(comments), hardware, facts)
    with _without_collecting():
        return read_source(source, about, format=format or (str(asked) if asked else None), name=name)


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """A long log makes hundreds of thousands of small objects, none of them in a circle: to look for circles takes a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _how_far(run: Run) -> int:
    return max([*run.steps.step[-1:].tolist(), *run.evals.step[-1:].tolist()], default=-1)


__all__ = ["FORMATS", "Given", "LogReader", "read_log", "read_logs"]
