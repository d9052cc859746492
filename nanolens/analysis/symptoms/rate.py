"""The learning rate is too high, or too low.

What it sees. The largest learning rate next to what models of this size are trained with, together with what such a rate does:
spikes that keep coming, a blow-up after growing gradients, a loss that stays at the level of token frequencies (too high); or
hardly any progress (too low).

Why it matters. It is the setting that matters most. Three times too high destroys a run, ten times too low wastes nine tenths of
it.

When it is wrong. The rule speaks only where size and behaviour agree; an unusual rate that works is left alone. Rates are AdamW's:
Muon's matrices and SGD have others.

What it looks like. 0.03 for a model whose usual rate is 0.001, and a loss that never leaves 3.3.

What to change. The rate that is usual for the size: 1e-3 at 10M parameters, 6e-4 at 124M, 3e-4 at 350M.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.analysis.symptoms import explosion, stuck
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.statistics import spikes
from nanolens.message import Message, msg

CODES = ("lr_too_high", "lr_too_low")

TABLE = ((1e6, 3e-3), (1e7, 1.5e-3), (1.25e8, 6e-4), (3.5e8, 3e-4), (7.6e8, 2.5e-4), (1.3e9, 2e-4))
"""Usual peak rates of AdamW by parameters: GPT-3's table from 125M on; below it small public runs (1e-3 to 3e-3)."""

TOO_HIGH, TOO_LOW = 4.0, 8.0
HIGHEST_USUAL = 2e-3


def usual_rate(parameters: float) -> float:
    sizes, rates = np.log([row[0] for row in TABLE]), np.log([row[1] for row in TABLE])
    return float(np.exp(np.interp(np.log(max(parameters, 1.0)), sizes, rates)))


def look(case: Case) -> Iterator[Finding | NotChecked]:
    if case.is_pretrained or case.text("optimizer").lower() not in ("", "adamw", "adam"):
        return
    peak = case.peak_rate
    if peak is None:
        yield NotChecked("lr_too_high", msg("the learning rate is not known"))
        return
    where = case.where("learning_rate")
    if case.parameters is None:
        usual, how = HIGHEST_USUAL, msg("the highest that is usual for any GPT under AdamW; the size is not known")
        if peak <= TOO_HIGH * usual:
            case.need("parameters")
    else:
        usual = usual_rate(case.parameters.value)
        how = msg("usual for {count:parameters} parameters under AdamW", count=case.parameters.value)
    own = Evidence(msg("largest learning rate"), peak, usual, where, how, "rate")
    if peak > TOO_HIGH * usual:
        trouble = _trouble(case)
        if trouble:
            yield Finding(
                "lr_too_high",
                "likely",
                msg("the learning rate is {times:times} what is usual, and the run shows it", times=peak / usual),
                (own, *trouble),
                Change(msg("lower the learning rate"), key="learning_rate", old=peak, new=_rounded(usual)),
                msg("the same trouble comes at a tenth of the rate"),
            )
    elif 0 < peak < usual / TOO_LOW:
        slow = _slow(case)
        if slow:
            yield Finding(
                "lr_too_low",
                "likely",
                msg("the learning rate is {times:times} below what is usual, and progress is slow", times=usual / peak),
                (own, *slow),
                Change(msg("raise the learning rate"), key="learning_rate", old=peak, new=_rounded(usual)),
                msg("a higher rate makes the loss fall no faster"),
            )


def _rounded(rate: float) -> float:
    return float(np.format_float_scientific(rate, precision=0))


def _trouble(case: Case) -> list[Evidence]:
    found = []
    steps, losses = case.losses
    rise = explosion.lasting_rise(steps, losses)
    if rise is not None:
        found.append(
            Evidence(msg("loss at the end"), rise.end, rise.low, _at(int(steps[rise.at])), msg("it rose and did not come back"), "nats")
        )
    for finding in stuck.look(case):
        # A model of unknown size may be a table of token pairs, which can do no better at any rate.
        if not isinstance(finding, NotChecked) and (case.parameters is not None or finding.code != "bigram_plateau"):
            found += finding.evidence
    found = found or _lingering(case)
    if len(losses) >= 40:
        jumps = spikes(losses, floor=0.05 * float(np.median(losses)))
        if len(jumps) >= max(3, 0.01 * len(losses)):
            found.append(
                Evidence(
                    msg("jumps of the loss"),
                    len(jumps),
                    msg("0 to 2"),
                    _at(int(steps[jumps[0]])),
                    msg("losses more than 8 sigma above their neighbourhood"),
                    "count",
                )
            )
    return found


def _lingering(case: Case) -> list[Evidence]:
    """Long at the level of token frequencies, though not to the end: as the rate decays, such a run begins to learn after all."""
    band = stuck.unigram_band(case)
    steps, losses = case.curve
    if band is None or len(losses) < 6:
        return []
    stay = stuck.longest_stay(steps, (losses >= band[0]) & (losses <= band[1]))
    if stay is None:
        return []
    length = float(steps[stay[1]] - steps[stay[0]])
    if length < 100 or length < 0.3 * steps[-1]:
        return []
    how = msg("at the unigram level of this text, {low:nats} to {high:nats}", low=band[0], high=band[1])
    return [
        Evidence(msg("updates without progress"), int(length), msg("below {few:count}", few=100), _at(int(steps[stay[0]])), how, "count")
    ]


def _slow(case: Case) -> list[Evidence]:
    found: list[Evidence] = []
    for finding in stuck.look(case):
        if not isinstance(finding, NotChecked):
            found += finding.evidence
    return found or _above_unigram(case)


def _above_unigram(case: Case) -> list[Evidence]:
    """Hundreds of updates, and the loss is not even at the level of token frequencies."""
    steps, losses = case.losses
    level = case.unigram_nats
    if level is None or len(losses) < 20 or steps[-1] < 200:
        return []
    now = float(np.median(losses[-10:]))
    if now < level + 0.1:
        return []
    how = msg("the unigram level of this text, which a sound run passes within a hundred updates")
    return [Evidence(msg("loss after {count:count} updates", count=int(steps[-1])), now, level, _at(int(steps[-10])), how, "nats")]


def _at(step: int) -> Message:
    return msg("from step {step:count} on", step=step)
