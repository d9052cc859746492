"""How a run begins: from nothing, from its own newest checkpoint, from a checkpoint of another run, or from given
weights. And the code of a user's own model, which is kept with the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanolens import files
from nanolens.config.fields import Config, as_text, settings
from nanolens.errors import Fault, UserError, fault, raise_if_any
from nanolens.message import msg
from nanolens.record import OWN_MODEL, checkpoint_folder, checkpoint_folders, is_run
from nanolens.record.events import CheckpointRefused, ConfigChanged, Event, choice
from nanolens.record.store import make_way, run_at, run_folder
from nanolens.record.write import read_run_file
from nanolens.training.checkpoint import Checkpoint, load, newest_good

NOT_PART_OF_THE_RUN = {"init_from", "out_dir", "overwrite"}  # they say how a process starts, not what is trained


@dataclass(frozen=True)
class Beginning:
    checkpoint: Checkpoint | None = None  # what to continue from; None: fresh weights
    is_resumed: bool = False  # the same run goes on, rather than a new one
    parent: dict[str, object] | None = None  # for a branch: whose checkpoint it was, `run` and `step`
    changes: tuple[ConfigChanged, ...] = ()


def find_beginning(config: Config, run: Path, tell: Callable[[Event], None], *, has_weights: bool = False) -> Beginning:
    """`has_weights`: the caller brings the weights that `init_from` names."""
    require_writable(run)
    if config.init_from == "resume":
        return _resume(config, run, tell)
    if (aside := make_way(run, config)) is not None:
        tell(choice("old run moved to", str(aside), msg("{option:code} was given", "overwrite=True")))
    if config.init_from == "scratch" or has_weights:
        return Beginning()
    return _branch(config, *_branch_point(config.init_from))


def require_writable(run: Path) -> None:
    try:
        run.mkdir(parents=True, exist_ok=True)
        if not os.access(run, os.W_OK | os.X_OK):
            raise PermissionError("no permission to write there")
    except OSError as error:
        why, fix = error.strerror or str(error), msg("choose another folder with {option:code}", "--out_dir")
        raise fault(msg("cannot write to the run folder {folder:code}: {error}", str(run), why), fix=fix) from None


def _resume(config: Config, run: Path, tell: Callable[[Event], None]) -> Beginning:
    if not is_run(run):
        runs, option = "nanolens runs", "--init_from=resume"
        fix = msg("{command:code} lists the existing runs; without {option:code} a new one starts", runs, option)
        raise fault(msg("there is no run in {folder:code} to resume", str(run)), fix=fix)
    old = read_run_file(run)
    changes = changes_since(old["config"], config)
    folders = checkpoint_folders(run)
    checkpoint, refused = newest_good(folders)
    for folder, because in refused:
        tell(CheckpointRefused(folder=folder.name, because=str(because), words=because))
    if checkpoint is None and folders:
        fix = msg("restore one from a backup, or start a new run with a different {option:code}", "--out_dir")
        raise UserError(
            *(Fault(because, msg("{folder:code}", str(folder))) for folder, because in refused[:4]),
            Fault(msg("{folder:code} contains no intact checkpoint", str(run)), fix=fix),
        )
    parent = old.get("parent")
    if checkpoint is None and parent:  # a branch that was ended before its first checkpoint
        checkpoint = _branch(config, Path(parent["run"]), parent["step"]).checkpoint
    if checkpoint is None:
        tell(choice("first step", 0, msg("the run ended before its first checkpoint")))
    return Beginning(checkpoint, True, parent, changes)


def _branch(config: Config, parent: Path, step: int | None) -> Beginning:
    if step is None:
        checkpoint, _ = newest_good(checkpoint_folders(parent))
        if checkpoint is None:
            raise fault(msg("{folder:code} has no intact checkpoint", str(parent)), fix=msg("branch from another run"))
    else:
        folder = checkpoint_folder(parent, step)
        if not folder.is_dir():
            fix = msg("available: {there:code}", [path.name for path in checkpoint_folders(parent)])
            raise fault(msg("{run:code} has no checkpoint at step {step:count}", str(parent), step), fix=fix)
        checkpoint = load(folder)
    changes = changes_since(checkpoint.state["config"], config)
    return Beginning(checkpoint, False, {"run": str(parent), "step": checkpoint.state["step"]}, changes)


def _branch_point(init_from: str) -> tuple[Path, int | None]:
    """`RUN@STEP` or `RUN`, where RUN is a run folder or its name below `runs/`."""
    if (at := run_at(init_from)) is not None:
        return at.folder, at.step
    name, _, step = init_from.rpartition("@")
    if name and run_folder(name) is not None:
        raise fault(msg("{step:code} is not a step", step), fix=msg("write {form:code}", f"{name}@500"))
    if name:
        there = msg("{command:code} lists the existing runs", "nanolens runs")
        raise fault(msg("there is no run named {name:code}", name), fix=there)
    one, other = "scratch", "resume"
    fix = msg(
        "use {one:code}, {other:code}, the name of a run with or without a step, or a GPT-2 checkpoint", one, other
    )
    raise fault(msg("init_from = {value:code} is not a valid start", init_from), fix=fix)


def changes_since(old: Mapping[str, Any], config: Config) -> tuple[ConfigChanged, ...]:
    """What differs from the config that the checkpoint was trained with; one UserError names all that may not."""
    changes, faults = [], []
    for name, setting in settings().items():
        now = getattr(config, name)
        before = old.get(name, now)
        if name in NOT_PART_OF_THE_RUN or before == now:
            continue
        if setting.is_fixed_by_checkpoint:
            ours, theirs = as_text(now), as_text(before)
            what = msg("{key:code} = {now:code} differs from the checkpoint's {before:code}", name, ours, theirs)
            faults.append(Fault(what, fix=msg("leave it out, or start a new run")))
        changes.append(ConfigChanged(key=name, old=before, new=now))
    raise_if_any(faults)
    return tuple(changes)


def as_built(config: Config, run: Path, tell: Callable[[Event], None], *, is_resumed: bool) -> Config:
    """The config with the file that the model is built from: a resumed run goes on with its own copy."""
    copy, named = run / OWN_MODEL, Path(config.arch)
    if not config.arch.endswith(".py") or not is_resumed or not copy.is_file():
        return config
    if not named.is_file():
        tell(choice("model file", str(copy), msg("{file:code} is missing; the run has a copy", str(named))))
    elif files.sha256_of(named) != files.sha256_of(copy):
        because = msg("{file:code} has changed since the run began; the run's own copy is used", str(named))
        tell(choice("model file", str(copy), because))
    return replace(config, arch=str(copy))


def keep_own_model(config: Config, run: Path) -> dict[str, str] | None:
    """Puts a copy of the file that the model was built from into the run folder; what `run.json` says of it."""
    if not config.arch.endswith(".py"):
        return None
    copy, built_from = run / OWN_MODEL, Path(config.arch)
    if built_from != copy:
        files.write_whole(copy, built_from.read_bytes())
    return {"file": OWN_MODEL, "sha256": files.sha256_of(copy)}
