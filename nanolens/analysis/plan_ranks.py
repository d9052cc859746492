"""Whether several machines would be faster than one: what they compute side by side, against what they have to send.

An update's micro-batches are divided equally, so the slowest machine decides. Each update sends the gradient of every parameter twice
around a ring, whatever the batch; all but the last bucket of it can go while the backward pass of the last micro-batch still runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nanolens.analysis.plan_rows import Row, Section, estimated, unknown
from nanolens.analysis.plan_time import TimePlan
from nanolens.analysis.plan_warnings import Warning
from nanolens.errors import fault
from nanolens.facts.finding import Change
from nanolens.message import Message, msg
from nanolens.sizing import parameters

BUCKETS = 8  # as training/distributed/parallel.py sends them
BACKWARD_FRAC = 2 / 3  # of a micro-batch
GRADIENT_BYTES = 4  # float32, as they are averaged
LATENCY_S = 0.0003  # of an ordinary local network; 0.00005 within a machine
USUAL_EFFICIENCY = 0.9  # of the nominal rate of a wire that TCP gets through
MARGIN = 0.2


@dataclass(frozen=True)
class RanksAsked:
    count: int
    bytes_per_s: float  # one way, of each machine's link
    latency_s: float
    speeds: tuple[float, ...]  # of each machine, this one being 1
    origin: Message  # where the bandwidth comes from


@dataclass(frozen=True)
class Together:
    update_s: float
    compute_s: float  # of the slowest machine
    comm_s: float  # gradients on their way
    exposed_s: float  # of which nobody computes


def asked_ranks(count: int, network: str, speeds: str | None) -> RanksAsked:
    """`network`: 1Gbit, 2.5Gbit, 100MB (a second); `speeds`: 1,0.5 for a second machine half as fast."""
    found = re.fullmatch(r"([\d.]+)\s*([KMGT]?)(bit|b|B|byte|bytes)(?:/s|ps)?", network.strip(), re.IGNORECASE)
    if found is None or float(found[1]) <= 0:
        raise fault(
            msg("{text:code} is no speed of a network", text=network), where=msg("{option:code}", option=f"--network={network}"),
            fix=msg("write {one:code} or {other:code}", one="--network=1Gbit", other="--network=110MB"),
        )  # fmt: skip
    unit = 1e3 ** ("", "K", "M", "G", "T").index(found[2].upper())
    is_bits = found[3] in ("bit", "b") or found[3].lower() == "bit"
    rate = float(found[1]) * unit * (USUAL_EFFICIENCY / 8 if is_bits else 1.0)
    given = tuple(float(each) for each in speeds.split(",")) if speeds and re.fullmatch(r"[\d.]+(,[\d.]+)*", speeds) else (1.0,) * count
    if len(given) != count or min(given) <= 0:
        raise fault(
            msg("{text:code} is not one speed for each of {count:count} machines", text=speeds or "", count=count),
            fix=msg("write them with commas, this machine first: {option:code}", option="--speeds=1,0.5"),
        )
    origin = msg("{text:code}, as given, {share:share} of it used", text=network, share=USUAL_EFFICIENCY if is_bits else 1.0)
    return RanksAsked(count, rate, LATENCY_S, given, origin)


def together(micro_s: float, micro_batches: int, optimizer_s: float, gradient_bytes: float, asked: RanksAsked) -> Together:
    """`micro_s`: forward and backward of one micro-batch on this machine; `micro_batches`: of an update, over all machines."""
    n, slowest = asked.count, min(asked.speeds)
    each = micro_batches / n  # fractions stand for smaller micro-batches
    compute_s = (micro_s * each + optimizer_s) / slowest
    comm_s = 0.0
    if n > 1:
        comm_s = 2 * (n - 1) / n * gradient_bytes / asked.bytes_per_s + BUCKETS * 2 * (n - 1) * asked.latency_s
    hidden_s = min(comm_s * (1 - 1 / BUCKETS), BACKWARD_FRAC * micro_s * min(1.0, each) / slowest * (1 - 1 / BUCKETS))
    exposed_s = comm_s - hidden_s
    return Together(compute_s + exposed_s, compute_s, comm_s, exposed_s)


def sections_of(asked_plan: object) -> Iterator[Section | Warning]:
    """An addition to `plan.ADDITIONS`. Nothing where nobody asked about several machines."""
    asked: RanksAsked | None = asked_plan.machine.ranks  # type: ignore[attr-defined]
    times, config = asked_plan.times, asked_plan.config  # type: ignore[attr-defined]
    if asked is None or asked.count < 2:
        return
    if isinstance(times, Message):
        yield Section("ranks", msg("Several machines"), (unknown("ranks_update_s", msg("time of one update"), "seconds", times),))
        return
    yield from _known(asked, times, config, asked_plan)


def _known(asked: RanksAsked, times: TimePlan, config: object, asked_plan: object) -> Iterator[Section | Warning]:
    calibration = asked_plan.machine.calibration  # type: ignore[attr-defined]
    optimizer_s = calibration.optimizer_s if calibration is not None else 0.0
    count = config.gradient_accumulation_steps  # type: ignore[attr-defined]
    micro_s = max(1e-9, (times.update.s - optimizer_s) / count)
    size = GRADIENT_BYTES * parameters(asked_plan.shape).total  # type: ignore[attr-defined]
    found = together(micro_s, count, optimizer_s, size, asked)
    gain = times.update.s / found.update_s
    yield Section("ranks", msg("{count:count} machines together", count=asked.count), tuple(_rows(asked, found, gain, size)))
    if gain < 1:
        more = needed_micro_batches(micro_s, optimizer_s, size, asked)
        yield Warning(
            "ranks_slower",
            msg("{count:count} machines over this network would be slower than one: {gain:times}", count=asked.count, gain=gain),
            Change(
                msg(
                    "with {more:count} micro-batches in an update or more they would be faster; that changes the batch, not only the speed",
                    more=more,
                )
                if more is not None
                else msg("train on one machine, or use a faster network")
            ),
        )


def needed_micro_batches(micro_s: float, optimizer_s: float, size: float, asked: RanksAsked) -> int | None:
    """The fewest of an update with which the machines are faster than this one alone; None up to a million."""
    count = asked.count
    while count <= 1_000_000:
        if together(micro_s, count, optimizer_s, size, asked).update_s < micro_s * count + optimizer_s:
            return count
        count *= 2
    return None


def _rows(asked: RanksAsked, found: Together, gain: float, size: float) -> Iterator[Row]:
    law = msg(
        "2 x ({count:count} - 1) / {count:count} x {size:bytes} of gradients at {rate:bytes} a second ({origin})",
        count=asked.count, size=size, rate=asked.bytes_per_s, origin=asked.origin,
    )  # fmt: skip
    share = msg("the micro-batches divided equally; the slowest machine decides")
    yield estimated("ranks_update_s", msg("time of one update"), found.update_s, "seconds", msg("computing, and what of the sending shows"),
                    found.update_s * (1 - MARGIN), found.update_s * (1 + MARGIN))  # fmt: skip
    yield estimated("ranks_compute_s", msg("of which computing"), found.compute_s, "seconds", share, None, None)
    yield estimated("ranks_comm_s", msg("gradients on their way"), found.comm_s, "seconds", law, None, None)
    yield estimated("ranks_exposed_s", msg("of which nobody computes"), found.exposed_s, "seconds",
                    msg("what the backward pass of the last micro-batch does not cover"), None, None)  # fmt: skip
    yield estimated("ranks_gain", msg("faster than this machine alone by"), gain, "times", msg("time of one update, alone / together"),
                    gain * (1 - MARGIN), gain * (1 + MARGIN))  # fmt: skip
