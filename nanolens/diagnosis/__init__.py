"""What is wrong with a run, the cause first; what could not be checked; and whether it is healthy.

Each rule looks for itself. Here their answers are compared: an effect is listed after its cause, a finding that another
one overrules is dropped, what an experiment has shown is surer than what a log suggests, and a run is called healthy
only when there is enough of it and no fault is certain or likely."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nanolens.diagnosis.rule import CODES, PROGRESS
from nanolens.diagnosis.rules import all_findings
from nanolens.diagnosis.rules.generalisation import stalled
from nanolens.diagnosis.rules.levels import ABOVE, BELOW, BIGRAM_STEPS, is_past_unigram
from nanolens.diagnosis.rules.progress import NO_RATE
from nanolens.diagnosis.weighing import weighed_findings
from nanolens.facts import locations
from nanolens.facts.case import ASSUMED_NOISE, Case
from nanolens.facts.finding import SURENESS, Figure, Finding, NotChecked, Sureness, inferred, see
from nanolens.facts.reading import WhatWasRead, what_was_read
from nanolens.facts.statistics import noise_of, trend
from nanolens.message import msg
from nanolens.probing.judge import SMALLEST_WORTH
from nanolens.record.run import RunRecord

FAULTS = frozenset(name for name, code in CODES.items() if code.severity != "remark")
"""Codes of which something should be fixed. The others are explanations."""

MOST_JUDGED = 8  # of one text that are judged besides the longest
# Trainers that hold their learning rate and decay it at the end.
STABLE_THEN_DECAY = ("nanochat", "autoresearch", "modded-nanogpt")
SHOWN_FACTS = (
    *("vocab_size", "dataset_tokens", "parameters", "flops_per_token", "tokens_per_update"),
    *("step_time", "peak", "true_mfu", "eval_noise"),
)


@dataclass(frozen=True)
class Diagnosis:
    run: RunRecord
    findings: Sequence[Finding] = ()
    not_checked: Sequence[NotChecked] = ()
    facts: Mapping[str, Figure] = field(default_factory=dict)  # what was derived, with its formula
    reading: WhatWasRead | None = None
    others: Sequence[Diagnosis] = ()  # of the other runs of the same text


def diagnose(run: RunRecord, *, weighs: bool = True) -> Diagnosis:
    """Without `weighs` only what the rules find: what single lines prove."""
    case = Case(run)
    answers = list(all_findings(case))
    found = [answer for answer in answers if isinstance(answer, Finding)]
    found += weighed_findings(case) if weighs else ()
    findings = _resolved(by_probes(found, run))
    findings = sorted([*findings, *healthy(case, findings)], key=_place)
    reported = {finding.code for finding in findings}
    missed: dict[str, NotChecked] = {}
    for answer in answers:
        if isinstance(answer, NotChecked) and answer.code not in reported:
            missed.setdefault(answer.code, answer)
    reading = None if case.is_ahead else what_was_read(case)
    return Diagnosis(run, tuple(findings), tuple(missed.values()), facts_of(case), reading)


def is_fault(finding: Finding) -> bool:
    return finding.code in FAULTS and finding.sureness != "possible"


def _resolved(findings: Iterable[Finding]) -> list[Finding]:
    strongest: dict[str, Finding] = {}
    for finding in findings:
        if _strength(finding) > _strength(strongest.setdefault(finding.code, finding)):
            strongest[finding.code] = finding
    sure = {code for code, finding in strongest.items() if finding.sureness != "possible"}
    dropped = {code for cause in sure for code in CODES[cause].overrules}
    if any(CODES[cause].overrules_progress for cause in sure):
        dropped |= set(PROGRESS)
    return [finding for code, finding in strongest.items() if code not in dropped]


def _strength(finding: Finding) -> int:
    return SURENESS.index(finding.sureness)


def _place(finding: Finding) -> tuple[int, int, int]:
    """Faults that are sure first, in the order of causes; then explanations; what is merely possible last."""
    if finding.code == "healthy":
        return (0, 0, 0)
    group = 3 if finding.sureness == "possible" else 1 if finding.code in FAULTS else 2
    return (group, CODES[finding.code].order, -_strength(finding))


# --- what a probe has measured


def by_probes(findings: Sequence[Finding], run: RunRecord) -> list[Finding]:
    """The findings, surer where a probe has found their cause, less sure where it measured that fixing it gains
    nothing; one that was only possible is then dropped."""
    answer = run.get("probes")
    if not isinstance(answer, dict):
        return list(findings)
    step = int(answer.get("step", 0))
    weighed = (_weighed(each, _effect(answer, CODES[each.code].tested_by), step) for each in findings)
    return [finding for finding in weighed if finding is not None]


def _effect(answer: dict, causes: Sequence[str]) -> dict | None:
    """What was measured for the causes: the strongest."""
    found = [effect for effect in answer["effects"] if isinstance(effect, dict) and effect.get("cause") in causes]
    return max(found, key=lambda effect: (bool(effect.get("is_clear")), effect.get("expected") or 0.0), default=None)


def _weighed(finding: Finding, effect: dict | None, step: int) -> Finding | None:
    if effect is None:
        return finding
    place = _strength(finding)
    if effect.get("is_clear"):
        # Only what is seen, not inferred, leaves no other reading.
        top = len(SURENESS) - 1 if effect.get("is_fact") else max(place, 1)
        return _with(finding, SURENESS[min(place + 1, top)], effect, step)
    high = effect.get("high")
    if not isinstance(high, (int, float)) or high >= SMALLEST_WORTH:
        return finding  # measured, but not well enough to say
    if finding.sureness == "possible":
        return None
    return _with(finding, SURENESS[place - 1], effect, step)


def _with(finding: Finding, sureness: Sureness, effect: dict, step: int) -> Finding:
    error, how = effect.get("se"), msg("measured, not inferred")
    if error is not None:
        how = msg("compared with an unchanged branch, same batches, ± {error:nats}", error)
    what = msg("val loss gained in a branch: {change:code}", str(effect.get("change", "")))
    expected = msg("at least {least:nats} if this were the cause", SMALLEST_WORTH)
    where = msg("probe at step {step:count}", step)
    evidence = see(what, effect.get("gain"), expected, where, how, "nats", step)
    return replace(finding, sureness=sureness, evidence=(*finding.evidence, evidence))


# --- health


def healthy(case: Case, findings: Sequence[Finding]) -> Iterator[Finding]:
    """No fault is certain or likely, and the loss did what it should: it fell, and went on falling after the fall with
    which every run begins, a stuck one too; or its learning rate has reached its end, or the loss a level that is known
    to be good."""
    if any(is_fault(finding) or CODES[finding.code].excludes_health for finding in findings):
        return
    x, y = case.curve
    if len(y) < 4 or case.marks("out_of_memory", "error") or _stands_at_a_floor(case, y) or stalled(case) is not None:
        return
    quarter = max(2, len(y) // 4)
    first, last = float(np.median(y[:quarter])), float(np.median(y[-quarter:]))
    noise = noise_of(x, y) or 0.0
    has_fallen = first - last > 2 * noise and (
        _falls_later(case, x, y) or _is_through(case) or _is_as_known(case) or _decays_later(case)
    )
    if not (has_fallen or _has_no_rate_left(case)):
        return
    where, expected = locations.steps(x[0], x[-1]), msg("above {noise:nats}, twice its scatter", 2 * noise)
    how = msg("medians of the first and the last quarter of {count:count point|points}", len(y))
    evidence = see(msg("drop in loss"), first - last, expected, where, how, "nats")
    wrong = msg("one of the rules that could not be checked would have found something")
    yield Finding("healthy", "likely", msg("nothing here needs fixing"), (evidence,), None, wrong)


def _stands_at_a_floor(case: Case, y: np.ndarray) -> bool:
    """The last losses lie where token frequencies or token pairs alone bring a model, after more updates than a healthy
    run needs to leave that level."""
    last, step = float(np.median(y[-3:])), case.last_step
    band, pairs = case.unigram_band, case.bigram_nats
    at_unigram = band is not None and band[0] <= last <= band[1] and is_past_unigram(case, step)
    at_bigram = case.is_char and pairs is not None and pairs - BELOW <= last <= pairs + ABOVE and step >= BIGRAM_STEPS
    return not case.is_pretrained and (at_unigram or at_bigram)


def _falls_later(case: Case, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the loss falls beyond its noise in what follows the first third and, where it is known, the unigram
    level."""
    band = None if case.is_pretrained else case.unigram_band
    above = np.flatnonzero(y > (np.inf if band is None else band[1]))
    # A log of the first steps may end above that level, and still fall.
    has_reached = len(above) > 0 and int(above[-1]) < len(y) - 3
    start = max(len(y) // 3, int(above[-1]) + 1 if has_reached else 0)
    rest_x, rest = x[start:], y[start:]
    if len(rest) < 2:
        return False
    # No known run of this kind of model falls more slowly than a power of 0.1 on a tenth of its loss; what does stands
    # still.
    least = 0.1 * abs(float(np.median(rest))) * (1 - (max(rest_x[0], 1.0) / max(rest_x[-1], 1.0)) ** 0.1)
    if len(rest) >= 5:
        slope = trend(rest_x, rest)
        if slope is not None and slope.is_falling and -slope.slope * (rest_x[-1] - rest_x[0]) > least:
            return True
    half = len(rest) // 2
    noise = noise_of(rest_x, rest)  # None for two to four points
    fall = float(np.median(rest[:half]) - np.median(rest[half:]))
    return fall > max(2 * (noise if noise is not None else ASSUMED_NOISE), least)


def _is_through(case: Case) -> bool:
    schedule = case.schedule
    return schedule is not None and schedule.decay_lr and case.last_step >= 0.95 * schedule.decay_ends


def _decays_later(case: Case) -> bool:
    """In the stable phase of a schedule that decays at its end, a flat loss is by design."""
    planned = case.whole("max_iters")
    has_stable_phase = case.text("schedule") == "wsd" or case.run.conventions.trainer in STABLE_THEN_DECAY
    return has_stable_phase and planned is not None and 0.05 * planned < case.last_step < 0.8 * planned


def _has_no_rate_left(case: Case) -> bool:
    at_end = case.lr_at(case.last_step)
    return at_end is not None and case.peak_lr is not None and at_end < NO_RATE * case.peak_lr


def _is_as_known(case: Case) -> bool:
    """The lowest val loss is one that a known run of this config has."""
    known = case.reference
    if known is None or not len(case.vals[1]):
        return False
    good = known.best_val if known.best_val is not None else known.end_val
    return good is not None and float(case.vals[1].min()) <= good + 5 * known.spread


def facts_of(case: Case) -> dict[str, Figure]:
    """The figures behind the findings."""
    step = case.last_step
    at_the_end = {
        "tokens_seen": (case.tokens_at(step), msg("tokens per update x updates")),
        "epochs": (case.epochs_at(step), msg("tokens seen / tokens in the training split")),
        "learning_rate_now": (case.lr_at(step), msg("as recorded, or from the schedule's formula")),
    }
    figures = {name: figure for name in SHOWN_FACTS if (figure := getattr(case, name)) is not None}
    return figures | {name: inferred(value, how) for name, (value, how) in at_the_end.items() if value is not None}
