"""The runs on this disk: naming a new one, finding one by its name, locking it, asking for its state, without torch.

A folder that contains a run is never overwritten. RUN is a run folder or its name below `runs/`; `RUN@500` a step."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import math
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from nanolens import files, record
from nanolens.config.fields import Config
from nanolens.errors import UserError, fault
from nanolens.message import msg
from nanolens.record import events as e

HEARTBEAT_S, DEAD_AFTER_S = 20.0, 120.0
SILENT_AFTER_S = 60.0  # without an event for so long, and ten times longer than a step takes, a run is silent


# --- finding a run


@dataclass(frozen=True)
class RunAt:
    folder: Path
    step: int | None = None  # None: the newest


def run_folder(name: str) -> Path | None:
    """The run of that path, or of that name below `runs/`."""
    return next((folder for folder in (Path(name), Path(record.RUNS) / name) if record.is_run(folder)), None)


def run_at(text: str) -> RunAt | None:
    """`RUN` or `RUN@STEP`; None where there is no such run."""
    if (folder := run_folder(text)) is not None:
        return RunAt(folder)
    name, step = _split_step(text)
    folder = None if step is None else run_folder(name)
    return None if folder is None else RunAt(folder, step)


def find_run(text: str, *, or_starting: bool = False) -> RunAt:
    """What `RUN` or `RUN@STEP` means on the command line; with `or_starting` also one that is getting ready."""
    if (at := run_at(text)) is not None:
        return at
    name, step = _split_step(text)
    for path in (Path(name), Path(record.RUNS) / name):
        if or_starting and (path / record.PID_FILE).is_file():
            return RunAt(path, step)
        if (path / record.PID_FILE).is_file() or (path / record.OUTPUT_FILE).is_file():
            raise fault(
                msg("{run:code} is still starting up", str(path)),
                fix=msg("try again in a few seconds; see its progress in {log:code}", str(path / record.OUTPUT_FILE)),
            )
    raise _no_such_run(name)


def _split_step(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.+)@(\d+)", text)
    return (text, None) if match is None else (match[1], int(match[2]))


def _no_such_run(name: str) -> UserError:
    known = [path.name for path in find_runs()]
    near = difflib.get_close_matches(Path(name).name, known, n=1, cutoff=0.5)
    if near:
        fix = msg("did you mean {nearest:code}?", near[0])
    elif known:
        fix = msg("{command:code} lists the existing runs", "nanolens runs")
    else:
        fix = msg(
            "there is no run in {folder:code} yet; start one with {command:code}", f"{record.RUNS}/", "nanolens train"
        )
    return fault(msg("there is no run named {name:code}", name), fix=fix)


def find_runs(root: Path | None = None) -> list[Path]:
    """The run folders below `root` (`runs/` if not given), oldest first; of a run: it, and its probes' branches."""
    root = Path(record.RUNS) if root is None else root
    if record.is_run(root):
        return [root, *find_runs(root / record.PROBES)]
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if record.is_run(path)]
    return sorted(found, key=lambda path: (_changed_at_s(path), path.name))


def _changed_at_s(run: Path) -> float:
    for path in (run / record.EVENTS_FILE, run):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def find_checkpoint(run: RunAt) -> Path | None:
    """The folder of that step's checkpoint, or of the newest; whether it is whole is for `checkpoint` to say."""
    steps = {record.step_of(path): path for path in record.checkpoint_folders(run.folder)}
    if run.step is None:
        return next(iter(steps.values()), None)
    if run.step not in steps:
        raise fault(
            msg("{run:code} has no checkpoint at step {step:count}", str(run.folder), run.step),
            fix=msg("available: {steps:count}", list(reversed(steps))) if steps else msg("it has none yet"),
        )
    return steps[run.step]


# --- naming a run, and the folder of a new one


def source_name(source: str | None, preset: str) -> str:
    """What a run is called after: its preset or its config file."""
    name = preset or (Path(source).stem if source else "run")
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def as_typed(folder: Path) -> str:
    """The shortest form in which the commands understand this run."""
    return folder.name if folder.parent == Path(record.RUNS) else str(folder)


def free_folder(name: str) -> Path:
    return _first_free(Path(record.RUNS) / f"{name}-")


def _first_free(stem: Path) -> Path:
    numbered = (stem.with_name(f"{stem.name}{number}") for number in itertools.count(1))
    return next(path for path in numbered if not path.exists())


def choose_folder(config: Config, name: str) -> Path:
    """Where this run goes. Nothing is created yet, and nothing that is there is touched.

    `name` is what the settings came from: with out_dir=auto a fresh run becomes `runs/NAME-N`; a resumed one is the
    newest of that name."""
    if config.init_from == "resume":
        return _folder_to_resume(config.out_dir, name)
    if config.out_dir == "auto":
        return free_folder(name)
    refuse_if_taken(Path(config.out_dir), config)
    return Path(config.out_dir)


def refuse_if_taken(folder: Path, config: Config) -> None:
    if record.is_run(folder) and not config.overwrite:
        raise fault(
            msg("{folder:code} already contains a run", str(folder)),
            where=f"--out_dir={folder}",
            fix=msg(
                "continue it with {resume:code}, choose another out_dir, or move it aside with {overwrite:code}",
                "--init_from=resume",
                "--overwrite=True",
            ),
        )


