"""What is wrong with a run, the cause first; what could not be checked; and whether it is sound.

Each symptom looks for itself. Here their answers are held against each other: an effect steps back behind its cause, a rule whose
ground another finding has taken away is dropped, and a run is called healthy only when there is enough of it and no fault is
certain or likely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanoscope.analysis import places
from nanoscope.analysis.case import Case, Quantity
from nanoscope.analysis.finding import Evidence, Finding, NotChecked
from nanoscope.analysis.statistics import noise_of
from nanoscope.analysis.symptoms import all_findings
from nanoscope.message import msg
from nanoscope.record.run import Run

FAULTS = frozenset(
    """nan_divergence hf_zero_loss_is_nan fp16_overflow fused_adamw_fp16_bug grad_explosion loss_divergence collapse_to_unigram
    bigram_plateau attention_bug kernel_bug dead_init constant_loss overfitting checkpoint_not_best underfitting_capacity
    too_good_to_be_true val_leak above_reference lr_too_high lr_too_low lr_zero lr_schedule_mismatch batch_too_small
    grad_accum_loss_scaling grad_sync_bug resume_discontinuity config_log_mismatch low_mfu eval_dominates_time throttling_suspected
    oom_optimizer_state oom_logits input_bound frozen_parameters""".split()
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
        "bigram_plateau": "underfitting_capacity above_reference",
        "attention_bug": _PROGRESS + "val_leak val_below_train_ok overfitting",
        "val_leak": _PROGRESS + "val_below_train_ok",
        "constant_loss": _PROGRESS + "bigram_plateau",
        "overfitting": _PROGRESS,
        "config_log_mismatch": "above_reference",
        "dead_init": "collapse_to_unigram",
    }.items()
}
"""A certain or likely finding takes away the ground of these."""

CANNOT_BE_HEALTHY_WITH = frozenset(("overfitting", "nan_divergence", "kernel_bug"))  # even where only possible


@dataclass(frozen=True)
class Diagnosis:
    run: Run
    findings: Sequence[Finding] = ()
    not_checked: Sequence[NotChecked] = ()
    facts: Mapping[str, Quantity] = field(default_factory=dict)  # what was derived, with its formula


def diagnose(run: Run) -> Diagnosis:
    case = Case(run)
    answers = list(all_findings(case))
    findings = _resolved([answer for answer in answers if isinstance(answer, Finding)])
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
    """No fault is certain or likely, and the loss did what it should: it fell, or its learning rate has reached its end."""
    if any(is_fault(finding) or finding.code in CANNOT_BE_HEALTHY_WITH for finding in findings):
        return None
    x, y = case.curve
    if len(y) < 4 or any(mark.kind in ("out_of_memory", "error") for mark in case.run.marks):
        return None
    quarter = max(2, len(y) // 4)
    first, last = float(np.median(y[:quarter])), float(np.median(y[-quarter:]))
    noise = noise_of(x, y) or 0.0
    at_end = case.rate_at(case.last_step)
    has_arrived = at_end is not None and case.peak_rate is not None and at_end < 0.02 * case.peak_rate
    if not (first - last > 2 * noise or has_arrived):
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
