"""How many tokens an update really has, and whether they are enough.

What it sees. The tokens of an iteration from its time and MFU, which prove how many micro-batches were added up
(grad_accum_inferred); and tokens per update far below the recipe whose learning rate is used (batch_too_small).

Why it matters. A hidden accumulation makes a run tens of times slower than expected, and its "iterations" tens of times longer; an
eighth of the recipe's batch at the recipe's learning rate is noisier than the recipe allows for.

When it is wrong. The inference holds for nanoGPT's MFU, which divides by an A100's 312 TFLOP/s on any card; a modified formula
breaks it, and then the result is no whole number. A small batch is often right for a small budget.

What it looks like. A 6 x 384 model, batch 64 x 256, and 179 ms at 16.7%: 131,000 tokens, 8 micro-batches of 16,384.

What to change. Set gradient_accumulation_steps to what is meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.analysis.symptoms import explosion, stuck
from nanolens.facts.case import Case, Quantity
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked, Sureness
from nanolens.message import msg

CODES = ("grad_accum_inferred", "batch_too_small")

RECIPE_TOKENS, RECIPE_RATE = 491_520, 6e-4  # GPT-2 124M as nanoGPT trains it


def look(case: Case) -> Iterator[Finding | NotChecked]:
    yield from _accumulation(case)
    yield from _small(case)


def _accumulation(case: Case) -> Iterator[Finding | NotChecked]:
    if case.run.words.trainer != "nanogpt":
        return
    inferred, micro = case.tokens_from_mfu, case.micro_batch_tokens
    if inferred is None or micro is None:
        yield NotChecked("grad_accum_inferred", msg("shape, batch_size, block_size, time and MFU of ordinary iterations are not all known"))
        return
    times = inferred.value / micro
    nearest = max(1, round(times))
    stated = case.whole("gradient_accumulation_steps")
    devices = case.devices or 1
    expected = {stated, max(1, stated // devices)} if stated is not None else {1}
    # A printed MFU lags and is rounded: only a count that is clearly another one, and a whole one, is proof.
    if abs(times - nearest) > min(0.15, 0.04 * nearest) or any(abs(times / count - 1) < 0.25 for count in expected):
        return
    off = times * _rounding(case.steps.mfu_frac)
    if math.floor(times + off) > math.ceil(times - off):
        yield NotChecked("grad_accum_inferred", msg("the printed MFU has too few digits to tell the number of micro-batches"))
        return
    where = places.rows(case, 0, len(case.steps) - 1)
    evidence = Evidence(
        msg("micro-batches in one iteration"),
        times,
        stated if stated is not None else 1,
        where,
        msg("{how}, over {micro:tokens} tokens of a micro-batch", how=inferred.how, micro=micro),
        "number",
    )
    tokens = Evidence(msg("tokens per iteration"), inferred.value, float(micro * (stated or 1)), where, inferred.how, "tokens")
    sure: Sureness = "certain" if abs(times / nearest - 1) < 0.015 and 3 <= nearest <= 64 else "likely"
    yield Finding(
        "grad_accum_inferred",
        sure,
        msg("each iteration adds up {count:count} micro-batches: time and MFU prove it", count=nearest),
        (evidence, tokens),
        Change(
            msg("set the accumulation that is meant"),
            key="gradient_accumulation_steps",
            old=nearest,
            new=stated if stated is not None else 1,
        ),
        msg("the MFU of this trainer is not nanoGPT's (6N + 12LHQT, over 312 TFLOP/s)"),
    )


def _rounding(mfu: np.ndarray) -> float:
    """How far off a printed MFU may be for its last digit, as a share of it."""
    shown = mfu[np.isfinite(mfu) & (mfu > 0)][:1000]
    if not len(shown):
        return 0.0
    for decimals in range(2, 8):
        if np.allclose(shown, np.round(shown, decimals), rtol=0, atol=1e-9):
            return 0.5 * 10.0**-decimals / float(np.median(shown))
    return 0.0


def _small(case: Case) -> Iterator[Finding | NotChecked]:
    tokens: Quantity | None = case.tokens_per_update
    rate, shape = case.peak_rate, case.shape
    if tokens is None or rate is None or shape is None or not case.counts_all_devices:
        yield NotChecked("batch_too_small", msg("tokens per update, learning rate or shape is not known"))
        return
    is_recipe = (shape.n_layer, shape.n_embd) == (12, 768) and shape.vocab_size > 50_000
    trouble = _trouble(case)
    if not is_recipe or rate < 0.9 * RECIPE_RATE or tokens.value > RECIPE_TOKENS / (3.5 if trouble else 6) or case.is_pretrained:
        return
    evidence = Evidence(
        msg("tokens per update"),
        tokens.value,
        float(RECIPE_TOKENS),
        msg("at a learning rate of {rate:rate}", rate=rate),
        tokens.how,
        "tokens",
    )
    scaled = rate * (tokens.value / RECIPE_TOKENS) ** 0.5
    yield Finding(
        "batch_too_small",
        "likely" if trouble else "possible",
        msg("an update has {share:share} of the recipe's tokens at the recipe's learning rate", share=tokens.value / RECIPE_TOKENS),
        (evidence, *trouble),
        Change(
            msg("accumulate more micro-batches, or lower the rate with the square root of the batch"),
            key="learning_rate",
            old=rate,
            new=float(f"{scaled:.1e}"),
        ),
        msg("the budget is a few hundred million tokens, for which a batch of this size is right"),
    )


def _trouble(case: Case) -> tuple[Evidence, ...]:
    """What too noisy updates do: the run is stuck, or has diverged."""
    stays = [finding for finding in stuck.look(case) if isinstance(finding, Finding)]
    if stays:
        return stays[0].evidence
    steps, losses = case.losses
    rise = explosion.lasting_rise(steps, losses)
    if rise is None:
        return ()
    where = msg("from step {step:count} on", step=int(steps[rise.at]))
    return (Evidence(msg("loss at the end"), rise.end, rise.low, where, msg("it rose and did not come back"), "nats"),)
