"""Memory, precision, and several devices."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, finding, rule
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Finding, NotChecked, Sureness, known, see
from nanolens.message import Message, msg
from nanolens.sizing.memory import memory
from nanolens.sizing.shape import GPT2_FAMILY, parameters

GIB = 2.0**30
CROWDED = 0.8  # of the card: with the context, 16-bit copies and any activation the rest is gone


@rule("oom_optimizer_state", "oom_logits", marks=("out_of_memory",))
def out_of_memory(case: Case) -> Answers:
    """Out of memory: which part did not fit."""
    mark = case.marks("out_of_memory")[0]
    where, shape, size = msg("line {line:count}", mark.line), case.shape, case.parameters
    capacity = _capacity(case, mark.text)
    if shape is None or case.counted is None:
        if size is None or capacity is None:
            yield NotChecked("oom_optimizer_state", msg("the model's size or the card's memory is not known"))
        elif 16 * size.value > CROWDED * capacity:
            yield _state_too_large(case, 16 * size.value, size.value, capacity, where)
        return
    batch = case.whole("batch_size") or 1
    parts = memory(shape, batch_size=batch, dtype=case.dtype or "bfloat16", dropout=case.number("dropout") or 0.0)
    if capacity is not None and parts.state > CROWDED * capacity:
        yield _state_too_large(case, parts.state, case.counted.total, capacity, where)
    elif parts.logits > max(parts.activations, parts.state) or (capacity is not None and parts.logits > 0.4 * capacity):
        yield _logits_too_large(case, parts.logits, parts.activations, batch, where)
    elif capacity is None:
        yield NotChecked("oom_optimizer_state", msg("the card's memory is not known; give --hardware=NAME"))


def _capacity(case: Case, text: str) -> float | None:
    memory_bytes = case.number("device_memory_bytes")
    if memory_bytes is not None:
        return memory_bytes
    found = re.search(r"(\d+(?:\.\d+)?) GiB total capacity|total capacity of (\d+(?:\.\d+)?) GiB", text)
    if found:
        return float(found[1] or found[2]) * GIB
    if case.hardware is not None and case.hardware.memory_gb is not None:
        return case.hardware.memory_gb * GIB
    return max(case.device.memory_gb) * GIB if case.device is not None and len(case.device.memory_gb) == 1 else None


def _state_too_large(case: Case, state: float, count: float, capacity: float, where: Message) -> Finding:
    start = case.text("init_from")
    smaller = [name for name, shape in GPT2_FAMILY.items() if 16 * parameters(shape).total < 0.6 * capacity]
    sets = ("init_from", start, smaller[-1]) if smaller else ("", start, None)
    need = Seen(state, msg("below {limit:bytes} of {capacity:bytes}", CROWDED * capacity, capacity), where)
    sureness: Sureness = "certain" if state > 0.95 * capacity else "likely"
    return finding("oom_optimizer_state", sureness, need, sets=sets if start in GPT2_FAMILY else None, count=count)


def _logits_too_large(case: Case, logits: float, activations: float, batch: int, where: Message) -> Finding:
    shape = known(case.shape)
    return finding(
        "oom_logits",
        "likely",
        Seen(logits, activations, where),
        sets=("batch_size", batch, max(1, batch // 2)),
        accumulation=case.whole("gradient_accumulation_steps") or "?",
        batch=batch,
        block=shape.block_size,
        vocab=shape.vocab_size,
    )


@rule("will_not_fit", "may_not_fit", only=("outlook",))
def will_not_fit(case: Case) -> Answers:
    """The machine is too small for the run."""
    plan = known(case.outlook)
    if plan.usable_bytes is None or plan.peak_bytes is None:
        return
    room, (expected, low, high) = plan.usable_bytes, plan.peak_bytes
    if expected <= room and high <= room:
        return
    peak = Seen(expected, msg("up to {room:bytes}", room), case.where("batch_size"))
    sureness: Sureness = "likely" if low > room else "possible"
    code, change = "will_not_fit" if expected > room else "may_not_fit", _smaller_micro_batch(case)
    yield finding(code, sureness, peak, change=change, need=expected, low=low, high=high, room=room)


def _smaller_micro_batch(case: Case) -> Change | None:
    plan, batch = known(case.outlook), case.whole("batch_size")
    accumulation = case.whole("gradient_accumulation_steps")
    if batch is None or accumulation is None:
        return None
    if plan.largest_chunked and plan.largest_chunked >= batch:
        words = msg("avoid materialising all logits at once: the same numbers with less memory")
        return Change(words, "chunked_head", case.get("chunked_head"), True)
    per_update, most = batch * accumulation, plan.largest_micro_batch or plan.largest_chunked or 0
    size = max((size for size in range(1, most + 1) if per_update % size == 0), default=None)
    if size is None:
        return Change(msg("not even one sequence fits: use a smaller model, a shorter context, or another device"))
    options = f"--batch_size={size} --gradient_accumulation_steps={per_update // size}"
    if not plan.largest_micro_batch:
        options += " --chunked_head=True"
    return Change(msg("use a smaller micro-batch and more of them: the update stays the same"), command=options)


@rule("disk_full", only=("outlook",))
def disk_full(case: Case) -> Answers:
    """The checkpoints need more disk than is free."""
    need, free = known(case.outlook).disk_bytes, known(case.outlook).free_disk_bytes
    if free is None or need <= free:
        return
    kept = case.whole("keep_checkpoints")
    disk = Seen(need, msg("up to {free:bytes}", free), case.where("keep_checkpoints"))
    yield finding("disk_full", "likely", disk, sets=("keep_checkpoints", kept, 1), need=need, free=free, kept=kept or 0)


@rule("dtype_not_supported", only=("device", "stated_dtype"))
def unsupported_dtype(case: Case) -> Answers:
    """The device is slow at this precision."""
    device, dtype = known(case.device), known(case.stated_dtype)
    best = device.best_dtype
    if dtype in ("float32", best) or dtype in device.peaks:
        return
    seen, expected = msg("none for {dtype:code}", dtype), msg("one for {dtype:code}", best)
    evidence = see(msg("rated peak"), seen, expected, case.where("dtype"), msg("{source}", device.source))
    claim = msg("{device:code} has no fast {dtype:code} arithmetic", device.name, dtype)
    change = Change(msg("use the dtype this card is fast at"), "dtype", dtype, best)
    wrong = msg("it is no slower than in {dtype:code}", best)
    yield Finding("dtype_not_supported", "possible", claim, (evidence,), change, wrong)


FEWEST_TOKENS_PER_S = 10  # a small model on one core of a CPU does hundreds


@rule("data_bound_or_swap", only=("tokens_per_s",))
def absurdly_slow(case: Case) -> Answers:
    """It waits for data, or its memory is swapped out."""
    rows = case.rows("tokens_per_s")
    speed = float(np.median(case.steps.tokens_per_s[rows]))
    if len(rows) < 3 or not 0 < speed < FEWEST_TOKENS_PER_S:
        return
    expected = msg("above {least:count}", FEWEST_TOKENS_PER_S)
    seen = Seen(speed, expected, locations.rows(case, rows[0], rows[-1]), case.steps.step[rows[0]])
    yield finding("data_bound_or_swap", "likely", seen, speed=speed, count=len(rows))


# --- several processes

FEWEST_RANK_UPDATES = 10
NOTICEABLE_S = 0.002  # less is the operating system's business
# share of the updates in which it has to be the slowest: a busy machine makes now one rank wait and now the other
ALWAYS = 0.8
SLOWER_RANK = 1.15  # than the median of the others: what cores of one machine differ by is a few percent
LARGE_SHARE = 0.3


@rule("straggler_rank", "communication_bound", only=("rank_busy_s",))
def ranks(case: Case) -> Answers:
    """One rank holds up the others, or they mostly wait for each other's gradients."""
    facts = {key: case.run.known[f"rank_{key}"].value for key in ("busy_s", "took_s", "updates", "slowest", "comm_s")}
    busy, slowest, comm = (np.asarray(facts[key], dtype=float) for key in ("busy_s", "slowest", "comm_s"))
    took, updates = float(np.asarray(facts["took_s"])), int(np.asarray(facts["updates"]))
    if updates < FEWEST_RANK_UPDATES or len(busy) < 2 or not took > 0:
        yield NotChecked("straggler_rank", msg("{count:count update is|updates are} too few to compare ranks", updates))
        return
    yield from _straggler(case, busy, slowest, took, updates)
    yield from _communication(busy, comm, took, updates)


