"""How a run begins: from nothing, from its own newest checkpoint, from a checkpoint of another run, or from given weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanolens.checkpoint import Checkpoint, load, newest_good
from nanolens.config.fields import Config, as_text, settings
from nanolens.errors import Fault, UserError, fault, raise_if_any
from nanolens.message import msg
from nanolens.record.events import CheckpointRefused, Chosen, ConfigChanged, Event
from nanolens.record.layout import RUNS, checkpoint_folder, checkpoint_folders, is_run
from nanolens.record.write import move_aside, read_run_file

NOT_PART_OF_THE_RUN = {"init_from", "out_dir", "overwrite"}  # they say how a process starts, not what is trained


@dataclass(frozen=True)
class Beginning:
    checkpoint: Checkpoint | None  # what to continue from; None: fresh weights
    is_resumed: bool  # the same run goes on, rather than a new one
    parent: dict[str, Any] | None  # for a branch: whose checkpoint it was
    changes: tuple[ConfigChanged, ...]

    @property
    def resumed_from(self) -> str:
        return self.checkpoint.folder.name if self.checkpoint and self.is_resumed else ""


def find_beginning(config: Config, run: Path, tell: Callable[[Event], None], *, has_weights: bool = False) -> Beginning:
    """`has_weights`: the caller brings the weights that `init_from` names."""
    require_writable(run)
    if config.init_from == "resume":
        return _resume(config, run, tell)
    if is_run(run):
        if not config.overwrite:
            raise fault(
                msg("{folder:code} already holds a run", folder=str(run)),
                fix=msg(
                    "continue it with {resume:code}, choose another {out:code}, or move it aside with {overwrite:code}",
                    resume="--init_from=resume", out="--out_dir", overwrite="--overwrite=True",
                ),
            )  # fmt: skip
        aside = move_aside(run)
        tell(Chosen(what="old run moved to", value=str(aside), because="overwrite=True"))
    if config.init_from == "scratch" or has_weights:
        return Beginning(None, False, None, ())
    named = _branch_point(config.init_from)
    if named is None:
        raise fault(
            msg("init_from = {value:code} is nothing to start from", value=config.init_from),
            fix=msg(
                "use {one:code}, {other:code}, the name of a run with or without a step, or a GPT-2 checkpoint",
                one="scratch", other="resume",
            ),
        )  # fmt: skip
    return _branch(config, *named)


def require_writable(run: Path) -> None:
    try:
        run.mkdir(parents=True, exist_ok=True)
        if not os.access(run, os.W_OK | os.X_OK):
            raise PermissionError("no permission to write there")
    except OSError as error:
        raise fault(
            msg("the run folder {folder:code} cannot be written: {error}", folder=str(run), error=error.strerror or str(error)),
            fix=msg("choose another folder with {option:code}", option="--out_dir"),
        ) from None


def _resume(config: Config, run: Path, tell: Callable[[Event], None]) -> Beginning:
    if not is_run(run):
        raise fault(
            msg("there is no run in {folder:code} to resume", folder=str(run)),
            fix=msg(
                "{command:code} lists the runs there are; without {option:code} a new one starts",
                command="nanolens runs", option="--init_from=resume",
            ),
        )  # fmt: skip
    old = read_run_file(run)
    changes = changes_since(old["config"], config)
    folders = checkpoint_folders(run)
    checkpoint, refused = newest_good(folders)
    for item in refused:
        tell(CheckpointRefused(folder=item.folder.name, because=str(item.because)))
    if checkpoint is None and folders:
        raise UserError(*(Fault(item.because, msg("{folder:code}", folder=str(item.folder)), None) for item in refused[:4]), Fault(
            msg("no checkpoint of {folder:code} is whole", folder=str(run)),
            fix=msg("restore one from a copy, or start anew under another {option:code}", option="--out_dir"),
        ))  # fmt: skip
    parent = old.get("parent")
    if checkpoint is None and parent:  # a branch that was ended before its first checkpoint
        checkpoint = _branch(config, Path(parent["run"]), parent["step"]).checkpoint
    if checkpoint is None:
        tell(Chosen(what="first step", value=0, because="the run was ended before its first checkpoint"))
    return Beginning(checkpoint, True, parent, changes)


def _branch(config: Config, parent: Path, step: int | None) -> Beginning:
    if step is None:
        checkpoint, _ = newest_good(checkpoint_folders(parent))
        if checkpoint is None:
            raise fault(msg("{folder:code} has no checkpoint that is whole", folder=str(parent)), fix=msg("branch off from another run"))
    else:
        folder = checkpoint_folder(parent, step)
        if not folder.is_dir():
            there = [path.name for path in checkpoint_folders(parent)]
            raise fault(
                msg("{run:code} has no checkpoint of step {step:count}", run=str(parent), step=step),
                fix=msg("it has {there:code}", there=there),
            )
        checkpoint = load(folder)
    changes = changes_since(checkpoint.state["config"], config)
    return Beginning(checkpoint, False, {"run": str(parent), "step": checkpoint.state["step"]}, changes)


def _branch_point(init_from: str) -> tuple[Path, int | None] | None:
    """`RUN@STEP` or `RUN`, where RUN is a run folder or its name below `runs/`; None where `init_from` is something else."""
    name, _, step = init_from.rpartition("@") if "@" in init_from else (init_from, "", "")
    for folder in (Path(name), Path(RUNS) / name):
        if is_run(folder):
            if step and not step.isdigit():
                raise fault(msg("{step:code} is not a step", step=step), fix=msg("write {form:code}", form=f"{name}@500"))
            return folder, int(step) if step else None
    if step:
        raise fault(
            msg("there is no run {name:code}", name=name), fix=msg("{command:code} lists the runs there are", command="nanolens runs")
        )
    return None


def changes_since(old: Mapping[str, Any], config: Config) -> tuple[ConfigChanged, ...]:
    """What differs from the config that the checkpoint was trained with; one UserError names all that may not."""
    changes, faults = [], []
    for name, known in settings().items():
        if name in NOT_PART_OF_THE_RUN or name not in old:
            continue
        before, now = old[name], getattr(config, name)
        if before == now:
            continue
        if known.is_fixed_by_checkpoint:
            what = msg(
                "{key:code} = {now:code} differs from the checkpoint's {before:code}", key=name, now=as_text(now), before=as_text(before)
            )
            faults.append(Fault(what, fix=msg("leave it out, or start a new run")))
        changes.append(ConfigChanged(key=name, old=before, new=now))
    raise_if_any(faults)
    return tuple(changes)
