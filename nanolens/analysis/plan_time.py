"""How long a run would take: each part of its time, the whole, and what it would cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nanolens.analysis.plan_rows import Row, Source, estimated, unknown
from nanolens.config.fields import Config
from nanolens.message import Message, msg
from nanolens.planning.figures import MachineFacts
from nanolens.planning.memory import checkpoint_bytes
from nanolens.sizing import Shape, flops_per_token
from nanolens.sizing.power import board_watts
from nanolens.sizing.roofline import update_time

START_S = {"gpu": (15.0, 90.0), "apple": (5.0, 20.0), "cpu": (3.0, 15.0)}
"""Libraries, the first batch, and on a GPU torch.compile, where nothing was measured."""
WRITE_BYTES_PER_S = 0.5e9  # an ordinary SSD


@dataclass(frozen=True)
class Span:
    """Seconds: expected, and the range."""

    s: float
    low_s: float
    high_s: float
    source: Source
    origin: Message

    def times(self, count: float) -> Span:
        return Span(self.s * count, self.low_s * count, self.high_s * count, self.source, self.origin)


@dataclass(frozen=True)
class TimePlan:
    update: Span
    start: Span
    train: Span
    evaluation: Span
    sample: Span
    checkpoint: Span
    end: Span
    total: Span
    evaluations: int
    checkpoints: int


def time_plan(config: Config, shape: Shape, machine: MachineFacts) -> TimePlan | Message:
    """The times, or why they cannot be said."""
    update = update_span(config, shape, machine)
    if isinstance(update, Message):
        return update
    updates = 0 if config.eval_only else config.max_iters
    evaluations = 1 if config.eval_only else updates // config.eval_interval + 1 + (updates % config.eval_interval > 0)
    interval = config.checkpoint_interval or config.eval_interval
    checkpoints = 0 if config.eval_only else updates // interval + (updates % interval > 0)
    evaluation = _evaluation(config, machine, update).times(evaluations)
    checkpoint = _checkpoint(shape, machine).times(checkpoints)
    train = update.times(updates)
    start, sample, end = _start(machine), _samples(config, machine, evaluations), _end(shape, machine)
    parts = (start, train, evaluation, sample, checkpoint, end)
    total = Span(
        sum(part.s for part in parts), sum(part.low_s for part in parts), sum(part.high_s for part in parts), update.source, update.origin
    )
    return TimePlan(update, start, train, evaluation, sample, checkpoint, end, total, evaluations, checkpoints)


def update_span(config: Config, shape: Shape, machine: MachineFacts) -> Span | Message:
    measured = machine.calibration
    if measured is not None:
        s = measured.update_s(config.batch_size, config.gradient_accumulation_steps)
        margin = max(0.05, 2 * measured.scatter)
        layers = measured.layers_timed
        origin = msg("{seconds:seconds} of this model on this machine", seconds=measured.took_s)
        if max(layers) < shape.n_layer:
            origin = msg(
                "{seconds:seconds} of this model with {layers:count} layers on this machine; the other layers by the difference",
                seconds=measured.took_s, layers=list(layers),
            )  # fmt: skip
        return Span(s, s * (1 - margin), s * (1 + margin), "measured", origin)
    if machine.device is None:
        return machine.not_calibrated or msg(
            "the table of devices does not hold {name:code}, and speed is not guessed from a similar name", name=machine.name
        )
    guess = update_time(
        shape, machine.device, batch_size=config.batch_size, accumulation=config.gradient_accumulation_steps, dtype=machine.dtype,
        dropout=config.dropout, compiled=machine.compiled, devices=machine.count,
    )  # fmt: skip
    if guess is None:
        return msg("{device:code} has no rated peak for {dtype:code}", device=machine.device.name, dtype=machine.dtype)
    origin = msg(
        "{low:share} to {high:share} of the {peak:flops_per_s} that {device:code} is rated for in {dtype:code} ({source})",
        low=guess.low_efficiency, high=guess.high_efficiency, peak=machine.device.peak(machine.dtype), device=machine.device.name,
        dtype=machine.dtype, source=machine.device.source,
    )  # fmt: skip
    return Span(guess.seconds, guess.low_s, guess.high_s, "estimated", origin)


def time_rows(config: Config, shape: Shape, machine: MachineFacts, plan: TimePlan | Message, price_per_hour: float | None) -> Iterator[Row]:
    if isinstance(plan, Message):
        yield unknown("update_s", msg("time of one update"), "seconds", plan)
        yield unknown("total_s", msg("time of the whole run"), "seconds", plan)
        return
    yield _row("update_s", msg("time of one update"), plan.update)
    yield from _speed(config, shape, machine, plan)
    yield _row("train_s", msg("training, {updates:count} updates", updates=config.max_iters), plan.train)
    yield _row("eval_s", msg("evaluation, {times:count} times", times=plan.evaluations), plan.evaluation)
    yield _row("checkpoint_s", msg("standing still for checkpoints, {times:count} times", times=plan.checkpoints), plan.checkpoint)
    if plan.sample.s:
        yield _row("sample_s", msg("sample texts"), plan.sample)
    yield _row("start_s", msg("start: libraries, model, first batch"), plan.start)
    yield _row("end_s", msg("end: the last checkpoint reaches the disk"), plan.end)
    yield _row("total_s", msg("time of the whole run"), plan.total)
    if price_per_hour is not None:
        origin = msg("{price:about} an hour, as given", price=price_per_hour)
        cost = [seconds / 3600 * price_per_hour * machine.count for seconds in (plan.total.s, plan.total.low_s, plan.total.high_s)]
        yield Row("cost", msg("cost"), cost[0], "about", plan.total.source, origin, cost[1], cost[2])
    yield from _energy(machine, plan)


def _row(key: str, what: Message, span: Span) -> Row:
    return Row(key, what, span.s, "seconds", span.source, span.origin, span.low_s, span.high_s)


def _speed(config: Config, shape: Shape, machine: MachineFacts, plan: TimePlan) -> Iterator[Row]:
    update, per_update = plan.update, config.tokens_per_update
    yield Row(
        "tokens_per_s", msg("speed"), per_update / update.s, "tokens_per_s", update.source, msg("tokens per update / time of one update"),
        per_update / update.high_s, per_update / update.low_s,
    )  # fmt: skip
    peak, origin = _peak(machine)
    if peak is None:
        yield unknown("mfu", msg("MFU"), "share", msg("no peak is known for this device in {dtype:code}", dtype=machine.dtype))
        return
    work = flops_per_token(shape).training * per_update / (peak * machine.count)
    yield Row("mfu", msg("MFU"), work / update.s, "share", update.source, origin, work / update.high_s, work / update.low_s)


def _peak(machine: MachineFacts) -> tuple[float | None, Message]:
    if machine.calibration is not None and machine.calibration.peak_flops:
        found = machine.calibration.peak_flops
        return found, msg("of {peak:flops_per_s}, the fastest matrix product measured here", peak=found)
    peak = machine.device.peak(machine.dtype) if machine.device is not None else None
    name = machine.device.name if machine.device is not None else machine.name
    return peak, msg("of {peak:flops_per_s}, rated for {device:code}", peak=peak, device=name)


def _evaluation(config: Config, machine: MachineFacts, update: Span) -> Span:
    """One evaluation: `eval_iters` batches of each split, forward only."""
    batches = 2 * config.eval_iters
    measured = machine.calibration
    if measured is not None:
        s = measured.evaluation_s(config.batch_size) * batches
        margin = max(0.05, 2 * measured.scatter)
        return Span(
            s, s * (1 - margin), s * (1 + margin), "measured", msg("a forward pass, timed; {batches:count} of them", batches=batches)
        )
    forward = update.times(batches / (3 * config.gradient_accumulation_steps))
    return Span(
        forward.s,
        forward.low_s,
        forward.high_s,
        "estimated",
        msg("a third of an update for each batch, {batches:count} of them", batches=batches),
    )


def _checkpoint(shape: Shape, machine: MachineFacts) -> Span:
    """How long the loop stands still for one: the copy, not the writing."""
    measured = machine.calibration
    if measured is not None:
        return Span(measured.stall_s, measured.stall_s * 0.5, measured.stall_s * 2, "measured", msg("one was saved here"))
    s = checkpoint_bytes(shape) / (machine.count * 10e9)
    return Span(s, s * 0.5, s * 3, "estimated", msg("12 bytes a parameter at 10 GB/s; the writing goes on beside the training"))


def _start(machine: MachineFacts) -> Span:
    measured = machine.calibration
    if measured is not None:
        return Span(measured.start_s, measured.start_s * 0.7, measured.start_s * 1.5, "measured", msg("seen in this measurement"))
    low, high = START_S.get(machine.kind, (3.0, 30.0))
    origin = msg("usual for such a device, torch.compile included") if machine.compiled else msg("usual for such a device")
    return Span((low + high) / 2, low, high, "estimated", origin)


def _samples(config: Config, machine: MachineFacts, evaluations: int) -> Span:
    """Of one text at each evaluation, or at its own interval."""
    measured = machine.calibration
    each = measured.sample_s if measured is not None else 0.0
    if config.sample_interval is None:
        count = evaluations
    else:
        count = config.max_iters // config.sample_interval + 1 if config.sample_interval else 0
    origin = msg("one was written here") if measured is not None else msg("not known beforehand, and short")
    return Span(each * count, each * count * 0.7, each * count * 1.5, "measured" if measured is not None else "estimated", origin)


def _end(shape: Shape, machine: MachineFacts) -> Span:
    measured = machine.calibration
    if measured is not None:
        return Span(measured.end_s, measured.end_s * 0.5, measured.end_s * 2, "measured", msg("seen in this measurement"))
    s = checkpoint_bytes(shape) / WRITE_BYTES_PER_S
    return Span(s, s * 0.3, s * 3, "estimated", msg("12 bytes a parameter at 0.5 GB/s"))


def _energy(machine: MachineFacts, plan: TimePlan) -> Iterator[Row]:
    watts = board_watts(machine.device.name) if machine.device is not None else None
    if watts is None:
        return
    kwh = [seconds * watts * machine.count / 3.6e6 for seconds in (plan.total.s, plan.total.low_s, plan.total.high_s)]
    origin = msg("{watts:count} W, the board's rating: at most this", watts=watts)
    yield estimated("energy_kwh", msg("energy, in kWh"), kwh[0], "about", origin, kwh[1], kwh[2])