def make_way(folder: Path, config: Config) -> Path | None:
    """An old run in `folder` is refused, or renamed to the first free `NAME.old-N` if asked for, which is given."""
    refuse_if_taken(folder, config)
    if not record.is_run(folder):
        return None
    refuse_if_training(folder)
    aside = _first_free(folder.with_name(f"{folder.name}.old-"))
    os.rename(folder, aside)
    return aside


def resumed_if_begun(overrides: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """`init_from=auto`, for schedulers: goes on with the run in `out_dir`, or begins it."""
    given = dict(overrides)
    if given.get("init_from") != "auto":
        return list(overrides)
    out_dir = given.get("out_dir", "auto")
    if out_dir == "auto":
        raise fault(
            msg("init_from = auto needs to know which run to continue"),
            where="--init_from=auto",
            fix=msg("name its folder with {option:code}", "--out_dir=FOLDER"),
        )
    begun = run_folder(out_dir) is not None
    return [(key, value if key != "init_from" else "resume" if begun else "scratch") for key, value in overrides]


def claim_folder(config: Config, name: str) -> Path:
    """The folder of `choose_folder`, made. Two runs that start in the same moment get two."""
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
        msg("cannot write to {folder:code}: {problem}", str(folder), problem),
        where=f"--out_dir={folder}",
        fix=msg("choose another folder with {option:code}", "--out_dir=FOLDER"),
    )


def _folder_to_resume(out_dir: str, name: str) -> Path:
    if out_dir != "auto":
        folder, where = run_folder(out_dir) or Path(out_dir), f"--out_dir={out_dir}"
    else:
        named = [path for path in find_runs() if re.fullmatch(re.escape(name) + r"-\d+", path.name)]
        folder, where = named[-1] if named else Path(record.RUNS) / name, "--init_from=resume"
    if not record.is_run(folder):
        raise fault(
            msg("nothing to resume: {folder:code} contains no run", str(folder)),
            where=where,
            fix=msg(
                "name the run with {option:code} ({command:code} lists them), or start a new one without {resume:code}",
                "--out_dir=FOLDER",
                "nanolens runs",
                "--init_from=resume",
            ),
        )
    return folder


# --- locking a run, and its state


@contextlib.contextmanager
def training_here(run: Path) -> Iterator[None]:
    """Marks the folder as being trained in by this process, and refuses where another living process is.

    Of two that start in the same moment one gets the lock of the operating system, which ends with its process. What
    other machines see is `running.json`, touched now and then."""
    refuse_if_training(run)
    with files.locked(run / record.LOCK_FILE) as is_locked:
        if not is_locked:
            raise _in_training(run, living_process(run))
        (run / record.STOP_FILE).unlink(missing_ok=True)  # a request that an earlier process did not live to see
        claim = {"pid": os.getpid(), "host": socket.gethostname(), "started_at_s": time.time()}
        files.write_whole(run / record.PID_FILE, json.dumps(claim))
        done = threading.Event()
        threading.Thread(target=_show_life, args=(run / record.PID_FILE, done), name="heartbeat", daemon=True).start()
        try:
            yield
        finally:
            done.set()
            for name in (record.PID_FILE, record.STOP_FILE):
                with contextlib.suppress(OSError):
                    (run / name).unlink(missing_ok=True)


def refuse_if_training(run: Path) -> None:
    pid = living_process(run)
    if pid is not None and pid != os.getpid():
        raise _in_training(run, pid)


def _in_training(run: Path, pid: int | None) -> UserError:
    return fault(
        msg("another process is already training in {folder:code}", str(run))
        if pid is None
        else msg("process {pid:code} is already training in {folder:code}", pid, str(run)),
        fix=msg(
            "watch it with {watch:code}, or stop it with {stop:code}", f"nanolens watch {run}", f"nanolens stop {run}"
        ),
    )


def _show_life(claim: Path, done: threading.Event) -> None:
    """Touches the claim now and then: another machine or container cannot ask for the process."""
    while not done.wait(HEARTBEAT_S):
        with contextlib.suppress(OSError):
            os.utime(claim)


def living_process(run: Path, *, only_here: bool = False) -> int | None:
    """The id of the process that is training in this folder (`only_here`: on this machine), None where none is."""
    try:
        claim = files.read_json(run / record.PID_FILE) or {}
        pid, host = int(claim["pid"]), claim["host"]
        silent_s = time.time() - (run / record.PID_FILE).stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if host != socket.gethostname():
        return pid if silent_s < DEAD_AFTER_S and not only_here else None
    try:
        # A process id is used again after a restart: one that began after the claim did not write it.
        return pid if psutil.Process(pid).create_time() <= claim.get("started_at_s", math.inf) + 1 else None
    except psutil.Error:
        return None


def state_of(folder: Path, events: Sequence[e.Event]) -> str:
    """running, finished, stopped, failed, or gone (its process died without a word), by the last events of a run."""
    last = next((event for event in reversed(events) if isinstance(event, e.RunEnded | e.RunStarted)), None)
    return last.why if isinstance(last, e.RunEnded) else live_state(folder)


def live_state(folder: Path, heard_at_s: float = math.nan, update_s: float = math.nan) -> str:
    """running, silent or gone: of a run whose record does not say that it ended. `heard_at_s` is when its record was
    last written to, `update_s` how long an update takes; without them it is not called silent."""
    if living_process(folder) is None:
        return "gone"
    patience_s = max(SILENT_AFTER_S, 10 * update_s if math.isfinite(update_s) else 0.0)
    return "silent" if time.time() - heard_at_s > patience_s else "running"
