"""Events, added up into what a view shows: where a run is, how fast, where its time went. Sums only; what they mean is for `analysis`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nanolens.message import Message, msg
from nanolens.record import events as e

RECENT_UPDATES = 50  # speed "now" is that of this many updates: long enough to be still, short enough to show a change
CURVE_POINTS = 600  # losses kept for drawing; beyond it neighbours are averaged, so a run of any length fits


@dataclass(frozen=True)
class About:
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


def about_run(name: str, known: Mapping[str, object]) -> About:
    """From the facts of a run, under the names of `Run.known`."""
    return About(
        name=name,
        max_iters=_whole(known.get("max_iters")),
        eval_interval=_whole(known.get("eval_interval")),
        parameters=_number(known.get("parameters_total")),
        arch=str(known.get("arch") or ""),
        device=str(known.get("device") or ""),
        dtype=str(known.get("dtype") or ""),
        dataset=str(known.get("dataset") or ""),
        flops_per_token=_number(known.get("flops_per_token")),
        peak_flops=_times(_number(known.get("peak_flops")), _number(known.get("devices"))),
        peak_origin=str(known.get("peak_origin") or ""),
        tokens_per_update=_whole(known.get("tokens_per_update")),
    )


@dataclass(frozen=True)
class Evaluation:
    step: int
    train: float = math.nan
    val: float = math.nan
    val_se: float = math.nan
    bits_per_byte: float = math.nan
    is_best: bool = False


@dataclass
class Progress:
    about: About
    learn: Callable[[], About] | None = None  # asked when a run (or an attempt) starts, since its record is complete only then
    state: str = "starting"  # starting, running, finished, stopped, failed
    because: str = ""
    step: int = 0
    started_at_s: float = math.nan  # of this attempt
    last_at_s: float = math.nan
    ended_after_s: float = math.nan  # the loop's own clock, which started before the first event
    loss: float = math.nan
    rate: float = math.nan
    pid: int = 0
    curve: Curve = field(default_factory=lambda: Curve())
    evals: list[Evaluation] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(e.PARTS, 0.0))
    checks: list[e.CheckPassed] = field(default_factory=list)
    chosen: list[e.Chosen] = field(default_factory=list)
    first_sample: e.SampleWritten | None = None
    sample: e.SampleWritten | None = None
    tokens: int = 0  # of this attempt
    first_step: int = 0
    saved_step: int | None = None
    notices: list[tuple[int, Message]] = field(default_factory=list)
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RECENT_UPDATES))
    interruption_s: float = 0.0  # what the last evaluation cost, with its sample and its save

    def take(self, event: e.Event) -> None:
        if event.rank:
            return
        if event.at_s:
            self.last_at_s = event.at_s
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    @property
    def best(self) -> Evaluation | None:
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


class Curve:
    """Mean losses of equally long stretches of steps, at most CURVE_POINTS of them."""

    def __init__(self) -> None:
        self.stride = 1
        self.steps: list[int] = []  # last step of each stretch
        self.sums: list[float] = []
        self.counts: list[int] = []

    def add(self, step: int, loss: float) -> None:
        while self.steps and self.steps[-1] >= step:  # rolled back, or resumed from before
            for column in (self.steps, self.sums, self.counts):
                column.pop()
        if not math.isfinite(loss):
            return
        if self.steps and (step - 1) // self.stride == (self.steps[-1] - 1) // self.stride:
            self.steps[-1] = step
            self.sums[-1] += loss
            self.counts[-1] += 1
            return
        self.steps.append(step)
        self.sums.append(loss)
        self.counts.append(1)
        if len(self.steps) > CURVE_POINTS:
            self._halve()

    @property
    def losses(self) -> list[float]:
        return [total / count for total, count in zip(self.sums, self.counts, strict=True)]

    def _halve(self) -> None:
        self.stride *= 2
        steps, sums, counts = self.steps, self.sums, self.counts
        self.steps, self.sums, self.counts = [], [], []
        for step, total, count in zip(steps, sums, counts, strict=True):
            if self.steps and (step - 1) // self.stride == (self.steps[-1] - 1) // self.stride:
                self.steps[-1] = step
                self.sums[-1] += total
                self.counts[-1] += count
            else:
                self.steps.append(step)
                self.sums.append(total)
                self.counts.append(count)


def _run_started(it: Progress, event: e.RunStarted) -> None:
    if it.learn is not None:
        it.about = it.learn()
    it.state, it.because = "running", ""
    it.step, it.first_step, it.pid, it.tokens = event.step, event.step, event.pid, 0
    it.started_at_s, it.ended_after_s = event.at_s, math.nan
    it.parts = dict.fromkeys(e.PARTS, 0.0)
    it.recent.clear()
    it.evals = [row for row in it.evals if row.step <= event.step]


def _step_taken(it: Progress, event: e.StepTaken) -> None:
    it.step, it.loss, it.rate = event.step, float(event.loss), event.rate
    it.curve.add(event.step, it.loss)
    it.tokens += event.tokens
    it.recent.append((event.tokens, event.took_s))
    it.parts["data"] += event.data_s
    it.parts["train"] += event.took_s - event.data_s


def _evaluated(it: Progress, event: e.Evaluated) -> None:
    it.evals = [row for row in it.evals if row.step <= event.step]
    last = it.evals[-1] if it.evals and it.evals[-1].step == event.step else None
    if last is None:
        last = Evaluation(event.step)
        it.evals.append(last)
        it.interruption_s = 0.0
    if event.split == "val":
        bits = math.nan if event.bits_per_byte is None else float(event.bits_per_byte)
        row = replace(last, val=float(event.loss), val_se=float(event.standard_error), bits_per_byte=bits, is_best=event.is_best)
    else:
        row = replace(last, train=float(event.loss))
    it.evals[-1] = row
    it.parts["eval"] += event.took_s
    it.interruption_s += event.took_s


def _checkpoint_saved(it: Progress, event: e.CheckpointSaved) -> None:
    it.saved_step = event.step
    it.parts["checkpoint"] += event.stall_s
    it.interruption_s += event.stall_s


def _logged(it: Progress, event: e.Logged) -> None:
    """From a loop that is not ours: what it told, under the names that such loops use."""
    it.step = event.step
    said = {name: number for name, value in event.values.items() if (number := _finite(value)) is not None}
    for name in ("loss", "train_loss", "train/loss"):
        if name in event.values:
            it.loss = said.get(name, math.nan)
            it.curve.add(event.step, it.loss)
            break
    it.rate = next((said[name] for name in ("lr", "rate", "learning_rate") if name in said), it.rate)
    if said.get("took_s", 0.0) > 0:
        tokens = int(said.get("tokens", it.about.tokens_per_update or 0))
        it.tokens += tokens
        it.recent.append((tokens, said["took_s"]))
        it.parts["train"] += said["took_s"]


def _compiled(it: Progress, event: e.Compiled) -> None:
    it.parts["compile"] += event.took_s


def _sample_written(it: Progress, event: e.SampleWritten) -> None:
    it.sample = event
    it.first_sample = it.first_sample or event
    it.parts["sample"] += event.took_s
    it.interruption_s += event.took_s


def _run_ended(it: Progress, event: e.RunEnded) -> None:
    it.state, it.because, it.step = event.why, event.because, event.step
    it.ended_after_s = event.wall_s or math.nan
    if event.parts:
        it.parts = {**dict.fromkeys(e.PARTS, 0.0), **event.parts}
    if event.events_lost:
        lost = msg("{count:count} events could not be written: {because}", count=event.events_lost, because=event.lost_because)
        it.notices.append((event.step, lost))


def notice(event: e.Event) -> Message | None:
    """What a person should be told of at once, in words; None for everything that is as it should be."""
    match event:
        case e.Warned():
            return msg("{claim} ({code:code})", claim=event.claim, code=event.code)
        case e.CheckpointFailed():
            return msg("the checkpoint of step {step:count} could not be saved: {because}", step=event.step, because=event.because)
        case e.CheckpointRefused():
            return msg("the damaged checkpoint {folder:code} was passed over: {because}", folder=event.folder, because=event.because)
        case e.StepSkipped() if event.layer:
            return msg(
                "the update after step {step:count} was skipped: its {what} was not finite, first in {layer:code}",
                step=event.step, what=event.because, layer=event.layer,
            )  # fmt: skip
        case e.StepSkipped():
            return msg("the update after step {step:count} was skipped: its {what} was not finite", step=event.step, what=event.because)
        case e.RolledBack():
            return msg(
                "went back from step {old:count} to {new:count}: {because}", old=event.from_step, new=event.to_step, because=event.because
            )
        case e.MicroBatchHalved():
            return msg("out of memory: micro-batch {old:count} -> {new:count}, tokens per update unchanged", old=event.old, new=event.new)
        case e.ConfigChanged():
            return msg("{key:code} was {old:code} and is now {new:code}", key=event.key, old=event.old, new=event.new)
        case e.RankDrifted():
            return msg("ranks {ranks:code} no longer hold the same weights at step {step:count}", ranks=event.ranks, step=event.step)
        case _:
            return None


def _noticed(it: Progress, event: e.Event) -> None:
    said = notice(event)
    if said is not None:
        it.notices.append((getattr(event, "step", it.step), said))
    if isinstance(event, e.RolledBack):
        it.step = event.to_step
        it.evals = [row for row in it.evals if row.step <= event.to_step]


_HANDLERS: dict[type, Callable[[Progress, Any], None]] = {
    e.RunStarted: _run_started,
    e.StepTaken: _step_taken,
    e.Evaluated: _evaluated,
    e.CheckpointSaved: _checkpoint_saved,
    e.Compiled: _compiled,
    e.Logged: _logged,
    e.SampleWritten: _sample_written,
    e.RunEnded: _run_ended,
    e.CheckPassed: lambda it, event: it.checks.append(event),
    e.Chosen: lambda it, event: it.chosen.append(event),
    **dict.fromkeys(
        (
            e.Warned,
            e.CheckpointFailed,
            e.CheckpointRefused,
            e.StepSkipped,
            e.RolledBack,
            e.MicroBatchHalved,
            e.ConfigChanged,
            e.RankDrifted,
        ),
        _noticed,
    ),
}


def _times(each: float | None, count: float | None) -> float | None:
    """The peak of all devices of a run."""
    return each if each is None or not count else each * count


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _finite(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
