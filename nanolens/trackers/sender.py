"""From a run to a tracker: `nanolens send`, and what stands behind `--trackers` and `--wandb_log` while a run goes on.

The record on disk is the queue: a tracker reads on from where it stopped, so nothing is lost by being slow, a run can
be sent at any time afterwards, and sending twice sends nothing twice. How far it has got lies in
`RUN/trackers/NAME.json`, and for logs of other trainers in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nanolens import files
from nanolens.diagnosis import diagnose
from nanolens.diagnosis.words import answer_of
from nanolens.errors import fault
from nanolens.logs.open import open_run
from nanolens.message import Message, msg
from nanolens.record import EVENTS_FILE, is_run, tracker_file
from nanolens.record import events as e
from nanolens.record.progress import notice
from nanolens.record.read import read_run
from nanolens.record.run import RunRecord
from nanolens.record.store import living_process, run_at
from nanolens.record.write import read_run_file
from nanolens.trackers import NAMES, MetricRow, RunEnd, RunInfo, SendState, Tracker, is_installed, not_installed
from nanolens.trackers.libraries import TRACKERS
from nanolens.trackers.rows import Rewound, Translator, rows_of

ROWS_AT_ONCE = 200
FOLLOWED_EVERY_S = 1.0
LONGEST_PAUSE_S = 60.0  # between two tries after a failure
KEPT_EVERY_S = 2.0  # how often the place is written down while rows are going out
STEPS_REMEMBERED = 50
PROJECT = "nanolens"
TENSORBOARD = "tensorboard"  # also the folder of its files
_DECODER = msgspec.json.Decoder(e.EVENTS)
_GOING_BACK = (b'{"event":"run_started"', b'{"event":"rolled_back"')

OnProgress = Callable[[float, float], None]  # (done, of how much)


def _quietly(done: float, whole: float) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class SendResult:
    tracker: str
    rows: int  # steps sent by this call
    step: int  # the last step that the tracker has; -1: none
    look: str  # where to look at it: an address, or a command
    repeated: int = 0  # steps of a resumed or rolled-back run that the tracker already had, and cannot forget
    complaints: tuple[str, ...] = ()


def send(
    target: str,
    to: str,
    *,
    project: str | None = None,
    name: str | None = None,
    again: bool = False,
    config: str | None = None,
    hardware: str | None = None,
    known: Sequence[tuple[str, str]] = (),
    follow: bool = False,
    on_progress: OnProgress = _quietly,
) -> SendResult:
    """`config`, `hardware` and `known` say what a log leaves out."""
    if to not in NAMES:
        raise fault(msg("there is no tracker named {name:code}", to), fix=msg("use one of {choices:code}", NAMES))
    if not is_installed(to):
        raise not_installed(to)
    is_something_else = Path(target).exists() and not is_run(Path(target))
    at = None if is_something_else else run_at(target)
    sender: Sender | LogSender
    if at is not None:
        sender = Sender(at.folder, to, project=project, name=name, again=again)
    else:
        sender = LogSender(open_run(target, config, hardware, known), target, to, project, name, again)
    if sender.has_nothing_new():
        return SendResult(to, 0, sender.notes.sent["step"], sender.notes.sent["look"])
    sender.open()

    def is_over() -> bool:
        return not follow or at is None or sender.has_ended or living_process(at.folder) is None

    return follow_record(sender, is_over, on_progress)


def sent_words(sent: SendResult) -> Iterator[Message]:
    if sent.rows:
        tracker, rows, step = sent.tracker, sent.rows, sent.step
        yield msg("steps sent to {tracker:code}: {rows:count}, up to step {step:count}", tracker, rows, step)
    else:
        yield msg("{tracker:code} is up to date, up to step {step:count}", sent.tracker, sent.step)
    if sent.repeated:
        yield msg("steps recorded twice: {count:count}; {tracker:code} keeps the first", sent.repeated, sent.tracker)
    for complaint in sent.complaints:
        yield msg("{tracker:code} reported: {complaint}", sent.tracker, complaint)
    yield msg("view it with {look:code}", sent.look)


def follow_record(
    sender: Sender | LogSender, is_over: Callable[[], bool], on_progress: OnProgress = _quietly, retry: bool = False
) -> SendResult:
    """Sends what the record has and what it gains, until nothing more will be written. `retry`: a tracker that fails is
    tried again, less and less often, as long as the run goes on."""
    failures = 0
    while True:
        is_last = is_over()  # asked before reading: what was written last is then read as well
        pause_s = FOLLOWED_EVERY_S
        try:
            sender.pump(on_progress)
            if failures:
                failures = 0
                sender.notes.write({"because": ""})
            if is_last or sender.has_ended:
                return sender.finish()
        except Exception as error:
            if not retry:
                raise
            failures += 1
            sender.notes.write({"because": reason_of(error), "failures": failures})
            if is_last:
                raise
            traceback.print_exc()
            pause_s = min(FOLLOWED_EVERY_S * 2**failures, LONGEST_PAUSE_S)
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s and not is_over():
            time.sleep(FOLLOWED_EVERY_S / 4)


def reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]


class Notes:
    """What is known of one run at one tracker, on disk; nothing `again` where it is to begin anew."""

    def __init__(self, path: Path, again: bool = False):
        self.path = path
        self.sent: SendState = {}
        self._written_at_s = 0.0
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            if not again:
                self.sent = msgspec.json.decode(path.read_bytes(), type=SendState, strict=False)

    def write(self, facts: SendState, at_once: bool = True) -> None:
        self.sent.update(facts)
        if at_once or time.monotonic() - self._written_at_s >= KEPT_EVERY_S:
            files.write_whole(self.path, json.dumps(self.sent, indent=1))
            self._written_at_s = time.monotonic()


class _AnySender:
    """Rows on their way to a tracker: each step once, in order, and a note of how far it got."""

    def __init__(self, about: RunInfo, to: str, notes: Path, again: bool):
        # TensorBoard's files lie with the user, who may throw them away; then there is nothing to go on with.
        was_deleted = to == TENSORBOARD and not any(about.folder.glob("events.out.tfevents.*"))
        self.about, self.to, self.notes = about, to, Notes(notes, again or was_deleted)
        self.tracker: Tracker = TRACKERS[to]()
        self.batch: list[MetricRow] = []
        self.sent_rows = self.repeated = 0
        self.have = -1

    def open(self) -> None:
        found = self.tracker.open(self.about, self.notes.sent)
        self.have = max(self.notes.sent.get("step", -1), found.pop("step", -1))
        self.notes.write({"tracker": self.to, "project": self.about.project, "name": self.about.name})
        self.notes.write({**found, "look": self.tracker.look(), "is_closed": False})

    def _pieces(self) -> Iterator[tuple[Sequence[MetricRow | Rewound], int, int]]:
        """What there is to send, with how much of how much that is."""
        raise NotImplementedError

    def _place(self) -> SendState:
        """How far the source was read, where that has to be noted."""
        return {}

    def pump(self, on_progress: OnProgress = _quietly) -> None:
        """Everything that there is by now, but for the last step of a run that goes on, of which more may come."""
        self._flush()  # what an earlier call could not get rid of
        whole = 0
        for items, done, whole in self._pieces():
            for item in items:
                if isinstance(item, Rewound):
                    self._rewind(item.step)
                else:
                    self.put(item)
            if len(self.batch) >= ROWS_AT_ONCE:
                self._flush()
                on_progress(done, whole)
        self._flush()
        on_progress(whole, whole)

    def put(self, row: MetricRow) -> None:
        last = self.batch[-1] if self.batch else None
        if last is not None and row.step == last.step:  # more about a step that a later attempt began from
            self.batch[-1] = replace(last, values={**row.values, **last.values}, texts={**row.texts, **last.texts})
            return
        known = self.notes.sent.get("names", {}).get(str(row.step), ())
        values = {name: value for name, value in row.values.items() if name not in known}
        texts = {name: text for name, text in row.texts.items() if name not in known}
        if row.step < (self.have if last is None else last.step) or not (values or texts):
            self.repeated += 1
        else:
            self.batch.append(replace(row, values=values, texts=texts))

    def _rewind(self, step: int) -> None:
        if step >= (self.batch[-1].step if self.batch else self.have):
            return
        self._flush()
        if self.tracker.can_rewind:
            self.tracker.rewind(step)
            self.have = step
            names = self.notes.sent.get("names", {})
            self.notes.sent["names"] = {key: sent for key, sent in names.items() if int(key) <= step}

    def _flush(self) -> None:
        """Raises what the tracker raises; the rows stay then, and go out with the next call."""
        if not self.batch:
            return
        self.tracker.add(self.batch)
        self.have = self.batch[-1].step
        self.sent_rows += len(self.batch)
        self.notes.write({**self._place(), "step": self.have, "names": self._names()}, at_once=False)
        self.batch.clear()

    def _names(self) -> dict[str, list[str]]:
        """What was sent of the last steps that a later attempt may begin from: those evaluated, and the very last."""
        names = dict(self.notes.sent.get("names", {}))
        for row in self.batch:
            if row is self.batch[-1] or "val/loss" in row.values:
                names[str(row.step)] = sorted({*names.get(str(row.step), ()), *row.values, *row.texts})
        return dict(list(names.items())[-STEPS_REMEMBERED:])

    def close(self, ending: RunEnd) -> SendResult:
        self._flush()
        look = self.tracker.look()
        self.notes.write({**self._place(), "step": self.have, "look": look})  # it may never come back from closing
        self.tracker.close(replace(ending, step=max(0, self.have)))
        complaints = tuple(self.tracker.complaints)
        self.notes.write({"is_closed": True, "state": ending.state, "complaints": complaints})
        return SendResult(self.to, self.sent_rows, self.have, look, self.repeated, complaints)


class Sender(_AnySender):
    """One run folder to one tracker, as far as the record goes now; `pump` may be called again while it grows."""

    def __init__(
        self, folder: Path, to: str, *, project: str | None = None, name: str | None = None, again: bool = False
    ):
        self.folder, facts = folder, read_run_file(folder)
        super().__init__(about_run(folder, facts, to, project, name), to, tracker_file(folder, to), again)
        self.offset = self.notes.sent.get("offset", 0)
        sizes, machine = facts.get("sizes") or {}, facts.get("machine") or {}
        self.translator = Translator(sizes.get("flops_per_token"), machine.get("peak_flops"), notice)

    def _pieces(self) -> Iterator[tuple[Sequence[MetricRow | Rewound], int, int]]:
        restarts = [
            (at, event.to_step if isinstance(event, e.RolledBack) else event.step)
            for at, _, event in _events(self.folder, self.offset, _GOING_BACK)
        ]
        size = _size(self.folder)
        for at, end, event in _events(self.folder, self.offset):
            is_undone = any(at < place and step < getattr(event, "step", -1) for place, step in restarts)
            self.offset = end
            if not is_undone or isinstance(event, e.RunStarted | e.RunEnded):
                yield list(self.translator.take(event, at)), end, size

    def _place(self) -> SendState:
        return {"offset": self.translator.safe_offset(self.offset)}

    def has_nothing_new(self) -> bool:
        sent = self.notes.sent
        is_all = sent.get("is_closed") and sent.get("offset") == _size(self.folder)
        return bool(is_all) and sent.get("state", "running") != "running"

    @property
    def has_ended(self) -> bool:
        return self.translator.ended is not None

    def finish(self) -> SendResult:
        """Tells the tracker how the run ended, or that it still goes on."""
        run = read_run(self.folder)
        if run.get("state") == "running":
            return self.close(RunEnd({}, state="running"))
        for row in self.translator.rest():
            self.put(row)
        return self.close(ending_of(run))


class LogSender(_AnySender):
    """The log of another trainer, by its columns."""

    has_ended = True

    def __init__(self, run: RunRecord, target: str, to: str, project: str | None, name: str | None, again: bool):
        if not len(run.steps) and not len(run.evals):
            raise fault(msg("{target:code} has no steps to send", target), fix=msg("give a run or its log"))
        self.run, self.rows = run, list(rows_of(run))
        name = name or run.name
        about = RunInfo(
            name=name,
            project=project or PROJECT,
            folder=Path(TENSORBOARD) / name if to == TENSORBOARD else Path("."),
            config={key: known.value for key, known in run.known.items()},
            started_at_s=self.rows[0].at_s,
        )
        # One log at one tracker. Another run in the same file, known by its first row, is another place.
        first = self.rows[0].step, sorted(self.rows[0].values.items())
        which = json.dumps([str(Path(target).resolve()), to, about.project, name, *first]).encode()
        notes = files.cache_folder() / "sent" / f"{hashlib.sha256(which).hexdigest()[:32]}.json"
        super().__init__(about, to, notes, again)

    def has_nothing_new(self) -> bool:
        sent = self.notes.sent
        return bool(sent.get("is_closed")) and sent.get("step") == self.rows[-1].step

    def _pieces(self) -> Iterator[tuple[Sequence[MetricRow | Rewound], int, int]]:
        for number, row in enumerate(self.rows, 1):
            yield [row] if row.step > self.have else [], number, len(self.rows)

    def finish(self) -> SendResult:
        return self.close(ending_of(self.run))


def about_run(folder: Path, facts: Mapping[str, Any], to: str, project: str | None, name: str | None) -> RunInfo:
    """What a tracker gets to know of a run of ours: its settings, and `machine/hardware` and the like beside them."""
    config, data = facts.get("config") or {}, facts.get("data") or {}
    data = {key: value for key, value in {**data, **(data.get("facts") or {})}.items() if not isinstance(value, dict)}
    shown = dict(config)
    for part, known in {**{part: facts.get(part) for part in ("machine", "sizes", "versions")}, "data": data}.items():
        shown |= {f"{part}/{key}": value for key, value in (known or {}).items()}
    return RunInfo(
        name=name or config.get("wandb_run_name") or folder.resolve().name,
        project=project or config.get("wandb_project") or PROJECT,
        config=shown,
        folder=folder / TENSORBOARD if to == TENSORBOARD else folder,
        started_at_s=float(facts.get("created_at_s") or math.nan),
    )


def ending_of(run: RunRecord) -> RunEnd:
    """What is to be said of a run that has ended: its best evaluation, where its time went, and the diagnosis."""
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
    return RunEnd(summary, {"findings": answer_of(diagnosis).markdown()}, "failed" if state == "gone" else state)


def _events(folder: Path, offset: int, beginnings: tuple[bytes, ...] = (b"",)) -> Iterator[tuple[int, int, Any]]:
    """(place, place behind it, event) of each whole line that begins so; a torn or unknown one is passed over."""
    with contextlib.suppress(FileNotFoundError), open(folder / EVENTS_FILE, "rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return  # torn, or still being written
            at, offset = offset, offset + len(line)
            if line.startswith(beginnings):
                with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                    yield at, offset, _DECODER.decode(line)


def _size(folder: Path) -> int:
    path = folder / EVENTS_FILE
    return path.stat().st_size if path.is_file() else 0
