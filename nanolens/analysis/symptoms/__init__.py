"""The symptoms: one file each, with a docstring in five headings (what it sees, why it matters, when it is wrong, what it looks like,
what to change) that is also its page, and a function `look(case)` that yields findings, or why it could not look.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

from nanolens.facts.case import Case, Lacking
from nanolens.facts.finding import Finding, NotChecked

NAMES = (
    "preflight",
    "non_finite",
    "half_precision",
    "explosion",
    "spikes",
    "stuck",
    "standstill",
    "initial_loss",
    "overfitting",
    "repetition",
    "capacity",
    "too_good",
    "above_reference",
    "progress",
    "split_offset",
    "schedule",
    "rate",
    "batch",
    "accumulation",
    "resume",
    "mismatch",
    "parameter_count",
    "token_count",
    "noise",
    "mfu",
    "mfu_lag",
    "utilisation",
    "slow_lines",
    "drift",
    "out_of_memory",
    "waiting",
    "ranks",
    "reading",
)
"""The modules of this package, in the order in which a reader would look."""


def all_findings(case: Case) -> Iterator[Finding | NotChecked]:
    for name in NAMES:
        yield from findings_of(module(name), case)


def findings_of(symptom: ModuleType, case: Case) -> Iterator[Finding | NotChecked]:
    try:
        yield from symptom.look(case)
    except Lacking as lacking:
        yield NotChecked(symptom.CODES[0], lacking.because)


def module(name: str) -> ModuleType:
    return importlib.import_module(f"nanolens.analysis.symptoms.{name}")


def module_of(code: str) -> ModuleType | None:
    """The symptom that speaks of a code."""
    for name in NAMES:
        if code in module(name).CODES:
            return module(name)
    return None


def all_codes() -> tuple[str, ...]:
    return tuple(dict.fromkeys(code for name in NAMES for code in module(name).CODES))
