"""This process as one of several that train together, where it was started so (torchrun, or `nanolens train --devices=N`).

A group that was restarted after a rank died goes on with the run that it began: the run folder notes which launch it belongs to.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanolens.errors import UserError
from nanolens.record.layout import RUNS, checkpoint_folders, is_run, step_of
from nanolens.record.store import find_runs
from nanolens.record.write import read_run_file

if TYPE_CHECKING:
    from nanolens.training.distributed.ranks import Ranks

LAUNCHER = "NANOLENS_LAUNCHER"  # in the environment of the processes that `--devices` starts: who started them
_joined: list[Ranks] = []


def is_a_rank() -> bool:
    """torchrun may have started a single one, and start it again with others."""
    return "RANK" in os.environ and ("TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1)


def ranks_here() -> Ranks | None:
    """The group, joined once; None for a process alone, which then need not import torch yet."""
    if not is_a_rank():
        return None
    if not _joined:
        launcher = int(os.environ.get(LAUNCHER, os.getppid()))  # asked before torch is imported, which takes seconds
        from nanolens.training.distributed.group import join

        group = join(launcher=launcher)
        if group is None:
            return None
        _joined.append(group)
    return _joined[0]


def leave() -> None:
    while _joined:
        _joined.pop().end()


def first_on_disk(overrides: Sequence[tuple[str, str]], ranks: Ranks) -> Sequence[tuple[str, str]]:
    """Lets that rank be the first which has the run that is to go on, and gives the settings with which it does.

    A group that was started again goes on with what it had begun; whether that is on the disk of this machine, each rank looks for itself.
    """
    run = _begun_by(overrides, ranks.launch)
    step = -1 if run is None else max([step_of(folder) or 0 for folder in checkpoint_folders(run)], default=0)
    ranks.choose_first(step)
    if run is None or not _is_of_launch(run, ranks.launch):
        return overrides
    kept = [(key, value) for key, value in overrides if key not in ("init_from", "out_dir", "overwrite")]
    return [*kept, ("init_from", "resume"), ("out_dir", str(run))]


def _begun_by(overrides: Sequence[tuple[str, str]], launch: str) -> Path | None:
    given = dict(overrides)
    out_dir, goes_on = given.get("out_dir", "auto"), given.get("init_from") in ("resume", "auto")
    if out_dir == "auto":
        return next((run for run in reversed(find_runs(Path(RUNS))) if _is_of_launch(run, launch)), None)
    there = next((run for run in (Path(out_dir), Path(RUNS, out_dir)) if is_run(run)), None)
    return there if there is not None and (goes_on or _is_of_launch(there, launch)) else None


def _is_of_launch(run: Path, launch: str) -> bool:
    """Whether the processes that train now, started before by the same launcher, have begun this run."""
    import psutil

    try:
        facts = read_run_file(run)
        return facts.get("launch") == launch and facts.get("created_at_s", 0.0) >= psutil.Process(os.getppid()).create_time() - 1
    except (UserError, psutil.Error):
        return False
