"""Events, added up into what a view shows: where a run is, how fast, where its time went. Sums only, no judgement."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nanolens.errors import UserError
from nanolens.message import Message, msg, revived
from nanolens.record import events as e
from nanolens.record.read import best_and_warnings, events_since, known_facts, last_events, logged_numbers
from nanolens.record.run import number_of
from nanolens.record.store import find_runs, live_state, state_of
from nanolens.record.write import read_run_file

RECENT_UPDATES = 50  # speed "now" is that of this many updates: long enough to be still, short enough to show a change
PROCESS_LOOKED_AT_EVERY_S = 2.0
CURVE_POINTS = 600  # losses kept for drawing; beyond it neighbours are averaged, so a run of any length fits


@dataclass(frozen=True)
class RunHeader:
    """What does not change during a run, as far as it is known."""

    name: str
    max_iters: int | None = None
    eval_interval: int | None = None
    parameters: float | None = None
    arch: str = ""
    device: str = ""
    dtype: str = ""
    dataset: str = ""
    flops_per_token: float | None = None
    peak_flops: float | None = None
    peak_origin: str = ""
    tokens_per_update: int | None = None


def about_run(name: str, known: Mapping[str, object]) -> RunHeader:
    """From the facts of a run, under the names of `Run.known`."""
    numbers = {key: number_of(value) for key, value in known.items()}
    counts = {key: int(number) for key, number in numbers.items() if number is not None and math.isfinite(number)}
    texts = defaultdict(str, {key: str(value or "") for key, value in known.items()})
    peak = numbers.get("peak_flops")
    return RunHeader(
        name=name,
        max_iters=counts.get("max_iters"),
        eval_interval=counts.get("eval_interval"),
        parameters=numbers.get("parameters_total"),
        arch=texts["arch"],
        device=texts["device"],
        dtype=texts["dtype"],
        dataset=texts["dataset"],
        flops_per_token=numbers.get("flops_per_token"),
        peak_flops=None if peak is None else peak * (numbers.get("devices") or 1),  # of all devices
        peak_origin=texts["peak_origin"],
        tokens_per_update=counts.get("tokens_per_update"),
    )


@dataclass(frozen=True)
class EvalPoint:
    step: int
    train: float = math.nan
    val: float = math.nan
    val_se: float = math.nan
    bits_per_byte: float = math.nan
    is_best: bool = False


@dataclass
class Progress:
    about: RunHeader
    learn: Callable[[], RunHeader] | None = None  # asked when an attempt starts: its record is complete only then
    state: str = "starting"  # starting, running, finished, stopped, failed
    because: Message | str = ""
    step: int = 0
    started_at_s: float = math.nan  # of this attempt
    last_at_s: float = math.nan
    ended_after_s: float = math.nan  # the loop's own clock, which started before the first event
    loss: float = math.nan
    lr: float = math.nan
    curve: LossCurve = field(default_factory=lambda: LossCurve())
    evals: list[EvalPoint] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(e.PARTS, 0.0))
    checks: list[e.CheckPassed] = field(default_factory=list)
    chosen: list[e.Chosen] = field(default_factory=list)
    first_sample: e.SampleWritten | None = None
    sample: e.SampleWritten | None = None
    tokens: int = 0  # of this attempt
    saved_step: int | None = None
    notices: list[tuple[int, Message]] = field(default_factory=list)
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT_UPDATES))
    interruption_s: float = 0.0  # what the last evaluation cost, with its sample and its save
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def take(self, event: e.Event) -> None:
        if event.rank:
            return
        with self.lock:
            if event.at_s:
                self.last_at_s = event.at_s
            _add(self, event)

    def copy(self) -> Progress:
        """As it stands now, for a view that draws it in another thread than the one that takes the events."""
        with self.lock:
            twin = copy.copy(self)
            for name in ("evals", "parts", "checks", "chosen", "notices", "recent"):
                setattr(twin, name, copy.copy(getattr(self, name)))
            twin.curve = replace(self.curve, stretches=list(self.curve.stretches))
        return twin

    @property
    def best(self) -> EvalPoint | None:
        return min((it for it in self.evals if math.isfinite(it.val)), key=lambda it: it.val, default=None)

    @property
    def tokens_per_s(self) -> float:
        tokens, seconds = sum(count for count, _ in self.recent), sum(took for _, took in self.recent)
        return tokens / seconds if tokens and seconds else math.nan

    @property
    def update_s(self) -> float:
        return sum(took for _, took in self.recent) / len(self.recent) if self.recent else math.nan

    @property
    def mfu_frac(self) -> float:
        if not self.about.flops_per_token or not self.about.peak_flops:
            return math.nan
        return self.tokens_per_s * self.about.flops_per_token / self.about.peak_flops

    def left_s(self) -> float:
        """Updates still to do at the present speed, with the evaluations among them at the cost of the last one."""
        if self.about.max_iters is None or not self.recent:
            return math.nan
        updates = max(0, self.about.max_iters - self.step)
        evaluations = updates / self.about.eval_interval if self.about.eval_interval else 0.0
        return updates * self.update_s + evaluations * self.interruption_s

    def wall_s(self, now_s: float) -> float:
        if math.isfinite(self.ended_after_s):
            return self.ended_after_s
        end = now_s if self.state in ("starting", "running", "silent") else self.last_at_s
        return max(0.0, end - self.started_at_s) if math.isfinite(self.started_at_s) else 0.0

    def time_parts(self, now_s: float) -> dict[str, float]:
        """Seconds by part. While the run goes on, `other` is what no event has claimed yet."""
        if self.parts["other"]:
            return self.parts
        return {**self.parts, "other": max(0.0, self.wall_s(now_s) - sum(self.parts.values()))}


@dataclass
class LossCurve:
    """Mean losses of equally long stretches of steps, at most CURVE_POINTS of them."""

    stride: int = 1
    stretches: list[tuple[int, float, int]] = field(default_factory=list)  # last step, sum of losses, number of losses

    def add(self, step: int, loss: float) -> None:
        while self.stretches and self.stretches[-1][0] >= step:  # rolled back, or resumed from before
            self.stretches.pop()
        if not math.isfinite(loss):
            return
        self._append(step, loss, 1)
        if len(self.stretches) > CURVE_POINTS:
            self.stride *= 2
            shorter, self.stretches = self.stretches, []
            for stretch in shorter:
                self._append(*stretch)

    def _append(self, step: int, total: float, count: int) -> None:
        if self.stretches and (step - 1) // self.stride == (self.stretches[-1][0] - 1) // self.stride:
            _, total_before, count_before = self.stretches.pop()
            total, count = total_before + total, count_before + count
        self.stretches.append((step, total, count))

    @property
    def steps(self) -> list[int]:
        return [step for step, _, _ in self.stretches]

    @property
    def losses(self) -> list[float]:
        return [total / count for _, total, count in self.stretches]


def _add(it: Progress, event: e.Event) -> None:
    match event:
        case e.StepTaken():
            it.step, it.loss, it.lr = event.step, float(event.loss), event.lr
            it.curve.add(event.step, it.loss)
            it.tokens += event.tokens
            it.recent.append((event.tokens, event.took_s))
            it.parts["data"] += event.data_s
            it.parts["train"] += event.took_s - event.data_s
        case e.Logged():
            _add_logged(it, event)
        case e.Evaluated():
            _add_evaluation(it, event)
        case e.CheckpointSaved():
            it.saved_step = event.step
            it.parts["checkpoint"] += event.stall_s
            it.interruption_s += event.stall_s
        case e.SampleWritten():
            it.sample = event
            it.first_sample = it.first_sample or event
            it.parts["sample"] += event.took_s
            it.interruption_s += event.took_s
        case e.Compiled():
            it.parts["compile"] += event.took_s
        case e.CheckPassed():
            it.checks.append(event)
        case e.Chosen():
            it.chosen.append(event)
        case e.RunStarted():
            _start(it, event)
        case e.RunEnded():
            _end(it, event)
        case e.RolledBack():
            _note(it, event)
            it.step = event.to_step
            it.evals = [row for row in it.evals if row.step <= event.to_step]
        case _:
            _note(it, event)


def _note(it: Progress, event: e.Event) -> None:
    if (said := notice(event)) is not None:
        it.notices.append((getattr(event, "step", it.step), said))


def _start(it: Progress, event: e.RunStarted) -> None:
    if it.learn is not None:
        it.about = it.learn()
    it.state, it.because = "running", ""
    it.step, it.tokens = event.step, 0
    it.started_at_s, it.ended_after_s = event.at_s, math.nan
    it.parts = dict.fromkeys(e.PARTS, 0.0)
    it.recent.clear()
    it.evals = [row for row in it.evals if row.step <= event.step]


def _end(it: Progress, event: e.RunEnded) -> None:
    it.state, it.because, it.step = event.why, reason(event), event.step
    it.ended_after_s = event.wall_s or math.nan
    if event.parts:
        it.parts = {**dict.fromkeys(e.PARTS, 0.0), **event.parts}
    if event.events_lost:
        lost = msg("{count:count event|events} could not be written: {because}", event.events_lost, event.lost_because)
        it.notices.append((event.step, lost))


def _add_evaluation(it: Progress, event: e.Evaluated) -> None:
    it.evals = [row for row in it.evals if row.step <= event.step]
    if not it.evals or it.evals[-1].step != event.step:
        it.evals.append(EvalPoint(event.step))
        it.interruption_s = 0.0
    row, loss, error = it.evals[-1], float(event.loss), float(event.standard_error)
    if event.split == "val":
        bits = math.nan if event.bits_per_byte is None else float(event.bits_per_byte)
        it.evals[-1] = replace(row, val=loss, val_se=error, bits_per_byte=bits, is_best=event.is_best)
    else:
        it.evals[-1] = replace(row, train=loss)
    it.parts["eval"] += event.took_s
    it.interruption_s += event.took_s


def _add_logged(it: Progress, event: e.Logged) -> None:
    """From a loop that is not ours."""
    it.step = event.step
    said = logged_numbers(event)
    if "loss" in said:
        it.loss = said["loss"] if math.isfinite(said["loss"]) else math.nan
        it.curve.add(event.step, it.loss)
    if math.isfinite(said.get("lr", math.nan)):
        it.lr = said["lr"]
    took_s = said.get("took_s", 0.0)
    if 0 < took_s < math.inf:
        tokens = int(said.get("tokens", it.about.tokens_per_update or 0))
        it.tokens += tokens
        it.recent.append((tokens, took_s))
        it.parts["train"] += took_s


def reason(event: e.Chosen | e.CheckpointRefused | e.RolledBack | e.RunEnded) -> Message | str:
    """Why, as a sentence that can be translated where the record has it."""
    return event.because if event.words is None else revived(event.words)  # type: ignore[return-value]


def notice(event: e.Event) -> Message | None:
    """What a person should know at once, in words; None for everything that is as it should be."""
    match event:
        case e.Warned(code=code):
            claim = event.claim if event.words is None else revived(event.words)
            return msg("{claim} ({code:code})", claim, code)
        case e.CheckpointFailed(step=step, because=because):
            return msg("the checkpoint at step {step:count} could not be saved: {because}", step, because)
        case e.CheckpointRefused(folder=folder):
            return msg("damaged checkpoint {folder:code} skipped: {because}", folder, reason(event))
        case e.StepSkipped(step=step, because=what, layer=""):
            return msg("the update after step {step:count} was skipped: its {what} was not finite", step, what)
        case e.StepSkipped(step=step, because=what, layer=layer):
            return msg(
                "the update after step {step:count} was skipped: its {what} was not finite, first in {layer:code}",
                step,
                what,
                layer,
            )
        case e.RolledBack(from_step=old, to_step=new):
            return msg("rolled back from step {old:count} to {new:count}: {because}", old, new, reason(event))
        case e.MicroBatchHalved(old=old, new=new):
            return msg("out of memory: micro-batch {old:count} -> {new:count}, tokens per update unchanged", old, new)
        case e.ConfigChanged(key=key, old=was, new=now):
            return msg("{key:code} changed from {old:code} to {new:code}", key, was, now)
        case e.RankDrifted(step=step, ranks=ranks):
            return msg("ranks {ranks:code} no longer have the same weights at step {step:count}", ranks, step)
        case _:
            return None


class Watching:
    """A run seen from outside: a Progress that is brought up to date from its folder whenever it is asked."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.progress = Progress(about_folder(folder), learn=lambda: about_folder(folder))
        self._offset = 0
        self._looked_at_s = -PROCESS_LOOKED_AT_EVERY_S
        self._state = "running"

    def catch_up(self) -> list[e.Event]:
        """The events since the last call, already taken into `progress`."""
        fresh, self._offset = events_since(self.folder, self._offset)
        for event in fresh:
            self.progress.take(event)
        return fresh

    def state(self) -> str:
        """What a look at the process adds to what the record says: `gone` without a word, or `silent`."""
        it = self.progress
        if it.state not in ("starting", "running"):
            return it.state
        now_s = time.monotonic()
        if now_s - self._looked_at_s >= PROCESS_LOOKED_AT_EVERY_S:
            self._looked_at_s = now_s
            self._state = live_state(self.folder, it.last_at_s, it.update_s)
        return it.state if self._state == "running" else self._state

    @property
    def is_over(self) -> bool:
        return self.state() in ("finished", "stopped", "failed", "gone")


