"""Out of memory: which part did not fit.

What it sees. An out-of-memory error, and the arithmetic of what has to be there: weights, gradients and Adam's moments (16 bytes a
parameter, whatever the batch), activations and logits (which grow with the micro-batch).

Why it matters. The usual advice, a smaller batch, cannot help where the state alone does not fit; and fewer layers hardly help
where the logits of a 50,000-token vocabulary are most of it.

When it is wrong. Other programs on the card and fragmentation take memory as well; if reserved is far above allocated, it is
fragmentation.

What it looks like. GPT-2 XL on a 24 GB card at batch size 1: 1.56 billion parameters x 16 bytes are 24.9 GB.

What to change. State too large: a smaller model, 8-bit Adam, LoRA, or a larger card. Logits: a chunked head, or half the micro-
batch with twice the accumulation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.message import Message, msg
from nanolens.sizing import GPT2_FAMILY, memory, parameters

CODES = ("oom_optimizer_state", "oom_logits")

GIB = 2.0**30
CROWDED = 0.8  # of the card: with the context, 16-bit copies and any activation the rest is gone


def look(case: Case) -> Iterator[Finding | NotChecked]:
    marks = [mark for mark in case.run.marks if mark.kind == "out_of_memory"]
    if not marks:
        return
    where = msg("line {line:count}", line=marks[0].line)
    shape, counted = case.shape, case.counted
    capacity = _capacity(case, marks[0].text)
    if counted is None or shape is None:
        printed = case.parameters
        if printed is None or capacity is None:
            yield NotChecked("oom_optimizer_state", msg("the model's size or the card's memory is not known"))
            return
        if 16 * printed.value > CROWDED * capacity:
            yield _state(case, 16 * printed.value, printed.value, capacity, where)
        return
    batch = case.whole("batch_size") or 1
    parts = memory(shape, batch_size=batch, dtype=case.dtype or "bfloat16", dropout=case.number("dropout") or 0.0)
    if capacity is not None and parts.state > CROWDED * capacity:
        yield _state(case, parts.state, counted.total, capacity, where)
    elif parts.logits > max(parts.activations, parts.state) or (capacity is not None and parts.logits > 0.4 * capacity):
        yield _logits(case, parts.logits, parts.activations, capacity, batch, where)
    elif capacity is None:
        yield NotChecked("oom_optimizer_state", msg("the card's memory is not known; give --hardware=NAME"))


def _capacity(case: Case, text: str) -> float | None:
    told = case.number("device_memory_bytes")
    if told is not None:
        return told
    found = re.search(r"(\d+(?:\.\d+)?) GiB total capacity|total capacity of (\d+(?:\.\d+)?) GiB", text)
    if found:
        return float(found[1] or found[2]) * GIB
    if case.hardware is None:
        return None
    if case.hardware.memory_gb is not None:
        return case.hardware.memory_gb * GIB
    device = case.hardware.device
    return max(device.memory_gb) * GIB if device is not None and len(device.memory_gb) == 1 else None


def _state(case: Case, state: float, count: float, capacity: float, where: Message) -> Finding:
    smaller = [name for name, shape in GPT2_FAMILY.items() if 16 * parameters(shape).total < 0.6 * capacity]
    evidence = Evidence(
        msg("weights, gradients and Adam's moments"),
        state,
        msg("below {limit:bytes} of {capacity:bytes}", limit=CROWDED * capacity, capacity=capacity),
        where,
        msg("{count:parameters} parameters x 16 bytes, before any activation and whatever the batch", count=count),
        "bytes",
    )
    is_gpt2 = case.text("init_from") in GPT2_FAMILY
    return Finding(
        "oom_optimizer_state",
        "certain" if state > 0.95 * capacity else "likely",
        msg("the state of the model alone fills the card; a smaller batch or context cannot help"),
        (evidence,),
        Change(
            msg("use a smaller model, 8-bit Adam, LoRA, or a card with more memory"),
            key="init_from" if is_gpt2 and smaller else "",
            old=case.text("init_from") if is_gpt2 else None,
            new=smaller[-1] if is_gpt2 and smaller else None,
        ),
        msg("the optimizer is not Adam, or keeps its moments in 8 bits"),
    )


def _logits(case: Case, logits: float, activations: float, capacity: float | None, batch: int, where: Message) -> Finding:
    shape = case.shape
    assert shape is not None
    evidence = Evidence(
        msg("logits at their peak"),
        logits,
        activations,
        where,
        msg(
            "batch {batch:count} x {block:count} x {vocab:count} x about 14 bytes, against the activations of all layers",
            batch=batch,
            block=shape.block_size,
            vocab=shape.vocab_size,
        ),
        "bytes",
    )
    accumulation = case.whole("gradient_accumulation_steps")
    return Finding(
        "oom_logits",
        "likely",
        msg("most of the memory is logits, not layers"),
        (evidence,),
        Change(
            msg(
                "compute the loss in chunks, or halve batch_size and double gradient_accumulation_steps ({accumulation})",
                accumulation=accumulation or "?",
            ),
            key="batch_size",
            old=batch,
            new=max(1, batch // 2),
        ),
        msg("the trainer already computes the loss in chunks"),
    )
