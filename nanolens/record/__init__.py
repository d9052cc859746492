"""The record of a run is a folder: these are the names in it, each written here only."""

from __future__ import annotations

import re
from pathlib import Path

RUNS = "runs"
RUN_FILE = "run.json"
EVENTS_FILE = "events.jsonl"
CHECKPOINTS = "checkpoints"
SAMPLES = "samples"
STOP_FILE = "stop-requested"  # `nanolens stop` leaves it; the loop looks for it between steps
PID_FILE = "running.json"  # process id, host and start of the process that is training; gone when it has ended
LOCK_FILE = ".lock"  # locked by the process that is training
OWN_MODEL = "model.py"  # a copy of the user's own model file, where the run was started with one
PROBES = "probes"  # branches that `nanolens probe` made of this run, each a run folder, and what they answered
ANSWER_FILE = "answer-{step:06d}.json"  # in there: what the probes of that step found
TRACKERS_FOLDER = "trackers"  # how far each tracker has got, and what it printed
OUTPUT_FILE = "output.log"  # what a run that was started with --detach printed

STEP_FOLDER = re.compile(r"step-(\d{6,})$")


def checkpoint_folder(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step-{step:06d}"


def sample_file(run: Path, step: int) -> Path:
    return run / SAMPLES / f"step-{step:06d}.txt"


def probe_folder(run: Path, step: int, name: str) -> Path:
    return run / PROBES / f"{step:06d}-{name}"


def answer_file(run: Path, step: int) -> Path:
    return run / PROBES / ANSWER_FILE.format(step=step)


def answer_files(run: Path) -> list[Path]:
    """What probes of this run answered, the newest step last."""
    return sorted((run / PROBES).glob(ANSWER_FILE.partition("{")[0] + "*.json"))


def tracker_file(run: Path, tracker: str) -> Path:
    return run / TRACKERS_FOLDER / f"{tracker}.json"


def tracker_output(run: Path, tracker: str) -> Path:
    return run / TRACKERS_FOLDER / f"{tracker}.log"


def step_of(folder: Path) -> int | None:
    found = STEP_FOLDER.match(folder.name)
    return int(found[1]) if found else None


def is_run(path: Path) -> bool:
    return (path / RUN_FILE).is_file()


def checkpoint_folders(run: Path) -> list[Path]:
    """The run's checkpoints, newest first. Whether one is whole is for `checkpoint` to say."""
    found = [folder for folder in (run / CHECKPOINTS).glob("step-*") if step_of(folder) is not None]
    return sorted(found, key=lambda folder: step_of(folder) or 0, reverse=True)
