"""From a run to a tracker: `nanolens send`, and what stands behind `--trackers` and `--wandb_log` while a run goes on.

The record on disk is the queue: a tracker reads on from where it stopped, so nothing is lost by being slow, a run can be sent at any time
afterwards, and sending twice sends nothing twice. How far it has got lies in `RUN/trackers/NAME.json`. Logs of other trainers are sent by
their columns; what was sent of them is remembered in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nanolens import files
from nanolens.errors import UserError, fault
from nanolens.interop.trackers import NAMES, About, Ending, Row, Tracker, is_installed, not_installed, tracker_named
from nanolens.message import msg
from nanolens.record import events as e
from nanolens.record.layout import EVENTS_FILE, is_run, tracker_file
from nanolens.trackers.rows import Rewound, Translator, rows_of

if TYPE_CHECKING:
    from nanolens.api.answers import Target
    from nanolens.record.run import Run

ROWS_AT_ONCE = 200
FOLLOWED_EVERY_S = 1.0
KEPT_EVERY_S = 2.0  # how often the place is written down while rows are going out
STEPS_REMEMBERED = 50
PROJECT = "nanolens"
TENSORBOARD = "tensorboard"  # also the folder of its files

OnProgress = Callable[[float, float], None]  # (done, of how much)


@dataclass(frozen=True)
class Sent:
    """What one call of `send` did."""

    tracker: str
    rows: int  # steps sent by this call
    step: int  # the last step that the tracker has; -1: none
    look: str  # where to look at it: an address, or a command
    repeated: int = 0  # steps of a resumed or rolled-back run that the tracker already had, and cannot forget
    complaints: tuple[str, ...] = ()


def send(
    target: Target, to: str, *, project: str | None = None, name: str | None = None, again: bool = False, config: str | None = None,
    hardware: str | None = None, known: Sequence[tuple[str, str]] = (), follow: bool = False,
    on_progress: OnProgress = lambda done, whole: None,
) -> Sent:  # fmt: skip
    """Sends a run, or anybody's log, to a tracker: `send("quickstart-1", to="tensorboard")`. What it already has is not sent again, unless
    `again`: then it goes out as a new run of the tracker. `config`, `hardware` and `known` say what a log leaves out. `follow` goes
    on until the run has ended."""
    from nanolens.api.answers import named

    if to not in NAMES:
        raise fault(msg("there is no tracker {name:code}", name=to), fix=msg("use one of {choices:code}", choices=NAMES))
    if not is_installed(to):
        raise not_installed(to)
    target = named(target)
    folder = _own_folder(target)
    if folder is not None:
        sender: Sender | ForeignSender = Sender(folder, to, tracker_named(to), project=project, name=name, again=again)
    else:
        from nanolens.api.sources import open_run

        run = open_run(target, config, hardware, known)
        sender = ForeignSender(run, target, to, tracker_named(to), project=project, name=name, again=again)
    if sender.has_nothing_new():
        kept = sender.outlet.kept.facts
        return Sent(to, 0, int(kept["step"]), str(kept["look"]))
    sender.open()
    sender.pump(on_progress)
    while follow and sender.goes_on():
        time.sleep(FOLLOWED_EVERY_S)
        sender.pump(on_progress)
    return sender.finish()


class Kept:
    """What is known of one run at one tracker, on disk."""

    def __init__(self, path: Path, again: bool = False):
        self.path = path
        self.facts: dict[str, Any] = {} if again else _read(path)
        self._written_at_s = 0.0

    def write(self, *, at_once: bool = True, **facts: Any) -> None:
        self.facts |= facts
        if at_once or time.monotonic() - self._written_at_s >= KEPT_EVERY_S:
            files.write_whole(self.path, json.dumps(self.facts, indent=1))
            self._written_at_s = time.monotonic()


class Outlet:
    """Rows on their way to a tracker: each step once, in order, and a note of how far it got."""

    def __init__(self, name: str, tracker: Tracker, kept: Kept):
        self.name, self.tracker, self.kept = name, tracker, kept
        self.batch: list[Row] = []
        self.rows = self.repeated = 0
        self.have = -1

    def open(self, about: About) -> None:
        found = self.tracker.open(about, self.kept.facts)
        self.have = max(int(self.kept.facts.get("step", -1)), int(found.pop("step", -1)))
        self.kept.write(tracker=self.name, project=about.project, name=about.name, **found, look=self.tracker.look(), is_closed=False)

    def put(self, row: Row) -> None:
        last = self.batch[-1] if self.batch else None
        newest = self.have if last is None else last.step
        if row.step < newest:
            self.repeated += 1
        elif last is not None and row.step == newest:  # more about a step that a later attempt began from
            self.batch[-1] = replace(last, values={**row.values, **last.values}, texts={**row.texts, **last.texts})
        else:
            row = replace(row, values=self._without_known(row.step, row.values), texts=self._without_known(row.step, row.texts))
            if row.values or row.texts:
                self.batch.append(row)
            else:
                self.repeated += 1

    def _without_known(self, step: int, said: Mapping[str, Any]) -> dict[str, Any]:
        known = self.kept.facts.get("names", {}).get(str(step), ())
        return {name: value for name, value in said.items() if name not in known}

    def rewind(self, step: int) -> None:
        if step >= (self.batch[-1].step if self.batch else self.have):
            return
        self.flush()
        if self.tracker.can_rewind:
            self.tracker.rewind(step)
            self.have = step
            self.kept.facts["names"] = {key: names for key, names in self.kept.facts.get("names", {}).items() if int(key) <= step}

    def flush(self, **facts: Any) -> None:
        """Raises what the tracker raises; the rows stay then, and go out with the next call."""
        if not self.batch:
            return
        self.tracker.add(self.batch)
        self.have = self.batch[-1].step
        self.rows += len(self.batch)
        self.kept.write(at_once=False, step=self.have, names=self._names(), **facts)
        self.batch.clear()

    def _names(self) -> dict[str, list[str]]:
        """What was sent of the last steps that a later attempt may begin from: those that were evaluated, and the very last."""
        told = dict(self.kept.facts.get("names", {}))
        for row in self.batch:
            if row is self.batch[-1] or "val/loss" in row.values:
                told[str(row.step)] = sorted({*told.get(str(row.step), ()), *row.values, *row.texts})
        return dict(list(told.items())[-STEPS_REMEMBERED:])

    def close(self, ending: Ending, **facts: Any) -> Sent:
        self.flush(**facts)
        look = self.tracker.look()
        self.kept.write(step=self.have, look=look, **facts)  # it may never come back from closing
        self.tracker.close(ending)
        complaints = tuple(getattr(self.tracker, "complaints", ()))
        self.kept.write(is_closed=True, state=ending.state, step=self.have, look=look, complaints=complaints, **facts)
        return Sent(self.name, self.rows, self.have, look, self.repeated, complaints)


class Sender:
    """One run folder to one tracker, as far as the record goes now; `pump` may be called again while it grows."""

    def __init__(
        self, folder: Path, to: str, tracker: Tracker, *, project: str | None = None, name: str | None = None, again: bool = False
    ):
        self.folder = folder
        self._place = folder / TENSORBOARD if to == TENSORBOARD else folder
        self.outlet = Outlet(to, tracker, Kept(tracker_file(folder, to), again or _was_deleted(self._place, to)))
        self._project, self._name = project, name

    def open(self) -> None:
        from nanolens.record.progress import notice
        from nanolens.record.write import read_run_file
        from nanolens.show.words import say

        facts = read_run_file(self.folder)
        self.outlet.open(replace(about_run(self.folder, facts, self._project, self._name), folder=self._place))
        self.offset = int(self.outlet.kept.facts.get("offset", 0))
        sizes, machine = facts.get("sizes") or {}, facts.get("machine") or {}
        self.translator = Translator(
            sizes.get("flops_per_token"),
            machine.get("peak_flops"),
            lambda event: say(said) if (said := notice(event)) is not None else None,
        )

    def pump(self, on_progress: OnProgress = lambda done, whole: None) -> None:
        """Everything that the record holds by now, but for the last step, of which more may come."""
        self._flush()  # what an earlier call could not get rid of
        restarts = list(_restarts(self.folder, self.offset))
        size = _size(self.folder)
        for at, end, event in _events(self.folder, self.offset):
            is_undone = any(at < place and step < getattr(event, "step", -1) for place, step in restarts)
            self.offset = end
            if is_undone and not isinstance(event, e.RunStarted | e.RunEnded):
                continue
            for item in self.translator.take(event, at):
                if isinstance(item, Rewound):
                    self.outlet.rewind(item.step)
                else:
                    self.outlet.put(item)
            if len(self.outlet.batch) >= ROWS_AT_ONCE:
                self._flush()
                on_progress(end, size)
        self._flush()
        on_progress(size, size)

    def has_nothing_new(self) -> bool:
        kept = self.outlet.kept.facts
        return bool(kept.get("is_closed")) and kept.get("offset") == _size(self.folder) and kept.get("state") not in (None, "running")

    def goes_on(self) -> bool:
        from nanolens.record.write import living_process

        return not self.has_ended and living_process(self.folder) is not None

    @property
    def has_ended(self) -> bool:
        return self.translator.ended is not None

    def finish(self) -> Sent:
        """Tells the tracker how the run ended, or that it still goes on."""
        from nanolens.record.read import read_run

        run = read_run(self.folder)
        if run.get("state") == "running":
            return self.outlet.close(Ending({}, state="running"), offset=self._safe_offset())
        for row in self.translator.rest():
            self.outlet.put(row)
        return self.outlet.close(ending_of(run), offset=self._safe_offset())

    def _flush(self) -> None:
        self.outlet.flush(offset=self._safe_offset())

    def _safe_offset(self) -> int:
        return self.translator.safe_offset(self.offset)


class ForeignSender:
    """The log of another trainer, by its columns."""

    def __init__(
        self, run: Run, target: str, to: str, tracker: Tracker, *, project: str | None = None, name: str | None = None, again: bool = False
    ):
        self.run = run
        if not len(self.run.steps) and not len(self.run.evals):
            raise fault(msg("{target:code} holds no step that could be sent", target=target), fix=msg("give a run, or the log of one"))
        self.rows = list(rows_of(self.run))
        called = name or self.run.name
        place = Path(TENSORBOARD) / called if to == TENSORBOARD else Path(".")
        self.about = About(
            name=called, project=project or PROJECT, folder=place, config={key: known.value for key, known in self.run.known.items()},
            started_at_s=self.rows[0].at_s,
        )  # fmt: skip
        self.outlet = Outlet(to, tracker, Kept(_place_of(target, to, self.about, self.rows[0]), again or _was_deleted(place, to)))

    def has_nothing_new(self) -> bool:
        kept = self.outlet.kept.facts
        return bool(kept.get("is_closed")) and kept.get("step") == self.rows[-1].step

    def goes_on(self) -> bool:
        return False

    def open(self) -> None:
        self.outlet.open(self.about)

    def pump(self, on_progress: OnProgress = lambda done, whole: None) -> None:
        for number, row in enumerate(self.rows, 1):
            if row.step > self.outlet.have:
                self.outlet.put(row)
            if len(self.outlet.batch) >= ROWS_AT_ONCE:
                self.outlet.flush()
                on_progress(number, len(self.rows))
        self.outlet.flush()
        on_progress(len(self.rows), len(self.rows))

    def finish(self) -> Sent:
        return self.outlet.close(ending_of(self.run))


def about_run(folder: Path, facts: Mapping[str, Any], project: str | None = None, name: str | None = None) -> About:
    """What a tracker is told of a run of ours: its settings, and `machine/hardware` and the like beside them."""
    config = facts.get("config") or {}
    told = dict(config)
    for part in ("machine", "sizes", "versions"):
        told |= {f"{part}/{key}": value for key, value in (facts.get(part) or {}).items()}
    data = facts.get("data") or {}
    told |= {f"data/{key}": value for key, value in {**data, **(data.get("facts") or {})}.items() if not isinstance(value, dict)}
    return About(
        name=name or config.get("wandb_run_name") or folder.resolve().name,
        project=project or config.get("wandb_project") or PROJECT,
        config=told,
        folder=folder,
        started_at_s=float(facts.get("created_at_s") or math.nan),
    )


def ending_of(run: Run) -> Ending:
    """What is to be said of a run that has ended: its best evaluation, where its time went, and the diagnosis."""
    import numpy as np

    from nanolens.diagnosis import diagnose
    from nanolens.present.markdown import findings

    summary: dict[str, float | int | str] = {}
    if len(run.steps):
        summary["steps"] = int(run.steps.step[-1])
    if np.isfinite(run.evals.val).any():
        best = int(np.nanargmin(np.where(np.isfinite(run.evals.val), run.evals.val, np.nan)))
        summary |= {"best_val_loss": float(run.evals.val[best]), "best_step": int(run.evals.step[best])}
    if (wall_s := run.number("wall_s")) is not None:
        summary["wall_s"] = wall_s
    summary |= {f"{part}_s": seconds for part, seconds in run.time_parts.items()}
    diagnosis = diagnose(run)
    summary["findings"] = ", ".join(finding.code for finding in diagnosis.findings)
    state = str(run.get("state", "finished"))
    return Ending(summary, {"findings": findings(diagnosis)}, "failed" if state == "gone" else state)


def _own_folder(target: str) -> Path | None:
    """The folder of a run of ours; None for everything else that can be read."""
    from nanolens.record.store import find_run

    if Path(target).exists() and not is_run(Path(target)):
        return None
    try:
        return find_run(target).folder
    except UserError:
        return None  # whatever else it may be, or that it is nothing, is said by whoever reads it


def _place_of(target: str, to: str, about: About, first: Row) -> Path:
    """One log at one tracker. Another run in the same file, told by its first row, is another place."""
    said = [str(Path(target).resolve()), to, about.project, about.name, first.step, sorted(first.values.items())]
    return files.cache_folder() / "sent" / f"{hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]}.json"


def _was_deleted(place: Path, to: str) -> bool:
    """TensorBoard's files lie with the user, who may throw them away; then there is nothing to go on with."""
    return to == TENSORBOARD and not any(place.glob("events.out.tfevents.*"))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


_DECODER = msgspec.json.Decoder(e.EVENTS)
_GOING_BACK = (b'{"event":"run_started"', b'{"event":"rolled_back"')


def _events(folder: Path, offset: int) -> Iterator[tuple[int, int, e.Event]]:
    """(place, place behind it, event) of each whole line; a torn or unknown one is passed over."""
    for at, line in _lines(folder, offset):
        if (event := _decoded(line)) is not None:
            yield at, at + len(line), event


def _restarts(folder: Path, offset: int) -> Iterator[tuple[int, int]]:
    """(place, step) of each time that the run went back."""
    for at, line in _lines(folder, offset):
        if line.startswith(_GOING_BACK) and (event := _decoded(line)) is not None:
            yield at, event.to_step if isinstance(event, e.RolledBack) else event.step


def _decoded(line: bytes) -> Any:
    try:
        return _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _lines(folder: Path, offset: int) -> Iterator[tuple[int, bytes]]:
    try:
        with open(folder / EVENTS_FILE, "rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # torn, or still being written
                yield offset, line
                offset += len(line)
    except FileNotFoundError:
        return


def _size(folder: Path) -> int:
    try:
        return (folder / EVENTS_FILE).stat().st_size
    except OSError:
        return 0
