"""A run at a glance: what its last events say. A long run costs no more to look at than a short one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from nanoscope.errors import UserError
from nanoscope.record import events as e
from nanoscope.record.layout import EVENTS_FILE, RUNS, is_run
from nanoscope.record.write import living_process, read_run_file

TAIL_BYTES = 256 << 10

_DECODER = msgspec.json.Decoder(e.EVENTS)


@dataclass(frozen=True)
class Glance:
    folder: Path
    state: str  # running, finished, stopped, failed, gone (died without a word), or unreadable
    step: int = 0
    max_iters: int | None = None
    loss: float = math.nan  # batch loss of the last step told
    val: float = math.nan  # the last evaluation among the last events
    tokens_per_s: float = math.nan
    created_at_s: float = math.nan
    changed_at_s: float = math.nan


def list_runs(root: Path | None = None) -> list[Glance]:
    """All runs below `root` (`runs/` where not given), the oldest first."""
    root = Path(RUNS) if root is None else root
    if is_run(root):
        return [glance(root)]
    folders = [path for path in root.iterdir() if is_run(path)] if root.is_dir() else []
    return sorted(map(glance, folders), key=lambda seen: (seen.changed_at_s if math.isfinite(seen.changed_at_s) else 0.0, seen.folder.name))


def glance(folder: Path) -> Glance:
    try:
        facts = read_run_file(folder)
    except UserError:
        return Glance(folder, "unreadable")
    config: Any = facts.get("config")
    max_iters = config.get("max_iters") if isinstance(config, dict) else None
    created_at_s = facts.get("created_at_s")
    events, changed_at_s = last_events(folder)
    step, loss, val, rate = 0, math.nan, math.nan, math.nan
    for event in events:
        step = getattr(event, "step", step) or step
        match event:
            case e.StepTaken(rank=0):
                loss, rate = float(event.loss), event.tokens / event.took_s if event.took_s > 0 else math.nan
            case e.Logged():
                loss = _number(event.values.get("loss"), loss)
            case e.Evaluated(split="val", rank=0):
                val = float(event.loss)
    return Glance(
        folder, _state(folder, events), step, max_iters if isinstance(max_iters, int) else None, loss, val, rate,
        float(created_at_s) if isinstance(created_at_s, (int, float)) else math.nan, changed_at_s,
    )  # fmt: skip


def last_events(folder: Path) -> tuple[list[e.Event], float]:
    """The events within the last bytes of the record, and when it was last written to."""
    path = folder / EVENTS_FILE
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            start = max(0, size - TAIL_BYTES)
            file.seek(start)
            lines = file.read().split(b"\n")[:-1]
        changed_at_s = path.stat().st_mtime
    except OSError:
        return [], math.nan
    found = []
    for line in lines[1:] if start else lines:  # the first one may begin in its middle
        try:
            found.append(_DECODER.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return found, changed_at_s


def _state(folder: Path, events: list[e.Event]) -> str:
    last = next((event for event in reversed(events) if isinstance(event, e.RunEnded | e.RunStarted)), None)
    if isinstance(last, e.RunEnded):
        return last.why
    return "running" if living_process(folder) is not None else "gone"


def _number(value: object, otherwise: float) -> float:
    try:
        return float(value) if isinstance(value, (int, float, str)) else otherwise
    except ValueError:
        return otherwise
