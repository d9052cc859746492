"""The log cannot come from the stated config.

What it sees. Evaluations at steps that are no multiples of eval_interval, lines at other intervals than log_interval, steps beyond
max_iters, printed tokens per iteration, parameter counts, learning rates or a first loss that the config's numbers cannot give.

Why it matters. Every conclusion drawn from the wrong config is wrong: the override on the command line, the older file, the other
run.

When it is wrong. Lines may be left out of a log, so gaps prove nothing; only what the config rules out counts. A resumed run may
start at any step.

What it looks like. eval_interval=250, and evaluations at steps 300 and 600.

What to change. Give the config that the run had; nanoGPT prints its overrides at the top of the log.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.message import msg
from nanolens.sizing import parameters as count_parameters
from nanolens.sizing import rate_of

CODES = ("config_log_mismatch",)


def look(case: Case) -> Iterator[Finding | NotChecked]:
    if case.run.words.trainer == "nanolens":
        return  # log and config come from one record
    if not len(case.steps) and not len(case.evals) and case.number("parameters") is None:
        return
    found = [*_intervals(case), *_tokens(case), *_parameters(case), *_first_loss(case), *_rates(case)]
    if not found:
        return
    only_printing = all(
        item.how.msgid.startswith("log_interval") for item in found
    )  # often overridden, and changes no number of the training
    yield Finding(
        "config_log_mismatch",
        "possible" if only_printing else "likely",
        msg("the log cannot come from this config"),
        tuple(found),
        Change(msg("give the config that this run had: look for overrides at the top of its log")),
        msg("another part of the config was changed while it ran"),
    )


def _intervals(case: Case) -> Iterator[Evidence]:
    if case.run.words.trainer != "nanogpt":
        return
    interval = case.stated("eval_interval")
    if interval and 1 <= interval < 2**53 and len(case.evals) >= 2:
        off = np.flatnonzero(case.evals.printed % int(interval) != 0)
        if len(off) >= 2:
            yield Evidence(
                msg("step of an evaluation"),
                int(case.evals.printed[off[0]]),
                msg("a multiple of {every:count}", every=int(interval)),
                places.evaluation(case, int(off[0])),
                msg("eval_interval; {count:count} evaluations are off it", count=len(off)),
                "count",
            )
    every = case.stated("log_interval")
    if every and 1 < every < 2**53 and len(case.steps) >= 3:
        off = np.flatnonzero(case.steps.printed % int(every) != 0)
        if len(off) >= 2:
            yield Evidence(
                msg("iteration of a line"),
                int(case.steps.printed[off[0]]),
                msg("a multiple of {every:count}", every=int(every)),
                places.row(case, int(off[0])),
                msg("log_interval; {count:count} lines are off it", count=len(off)),
                "count",
            )
    last = case.stated("max_iters")
    if last and last > 0 and case.last_step > last * 1.01 + 1:
        yield Evidence(
            msg("last step"),
            case.last_step,
            msg("at most {last:count}", last=int(last)),
            msg("the end of the log"),
            msg("max_iters"),
            "count",
        )


def _tokens(case: Case) -> Iterator[Evidence]:
    printed = case.run.known.get("tokens_per_update")
    batch, block, count = case.stated("batch_size"), case.stated("block_size"), case.stated("gradient_accumulation_steps")
    if printed is None or printed.origin != "printed" or not isinstance(printed.value, (int, float)) or None in (batch, block, count):
        return
    product = batch * block * count  # type: ignore[operator]
    if product <= 0:
        return
    ratio = float(printed.value) / product
    devices = case.devices or 1
    # A whole multiple may be the number of processes, which some releases multiply in.
    if abs(ratio - 1) < 0.001 or abs(ratio - devices) < 0.001 or (case.devices is None and ratio >= 2 and abs(ratio - round(ratio)) < 1e-6):
        return
    yield Evidence(
        msg("tokens per iteration as printed"),
        float(printed.value),
        product,
        msg("{where:code}", where=printed.where),
        msg("batch_size x block_size x gradient_accumulation_steps"),
        "tokens",
    )


def _parameters(case: Case) -> Iterator[Evidence]:
    printed, shape = case.number("parameters"), case.shape
    if (
        printed is None
        or shape is None
        or shape.arch != "gpt2"
        or case.run.words.trainer not in ("nanogpt", "build-nanogpt", "unknown", "")
    ):
        return
    if case.vocab_size is None or case.vocab_size.origin == "inferred":
        return  # the vocabulary itself is a guess
    from dataclasses import replace

    counts = []
    for bias in (False, True):
        for tied in (True, False):
            counted = count_parameters(replace(shape, bias=bias, tied=tied))
            counts += [counted.total, counted.as_nanogpt_prints, counted.without_embeddings, counted.matmul]
    if any(abs(printed / count - 1) < 0.02 for count in counts):
        return
    nearest = min(counts, key=lambda count: abs(count - printed))
    yield Evidence(
        msg("parameters as printed"),
        printed,
        float(nearest),
        case.where("parameters"),
        msg("the shape's own count, with or without biases, embeddings, a head of its own"),
        "parameters",
    )


def _first_loss(case: Case) -> Iterator[Evidence]:
    given = case.whole("vocab_size")
    first = case.first_loss
    if given is None or first is None or case.is_pretrained or case.ln_vocab is None:
        return
    unigram = case.unigram_nats or (7.7 if given > 50_000 else None)
    if first > 0.85 * case.ln_vocab or (unigram is not None and first > unigram - 0.3) or case.text("init_from") == "resume":
        return
    yield Evidence(
        msg("first loss"),
        first,
        case.ln_vocab,
        msg("the first line with a loss"),
        msg("ln of vocab_size: an untrained model cannot start lower"),
        "nats",
        0,
    )


def _rates(case: Case) -> Iterator[Evidence]:
    schedule = case.schedule
    rates = case.steps.rate
    rows = np.flatnonzero(np.isfinite(rates) & (rates > 0))
    if schedule is None or case.run.words.trainer != "nanogpt" or len(rows) < 3 or case.whole("warmup_iters") is None:
        return
    expected = np.array([rate_of(schedule, int(case.steps.printed[i])) for i in rows[:: max(1, len(rows) // 200)]])
    seen = rates[rows[:: max(1, len(rows) // 200)]]
    off = np.abs(seen / np.maximum(expected, 1e-12) - 1) > 0.1
    if off.mean() < 0.5:
        return
    i = int(np.flatnonzero(off)[0])
    row = int(rows[:: max(1, len(rows) // 200)][i])
    yield Evidence(
        msg("learning rate as printed"), float(seen[i]), float(expected[i]), places.row(case, row), msg("the schedule's formula"), "rate"
    )