def about_folder(folder: Path) -> RunHeader:
    return about_run(folder.name, _facts(folder))


def _facts(folder: Path) -> dict[str, object]:
    return {name: fact.value for name, fact in known_facts(read_run_file(folder)).items()}


@dataclass(frozen=True)
class Glance:
    """What the last events of a run say: a long run costs no more to look at than a short one."""

    folder: Path
    state: str  # running, finished, stopped, failed, gone (died without a word), or unreadable
    step: int = 0
    max_iters: int | None = None
    loss: float = math.nan  # batch loss of the last step in the record
    val: float = math.nan  # the last evaluation among the last events
    best_val: float = math.nan  # of the whole run
    warnings: int = 0  # of the whole run
    tokens_per_s: float = math.nan
    created_at_s: float = math.nan
    changed_at_s: float = math.nan

    @property
    def bytes(self) -> int:
        """Of the whole folder, checkpoints and all; looked for each time."""
        total = 0
        for parent, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(OSError):  # deleted while we were looking: a checkpoint that was replaced
                    total += os.lstat(os.path.join(parent, name)).st_size
        return total


def glances(root: Path | None = None) -> list[Glance]:
    """A look at each of `find_runs`, those that cannot be read first."""
    return sorted(map(glance, find_runs(root)), key=lambda seen: seen.state != "unreadable")


def glance(folder: Path) -> Glance:
    try:
        facts = _facts(folder)
    except UserError:
        return Glance(folder, "unreadable")
    it = Progress(about_run(folder.name, facts))
    events, changed_at_s = last_events(folder)
    for event in events:
        it.take(event)
    vals = [float(x.loss) for x in events if isinstance(x, e.Evaluated) and x.split == "val" and not x.rank]
    tokens, took_s = it.recent[-1] if it.recent else (0, 0.0)
    tokens_per_s = tokens / took_s if took_s > 0 else math.nan
    best_val, warnings = best_and_warnings(folder)
    return Glance(
        folder,
        state_of(folder, events),
        step=it.step,
        max_iters=it.about.max_iters,
        loss=it.loss,
        val=vals[-1] if vals else math.nan,
        best_val=best_val,
        warnings=warnings,
        tokens_per_s=tokens_per_s,
        created_at_s=number_of(facts.get("created_at_s")) or math.nan,
        changed_at_s=changed_at_s,
    )
