"""Holds findings against probes: what an experiment has shown is surer than what a log suggests, and what it has refuted is dropped."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from nanolens.facts.finding import Evidence, Finding, Sureness
from nanolens.message import msg
from nanolens.probing.judge import SMALLEST_WORTH
from nanolens.record.run import Run

TESTED_BY: Mapping[str, tuple[str, ...]] = {
    "lr_too_high": ("rate_too_high", "rate_too_high_all_along"),
    "lr_schedule_mismatch": ("rate_too_high",),
    "lr_too_low": ("rate_too_low",),
    "batch_too_small": ("batch_too_small",),
    "underfitting_capacity": ("model_too_small",),
    "overfitting": ("data_too_little",),
    "attention_bug": ("mask_leak",),
    "too_good_to_be_true": ("mask_leak", "val_in_train"),
    "val_leak": ("val_in_train",),
    "frozen_parameters": ("frozen_parameters",),
}
"""Which causes a finding of that code stands or falls with."""

LADDER: tuple[Sureness, ...] = ("possible", "likely", "certain")


def by_probes(findings: Sequence[Finding], run: Run) -> list[Finding]:
    """The findings, surer where a probe has found their cause, less sure where it measured that mending it wins nothing; one that was only
    possible is then gone."""
    answer = run.get("probes")
    if not isinstance(answer, dict):
        return list(findings)
    weighed = (_weighed(finding, _effect(answer, TESTED_BY.get(finding.code, ())), int(answer.get("step", 0))) for finding in findings)
    return [finding for finding in weighed if finding is not None]


def _effect(answer: dict, causes: Sequence[str]) -> dict | None:
    """What was measured for the causes: the strongest."""
    found = [effect for effect in answer["effects"] if isinstance(effect, dict) and effect.get("cause") in causes]
    return max(found, key=lambda effect: (bool(effect.get("is_clear")), effect.get("expected") or 0.0), default=None)


def _weighed(finding: Finding, effect: dict | None, step: int) -> Finding | None:
    if effect is None:
        return finding
    place = LADDER.index(finding.sureness)
    if effect.get("is_clear"):
        # Only what is seen, not inferred, leaves no other reading.
        top = len(LADDER) - 1 if effect.get("is_fact") else max(place, 1)
        return _with(finding, LADDER[min(place + 1, top)], effect, step)
    high = effect.get("high")
    if not isinstance(high, (int, float)) or high >= SMALLEST_WORTH:
        return finding  # measured, but not well enough to say
    if finding.sureness == "possible":
        return None
    return _with(finding, LADDER[place - 1], effect, step)


def _with(finding: Finding, sureness: Sureness, effect: dict, step: int) -> Finding:
    seen, error = effect.get("gain"), effect.get("se")
    evidence = Evidence(
        msg("val loss won in a branch: {change:code}", change=str(effect.get("change", ""))),
        seen,
        msg("at least {least:nats}, were this the cause", least=SMALLEST_WORTH),
        msg("probe at step {step:count}", step=step),
        msg("against an unchanged branch, same batches, ± {error:nats}", error=error) if error is not None else msg("seen, not inferred"),
        "nats",
        step,
    )
    return dataclasses.replace(finding, sureness=sureness, evidence=(*finding.evidence, evidence))
