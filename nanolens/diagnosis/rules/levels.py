"""The loss against levels that are known: chance, token frequencies, token pairs, a reference run."""

from __future__ import annotations

import math
import re

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, finding, new_lr, rule
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import Finding, NotChecked, Sureness, known
from nanolens.facts.references import WEB_TEXT_UNIGRAM, Reference
from nanolens.facts.statistics import stretches, trend
from nanolens.message import Message, msg


@rule("init_loss_ok", needs=("is_from_scratch", "starting_loss", "vocab_size"))
def initial_loss(case: Case) -> Answers:
    """The first loss, compared with random guessing."""
    first, level, vocab = known(case.starting_loss), known(case.ln_vocab), known(case.vocab_size)
    is_stated = case.first_loss is None
    frequencies, (low, high) = case.unigram_nats, WEB_TEXT_UNIGRAM
    if -0.05 * level <= first - level <= 0.08 * level or (is_stated and abs(first - level) < 0.1 * level):
        name, usual = "init_loss_ok", level
    elif frequencies is None and case.has_gpt2_vocab and low <= first <= high:
        name, usual = "init_loss_ok.web_text", low
    elif frequencies is not None and abs(first - frequencies) < 0.15:
        name, usual = "init_loss_ok.frequencies", frequencies
    else:
        return
    where = case.where("first_loss") if is_stated else msg("the first line with a loss")
    sureness: Sureness = "likely" if vocab.origin == "inferred" else "certain"
    if case.is_vocab_guessed and abs(first - level) > 0.002:
        sureness = "possible"  # the vocabulary was read off this very loss: only a match to the digit is more than that
    yield finding(name, sureness, Seen(first, usual, where, 0))


UNIGRAM_STEPS = {True: 100, False: 500}  # by is_char: updates after which a healthy run is past the level
BIGRAM_STEPS = 1000
UNIGRAM_TOKENS = 8e6  # of BPE text, within which the unigram level is no surprise
STILL_FALLS = 0.08  # nats over the second half of a stay, by which a run is on its way out
BELOW, ABOVE = 0.08, 0.12  # how far from the level counts as at it: models share it only about


@rule("collapse_to_unigram", only=("is_from_scratch",), needs=("unigram_band",))
def unigram(case: Case) -> Answers:
    """The loss is stuck at the level of token frequencies."""
    low, high = known(case.unigram_band)
    x, y = case.vals if len(case.vals[1]) >= 6 else case.losses if len(case.losses[1]) >= 5 else case.curve
    if len(y) < 5 or not is_past_unigram(case, int(x[-1])):
        stated = _stated_loss(case)
        if stated is not None and low <= stated <= high and not len(y):
            yield _collapse(case, stated, msg("as stated in the config"), None)
        return
    start = _last_stretch((y >= low) & (y <= high))
    if start is None or len(y) - start < 5 or x[-1] - x[start] < 0.3 * x[-1] or _still_falls(x[start:], y[start:]):
        return
    yield _collapse(case, np.median(y[start:]), locations.steps(x[start], x[-1]), x[start])


def is_past_unigram(case: Case, step: int) -> bool:
    """Whether a healthy run has left the level of token frequencies by then."""
    tokens = case.tokens_at(step)
    return step >= UNIGRAM_STEPS[case.is_char] and (case.is_char or tokens is None or tokens >= UNIGRAM_TOKENS)


