"""Every byte of a run folder, compared with what was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanolens import files
from nanolens.errors import UserError
from nanolens.message import Message, msg
from nanolens.record import events as e
from nanolens.record.layout import CHECKPOINTS, EVENTS_FILE, RUN_FILE, step_of
from nanolens.record.read import events_since
from nanolens.record.write import read_run_file


@dataclass(frozen=True)
class Checked:
    what: str  # a path below the run folder
    facts: Message | None = None  # what it holds
    problems: tuple[Message, ...] = ()
    notes: tuple[Message, ...] = ()  # worth knowing, and no damage


def verify_run(folder: Path) -> Iterator[Checked]:
    """One result after the other, as they are found: hashing a large checkpoint takes a while."""
    yield _run_file(folder)
    yield _events(folder)
    checkpoints = folder / CHECKPOINTS
    for path in sorted(checkpoints.glob("*")) if checkpoints.is_dir() else []:
        if step_of(path) is not None:
            yield _checkpoint(folder, path)
        elif path.name.startswith(files.UNFINISHED):
            left = msg("left by a process that was killed while saving; the next attempt removes it")
            yield Checked(_below(folder, path), notes=(left,))


def _run_file(folder: Path) -> Checked:
    try:
        facts = read_run_file(folder)
    except UserError as error:
        return Checked(RUN_FILE, problems=tuple(fault.what for fault in error.faults))
    # A run that `watch` recorded, or another loop logged, says in its words whose it is; of its settings only what was printed is known.
    needed = ("words",) if isinstance(facts.get("words"), dict) else ("config", "machine", "versions", "data")
    missing = [key for key in needed if not isinstance(facts.get(key), dict)]
    problems = (msg("it does not hold {keys:code}", keys=missing),) if missing else ()
    return Checked(RUN_FILE, msg("{count:count} settings", count=len(facts.get("config", {}))), problems)


def _events(folder: Path) -> Checked:
    path = folder / EVENTS_FILE
    if not path.is_file():
        return Checked(EVENTS_FILE, problems=(msg("it is missing"),))
    found, _ = events_since(folder, 0)
    not_understood = path.read_bytes().count(b"\n") - len(found)
    steps = {event.step for event in found if isinstance(event, e.StepTaken) and not event.rank}
    logged = {event.step for event in found if isinstance(event, e.Logged)}  # of another loop, which need not tell each step
    first = min((event.step for event in found if isinstance(event, e.RunStarted)), default=0)
    gaps = [step for step in range(first + 1, max(steps, default=first) + 1) if step not in steps]
    attempts = max((event.attempt for event in found), default=0)
    problems = [msg("{count:count} steps are missing, the first is {step:count}", count=len(gaps), step=gaps[0])] if gaps else []
    notes: list[Message] = []
    if not_understood:
        torn = msg("{count:count} lines could not be read: torn by a kill, or written by a newer nanolens", count=not_understood)
        (notes if not_understood < attempts else problems).append(torn)
    lost = [event for event in found if isinstance(event, e.RunEnded) and event.events_lost]
    problems += [msg("{count:count} events were lost: {because}", count=event.events_lost, because=event.lost_because) for event in lost]
    facts = msg(
        "{events:count} events, {steps:count} steps, {attempts:count} attempts",
        events=len(found),
        steps=len(steps | logged),
        attempts=attempts,
    )
    return Checked(EVENTS_FILE, facts, tuple(problems), tuple(notes))


def _checkpoint(folder: Path, path: Path) -> Checked:
    from nanolens.checkpoint.load import verify

    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    count = len((files.read_manifest(path) or {}).get("files", ()))
    return Checked(_below(folder, path), msg("{count:count} files, {size:bytes}", count=count, size=size), tuple(verify(path)))


def _below(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()
