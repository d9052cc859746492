"""How long a run would take, part by part, and what it would cost; and whether several machines would be faster.

An update's micro-batches are divided equally among them, so the slowest decides. Each update sends the gradient of
every parameter twice around a ring, whatever the batch; all but the last bucket of it can go while the backward pass of
the last micro-batch still runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nanolens.config.fields import Config
from nanolens.errors import fault
from nanolens.facts.finding import Change, Evidence, Figure, Finding
from nanolens.message import Message, msg
from nanolens.planning.figures import Cluster, MachineFacts, PlanFigure, PlanInputs, PlanSection, on_line, row, unknown
from nanolens.planning.memory import checkpoint_bytes
from nanolens.record.run import Origin
from nanolens.sizing.devices import UpdateTime, update_time
from nanolens.sizing.memory import GRADIENT_BUCKETS
from nanolens.sizing.shape import Shape, flops_per_token, parameters

START_RANGE_S = {"gpu": (15.0, 90.0), "apple": (5.0, 20.0), "cpu": (3.0, 15.0)}
"""Libraries, the first batch, and on a GPU torch.compile, where nothing was measured."""
WRITE_BYTES_PER_S = 0.5e9  # an ordinary SSD
COPY_BYTES_PER_S = 10e9  # of the training state, into memory

BACKWARD_FRAC = 2 / 3  # of a micro-batch
GRADIENT_BYTES = 4  # float32, as they are averaged
LATENCY_S = 0.0003  # of an ordinary local network; 0.00005 within a machine
USUAL_EFFICIENCY = 0.9  # of the nominal rate of a wire that TCP gets through
TIME_MARGIN = 0.2


@dataclass(frozen=True)
class TimePlan:
    update: Figure
    parts: Mapping[str, Figure]  # of the whole run, by their names in the JSON; total_s is the last
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
    samples = evaluations
    if config.sample_interval is not None:
        samples = config.max_iters // config.sample_interval + 1 if config.sample_interval else 0
    evaluation, sample, checkpoint, start, end = _beside_updates(config, shape, machine, update, samples)
    train, evaluation, checkpoint = update.times(updates), evaluation.times(evaluations), checkpoint.times(checkpoints)
    whole, low, high = (
        sum(getattr(part, bound) for part in (start, train, evaluation, sample, checkpoint, end))
        for bound in ("value", "least", "most")
    )
    total = Figure(whole, update.how, update.origin, "seconds", low, high)
    parts = {"train_s": train, "eval_s": evaluation, "checkpoint_s": checkpoint, "sample_s": sample}
    return TimePlan(update, parts | {"start_s": start, "end_s": end, "total_s": total}, evaluations, checkpoints)


def _seconds(s: float, origin: Origin, how: Message, low: float, high: float) -> Figure:
    """`low` and `high` are factors."""
    return Figure(s, how, origin, "seconds", s * low, s * high)


def update_span(config: Config, shape: Shape, machine: MachineFacts) -> Figure | Message:
    measured, device = machine.calibration, machine.device
    if measured is not None:
        how = msg("{seconds:seconds} of this model on this machine", measured.took_s)
        if max(measured.layers_timed) < shape.n_layer:
            how = msg(
                "{seconds:seconds} of this model with {layers:count layer|layers} on this machine; the other layers "
                "extrapolated from the difference",
                measured.took_s,
                list(measured.layers_timed),
            )
        s = measured.update_s(config.batch_size, config.gradient_accumulation_steps)
        return _seconds(s, "measured", how, 1 - measured.margin, 1 + measured.margin)
    if device is None:
        return machine.not_calibrated or msg(
            "{name:code} is not in the device table, and speed is not guessed from a similar name", machine.name
        )
    guess = rated_update(config, shape, machine)
    if guess is None:
        return msg("{device:code} has no rated peak for {dtype:code}", device.name, machine.dtype)
    how = msg(
        "{low:share} to {high:share} of the rated {peak:flops_per_s} of {device:code} in {dtype:code} ({source})",
        guess.low_efficiency,
        guess.high_efficiency,
        device.peak(machine.dtype),
        device.name,
        machine.dtype,
        device.source,
    )
    return Figure(guess.seconds, how, "estimated", "seconds", guess.low_s, guess.high_s)


def rated_update(config: Config, shape: Shape, machine: MachineFacts) -> UpdateTime | None:
    """By the table of devices; None where that knows too little."""
    if machine.device is None:
        return None
    return update_time(
        shape,
        machine.device,
        batch_size=config.batch_size,
        accumulation=config.gradient_accumulation_steps,
        dtype=machine.dtype,
        dropout=config.dropout,
        compiled=machine.compiled,
        devices=machine.count,
    )


def _beside_updates(
    config: Config, shape: Shape, machine: MachineFacts, update: Figure, samples: int
) -> tuple[Figure, ...]:
    """One evaluation, all samples, one checkpoint (the copy, for which the loop waits), the start and the end."""
    seen, batches = machine.calibration, 2 * config.eval_iters
    if seen is not None:
        here = msg("seen in this measurement")
        forward = msg("one forward pass, timed; {batches:count} of them", batches)
        eval_s = on_line(seen.forward_s, config.batch_size) * batches
        return (
            _seconds(eval_s, "measured", forward, 1 - seen.margin, 1 + seen.margin),
            _seconds(seen.sample_s * samples, "measured", msg("one sample was timed here"), 0.7, 1.5),
            _seconds(seen.stall_s, "measured", msg("one save was timed here"), 0.5, 2),
            _seconds(seen.start_s, "measured", here, 0.7, 1.5),
            _seconds(seen.end_s, "measured", here, 0.5, 2),
        )
    third = update.times(batches / (3 * config.gradient_accumulation_steps))
    how = msg("a third of an update per batch, {batches:count} of them", batches)
    copied = msg("12 bytes per parameter at 10 GB/s; writing continues in the background")
    (low, high), size = START_RANGE_S.get(machine.kind, (3.0, 30.0)), checkpoint_bytes(shape)
    typical = msg("typical for such a device")
    if machine.compiled:
        typical = msg("typical for such a device, including torch.compile")
    return (
        Figure(third.value, how, "estimated", "seconds", third.low, third.high),
        _seconds(0.0, "estimated", msg("not known in advance, but short"), 1, 1),
        _seconds(size / (machine.count * COPY_BYTES_PER_S), "estimated", copied, 0.5, 3),
        Figure((low + high) / 2, typical, "estimated", "seconds", low, high),
        _seconds(size / WRITE_BYTES_PER_S, "estimated", msg("12 bytes per parameter at 0.5 GB/s"), 0.3, 3),
    )


def time_rows(asked: PlanInputs, price_per_hour: float | None) -> Iterator[PlanFigure]:
    config, machine, plan = asked.config, asked.machine, asked.times
    if isinstance(plan, Message):
        yield unknown("update_s", plan)
        yield unknown("total_s", plan)
        return
    yield _row("update_s", plan.update)
    yield from _speed(asked, plan.update)
    named = {
        "train_s": msg("training, {updates:count update|updates}", config.max_iters),
        "eval_s": msg("evaluation, {times:count time|times}", plan.evaluations),
        "checkpoint_s": msg("waiting for checkpoints, {times:count time|times}", plan.checkpoints),
    }
    parts = {key: part for key, part in plan.parts.items() if part.value or key != "sample_s"}
    yield from (_row(key, part, named.get(key)) for key, part in parts.items())
    whole = plan.parts["total_s"]
    total = (whole.value, whole.least, whole.most)
    if price_per_hour is not None:
        cost, low, high = (seconds / 3600 * price_per_hour * machine.count for seconds in total)
        yield row("cost", cost, [price_per_hour], whole.origin, low, high)
    watts = machine.device.watts if machine.device is not None else None
    if watts is not None:
        kwh, low, high = (seconds * watts * machine.count / 3.6e6 for seconds in total)
        yield row("energy_kwh", kwh, [watts], low=low, high=high)


def _row(key: str, seconds: Figure, what: Message | None = None) -> PlanFigure:
    return row(key, seconds.value, seconds.how, seconds.origin, seconds.low, seconds.high, what=what)


def _speed(asked: PlanInputs, update: Figure) -> Iterator[PlanFigure]:
    machine, per_update = asked.machine, asked.config.tokens_per_update

    def rate(key: str, work: float, how: Message | tuple[()] = ()) -> PlanFigure:
        return row(key, work / update.value, how, update.origin, work / update.most, work / update.least)

    yield rate("tokens_per_s", per_update)
    device = machine.device
    peak = device.peak(machine.dtype) if device is not None else None
    how = msg("of {peak:flops_per_s}, rated for {device:code}", peak, device.name if device else machine.name)
    if machine.calibration is not None and machine.calibration.peak_flops:
        peak = machine.calibration.peak_flops
        how = msg("of {peak:flops_per_s}, the fastest matrix product measured here", peak)
    if peak is None:
        yield unknown("mfu", msg("no peak is known for this device in {dtype:code}", machine.dtype))
        return
    yield rate("mfu", flops_per_token(asked.shape).training * per_update / (peak * machine.count), how)


# --- several machines
AMOUNT = r"\d+\.?\d*|\.\d+"


@dataclass(frozen=True)
class ParallelPlan:
    update_s: float
    compute_s: float  # of the slowest machine
    comm_s: float  # gradients on their way
    exposed_s: float  # of which nobody computes


def asked_ranks(count: int, network: str, speeds: str | None) -> Cluster:
    """`network`: 1Gbit, 2.5Gbit, 100MB (a second); `speeds`: 1,0.5 for a second machine half as fast."""
    found = re.fullmatch(rf"({AMOUNT})\s*([KMGT]?)(bit|b|B|byte|bytes)(?:/s|ps)?", network.strip(), re.IGNORECASE)
    if found is None or float(found[1]) <= 0:
        fix = msg("write {one:code} or {other:code}", "--network=1Gbit", "--network=110MB")
        raise fault(msg("{text:code} is not a valid network speed", network), where=f"--network={network}", fix=fix)
    unit = 1e3 ** ("", "K", "M", "G", "T").index(found[2].upper())
    usable = USUAL_EFFICIENCY if found[3] == "b" or found[3].lower() == "bit" else 1.0  # of bits; bytes are net
    rate = float(found[1]) * unit * (usable / 8 if usable < 1 else 1.0)
    texts = ["1"] * count if speeds is None else [each.strip() for each in speeds.split(",")]
    given = tuple(float(each) for each in texts if re.fullmatch(AMOUNT, each))
    if len(given) != len(texts) or len(given) != count or min(given) <= 0:
        what = msg("{text:code} does not give one speed for each of {count:count machine|machines}", speeds, count)
        raise fault(what, fix=msg("separate them with commas, this machine first: {option:code}", "--speeds=1,0.5"))
    origin = msg("{text:code}, as given; {share:share} of it is usable", network, usable)
    return Cluster(count, rate, LATENCY_S, given, origin)


def together(
    micro_s: float, micro_batches: int, optimizer_s: float, gradient_bytes: float, asked: Cluster
) -> ParallelPlan:
    """`micro_s`: of one micro-batch on this machine; `micro_batches`: of an update, over all machines."""
    n, slowest = asked.count, min(asked.speeds)
    each = micro_batches / n  # fractions stand for smaller micro-batches
    compute_s = (micro_s * each + optimizer_s) / slowest
    comm_s = 0.0
    if n > 1:
        comm_s = 2 * (n - 1) / n * gradient_bytes / asked.bytes_per_s + GRADIENT_BUCKETS * 2 * (n - 1) * asked.latency_s
    backward_s = BACKWARD_FRAC * micro_s * min(1.0, each) / slowest
    exposed_s = comm_s - min(comm_s, backward_s) * (1 - 1 / GRADIENT_BUCKETS)
    return ParallelPlan(compute_s + exposed_s, compute_s, comm_s, exposed_s)


def rank_sections(asked: PlanInputs) -> Iterator[PlanSection | Finding]:
    """Nothing where nobody asked about several machines."""
    ranks, times = asked.machine.ranks, asked.times
    if ranks is None or ranks.count < 2:
        return
    if isinstance(times, Message):
        yield PlanSection("ranks", msg("Several machines"), (unknown("ranks_update_s", times),))
        return
    calibration = asked.machine.calibration
    optimizer_s = calibration.optimizer_s if calibration is not None else 0.0
    count = asked.config.gradient_accumulation_steps
    micro_s = max(1e-9, (times.update.value - optimizer_s) / count)
    size = GRADIENT_BYTES * parameters(asked.shape).total
    found = together(micro_s, count, optimizer_s, size, ranks)
    gain = times.update.value / found.update_s
    low, high = 1 - TIME_MARGIN, 1 + TIME_MARGIN
    rows = (
        row("ranks_update_s", found.update_s, low=found.update_s * low, high=found.update_s * high),
        row("ranks_compute_s", found.compute_s),
        row("ranks_comm_s", found.comm_s, [ranks.count, size, ranks.bytes_per_s, ranks.origin]),
        row("ranks_exposed_s", found.exposed_s),
        row("ranks_gain", gain, low=gain * low, high=gain * high),
    )
    yield PlanSection("ranks", msg("{count:count machine|machines} together", ranks.count), rows)
    if gain < 1:
        yield _slower(ranks, gain, needed_micro_batches(micro_s, optimizer_s, size, ranks))


def _slower(ranks: Cluster, gain: float, needed: int | None) -> Finding:
    claim = msg(
        "{count:count machine|machines} over this network would be slower than one: {gain:times}", ranks.count, gain
    )
    change = msg("train on one machine, or use a faster network")
    if needed is not None:
        change = msg(
            "with {more:count} or more micro-batches per update they would be faster; that changes the "
            "batch, not only the speed",
            needed,
        )
    what, how = msg("speed-up over this machine alone"), msg("time of one update, alone / together")
    evidence = Evidence(what, gain, msg("above {least:times}", 1.0), ranks.origin, how, "times")
    wrong_if = msg("the network is faster than that")
    return Finding("ranks_slower", "likely", claim, (evidence,), Change(change), wrong_if)


def needed_micro_batches(micro_s: float, optimizer_s: float, size: float, asked: Cluster) -> int | None:
    """The fewest of an update with which the machines are faster than this one alone; None up to a million."""
    count = asked.count
    while together(micro_s, count, optimizer_s, size, asked).update_s >= micro_s * count + optimizer_s:
        count *= 2
        if count > 1_000_000:
            return None
    return count
