"""Several processes train one model, and one holds the others up, or they mostly wait for each other's gradients.

What it sees. For each rank the time of its own work in an update (without waiting for gradients) against that of the others
(straggler_rank); how much of an update nobody computes because gradients are still on their way (communication_bound); and ranks that died,
hung or could not be reached (rank_lost).

Why it matters. All ranks wait for the slowest at every update: one that takes half as long again costs as much as losing a third of the
others. Gradients are as large as the model, whatever the batch: over a slow network a second machine can make training slower.

When it is wrong. A machine that is meant to be slower can be given a smaller part of the work only by starting fewer processes there. In
the first updates after a start libraries load and buckets are ordered.

What it looks like. Busy times of 0.40, 0.41, 0.66 and 0.40 s: rank 2 is the straggler, and 0.25 s of each update are lost. Or: an update
takes 1.0 s, of which the busiest rank computes 0.3 s.

What to change. Find what else runs on the slow machine, or leave it out. For slow networks: more micro-batches in an update
(gradient_accumulation_steps), so that gradients are sent less often; `nanolens plan` says beforehand whether another machine pays.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.message import msg

CODES = ("straggler_rank", "communication_bound", "rank_lost")

FEWEST_UPDATES = 10
NOTICEABLE_S = 0.002  # less is the operating system's business
ALWAYS = 0.8  # share of the updates in which it has to be the slowest: a busy machine makes now one rank wait and now the other
SLOWER = 1.15  # than the median of the others: what cores of one machine differ by is a few percent
LARGE_SHARE = 0.3


def look(case: Case) -> Iterator[Finding | NotChecked]:
    yield from _lost(case)
    known = case.run.known
    if "rank_busy_s" not in known:
        return
    busy = np.asarray(known["rank_busy_s"].value, dtype=float)
    took, updates = float(known["rank_took_s"].value), int(known["rank_updates"].value)  # type: ignore[arg-type, call-overload]
    if updates < FEWEST_UPDATES or len(busy) < 2 or not took > 0:
        yield NotChecked("straggler_rank", msg("{count:count} updates are too few to compare ranks", count=updates))
        return
    hosts: tuple[str, ...] = known["rank_hosts"].value  # type: ignore[assignment]
    slowest = np.asarray(known["rank_slowest"].value, dtype=float)
    yield from _straggler(busy, slowest, took, updates, hosts)
    yield from _communication(busy, np.asarray(known["rank_comm_s"].value, dtype=float), took, updates)


def _straggler(busy: np.ndarray, times_slowest: np.ndarray, took: float, updates: int, hosts: tuple[str, ...]) -> Iterator[Finding]:
    slowest = int(busy.argmax())
    others = float(np.median(np.delete(busy, slowest)))
    if busy[slowest] < SLOWER * others or times_slowest[slowest] < ALWAYS * updates or busy[slowest] - others < NOTICEABLE_S:
        return
    lost = (float(busy[slowest]) - others) / took
    where = msg("rank {rank:count} on {host:code}", rank=slowest, host=hosts[slowest]) if hosts else msg("rank {rank:count}", rank=slowest)
    evidence = (
        Evidence(
            msg("seconds of its own work in an update"), float(busy[slowest]), others, where,
            msg("medians over {count:count} updates; the usual value is the median of the other ranks", count=updates), "seconds",
        ),
        Evidence(
            msg("share of an update in which the others wait for it"), lost, (0.0, 0.05), where,
            msg("(its time - that of the others) / update"), "share",
        ),
    )  # fmt: skip
    yield Finding(
        "straggler_rank",
        "certain" if busy[slowest] > 1.5 * others and updates >= 20 else "likely",
        msg("rank {rank:count} is slower than the others, and all wait for it", rank=slowest),
        evidence,
        Change(msg("look what else runs on that machine or device (heat, another process, fewer cores), or train without it")),
        msg("the ranks were given unequal machines on purpose, and the run is still faster with it than without"),
    )


def _communication(busy: np.ndarray, comm: np.ndarray, took: float, updates: int) -> Iterator[Finding]:
    share = 1 - float(busy.max()) / took
    if share < LARGE_SHARE:
        return
    evidence = Evidence(
        msg("share of an update in which even the busiest rank waits for gradients"), share, (0.0, 0.1),
        msg("{count:count} updates", count=updates),
        msg(
            "1 - busiest rank / update; gradients are on their way for {comm:seconds} of {took:seconds}", comm=float(comm.max()), took=took
        ),
        "share",
    )  # fmt: skip
    yield Finding(
        "communication_bound",
        "likely",
        msg("the ranks spend much of their time sending gradients"),
        (evidence,),
        Change(msg("more micro-batches in an update (raise gradient_accumulation_steps), a faster network, or fewer machines")),
        msg("an update without any communication takes as long"),
    )


def _lost(case: Case) -> Iterator[Finding]:
    lost = [mark for mark in case.run.marks if mark.kind == "rank_lost"]
    if not lost:
        return
    last = lost[-1]
    evidence = Evidence(
        msg("times that a rank was lost"), len(lost), 0, msg("{words}", words=last.text),
        msg("recorded by the first rank, the last time after {waited:seconds} of waiting", waited=last.took_s), "count", last.step,
    )  # fmt: skip
    yield Finding(
        "rank_lost",
        "certain",
        msg("a rank died, hung or could not be reached"),
        (evidence,),
        Change(msg("look into that machine's own messages; training goes on from the last checkpoint when it is started again")),
        msg("it was ended on purpose"),
    )