def _straggler(case: Case, busy: np.ndarray, times_slowest: np.ndarray, took: float, updates: int) -> Iterator[Finding]:
    slowest = int(busy.argmax())
    own, others = float(busy[slowest]), float(np.median(np.delete(busy, slowest)))
    if own < SLOWER_RANK * others or times_slowest[slowest] < ALWAYS * updates or own - others < NOTICEABLE_S:
        return
    where, hosts = msg("rank {rank:count}", slowest), case.get("rank_hosts")
    if hosts and isinstance(hosts, (tuple, list)):
        where = msg("rank {rank:count} on {host:code}", slowest, hosts[slowest])
    what = msg("fraction of an update in which the others wait for it")
    how = msg("(its time - that of the others) / update")
    wait = see(what, (own - others) / took, (0.0, 0.05), where, how, "share")
    sureness: Sureness = "certain" if own > 1.5 * others and updates >= 20 else "likely"
    yield finding("straggler_rank", sureness, Seen(own, others, where), wait, rank=slowest, count=updates)


def _communication(busy: np.ndarray, comm: np.ndarray, took: float, updates: int) -> Iterator[Finding]:
    share = 1 - float(busy.max()) / took
    if share >= LARGE_SHARE:
        waits = Seen(share, (0.0, 0.1), msg("{count:count update|updates}", updates))
        yield finding("communication_bound", "likely", waits, comm=float(comm.max()), took=took)


@rule("rank_lost", marks=("rank_lost",))
def rank_lost(case: Case) -> Answers:
    """A rank died, hung or could not be reached."""
    lost = case.marks("rank_lost")
    times = Seen(len(lost), 0, msg("{words}", lost[-1].text), lost[-1].step)
    yield finding("rank_lost", "certain", times, waited=lost[-1].took_s)