def _still_falls(x: np.ndarray, y: np.ndarray) -> bool:
    """On the second half of the stay: the first is the approach, by which a stuck run falls too."""
    half = max(4, len(y) // 2)
    x, y = x[-half:], y[-half:]
    slope = trend(x, y)
    if slope is None:
        return False
    is_falling = slope.is_falling or len(y) < 5  # below five points no order is significant
    return is_falling and -slope.slope * (x[-1] - x[0]) > STILL_FALLS


def _stated_loss(case: Case) -> float | None:
    """Where the config says in words at which loss the run stands: "~7.81 +- 0.5"."""
    for key in ("plateau_loss", "loss_after", "final_loss", "current_loss"):
        found = re.match(r"[~≈ ]*(\d+(?:\.\d+)?)", str(case.run.get(key) or ""))
        if found:
            return float(found[1])
    return None


def _last_stretch(inside: np.ndarray) -> int | None:
    """Where the final unbroken stay begins; one point in twenty may stray."""
    if not len(inside) or not inside[-min(3, len(inside)) :].any():
        return None
    outside = np.cumsum(~inside[::-1])
    allowed = np.maximum(1, np.arange(1, len(inside) + 1) / 20)
    broken = np.flatnonzero(outside > allowed)
    return len(inside) - int(broken[0]) if len(broken) else 0


def _collapse(case: Case, level: float, where: Message, step: int | None) -> Finding:
    low, high = known(case.unigram_band)
    evidence = Seen(level, msg("below {low:nats}", low), where, step)
    return finding("collapse_to_unigram", "likely", evidence, sets=new_lr(case.peak_lr, 1 / 3), low=low, high=high)


@rule("bigram_plateau", only=("is_from_scratch", "is_char"), needs=("bigram_nats",))
def bigram(case: Case) -> Answers:
    """The loss is stuck at the level of token pairs."""
    level, (x, y) = known(case.bigram_nats), case.curve
    stay = longest_stay(x, (y >= level - BELOW) & (y <= level + ABOVE))
    if len(y) < 4 or stay is None:
        return
    first, last = stay
    length = x[last] - x[first]
    stays_to_the_end = last == len(x) - 1 and length >= 300 and length >= 0.5 * x[-1]
    if length < BIGRAM_STEPS and not (stays_to_the_end and _is_flat(x[first:], y[first:])):
        return
    where, expected = locations.steps(x[first], x[last]), msg("below {low:nats}", level - BELOW)
    loss = Seen(np.median(y[first : last + 1]), expected, where, x[first])
    is_low = case.peak_lr is not None and case.peak_lr < 3e-4
    sets = ("learning_rate", case.peak_lr, 1e-3) if is_low else None
    yield finding("bigram_plateau", "likely", loss, sets=sets, length=int(length), level=level)


def stuck(case: Case) -> list[Finding]:
    """That the loss stays at a level which every healthy run leaves."""
    answers = [*unigram.findings(case), *bigram.findings(case)]
    return [answer for answer in answers if isinstance(answer, Finding)]


def longest_stay(x: np.ndarray, inside: np.ndarray) -> tuple[int, int] | None:
    """Its first point and its last."""
    stays = [(start, end - 1) for start, end in stretches(inside)]
    return max(stays, key=lambda stay: x[stay[1]] - x[stay[0]], default=None)


def _is_flat(x: np.ndarray, y: np.ndarray) -> bool:
    slope = trend(x, y)
    return slope is not None and -slope.slope * (x[-1] - x[0]) < 0.1


@rule("above_reference", needs=("reference", "val_rows"))
def above_reference(case: Case) -> Answers:
    """Worse than the reference run of the same model and data."""
    published, per_update, planned = known(case.reference), case.tokens_per_update, case.whole("max_iters")
    theirs, length = published.tokens_per_update, published.end_step
    if per_update is None or theirs is None or abs(per_update.value / theirs - 1) > 0.1:
        because = msg("the reference run has different tokens per update ({tokens:tokens})", theirs or 0)
        yield NotChecked("above_reference", because)
        return
    if planned is not None and length is not None and abs(planned / length - 1) > 0.1:
        because = msg("the reference run was {length:count update|updates} long: a different schedule", length)
        yield NotChecked("above_reference", because)
        return
    found = _difference(case, published)
    noise = math.hypot(published.spread, case.eval_noise.value if case.eval_noise is not None else published.spread)
    if found is None or case.evals.val[found[0]] - found[1] <= max(3.5 * noise, 0.02):
        return
    index, expected = found
    val, name, source = float(case.evals.val[index]), published.name, published.source
    loss = Seen(val, expected, locations.evaluation(case, index), case.evals.step[index])
    sureness: Sureness = "possible" if planned is None and published.val_by_step else "likely"
    yield finding("above_reference", sureness, loss, gap=val - expected, name=name, source=source, noise=noise)


def _difference(case: Case, published: Reference) -> tuple[int, float] | None:
    """The evaluation that can be compared, and what it should be."""
    at, evals = case.val_rows, case.evals
    steps = evals.step[at]
    if published.val_by_step:
        table = np.array(published.val_by_step)
        inside = at[(steps >= table[0, 0]) & (steps <= table[-1, 0] * 1.02)]
        if not len(inside):
            return None
        last = int(inside[-1])
        return last, float(np.interp(math.log(max(1, evals.step[last])), np.log(table[:, 0]), table[:, 1]))
    if published.best_val is not None and published.best_step is not None:
        if len(at) < 4 or steps[-1] < 1.5 * published.best_step:
            return None
        return int(at[np.argmin(evals.val[at])]), published.best_val
    if published.end_val is not None and published.end_step is not None:
        return (int(at[-1]), published.end_val) if abs(steps[-1] / published.end_step - 1) < 0.05 else None
    return None
