"""The runs that the page shows: folders below a root, never written to, and logs that were dropped on it.

A run is known to the page by a digest of its path, so no text of a request ever becomes part of a path; an unknown name
raises KeyError. Folders and records that lie elsewhere than below the root, by a symbolic link, are left out."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import msgspec

from nanolens.comparison import compare, told_apart
from nanolens.comparison.side import SeedGroup
from nanolens.config.fields import settings
from nanolens.config.load import unchanged_preset
from nanolens.diagnosis import Diagnosis, diagnose, is_fault
from nanolens.errors import UserError, fault
from nanolens.files import cache_folder, write_whole
from nanolens.forecasting import forecast
from nanolens.logs import read_logs
from nanolens.message import msg
from nanolens.page.generator import GenerateRequest, Writer
from nanolens.page.series import Columns
from nanolens.page.view import comparison_of, ending_of, findings_of, forecast_of, row_of, view_of
from nanolens.planning.question import planned_for, recall
from nanolens.record import EVENTS_FILE, RUN_FILE, RUNS, checkpoint_folders
from nanolens.record.progress import glance
from nanolens.record.read import read_run
from nanolens.record.run import RunRecord
from nanolens.record.store import as_typed, find_runs, live_state
from nanolens.show.answer import JsonObject

RESCAN_S = 2.0  # for new run folders, and for processes that are gone
DIAGNOSE_EVERY_S = 20.0  # a run that goes on
DIAGNOSE_COST_FRAC = 0.03  # of a core, for diagnosing runs that go on
ROWS_IN_MEMORY = 3_000_000  # of all runs that are held read
LOGS_KEPT = 20
LIVE = ("running", "silent")
DEAD = ("gone", "failed")


class KeptRow(msgspec.Struct, frozen=True):
    extent: tuple[int, int]  # of the record that the row was made from
    row: JsonObject


class Runs:
    def __init__(self, root: Path | None = None, *, in_memory: bool = False):
        """`in_memory`: only runs that are given to `hold`; no folder is looked at."""
        self.root = Path(RUNS) if root is None else root
        self._folders: dict[str, Path] = {}
        self._logs: dict[str, RunRecord] = {}
        self._logs_added = 0
        self._read: dict[str, tuple[tuple[int, int], Columns]] = {}
        self._rows: dict[str, JsonObject] = {}
        self._diagnosed: dict[str, tuple[tuple[int, int], Diagnosis]] = {}
        self._tried: dict[str, tuple[int, int]] = {}
        self._diagnose_again_at_s: dict[str, float] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._scanned_at_s = -RESCAN_S
        self._lock = threading.RLock()
        self._reading = threading.Lock()  # one after the other: the first of ten is then there ten times sooner
        self._writer: Writer | None = None
        self._first: list[str] = []
        self._is_unkept = False
        self._kept = {} if in_memory else self._recall()

    # --- which runs there are

    def rows(self) -> list[JsonObject]:
        """Newest first. Of runs that were not read yet, what their last events say."""
        self._scan()
        for name in list(self._kept):
            if name in self._folders:
                self._take_kept(name)
        return [self.row(name) for name in self._names()]

    def _names(self) -> list[str]:
        return [*self._logs, *reversed(self._folders)]

    def row(self, name: str) -> JsonObject:
        if name in self._rows:
            return self._rows[name]
        folder = self._folder(name)
        seen = glance(folder)
        row = {key: getattr(seen, key) for key in ("state", "step", "max_iters", "val", "tokens_per_s", "changed_at_s")}
        loss = seen.loss if math.isfinite(seen.loss) else str(seen.loss) if seen.step else None
        return {**row, "id": name, "name": folder.name, "loss": loss, "spark": [], "is_partial": True}

    def look_first(self, names: Sequence[str]) -> None:
        """These runs are looked at: they are read before the others."""
        self._first = [name for name in names if name in self._folders]

    def _recall(self) -> dict[str, KeptRow]:
        """Rows that an earlier server of this folder has kept, by name."""
        with contextlib.suppress(msgspec.MsgspecError, OSError):
            return msgspec.json.decode(self._kept_file().read_bytes(), type=dict[str, KeptRow])
        return {}

    def _kept_file(self) -> Path:
        return cache_folder() / "page" / f"{name_of(self.root)}-{version('nanolens')}.json"

    def keep(self) -> None:
        """Writes down what was found out of runs that are over, for the next start."""
        if not self._is_unkept:
            return
        self._is_unkept = False
        over = {name: row for name, row in list(self._rows.items()) if name in self._diagnosed or "findings" in row}
        kept = {
            name: KeptRow(extent, row)
            for name, row in over.items()
            if name in self._folders and row["state"] not in LIVE and (extent := self._seen.get(name)) is not None
        }
        with contextlib.suppress(OSError):  # a page without a cache is only slower
            file = self._kept_file()
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, msgspec.json.encode(kept))

    def news(self) -> set[str]:
        """Runs that are new, have grown, or whose process has gone since this was last asked."""
        changed = self._scan()
        for name, folder in list(self._folders.items()):
            now = _extent(folder)
            if self._seen.get(name) != now:
                self._seen[name] = now
                changed.add(name)
            elif (state := self._rows.get(name, {}).get("state")) in LIVE and self.state(name) != state:
                changed.add(name)
        for name in changed:
            if name in self._rows or name in self._read:  # others wait for `catch_up`
                with contextlib.suppress(UserError, KeyError, OSError):  # a folder that is being removed
                    self._refresh(name)
        return changed

    def catch_up(self) -> str | None:
        """Reads and diagnoses one run that waits for it, those that are looked at first; its name, or None where all
        is done."""
        self._scan()
        names = self._names()
        for name in [*(each for each in self._first if each in names), *names]:
            if name in self._rows and not self._is_waiting(name):
                continue
            if not self._take_kept(name):
                self._find_out(name)
            return name
        self.keep()
        return None

    def _is_waiting(self, name: str) -> bool:
        return self._rows[name]["state"] != "unreadable" and self._is_due(name)

    def _take_kept(self, name: str) -> bool:
        kept = self._kept.pop(name, None)
        if kept is None or name in self._rows or kept.extent != _extent(self._folder(name)):
            return False
        self._seen.setdefault(name, kept.extent)
        self._tried[name] = kept.extent
        self._rows[name] = kept.row
        return True

    def _find_out(self, name: str) -> None:
        self._is_unkept = True
        try:
            self._refresh(name)
            # Where it fails, it is not tried again until the run has grown.
            self._tried[name] = self._seen.setdefault(name, (0, 0) if name in self._logs else self._read[name][0])
            self.diagnosis(name)
            self._refresh(name)
        except (UserError, KeyError, OSError):
            self._rows[name] = {**self.row(name), "id": name, "state": "unreadable", "spark": []}

    def _scan(self) -> set[str]:
        now_s = time.monotonic()
        if now_s - self._scanned_at_s < RESCAN_S and self._folders:
            return set()
        self._scanned_at_s = now_s
        with self._lock:
            inside = os.path.realpath(self.root)
            found = {name_of(path): path for path in find_runs(self.root) if _is_inside(path, inside)}
            fresh = set(found) - set(self._folders)
            self._folders = found
        return fresh

    def _folder(self, name: str) -> Path:
        if name not in self._folders and name not in self._logs:
            self._scan()
        return self._folders[name]

    # --- one run

    def columns(self, name: str) -> Columns:
        if name in self._logs:
            return self._read[name][1]
        folder = self._folder(name)
        extent = _extent(folder)
        with self._lock:
            known = self._read.get(name)
            if known is not None and known[0] == extent:
                return known[1]
        with self._reading:
            known = self._read.get(name)
            if known is not None and known[0] == extent:  # while this one waited for its turn
                return known[1]
            read = Columns(read_run(folder))
            with self._lock:
                self._read.pop(name, None)
                self._read[name] = (extent, read)
                self._make_room()
        return read

    def state(self, name: str) -> str:
        """As the record says, and whether its process is still there and speaks."""
        if name in self._logs:
            return str(self._logs[name].get("state") or "log")
        columns = self.columns(name)
        state = str(columns.run.get("state"))
        if state not in ("running", "gone"):
            return state
        folder, took = self._folder(name), columns.case.step_time
        return live_state(folder, _extent(folder)[1] / 1e9, math.nan if took is None else took.value)

    def diagnosis(self, name: str) -> Diagnosis:
        columns = self.columns(name)
        extent = self._read[name][0]
        known = self._diagnosed.get(name)
        if known is not None and known[0] == extent:
            return known[1]
        started_at_s = time.monotonic()
        found = diagnose(columns.run)
        spent_s = time.monotonic() - started_at_s
        self._diagnosed[name] = (extent, found)
        self._diagnose_again_at_s[name] = time.monotonic() + max(DIAGNOSE_EVERY_S, spent_s / DIAGNOSE_COST_FRAC)
        return found

    def _is_due(self, name: str) -> bool:
        known = self._diagnosed.get(name)
        if known is None:
            return self._tried.get(name) != self._seen.get(name, (0, 0))
        if name in self._logs or known[0] == self._seen.get(name, known[0]):
            return False
        is_over = self._rows[name]["state"] not in LIVE
        return is_over or time.monotonic() >= self._diagnose_again_at_s.get(name, 0.0)

    def _refresh(self, name: str) -> None:
        row = {**row_of(self.columns(name), self.state(name)), "id": name, "is_log": name in self._logs}
        if name in self._folders:
            row["changed_at_s"] = _extent(self._folders[name])[1] / 1e9
        if name in self._diagnosed:
            findings = self._diagnosed[name][1].findings
            faults = [finding for finding in findings if is_fault(finding)]
            row |= {"faults": len(faults), "findings": len(findings), "worst": [f.code for f in faults][:3]}
        self._rows[name] = row

    def _make_room(self) -> None:
        total = sum(len(columns) for _, columns in self._read.values())
        for name in list(self._read):
            if total <= ROWS_IN_MEMORY or len(self._read) == 1:
                return
            if name not in self._logs:
                total -= len(self._read.pop(name)[1])

    # --- what else is known of it

    def view(self, name: str, lang: str) -> JsonObject:
        columns = self.columns(name)
        known = {key: fact.value for key, fact in columns.run.known.items()}
        preset = unchanged_preset(str(known.get("preset") or ""), known)
        plan = recall({key: columns.run.get(key) for key in settings()})
        view = view_of(columns, self.state(name), preset, None if plan is None else plan["rows"], lang)
        return {**view, "ending": self._ending(name, lang), "family": self._family(name)}

    def _ending(self, name: str, lang: str) -> JsonObject | None:
        if name not in self._folders:
            return None
        folder = self._folders[name]
        step = self.columns(name).case.last_step
        return ending_of(self.state(name), step, _extent(folder)[1] / 1e9, as_typed(folder), lang)

    def _family(self, name: str) -> JsonObject:
        """The run that this one is a branch of, and its own branches, as far as they are below the root."""
        if name not in self._folders:
            return {}
        by_path = {os.path.realpath(folder): other for other, folder in self._folders.items()}
        parent = _parent(self.columns(name).run)
        above = [] if parent is None else [self._relative(by_path.get(parent[0]), Path(parent[0]).name, parent[1])]
        mine = os.path.realpath(self._folders[name])
        held = [(other, read[1].run) for other, read in list(self._read.items()) if other in self._folders]
        children = [
            self._relative(other, run.name, found[1])
            for other, run in held
            if (found := _parent(run)) is not None and found[0] == mine
        ]
        return {"parent": above, "branches": children}

    def _relative(self, name: str | None, title: str, step: object) -> JsonObject:
        return {"id": name, "name": title, "words": f"@ {step}" if isinstance(step, int) else ""}

    def findings(self, name: str, lang: str) -> JsonObject:
        columns, diagnosis = self.columns(name), self.diagnosis(name)
        if self.state(name) in DEAD:  # "nothing needs fixing" would be said of a run whose process is gone
            diagnosis = replace(diagnosis, findings=[f for f in diagnosis.findings if f.code != "healthy"])
        return findings_of(diagnosis, planned_for(columns.run), lang, columns.case.last_step)

    def forecast(self, name: str, lang: str) -> JsonObject:
        return forecast_of(forecast(self.columns(name).run), lang)

    def compare(self, names: list[str], lang: str) -> JsonObject:
        runs = [self.columns(name).run for name in names]
        titles = told_apart([run.name for run in runs])
        groups = [SeedGroup(title, (run,)) for title, run in zip(titles, runs, strict=True)]
        return comparison_of(compare(groups, names=titles), lang)

    # --- logs that were given to the page

    def add_log(self, raw: bytes, title: str) -> list[str]:
        """The runs that a text tells of, held in memory until newer ones take their place."""
        runs = [run for run in read_logs(raw, name=title or "log") if len(run.steps) or len(run.evals)]
        if not runs:
            fix = msg("paste the lines that a trainer prints: iterations, losses, evaluations")
            raise fault(msg("no training run found in this text"), fix=fix)
        return [self.hold(run) for run in runs[:LOGS_KEPT]]

    def hold(self, run: RunRecord) -> str:
        """Takes a run that was read elsewhere; its name on the page."""
        with self._lock:
            self._logs_added += 1
            name = f"log{self._logs_added}"
            self._logs[name] = run
            self._read[name] = ((0, 0), Columns(run))
            for old in list(self._logs)[:-LOGS_KEPT]:
                for held in (self._logs, self._read, self._rows, self._diagnosed):
                    held.pop(old, None)
        self._refresh(name)
        return name

    # --- a model that writes

    def can_write(self, name: str) -> bool:
        if name in self._logs or importlib.util.find_spec("torch") is None:
            return False
        return bool(checkpoint_folders(self._folder(name)))

    def start_writer(self, name: str) -> Writer:
        """The process that will write: loading its model takes seconds, which may pass while somebody types."""
        folder = self._folder(name)
        with self._lock:
            if self._writer is None or not self._writer.serves(folder):
                self.close()
                self._writer = Writer(folder)
            return self._writer

    def write(self, name: str, wish: GenerateRequest) -> Iterator[str]:
        return self.start_writer(name).write(wish)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def name_of(path: Path) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:12]


def _parent(run: RunRecord) -> tuple[str, object] | None:
    found = run.get("parent")
    return (
        (os.path.realpath(str(found["run"])), found.get("step")) if isinstance(found, dict) and "run" in found else None
    )


def _is_inside(path: Path, root: str) -> bool:
    """Whether a run folder and its record are where they seem to be."""
    places = (path, path / RUN_FILE, path / EVENTS_FILE)
    return all(Path(os.path.realpath(each)).is_relative_to(root) for each in places)


def _extent(folder: Path) -> tuple[int, int]:
    """How far the record has grown, and when."""
    try:
        about = (folder / EVENTS_FILE).stat()
    except OSError:
        return (0, 0)
    return (about.st_size, about.st_mtime_ns)
