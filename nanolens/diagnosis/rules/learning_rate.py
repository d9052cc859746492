"""The learning rate: its size, and whether its schedule fits the length of the run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanolens.config.fields import recommended_warmup
from nanolens.diagnosis.rule import LACKS, Answers, Seen, Setting, finding, rule
from nanolens.diagnosis.rules import levels
from nanolens.diagnosis.rules.jumps import rise_of_loss
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import Evidence, Finding, NotChecked, Sureness, known, see
from nanolens.facts.laws import is_outside_step_law, suggested_rate, two_digits, usual_rate
from nanolens.facts.statistics import spikes
from nanolens.message import msg
from nanolens.sizing.schedule import lr_of

TOO_HIGH, TOO_LOW = 4.0, 8.0
HIGHEST_USUAL = 2e-3


@rule("lr_too_high", "lr_too_low", only=("is_from_scratch", "is_adam"), needs=("peak_lr",))
def learning_rate(case: Case) -> Answers:
    """The learning rate is too high, or too low."""
    peak, size = known(case.peak_lr), case.parameters
    usual, how = HIGHEST_USUAL, msg("the highest common value for any GPT with AdamW; the size is not known")
    if size is not None:
        usual, how = usual_rate(size.value), msg("common for {count:parameters} parameters with AdamW", size.value)
    elif peak <= TOO_HIGH * usual:
        yield NotChecked("lr_too_high", LACKS["parameters"])
        return
    own = see(msg("peak learning rate"), peak, usual, case.where("learning_rate"), how, "rate")
    sets = ("learning_rate", peak, float(np.format_float_scientific(usual, precision=0)))
    if case.is_ahead:
        yield from _ahead(case, peak, usual, own, sets)
    elif peak > TOO_HIGH * usual and (trouble := _trouble(case)):
        yield finding("lr_too_high", "likely", own, *trouble, sets=sets, times=peak / usual)
    elif 0 < peak < usual / TOO_LOW and (slow := _slow(case)):
        yield finding("lr_too_low", "likely", own, *slow, sets=sets, times=usual / peak)


def _ahead(case: Case, peak: float, usual: float, own: Evidence, sets: Setting) -> Iterator[Finding]:
    """Before a run there is no behaviour to judge by: a second yardstick, the Step Law, has to agree."""
    tokens, size, per_update = case.tokens_at(case.judged_step), case.parameters, case.tokens_per_update
    if not tokens or size is None or per_update is None or is_outside_step_law(size.value, tokens):
        return
    best, how = suggested_rate(size.value, tokens, per_update.value), msg("by Step Law (arXiv 2503.04715)")
    law = see(msg("peak learning rate"), peak, two_digits(best), own.where, how, "rate")
    if peak > TOO_HIGH * max(usual, best):
        yield finding("lr_too_high.ahead", "possible", own, law, sets=sets, times=peak / usual)
    elif 0 < peak < min(usual, best) / TOO_LOW:
        yield finding("lr_too_low.ahead", "possible", own, law, sets=sets, times=usual / peak)


def _trouble(case: Case) -> list[Evidence]:
    found, (steps, losses) = list(rise_of_loss(case)), case.losses
    for stay in levels.stuck(case):
        # A model of unknown size may be a table of token pairs, which can do no better at any rate.
        if case.parameters is not None or stay.code != "bigram_plateau":
            found += stay.evidence
    found = found or list(_lingering(case))
    if len(losses) >= 40:
        jumps = spikes(losses, floor=0.05 * float(np.median(losses)))
        if len(jumps) >= max(3, 0.01 * len(losses)):
            where, how = locations.onwards(steps[jumps[0]]), msg("losses more than 8 sigma above neighbouring values")
            found.append(see(msg("jumps in the loss"), len(jumps), msg("0 to 2"), where, how, "count"))
    return found


def _lingering(case: Case) -> Iterator[Evidence]:
    """Long at the level of token frequencies, though not to the end: as the rate decays, such a run begins to learn
    after all."""
    band, (steps, losses) = case.unigram_band, case.curve
    if band is None or len(losses) < 6:
        return
    low, high = band
    stay = levels.longest_stay(steps, (losses >= low) & (losses <= high))
    if stay is None:
        return
    first, length = steps[stay[0]], int(steps[stay[1]] - steps[stay[0]])
    if length >= 100 and length >= 0.3 * steps[-1]:
        what, expected = msg("updates without progress"), msg("below {few:count}", 100)
        how = msg("at the unigram level of this text, {low:nats} to {high:nats}", low, high)
        yield see(what, length, expected, locations.onwards(first), how, "count")


def _slow(case: Case) -> list[Evidence]:
    """Stuck; or hundreds of updates, and the loss is not even at the level of token frequencies."""
    found = [evidence for stay in levels.stuck(case) for evidence in stay.evidence]
    (steps, losses), level = case.losses, case.unigram_nats
    if found or level is None or len(losses) < 20 or steps[-1] < 200 or np.median(losses[-10:]) < level + 0.1:
        return found
    how = msg("the unigram level of this text, which a healthy run passes within a hundred updates")
    what, now = msg("loss after update {count:count}", int(steps[-1])), np.median(losses[-10:])
    return [see(what, now, level, locations.onwards(steps[-10]), how, "nats")]


# --- the schedule

SHORT_RUN_UPDATES = 200  # a shorter run is a test of speed, whose schedule does not matter
DECAY_TOO_LONG = 1.25
"""Times the run. Hoffmann 2022 (arXiv 2203.15556, appendix B): a cosine up to 25% too long costs hardly anything, a
longer one clearly does."""
DECAY_TOO_SHORT = 0.8
"""Of the run. A fifth of it at the lowest learning rate is still a cool-down (Haegele 2024, arXiv 2405.18392: 10% to
20% are enough); more of it is wasted."""
WARMUP_TOO_LONG = 0.2  # of the run: twice the most that published recipes have, 1% to 10%


@rule("lr_schedule_mismatch", "no_warmup", only=("may_decay",), needs=("max_iters",))
def schedule(case: Case) -> Answers:
    """The learning-rate schedule does not fit the length of the run."""
    planned, warm, ends = known(case.max_iters), case.whole("warmup_iters"), case.whole("lr_decay_iters")
    if warm is not None and planned > SHORT_RUN_UPDATES and warm > WARMUP_TOO_LONG * planned:
        yield _long_warm_up(case, planned, warm)
    if warm == 0 and planned > SHORT_RUN_UPDATES and case.is_ahead and case.is_adam and case.is_from_scratch:
        share, sets = _warm_up_share(case, planned, 0), ("warmup_iters", 0, recommended_warmup(planned))
        yield finding("no_warmup", "possible", share, sets=sets)
    yield from _early_blow_up(case, planned, warm)
    yield from _printed(case, planned)
    if ends is not None and ends > DECAY_TOO_LONG * planned:
        yield _cut_off(case, planned, ends)
    elif ends is not None and ends < DECAY_TOO_SHORT * planned:
        tail = Seen(1 - ends / planned, (0.0, 0.1), case.where("lr_decay_iters"))
        yield finding("lr_schedule_mismatch.long_tail", "possible", tail, sets=("lr_decay_iters", ends, planned))


def _cut_off(case: Case, planned: int, ends: int) -> Finding:
    schedule, sets = case.schedule, ("lr_decay_iters", ends, planned)
    length = Seen(ends / planned, 1.0, case.where("lr_decay_iters"))
    if schedule is None or not schedule.learning_rate:
        sureness: Sureness = "likely" if ends > 2 * planned else "possible"
        return finding("lr_schedule_mismatch.cut_off", sureness, length, sets=sets, ends=ends, planned=planned)
    left = lr_of(schedule, planned) / schedule.learning_rate
    what, where = msg("learning rate at the end, as a fraction of its peak"), msg("step {step:count}", planned)
    rate = see(what, left, (0.0, 0.1), where, msg("the schedule's formula"), "share")
    # Of a cosine to zero, half is left where it is cut at half its length.
    sureness = "likely" if left > 0.5 else "possible"
    return finding("lr_schedule_mismatch.cut_off", sureness, length, rate, sets=sets, ends=ends, planned=planned)


def _warm_up_share(case: Case, planned: int, warm: int) -> Evidence:
    what, how = msg("warm-up as a share of the run"), msg("{warm:count} / {planned:count}", warm, planned)
    return see(what, warm / planned, (0.01, 0.1), case.where("warmup_iters"), how, "share")


def _long_warm_up(case: Case, planned: int, warm: int) -> Finding:
    share, sets = _warm_up_share(case, planned, warm), ("warmup_iters", warm, recommended_warmup(planned))
    if warm <= 0.5 * planned:
        return finding("lr_schedule_mismatch.long_warm_up", "possible", share, sets=sets, share=warm / planned)
    return finding("lr_schedule_mismatch.mostly_warm_up", "certain" if warm >= planned else "likely", share, sets=sets)


def _printed(case: Case, planned: int) -> Iterator[Finding]:
    """A run at its end whose printed rate is still warming up, or has come down only a little."""
    at = np.flatnonzero(np.isfinite(case.steps.lr) & (case.steps.lr > 0))
    rates, steps = case.steps.lr[at], case.steps.step[at]
    if len(at) < 8 or planned <= SHORT_RUN_UPDATES or steps[-1] < 0.9 * planned:
        return
    given = case.number("learning_rate") or 0.0
    if steps[0] > 0.5 * planned and not given:
        return  # the end of a log: where its peak was is not known
    peak, last = max(float(rates.max()), given), float(rates[-1])
    still_warming = last == peak and float(rates[len(rates) // 2]) < 0.9 * peak
    # Some schedules keep their fall for the last steps: where it leads counts, not where it is.
    recent = -max(3, len(rates) // 20)
    fall = (rates[-1] - rates[recent]) / max(1, steps[-1] - steps[recent])
    hardly_decayed = last < 0.97 * peak and last + fall * max(0, planned - int(steps[-1])) > 0.5 * peak
    if not still_warming and not hardly_decayed:
        return
    left = Seen(last / peak, (0.0, 0.1), msg("step {step:count} of {planned:count}", int(steps[-1]), planned))
    name = "lr_schedule_mismatch.still_warming" if still_warming else "lr_schedule_mismatch.hardly_decayed"
    yield finding(name, "likely", left, sets=("lr_decay_iters", case.whole("lr_decay_iters"), planned))


def _early_blow_up(case: Case, planned: int, warm: int | None) -> Iterator[Finding]:
    """Without warm-up, the first updates threw the model above chance and it had to come back."""
    first, level, (steps, losses) = case.first_loss, case.ln_vocab, case.losses
    early = losses[steps <= 60]
    if warm is None or warm > 10 or case.is_pretrained or level is None:
        return
    if len(early) < 8 or first is None or first > 1.1 * level or early.max() < 1.15 * max(level, first):
        return
    at, sets = int(steps[np.argmax(early)]), ("warmup_iters", warm, max(2 * warm, recommended_warmup(planned)))
    highest = Seen(early.max(), level, msg("step {step:count}", at), at)
    yield finding("lr_schedule_mismatch.early_blow_up", "likely", highest, sets=sets, warm=warm)
