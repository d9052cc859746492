"""The runs on the page's shelf, and the server over them.

Reading only: run folders are looked at, never written to. A run is known to the page by a name that says nothing (a digest of its path);
folders and records that lie elsewhere than below the root, by a symbolic link, are left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens.errors import UserError, fault
from nanolens.message import msg
from nanolens.record.layout import EVENTS_FILE, RUN_FILE, RUNS, checkpoint_folders
from nanolens.record.store import find_runs

if TYPE_CHECKING:
    from nanolens.analysis.compare import Comparison
    from nanolens.analysis.plan_actual import Held
    from nanolens.config.preset import Preset
    from nanolens.diagnosis import Diagnosis
    from nanolens.facts.finding import Finding
    from nanolens.forecasting import Forecast, Refusal
    from nanolens.page.generator import Writer
    from nanolens.page.series import Columns
    from nanolens.present.dashboard.shelf import Wish
    from nanolens.record.run import Run

PORT = 7860
NICE = 10  # the page stands back behind a training on the same machine
RESCAN_S = 2.0  # for new run folders, and for processes that are gone
DIAGNOSE_EVERY_S = 20.0  # a run that goes on
COST_FRAC = 0.03  # of a core, for diagnosing runs that go on
ROWS_IN_MEMORY = 3_000_000  # of all runs that are held read
LOGS_KEPT = 20
SILENT_AFTER_S = 60.0


def serve(root: Path | None, port: int | None, lang: str, on_ready: Callable[[str], None], *, nice: bool = True) -> None:
    """Serves until interrupted. `on_ready` gets the URL once the port is bound."""
    from nanolens.errors import require
    from nanolens.present.dashboard.app import EXTRA, build_app, read_plotly

    require("uvicorn", EXTRA)
    import uvicorn

    read_plotly()
    shelf = Runs(root)
    token = secrets.token_urlsafe(24)
    app: Any = build_app(shelf, token, lang, shelf.report)
    listening = _listen(port)
    if nice and hasattr(os, "nice"):
        os.nice(NICE)
    config = uvicorn.Config(
        app, log_level="error", access_log=False, ws="none", server_header=False, date_header=False, timeout_graceful_shutdown=1,
        lifespan="on", proxy_headers=False,
    )  # fmt: skip
    on_ready(f"http://127.0.0.1:{listening.getsockname()[1]}/?token={token}")
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        shelf.close()


def report(run: Run, lang: str) -> bytes:
    """The page of one run as a file of its own."""
    from nanolens.present.report import report_of

    shelf = Runs()
    return report_of(shelf, shelf.hold(run), lang)


def _listen(port: int | None) -> socket.socket:
    """A port of the loopback: the one asked for, or the usual one, or any that is free."""
    for wanted in (PORT, 0) if port is None else (port,):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", wanted))
            listening.listen(128)  # a browser that is quicker than the server waits, and is not refused
            return listening
        except (OSError, OverflowError) as error:
            listening.close()
            because = getattr(error, "strerror", None) or str(error)
    raise fault(
        msg("port {port:code} cannot be used: {because}", port=port, because=because),
        where=msg("{option:code}", option=f"--port={port}"),
        fix=msg("leave the option out, and a free port is taken"),
    )


class Runs:
    """The shelf of `present.dashboard.shelf`, over the folders below a root and over logs that were dropped on the page."""

    def __init__(self, root: Path | None = None):
        self.root = Path(RUNS) if root is None else root
        self._folders: dict[str, Path] = {}
        self._logs: dict[str, Run] = {}
        self._logs_added = 0
        self._read: dict[str, tuple[tuple[int, int], Columns]] = {}
        self._rows: dict[str, dict[str, Any]] = {}
        self._diagnosed: dict[str, tuple[tuple[int, int], Diagnosis]] = {}
        self._tried: dict[str, tuple[int, int]] = {}
        self._diagnose_again_at_s: dict[str, float] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._scanned_at_s = -RESCAN_S
        self._lock = threading.RLock()
        self._reading = threading.Lock()  # one after the other: the first of ten is then there ten times sooner
        self._writer: Writer | None = None

    # --- which runs there are

    def rows(self) -> list[dict[str, Any]]:
        """Newest first. Of runs that were not read yet, what their last events say."""
        self._scan()
        names = [*self._logs, *reversed(self._folders)]
        return [self.row(name) for name in names]

    def row(self, name: str) -> dict[str, Any]:
        if name in self._rows:
            return self._rows[name]
        folder = self._folder(name)
        from nanolens.record.glance import glance

        seen = glance(folder)
        return {
            "id": name, "name": folder.name, "state": seen.state, "step": seen.step, "max_iters": seen.max_iters,
            "loss": None if seen.loss != seen.loss and not seen.step else seen.loss if abs(seen.loss) < 1e300 else str(seen.loss),
            "val": seen.val, "tokens_per_s": seen.tokens_per_s, "changed_at_s": seen.changed_at_s, "spark": [], "is_partial": True,
        }  # fmt: skip

    def news(self) -> set[str]:
        """Runs that are new, have grown, or whose process has gone since this was last asked."""
        is_new = self._scan()
        changed = set(is_new)
        for name, folder in list(self._folders.items()):
            now = _extent(folder)
            if self._seen.get(name) != now:
                self._seen[name] = now
                changed.add(name)
            elif self._rows.get(name, {}).get("state") in ("running", "silent") and self.state(name) != self._rows[name]["state"]:
                changed.add(name)
        for name in changed:
            if name in self._rows or name in self._read:  # others wait for `catch_up`
                with contextlib.suppress(UserError, KeyError, OSError):  # a folder that is being removed
                    self._refresh(name)
        return changed

    def catch_up(self) -> str | None:
        """Reads or diagnoses one run that waits for it; its name, or None where all is done."""
        self._scan()
        for name in [*self._logs, *reversed(self._folders)]:
            try:
                if name not in self._rows:
                    self._refresh(name)
                    return name
            except (UserError, KeyError, OSError):
                self._rows[name] = {**self.row(name), "id": name, "state": "unreadable", "spark": []}
                return name
        for name in [*self._logs, *reversed(self._folders)]:
            if self._rows[name]["state"] != "unreadable" and self._is_due(name):
                self._tried[name] = self._seen.get(name, (0, 0))  # where it fails, it is not tried again until the run has grown
                self.diagnosis(name)
                self._refresh(name)
                return name
        return None

    def _scan(self) -> set[str]:
        """Takes note of run folders that have come or gone."""
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
        from nanolens.page.series import Columns
        from nanolens.record.read import read_run

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
        from nanolens.record.write import living_process

        columns = self.columns(name)
        state = str(columns.run.get("state"))
        if state not in ("running", "gone"):
            return state
        folder = self._folder(name)
        if living_process(folder) is None:
            return "gone"
        took = columns.case.step_time
        patience_s = max(SILENT_AFTER_S, 10 * took.value if took is not None else 0.0)
        return "silent" if time.time() - _extent(folder)[1] / 1e9 > patience_s else "running"

    def diagnosis(self, name: str) -> Diagnosis:
        from nanolens.diagnosis import diagnose

        columns = self.columns(name)
        extent = self._read[name][0]
        known = self._diagnosed.get(name)
        if known is not None and known[0] == extent:
            return known[1]
        started_at_s = time.monotonic()
        found = diagnose(columns.run)
        spent_s = time.monotonic() - started_at_s
        self._diagnosed[name] = (extent, found)
        self._diagnose_again_at_s[name] = time.monotonic() + max(DIAGNOSE_EVERY_S, spent_s / COST_FRAC)
        return found

    def _is_due(self, name: str) -> bool:
        known = self._diagnosed.get(name)
        if known is None:
            return self._tried.get(name) != self._seen.get(name, (0, 0))
        if name in self._logs or known[0] == self._seen.get(name, known[0]):
            return False
        is_over = self._rows[name]["state"] not in ("running", "silent")
        return is_over or time.monotonic() >= self._diagnose_again_at_s.get(name, 0.0)

    def _refresh(self, name: str) -> None:
        from nanolens.diagnosis import is_fault
        from nanolens.page.view import row_of

        row = row_of(self.columns(name), self.state(name))
        row |= {"id": name, "is_log": name in self._logs}
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

    def preset(self, name: str) -> Preset | None:
        """The preset whose settings these are, all of them."""
        from nanolens.config.preset import named_preset

        run = self.columns(name).run
        found = named_preset(str(run.get("preset") or ""))
        if found is None:
            return None
        same = all(_same(run.get(key), value) for key, value in found.values.items())
        return found if same else None

    def planned(self, name: str) -> Mapping[str, Any] | None:
        from nanolens.api.plans import recall
        from nanolens.config.fields import settings

        run = self.columns(name).run
        plan = recall({key: run.get(key) for key in settings()})
        return None if plan is None else plan["rows"]

    def held(self, name: str) -> tuple[Held, ...]:
        from nanolens.api.plans import planned_for

        return planned_for(self.columns(name).run)

    def is_fault(self, finding: Finding) -> bool:
        from nanolens.diagnosis import is_fault

        return is_fault(finding)

    def forecast(self, name: str) -> Forecast | Refusal:
        from nanolens.forecasting import forecast

        return forecast(self.columns(name).run)

    def compare(self, names: list[str]) -> Comparison:
        from nanolens.analysis.compare import compare
        from nanolens.api.comparing import told_apart
        from nanolens.comparison.side import Group

        runs = [self.columns(name).run for name in names]
        return compare([Group(title, (run,)) for title, run in zip(told_apart([run.name for run in runs]), runs, strict=True)])

    def report(self, name: str, lang: str) -> bytes:
        from nanolens.present.report import report_of

        return report_of(self, name, lang)

    # --- logs that were given to the page

    def add_log(self, raw: bytes, title: str) -> list[str]:
        """The runs that a text tells of, held in memory until newer ones take their place."""
        from nanolens.interop.logs import read_logs

        runs = [run for run in read_logs(raw, name=title or "log") if len(run.steps) or len(run.evals)]
        if not runs:
            raise fault(
                msg("no training could be read from this text"),
                fix=msg("give the lines that a trainer prints: iterations, losses, evaluations"),
            )
        return [self.hold(run) for run in runs[:LOGS_KEPT]]

    def hold(self, run: Run) -> str:
        """Takes a run that was read elsewhere; its name on the shelf."""
        from nanolens.page.series import Columns

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

    def write(self, name: str, wish: Wish) -> Iterator[str]:
        from nanolens.page.generator import Writer

        folder = self._folder(name)
        with self._lock:
            if self._writer is None or not self._writer.serves(folder):
                self.close()
                self._writer = Writer(folder)
            writer = self._writer
        return writer.write(wish)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def name_of(path: Path) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:12]


def _is_inside(path: Path, root: str) -> bool:
    """Whether a run folder and its record are where they seem to be."""
    for each in (path, path / RUN_FILE, path / EVENTS_FILE):
        real = os.path.realpath(each)
        if real != root and not real.startswith(root.rstrip(os.sep) + os.sep):
            return False
    return True


def _extent(folder: Path) -> tuple[int, int]:
    """How far the record has grown, and when."""
    try:
        about = (folder / EVENTS_FILE).stat()
    except OSError:
        return (0, 0)
    return (about.st_size, about.st_mtime_ns)


def _same(here: object, there: object) -> bool:
    return here == there or (there == "auto" and here is None) or str(here) == str(there)
