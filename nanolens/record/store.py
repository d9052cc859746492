"""Which folder: the one a run will be written to, and the one that a name on the command line means.

A folder that holds a run is never overwritten. RUN is a run folder or its name below `runs/`; `RUN@500` is a step of it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nanolens.config.fields import Config
from nanolens.errors import UserError, fault
from nanolens.message import msg
from nanolens.record.layout import CHECKPOINTS, EVENTS_FILE, OUTPUT_FILE, PID_FILE, PROBES, RUNS, is_run, step_of


@dataclass(frozen=True)
class RunAt:
    folder: Path
    step: int | None = None  # None: the newest


def find_run(text: str, *, or_starting: bool = False) -> RunAt:
    """What `RUN` or `RUN@STEP` on the command line means; with `or_starting` also one whose process is still getting ready."""
    name, step = _split_step(text)
    places = (Path(name), Path(RUNS) / name)
    for path in places:
        if is_run(path) or (or_starting and (path / PID_FILE).is_file()):
            return RunAt(path, step)
    for path in places:
        if (path / PID_FILE).is_file() or (path / OUTPUT_FILE).is_file():
            raise fault(
                msg("{run:code} is still getting ready", run=str(path)),
                fix=msg("try again in a few seconds; it says how far it is in {log:code}", log=str(path / OUTPUT_FILE)),
            )
    raise _no_such_run(name)


def find_runs(root: Path | None = None) -> list[Path]:
    """The run folders below `root` (`runs/` where not given), oldest first. Of a folder that is itself a run: it, and the branches that
    probes made of it."""
    root = Path(RUNS) if root is None else root
    if is_run(root):
        return [root, *find_runs(root / PROBES)]
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if is_run(path)]
    return sorted(found, key=lambda path: (_changed_at_s(path), path.name))


def find_checkpoint(run: RunAt) -> Path | None:
    """The folder of that step's checkpoint, or of the newest; None where there is none. Whether it is whole is for `checkpoint` to say."""
    steps = {step: path for path in (run.folder / CHECKPOINTS).glob("step-*") if (step := step_of(path)) is not None}
    if run.step is None:
        return steps[max(steps)] if steps else None
    if run.step not in steps:
        raise fault(
            msg("{run:code} has no checkpoint of step {step:count}", run=str(run.folder), step=run.step),
            fix=msg("it has {steps:count}", steps=sorted(steps)) if steps else msg("it has none yet"),
        )
    return steps[run.step]


def choose_folder(config: Config, name: str) -> Path:
    """Where this run goes. Nothing is created yet, and nothing that is there is touched.

    `name` is what the settings came from: with out_dir=auto a fresh run becomes `runs/NAME-N`; a resumed one is the newest of that name.
    """
    if config.init_from == "resume":
        return _folder_to_resume(config.out_dir, name)
    if config.out_dir == "auto":
        return _free_folder(name)
    folder = Path(config.out_dir)
    if is_run(folder) and not config.overwrite:
        raise fault(
            msg("{folder:code} already holds a run", folder=str(folder)),
            where=msg("{option:code}", option=f"--out_dir={config.out_dir}"),
            fix=msg(
                "go on with it by {resume:code}, choose another out_dir, or move it aside with {overwrite:code}",
                resume="--init_from=resume", overwrite="--overwrite=True",
            ),
        )  # fmt: skip
    return folder


def resumed_if_begun(overrides: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """`init_from=auto`, for schedulers that start the same command again: goes on with the run in `out_dir`, or begins it."""
    given = dict(overrides)
    if given.get("init_from") != "auto":
        return list(overrides)
    out_dir = given.get("out_dir", "auto")
    if out_dir == "auto":
        raise fault(
            msg("init_from = auto needs to know which run to go on with"),
            where=msg("{option:code}", option="--init_from=auto"),
            fix=msg("name its folder with {option:code}", option="--out_dir=FOLDER"),
        )
    begun = is_run(Path(out_dir)) or is_run(Path(RUNS) / out_dir)
    return [(key, value if key != "init_from" else "resume" if begun else "scratch") for key, value in overrides]


def claim_folder(config: Config, name: str) -> Path:
    """The folder of `choose_folder`, made. Two runs that start in the same moment get two; one that cannot be written to is refused."""
    must_be_new = config.out_dir == "auto" and config.init_from != "resume"
    while True:
        folder = choose_folder(config, name)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            return folder
        except FileExistsError:
            if not folder.is_dir():
                raise _unwritable(folder, "there is a file in the way") from None
            if must_be_new:
                continue
            if not os.access(folder, os.W_OK | os.X_OK):
                raise _unwritable(folder, "permission denied") from None
            return folder
        except OSError as error:
            raise _unwritable(folder, (error.strerror or str(error)).lower()) from None


def _unwritable(folder: Path, problem: str) -> UserError:
    return fault(
        msg("nothing can be written to {folder:code}: {problem}", folder=str(folder), problem=problem),
        where=msg("{option:code}", option=f"--out_dir={folder}"),
        fix=msg("choose another folder with {option:code}", option="--out_dir=FOLDER"),
    )


def as_typed(folder: Path) -> str:
    """The shortest form in which the commands understand this run."""
    return folder.name if folder.parent == Path(RUNS) else str(folder)


def source_name(source: str | None, preset: str) -> str:
    """What a run is called after: its preset or its config file."""
    name = preset or (Path(source).stem if source else "run")
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def _split_step(text: str) -> tuple[str, int | None]:
    found = re.fullmatch(r"(.+)@(\d+)", text)
    if found is None or is_run(Path(text)):
        return text, None
    return found[1], int(found[2])


def _no_such_run(name: str) -> UserError:
    known = [path.name for path in find_runs()]
    near = difflib.get_close_matches(Path(name).name, known, n=1, cutoff=0.5)
    if near:
        fix = msg("did you mean {nearest:code}?", nearest=near[0])
    elif known:
        fix = msg("{command:code} lists the runs there are", command="nanolens runs")
    else:
        fix = msg("there is no run in {folder:code} yet; {command:code} makes one", folder=f"{RUNS}/", command="nanolens train")
    return fault(msg("there is no run {name:code}", name=name), fix=fix)


def _folder_to_resume(out_dir: str, name: str) -> Path:
    if out_dir != "auto":
        folder = Path(out_dir)
        if not is_run(folder) and is_run(Path(RUNS) / out_dir):
            folder = Path(RUNS) / out_dir
        where = msg("{option:code}", option=f"--out_dir={out_dir}")
    else:
        named = [path for path in find_runs() if re.fullmatch(re.escape(name) + r"-\d+", path.name)]
        folder = named[-1] if named else Path(RUNS) / name
        where = msg("{option:code}", option="--init_from=resume")
    if not is_run(folder):
        raise fault(
            msg("there is nothing to resume: {folder:code} holds no run", folder=str(folder)),
            where=where,
            fix=msg("name the run with {option:code} ({command:code} lists them), or start afresh without {resume:code}",
                    option="--out_dir=FOLDER", command="nanolens runs", resume="--init_from=resume"),
        )  # fmt: skip
    return folder


def _free_folder(name: str) -> Path:
    """The first `runs/NAME-N` that nothing has taken."""
    number = 1
    while (folder := Path(RUNS) / f"{name}-{number}").exists():
        number += 1
    return folder


def _changed_at_s(run: Path) -> float:
    for path in (run / EVENTS_FILE, run):
        try:
            return path.stat().st_mtime
        except OSError:
            continue
    return 0.0
