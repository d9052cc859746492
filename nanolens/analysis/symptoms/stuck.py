"""The loss stands at the level of token frequencies, or of token pairs.

What it sees. A loss that stays, flat, at the unigram level of the text (collapse_to_unigram: 7.3 to 8.0 nats for GPT-2's tokens on
web text, 3.3 for characters of Shakespeare) or, for characters, at the bigram level (bigram_plateau: 2.45), long after a sound run
has left it.

Why it matters. At the unigram level the network ignores its input; at the bigram level it looks at one token and attention adds
nothing. Neither is cured by waiting, by a larger GPU or by more data.

When it is wrong. Every run passes both levels. A sound one leaves the unigram level within some hundred updates and the bigram
level of characters within a few hundred; a very small batch or learning rate stretches that.

What it looks like. Thousands of steps at one level that means something:

    step 1000: train loss 2.4911, val loss 2.5024
    step 4000: train loss 2.4402, val loss 2.4655

What to change. Check first that updates happen (learning rate above 0, gradient norm above 0) and that inputs and targets belong
together; after a blow-up go back before it with a lower rate; at the bigram level look at the attention, the position embedding and
the initialisation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.analysis.corpora import WEB_TEXT_UNIGRAM
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.statistics import trend
from nanolens.message import Message, msg

CODES = ("collapse_to_unigram", "bigram_plateau")

UNIGRAM_STEPS = {True: 100, False: 500}  # by is_char: updates after which a sound run is past the level
BIGRAM_STEPS = 1000
FEW_TOKENS = 8e6  # of BPE text, within which the unigram level is no surprise
STILL_FALLS = 0.08  # nats over the second half of a stay, by which a run is on its way out
BELOW, ABOVE = 0.08, 0.12  # how far from the level counts as at it: models share it only about


def look(case: Case) -> Iterator[Finding | NotChecked]:
    if case.is_pretrained:
        return
    yield from _unigram(case)
    yield from _bigram(case)


def _unigram(case: Case) -> Iterator[Finding | NotChecked]:
    band = unigram_band(case)
    if band is None:
        yield NotChecked("collapse_to_unigram", msg("the unigram level of this text is not known; give --unigram_nats=N or --dataset=NAME"))
        return
    x, y = _series(case)
    if len(y) < 5 or not is_past_unigram(case, int(x[-1])):
        stated = _stated_loss(case)
        if stated is not None and band[0] <= stated <= band[1] and not len(y):
            yield _collapsed(case, stated, band, msg("as stated in the config"), None)
        return
    inside = (y >= band[0]) & (y <= band[1])
    start = _last_stretch(inside)
    if start is None or len(y) - start < 5 or x[-1] - x[start] < 0.3 * x[-1]:
        return
    tail_x, tail_y = x[start:], y[start:]
    if _still_falls(tail_x, tail_y):
        return
    yield _collapsed(case, float(np.median(tail_y)), band, places.steps(tail_x[0], tail_x[-1]), int(tail_x[0]))


def is_past_unigram(case: Case, step: int) -> bool:
    """Whether a sound run has left the level of token frequencies by then."""
    tokens = case.tokens_at(step)
    return step >= UNIGRAM_STEPS[case.is_char] and (case.is_char or tokens is None or tokens >= FEW_TOKENS)


def _still_falls(x: np.ndarray, y: np.ndarray) -> bool:
    """On the second half of the stay: the first is the approach, by which a stuck run falls too."""
    half = max(4, len(y) // 2)
    x, y = x[-half:], y[-half:]
    slope = trend(x, y)
    if slope is None:
        return False
    return -slope.slope * (x[-1] - x[0]) > STILL_FALLS and (slope.is_falling or len(y) < 5)  # below five points no order is significant


def _stated_loss(case: Case) -> float | None:
    """Where the config says in words at which loss the run stands: "~7.81 +- 0.5"."""
    for key in ("plateau_loss", "loss_after", "final_loss", "current_loss"):
        found = re.match(r"[~≈ ]*(\d+(?:\.\d+)?)", str(case.run.get(key) or ""))
        if found:
            return float(found[1])
    return None


def unigram_band(case: Case) -> tuple[float, float] | None:
    level = case.unigram_nats
    if level is not None:
        return (level - 0.12, level + 0.25) if case.is_char else (level - 0.4, level + 0.4)
    if case.vocab_size is not None and 50_000 <= case.vocab_size.value <= 51_000:
        return WEB_TEXT_UNIGRAM
    return None


def _series(case: Case) -> tuple[np.ndarray, np.ndarray]:
    return case.vals if len(case.vals[1]) >= 6 else case.losses if len(case.losses[1]) >= 5 else case.curve


def _last_stretch(inside: np.ndarray) -> int | None:
    """Where the final unbroken stay begins; one point in twenty may stray."""
    if not len(inside) or not inside[-min(3, len(inside)) :].any():
        return None
    outside = np.cumsum(~inside[::-1])
    allowed = np.maximum(1, np.arange(1, len(inside) + 1) / 20)
    held = np.flatnonzero(outside <= allowed)
    if not len(held) or outside[0] > allowed[0]:
        return None
    broken = np.flatnonzero(outside > allowed)
    length = int(broken[0]) if len(broken) else len(inside)
    return len(inside) - length


def _collapsed(case: Case, level: float, band: tuple[float, float], where: Message, step: int | None) -> Finding:
    rate = case.peak_rate
    evidence = Evidence(
        msg("loss"),
        level,
        msg("below {low:nats}", low=band[0]),
        where,
        msg(
            "the unigram level of this text is about {low:nats} to {high:nats}: token frequencies without context",
            low=band[0],
            high=band[1],
        ),
        "nats",
        step,
    )
    return Finding(
        "collapse_to_unigram",
        "likely",
        msg("the loss stands at the level of token frequencies: the model ignores its context"),
        (evidence,),
        Change(
            msg(
                "check that the weights change and that targets are the inputs shifted by one; "
                "after a blow-up go back before it at a third of the rate"
            ),
            key="learning_rate" if rate else "",
            old=rate,
            new=rate / 3 if rate else None,
        ),
        msg("the tokenizer or the text is another one, whose unigram level lies elsewhere"),
    )


def _bigram(case: Case) -> Iterator[Finding | NotChecked]:
    level = case.bigram_nats
    if level is None or not case.is_char:
        if case.is_char:
            yield NotChecked("bigram_plateau", msg("the bigram level of this text is not known; give --bigram_nats=N or --dataset=NAME"))
        return
    x, y = case.curve
    if len(y) < 4:
        return
    stay = longest_stay(x, (y >= level - BELOW) & (y <= level + ABOVE))
    if stay is None:
        return
    first, last = stay
    length = x[last] - x[first]
    ends_there = last == len(x) - 1
    if not (length >= BIGRAM_STEPS or (ends_there and length >= 150 and length >= 0.5 * x[-1] and _is_flat(x[first:], y[first:]))):
        return
    middle = float(np.median(y[first : last + 1]))
    evidence = Evidence(
        msg("loss for {length:count} steps", length=int(length)),
        middle,
        msg("below {low:nats}", low=level - BELOW),
        places.steps(x[first], x[last]),
        msg("the bigram level of this text is {level:nats}: what the token before tells", level=level),
        "nats",
        int(x[first]),
    )
    rate = case.peak_rate
    is_low = rate is not None and rate < 3e-4
    yield Finding(
        "bigram_plateau",
        "likely",
        msg("the loss stays at the level of token pairs: attention contributes almost nothing"),
        (evidence,),
        Change(
            msg("check attention, causal mask, position embedding and initialisation; a rate of 1e-3 is usual for a model of this size"),
            key="learning_rate" if is_low else "",
            old=rate if is_low else None,
            new=1e-3 if is_low else None,
        ),
        msg("the loss leaves this level within the next few hundred steps"),
    )


def longest_stay(x: np.ndarray, inside: np.ndarray) -> tuple[int, int] | None:
    best: tuple[int, int] | None = None
    start: int | None = None
    for i, is_in in enumerate(inside):
        if is_in and start is None:
            start = i
        if start is not None and (not is_in or i == len(inside) - 1):
            end = i if is_in else i - 1
            if best is None or x[end] - x[start] > x[best[1]] - x[best[0]]:
                best = (start, end)
            if not is_in:
                start = None
    return best


def _is_flat(x: np.ndarray, y: np.ndarray) -> bool:
    slope = trend(x, y)
    return slope is not None and -slope.slope * (x[-1] - x[0]) < 0.1
