"""This process as one of several that train together, where it was started so (torchrun, or `nanoscope train --devices=N`).

A group that was restarted after a rank died goes on with the run that it began: the run folder notes which launch it belongs to.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanoscope.api.folders import find_runs
from nanoscope.errors import UserError
from nanoscope.record.layout import RUNS, is_run
from nanoscope.record.write import read_run_file

if TYPE_CHECKING:
    from nanoscope.train.ranks import Ranks

_joined: list[Ranks] = []


def is_a_rank() -> bool:
    """torchrun may have started a single one, and start it again with others."""
    return "RANK" in os.environ and ("TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1)


def ranks_here() -> Ranks | None:
    """The group, joined once; None for a process alone, which then need not import torch yet."""
    if not is_a_rank():
        return None
    if not _joined:
        from nanoscope.train.together import join

        group = join()
        if group is None:
            return None
        _joined.append(group)
    return _joined[0]


def leave() -> None:
    while _joined:
        _joined.pop().end()


def after_a_restart(overrides: Sequence[tuple[str, str]], launch: str) -> Sequence[tuple[str, str]]:
    """The settings with which a restarted group goes on: those that it was started with, and to resume what it had begun."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return overrides
    out_dir = dict(overrides).get("out_dir", "auto")
    places = find_runs(Path(RUNS)) if out_dir == "auto" else [path for path in (Path(out_dir), Path(RUNS, out_dir)) if is_run(path)]
    own = [path for path in places if _launch_of(path) == launch]
    if not own:
        return overrides  # it died before there was anything to go on with
    kept = [(key, value) for key, value in overrides if key not in ("init_from", "out_dir", "overwrite")]
    return [*kept, ("init_from", "resume"), ("out_dir", str(own[-1]))]


def _launch_of(run: Path) -> str:
    try:
        return str(read_run_file(run).get("launch", ""))
    except UserError:
        return ""
