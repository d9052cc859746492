"""How a sweep spends its budget: which settings are tried, for how long, and which of them go on.

Successive halving: many settings for a short time, the better third for three times as long, and so on. Each trial is a whole run with its
whole schedule, since a loss in the middle of a schedule says little about its end. A setting is only left behind when it is worse than
the best by more than noise, so that a rung may keep more than its third; the budget then makes the next one shorter."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nanolens.config.fields import settings
from nanolens.errors import UserError, fault
from nanolens.message import msg

KEEP = 3  # one in so many goes on, three times as long
FEWEST_UPDATES = 30  # of a trial that says anything
CANDIDATES = (9, 6, 4, 3)
MOST_KEPT = 2  # times as many as planned may go on because they cannot be told apart
GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Range:
    key: str
    low: float
    high: float
    is_log: bool
    is_whole: bool

    def at(self, place: float) -> float | int:
        """The value at a place from 0 to 1."""
        value = self.low * (self.high / self.low) ** place if self.is_log else self.low + (self.high - self.low) * place
        return round(value) if self.is_whole else float(f"{value:.3g}")


@dataclass(frozen=True)
class Rung:
    trials: int
    updates: int


def range_named(key: str, text: str) -> Range | None:
    """`1e-4..1e-2` as a range of that setting; None where the text is a plain value."""
    found = re.fullmatch(r"\s*([^.\s][^\s]*?)\.\.([^\s]+)\s*", text)
    if found is None:
        return None
    known = settings().get(key)
    if known is None or known.type not in (int, float):
        raise fault(msg("{key:code} is not a number that could be swept", key=key), where=msg("{option:code}", option=f"--{key}={text}"),
                    fix=msg("sweep {examples:code} or another number", examples=("learning_rate", "weight_decay", "n_embd")))  # fmt: skip
    try:
        low, high = float(found[1]), float(found[2])
    except ValueError:
        raise _bad_range(key, text) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise _bad_range(key, text)
    return Range(key, low, high, is_log=low > 0 and high / low >= 4, is_whole=known.type is int)


def _bad_range(key: str, text: str) -> UserError:
    return fault(
        msg("{text:code} is not a range", text=text), where=msg("{option:code}", option=f"--{key}={text}"),
        fix=msg("write the smaller number, two dots and the larger one: {example:code}", example=f"--{key}=1e-4..1e-2"),
    )  # fmt: skip


def trials_of(ranges: Sequence[Range], count: int) -> list[dict[str, float | int]]:
    """Settings that fill the ranges evenly: a grid of one, points of a golden-ratio sequence of several. No two are alike."""
    found: list[dict[str, float | int]] = []
    for number in range(count):
        places = [number / max(1, count - 1)]
        # Powers of the golden ratio's kin: each next range is filled by steps that no earlier one repeats.
        places += [(0.5 + (number + 1) * GOLDEN**other) % 1.0 for other in range(1, len(ranges))]
        trial = {each.key: each.at(place) for each, place in zip(ranges, places, strict=True)}
        if trial not in found:
            found.append(trial)
    return found


def rungs_of(updates: float, longest: int) -> list[Rung]:
    """Trials and their lengths for a budget in updates; the longest is at most the run itself."""
    for count in CANDIDATES:
        trials = [count]
        while trials[-1] > 2:
            trials.append(max(2, math.ceil(trials[-1] / KEEP)))
        worth = sum(number * KEEP**place for place, number in enumerate(trials))
        first = min(updates / worth, longest / KEEP ** (len(trials) - 1))
        if first >= FEWEST_UPDATES:
            return [Rung(number, round(first * KEEP**place)) for place, number in enumerate(trials)]
    if updates >= CANDIDATES[-1] * longest:  # the run itself is short: no need for shorter ones
        return [Rung(min(CANDIDATES[0], int(updates // longest)), longest)]
    raise fault(
        msg("the budget is {updates:count} updates, too few for even {count:count} short runs", updates=int(updates), count=CANDIDATES[-1]),
        fix=msg("give a larger {option:code}, or sweep a smaller model", option="--budget"),
    )


def survivors(losses: Mapping[int, float], is_clearly_worse: Mapping[int, bool], planned: int) -> list[int]:
    """The trials that go on, best first: the best `planned`, and those that cannot be told from the last of them, up to twice as many."""
    order = sorted((trial for trial, loss in losses.items() if math.isfinite(loss)), key=lambda trial: losses[trial])
    kept = order[:planned]
    for trial in order[planned:]:
        if len(kept) < MOST_KEPT * planned and not is_clearly_worse[trial]:
            kept.append(trial)
    return kept


def shortened(config_updates: int, whole: int, warmup: int) -> int:
    """The warm-up of a run of fewer updates: the same share of it."""
    return max(1, round(warmup * config_updates / whole)) if whole and warmup else 0
