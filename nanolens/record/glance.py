"""A run at a glance: what its last events say. A long run costs no more to look at than a short one."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from nanolens.errors import UserError
from nanolens.record import events as e
from nanolens.record.layout import EVENTS_FILE, PROBES, RUNS, is_run
from nanolens.record.write import living_process, read_run_file

TAIL_BYTES = 256 << 10

_IS_BEST, _WARNED = b'"is_best":true', b'"event":"warned"'
_DECODER = msgspec.json.Decoder(e.EVENTS)


@dataclass(frozen=True)
class Glance:
    folder: Path
    state: str  # running, finished, stopped, failed, gone (died without a word), or unreadable
    step: int = 0
    max_iters: int | None = None
    loss: float = math.nan  # batch loss of the last step told
    val: float = math.nan  # the last evaluation among the last events
    best_val: float = math.nan  # of the whole run
    warnings: int = 0  # of the whole run
    tokens_per_s: float = math.nan
    created_at_s: float = math.nan
    changed_at_s: float = math.nan


def list_runs(root: Path | None = None) -> list[Glance]:
    """All runs below `root` (`runs/` where not given), the oldest first; of a root that is itself a run, it and its probes' branches."""
    root = Path(RUNS) if root is None else root
    if is_run(root):
        return [glance(root), *list_runs(root / PROBES)]
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
    best_val, warnings = best_and_warnings(folder)
    return Glance(
        folder, _state(folder, events), step, max_iters if isinstance(max_iters, int) else None, loss, val, best_val, warnings, rate,
        float(created_at_s) if isinstance(created_at_s, (int, float)) else math.nan, changed_at_s,
    )  # fmt: skip


def best_and_warnings(folder: Path) -> tuple[float, int]:
    """The lowest val loss and the number of warnings. Both are rare among the events: their lines are looked for, the others not read."""
    best, warnings = math.nan, 0
    try:
        with open(folder / EVENTS_FILE, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            for sign in (_IS_BEST, _WARNED):
                at = whole.find(sign)
                while at >= 0:
                    end = whole.find(b"\n", at)
                    event = _decoded(whole[whole.rfind(b"\n", 0, at) + 1 : len(whole) if end < 0 else end])
                    if isinstance(event, e.Evaluated) and event.split == "val":
                        best = float(event.loss)  # each best one is lower than the one before
                    warnings += isinstance(event, e.Warned)
                    at = whole.find(sign, end) if end >= 0 else -1
    except (OSError, ValueError):  # not there, or empty
        return math.nan, 0
    return best, warnings


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
        if (event := _decoded(line)) is not None:
            found.append(event)
    return found, changed_at_s


def _decoded(line: bytes) -> e.Event | None:
    try:
        return _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


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
