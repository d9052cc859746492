"""What is wrong with a run, the cause first; what could not be checked; and whether it is sound.

Each symptom looks for itself. Here their answers are held against each other: an effect steps back behind its cause, a rule whose
ground another finding has taken away is dropped, and a run is called healthy only when there is enough of it and no fault is
certain or likely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanolens.analysis import places
from nanolens.analysis.probe_sureness import by_probes
from nanolens.analysis.symptoms import all_findings
from nanolens.analysis.symptoms.overfitting import stalled
from nanolens.analysis.symptoms.stuck import ABOVE, BELOW, BIGRAM_STEPS, is_past_unigram, unigram_band
from nanolens.facts.case import Case, Quantity
from nanolens.facts.finding import Evidence, Finding, NotChecked
from nanolens.facts.statistics import noise_of, trend
from nanolens.message import msg
from nanolens.record.run import Run

FAULTS = frozenset(
    """nan_divergence hf_zero_loss_is_nan fp16_overflow fused_adamw_fp16_bug grad_explosion loss_divergence collapse_to_unigram
    bigram_plateau attention_bug kernel_bug dead_init constant_loss overfitting checkpoint_not_best underfitting_capacity
    too_good_to_be_true val_leak above_reference lr_too_high lr_too_low lr_zero lr_schedule_mismatch batch_too_small
    grad_accum_loss_scaling grad_sync_bug resume_discontinuity config_log_mismatch low_mfu eval_dominates_time throttling_suspected
    oom_optimizer_state oom_logits input_bound frozen_parameters straggler_rank communication_bound rank_lost""".split()
)
"""Codes that say that something should be mended. The others are explanations."""

ORDER = tuple(
    """oom_optimizer_state oom_logits frozen_parameters hf_zero_loss_is_nan grad_explosion fp16_overflow lr_zero attention_bug val_leak
    lr_too_high lr_schedule_mismatch grad_sync_bug grad_accum_loss_scaling config_log_mismatch fused_adamw_fp16_bug nan_divergence
    kernel_bug lr_too_low loss_divergence collapse_to_unigram bigram_plateau dead_init constant_loss too_good_to_be_true overfitting
    checkpoint_not_best underfitting_capacity resume_discontinuity above_reference param_count_mismatch token_accounting
    grad_accum_inferred batch_too_small data_repeated throttling_suspected low_mfu input_bound eval_dominates_time""".split()
)
"""Causes before their effects; what is not here follows."""

_PROGRESS = "still_improving underfitting_capacity above_reference eval_noise "
UNDERCUTS: Mapping[str, frozenset[str]] = {
    cause: frozenset(effects.split())
    for cause, effects in {
        "lr_zero": _PROGRESS + "dead_init collapse_to_unigram bigram_plateau lr_too_low",
        "nan_divergence": _PROGRESS + "val_below_train_ok",
        "hf_zero_loss_is_nan": _PROGRESS + "too_good_to_be_true constant_loss",
        "fp16_overflow": "lr_too_high grad_explosion",
        "grad_explosion": _PROGRESS + "overfitting loss_spike resume_discontinuity",
        "loss_divergence": _PROGRESS + "loss_spike",
        "collapse_to_unigram": _PROGRESS + "bigram_plateau lr_schedule_mismatch",
        "frozen_parameters": _PROGRESS + "lr_too_low",
        "bigram_plateau": "underfitting_capacity above_reference still_improving",
        "attention_bug": _PROGRESS + "val_leak val_below_train_ok overfitting",
        "val_leak": _PROGRESS + "val_below_train_ok",
        "constant_loss": _PROGRESS + "bigram_plateau",
        "overfitting": _PROGRESS,
        "config_log_mismatch": "above_reference",
        "dead_init": "collapse_to_unigram",
    }.items()
}
"""A certain or likely finding takes away the ground of these."""

CANNOT_BE_HEALTHY_WITH = frozenset(("overfitting", "kernel_bug", "hf_zero_loss_is_nan"))  # even where only possible


STABLE_THEN_DECAY = ("nanochat", "autoresearch", "modded-nanogpt")  # trainers that hold their rate and decay it at the end
FEW_POINTS_NOISE = 0.02  # of one evaluation, where too few points tell it


@dataclass(frozen=True)
class Diagnosis:
    run: Run
    findings: Sequence[Finding] = ()
    not_checked: Sequence[NotChecked] = ()
    facts: Mapping[str, Quantity] = field(default_factory=dict)  # what was derived, with its formula


def diagnose(run: Run) -> Diagnosis:
    case = Case(run)
    answers = list(all_findings(case))
    findings = _resolved(by_probes([answer for answer in answers if isinstance(answer, Finding)], run))
    sound = healthy(case, findings)
    if sound is not None:
        findings.append(sound)
    findings.sort(key=_place)
    found = {finding.code for finding in findings}
    missed: dict[str, NotChecked] = {}
    for answer in answers:
        if isinstance(answer, NotChecked) and answer.code not in found:
            missed.setdefault(answer.code, answer)
    return Diagnosis(run, tuple(findings), tuple(missed.values()), facts_of(case))


def is_fault(finding: Finding) -> bool:
    return finding.code in FAULTS and finding.sureness != "possible"


def _resolved(findings: Iterable[Finding]) -> list[Finding]:
    strongest: dict[str, Finding] = {}
    for finding in findings:
        known = strongest.get(finding.code)
        if known is None or _strength(finding) > _strength(known):
            strongest[finding.code] = finding
    sure = {code for code, finding in strongest.items() if finding.sureness != "possible"}
    dropped = {code for cause in sure for code in UNDERCUTS.get(cause, ())}
    return [finding for code, finding in strongest.items() if code not in dropped]


def _strength(finding: Finding) -> int:
    return ("possible", "likely", "certain").index(finding.sureness)


def _place(finding: Finding) -> tuple[int, int, int]:
    """Faults that are sure first, in the order of causes; then explanations; what is merely possible last."""
    rank = ORDER.index(finding.code) if finding.code in ORDER else len(ORDER)
    if finding.code == "healthy":
        return (0, 0, 0)
    group = 3 if finding.sureness == "possible" else 1 if finding.code in FAULTS else 2
    return (group, rank, -_strength(finding))


def healthy(case: Case, findings: Sequence[Finding]) -> Finding | None:
    """No fault is certain or likely, and the loss did what it should: it fell, and went on falling after the fall with which every run
    begins, a stuck one too; or its learning rate has reached its end, or the loss a level that is known to be good."""
    if any(is_fault(finding) or finding.code in CANNOT_BE_HEALTHY_WITH for finding in findings):
        return None
    x, y = case.curve
    if len(y) < 4 or any(mark.kind in ("out_of_memory", "error") for mark in case.run.marks):
        return None
    if _stands_at_a_floor(case, y) or stalled(case) is not None:
        return None
    quarter = max(2, len(y) // 4)
    first, last = float(np.median(y[:quarter])), float(np.median(y[-quarter:]))
    noise = noise_of(x, y) or 0.0
    has_fallen = first - last > 2 * noise and (_falls_later(case, x, y) or _is_through(case) or _is_as_known(case) or _decays_later(case))
    if not (has_fallen or _has_no_rate_left(case)):
        return None
    evidence = Evidence(
        msg("fall of the loss"),
        first - last,
        msg("above {noise:nats}, twice its scatter", noise=2 * noise),
        places.steps(x[0], x[-1]),
        msg("medians of the first and the last quarter of {count:count} points", count=len(y)),
        "nats",
    )
    return Finding(
        "healthy",
        "likely",
        msg("nothing here needs mending"),
        (evidence,),
        None,
        msg("one of the rules that could not be checked would have found something"),
    )


def _stands_at_a_floor(case: Case, y: np.ndarray) -> bool:
    """The last losses lie where token frequencies or token pairs alone bring a model, after more updates than a sound run needs to leave
    that level."""
    last, step = float(np.median(y[-3:])), case.last_step
    band, pairs = unigram_band(case), case.bigram_nats
    at_unigram = band is not None and band[0] <= last <= band[1] and is_past_unigram(case, step)
    at_bigram = case.is_char and pairs is not None and pairs - BELOW <= last <= pairs + ABOVE and step >= BIGRAM_STEPS
    return not case.is_pretrained and (at_unigram or at_bigram)


def _falls_later(case: Case, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the loss falls beyond its noise in what follows the first third and, where it is known, the unigram level."""
    band = None if case.is_pretrained else unigram_band(case)
    above = np.flatnonzero(y > (np.inf if band is None else band[1]))
    has_reached = len(above) > 0 and int(above[-1]) < len(y) - 3  # a log of the first steps may end above that level, and still fall
    start = max(len(y) // 3, int(above[-1]) + 1 if has_reached else 0)
    rest_x, rest = x[start:], y[start:]
    if len(rest) < 2:
        return False
    # No known run of this kind of model falls more slowly than a power of 0.1 on a tenth of its loss; what does stands still.
    least = 0.1 * abs(float(np.median(rest))) * (1 - (max(rest_x[0], 1.0) / max(rest_x[-1], 1.0)) ** 0.1)
    if len(rest) >= 5:
        slope = trend(rest_x, rest)
        if slope is not None and slope.is_falling and -slope.slope * (rest_x[-1] - rest_x[0]) > least:
            return True
    half = len(rest) // 2
    noise = noise_of(rest_x, rest)  # of two to four points nothing tells it
    fall = float(np.median(rest[:half]) - np.median(rest[half:]))
    return fall > max(2 * (noise if noise is not None else FEW_POINTS_NOISE), least)


def _is_through(case: Case) -> bool:
    schedule = case.schedule
    return schedule is not None and schedule.decay_lr and case.last_step >= 0.95 * schedule.decay_ends


def _decays_later(case: Case) -> bool:
    """In the stable phase of a schedule that decays at its end, a flat loss is by design."""
    planned = case.whole("max_iters")
    has_stable_phase = case.text("schedule") == "wsd" or case.run.words.trainer in STABLE_THEN_DECAY
    return has_stable_phase and planned is not None and 0.05 * planned < case.last_step < 0.8 * planned


def _has_no_rate_left(case: Case) -> bool:
    at_end = case.rate_at(case.last_step)
    return at_end is not None and case.peak_rate is not None and at_end < 0.02 * case.peak_rate


def _is_as_known(case: Case) -> bool:
    """The lowest val loss is one that a known run of this config has."""
    known = case.reference
    if known is None or not len(case.vals[1]):
        return False
    good = known.best_val if known.best_val is not None else known.end_val
    return good is not None and float(case.vals[1].min()) <= good + 5 * known.spread


def facts_of(case: Case) -> dict[str, Quantity]:
    """The figures behind the findings, for whoever wants to see them."""
    names = (
        "vocab_size",
        "dataset_tokens",
        "parameters",
        "flops_per_token",
        "tokens_per_update",
        "step_time",
        "peak",
        "true_mfu",
        "eval_noise",
    )
    found = {name: value for name in names if (value := getattr(case, name)) is not None}
    epochs, tokens = case.epochs_at(case.last_step), case.tokens_at(case.last_step)
    if tokens is not None:
        found["tokens_seen"] = Quantity(tokens, msg("tokens per update x updates done"), "inferred")
    if epochs is not None:
        found["epochs"] = Quantity(epochs, msg("tokens seen / tokens of the training split"), "inferred")
    rate = case.rate_at(case.last_step)
    if rate is not None:
        found["learning_rate_now"] = Quantity(rate, msg("as recorded, or by the schedule's formula"), "inferred")
    return found
