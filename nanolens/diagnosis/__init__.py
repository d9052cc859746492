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
from nanolens.diagnosis.rules.trends import NO_RATE, SIGMAS, is_as_known, late, schedule_has_ended, told
from nanolens.diagnosis.weighing import chance_of_sound, weighed_findings
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import SURENESS, Figure, Finding, NotChecked, Sureness, inferred, see
from nanolens.facts.reading import WhatWasRead, what_was_read
from nanolens.facts.statistics import noise_of
from nanolens.message import Message, msg
from nanolens.probing.judge import SMALLEST_WORTH
from nanolens.record.run import RunRecord
from nanolens.show.findings import SURENESS_WORDS

GROUPS = {"fault": 1, "cost": 2, "remark": 3}
FAULTS = frozenset(name for name, code in CODES.items() if code.severity != "remark")
"""Codes of which something should be fixed. The others are explanations."""

FEWEST_UNDECIDED = 6  # points of a run that is called healthy although its trend is lost in noise
LEAST_SOUND = 0.5  # probability of being sound, of a run that is called healthy
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

    @property
    def headline(self) -> Message:
        if self.reading is not None and not self.reading.updates and not self.reading.evaluations:
            return msg("No loss was read: how the training goes was not judged.")
        said = headline_of(self.findings)
        if self.run.get("state") != "gone":
            return said
        step = int(self.run.steps.step.max()) if len(self.run.steps) else 0
        return msg("Its process died at step {step:count}; the last checkpoint can be resumed. {said}", step, said)


def diagnose(run: RunRecord, *, weighs: bool = True) -> Diagnosis:
    """Without `weighs` only what the rules find: what single lines prove."""
    case = Case(run)
    answers = list(all_findings(case))
    found = [answer for answer in answers if isinstance(answer, Finding)]
    found += weighed_findings(case) if weighs else ()
    findings = _resolved(by_probes(found, run))
    if not weighs or chance_of_sound(case) > LEAST_SOUND:
        findings += healthy(case, findings)
    findings = sorted(findings, key=_place)
    reported = {finding.code for finding in findings}
    missed: dict[str, NotChecked] = {}
    for answer in answers:
        if isinstance(answer, NotChecked) and answer.code not in reported:
            missed.setdefault(answer.code, answer)
    reading = None if case.is_ahead else what_was_read(case)
    return Diagnosis(run, tuple(findings), tuple(missed.values()), facts_of(case), reading)


def is_fault(finding: Finding) -> bool:
    return finding.code in FAULTS and finding.sureness != "possible"


def headline_of(findings: Sequence[Finding]) -> Message:
    """The diagnosis in one or two sentences."""
    faults = [finding for finding in findings if is_fault(finding)]
    if faults:
        said = _accusation(faults[0])
        return said if len(faults) == 1 else msg("{said} Further faults: {count:count}.", said, len(faults) - 1)
    remarks = {finding.code: finding for finding in findings if finding.sureness != "possible"}
    trend = next((remarks[code] for code in ("finished", "still_improving") if code in remarks), None)
    if "healthy" in remarks:
        return (
            msg("Nothing here needs fixing.")
            if trend is None
            else msg("Nothing here needs fixing: {claim}.", trend.claim)
        )
    first = trend or next(iter(remarks.values()), None)
    if first is not None:
        return msg("No fault was found: {claim}.", first.claim)
    doubts = [finding for finding in findings if finding.code in FAULTS]
    if doubts:
        return msg("Nothing is sure, but this is possible: {claim}.", doubts[0].claim)
    return msg("No fault was found in what was read; that is too little to call the run healthy.")


def _accusation(finding: Finding) -> Message:
    how_sure = SURENESS_WORDS[finding.sureness]
    if finding.change is None:
        return msg("{sureness}: {claim}.", how_sure, finding.claim)
    return msg("{sureness}: {claim}. What to do: {what}.", how_sure, finding.claim, finding.change.words)


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
    """What is sure first: faults in the order of causes, costs, explanations; what is merely possible last."""
    if finding.code == "healthy":
        return (0, 0, 0)
    group = 4 if finding.sureness == "possible" else GROUPS[CODES[finding.code].severity]
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
    has_fallen = first - last > 2 * noise and _goes_on(case)
    if not (has_fallen or _has_no_rate_left(case)) or not _is_within_expectation(case, y):
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


def _goes_on(case: Case) -> bool:
    """Whether the end of the curve is that of a run that goes well: it falls, or is too noisy to say that it does not;
    or it stands still for a reason: its rate is gone, or what is known to be possible is reached."""
    has_reason = schedule_has_ended(case) or _is_stable_phase(case) or is_as_known(case)
    end = late(case)
    if has_reason or end is None:
        return has_reason
    if case.is_pretrained:
        return end.fall > -SIGMAS * end.error
    is_undecided = end.fall > -end.error and len(case.curve[1]) >= FEWEST_UNDECIDED
    return not end.is_flat and (end.is_falling or is_undecided)


def _is_within_expectation(case: Case, y: np.ndarray) -> bool:
    expected = told(case, case.last_step)
    return expected is None or float(np.median(y[-3:])) < expected.loss + SIGMAS * expected.spread


def _is_stable_phase(case: Case) -> bool:
    """In the stable phase of a schedule that decays at its end, a flat loss is by design."""
    planned = case.whole("max_iters")
    has_stable_phase = case.text("schedule") == "wsd" or case.run.conventions.trainer in STABLE_THEN_DECAY
    return has_stable_phase and planned is not None and 0.05 * planned < case.last_step < 0.8 * planned


def _has_no_rate_left(case: Case) -> bool:
    at_end = case.lr_at(case.last_step)
    return at_end is not None and case.peak_lr is not None and at_end < NO_RATE * case.peak_lr


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
