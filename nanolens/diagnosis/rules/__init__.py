"""The rules, in the order in which a reader would look."""

from __future__ import annotations

from nanolens.diagnosis.rule import Answers, Rule
from nanolens.diagnosis.rules import (
    consistency,
    generalisation,
    jumps,
    leaks,
    learning_rate,
    levels,
    machine,
    mfu,
    noise,
    numbers,
    progress,
    timing,
    tokens,
    trends,
)
from nanolens.facts.case import Case

THEMES = (
    *(numbers, jumps, levels, progress, trends, generalisation, leaks, tokens),
    *(learning_rate, consistency, noise, mfu, timing, machine),
)
RULES: tuple[Rule, ...] = tuple(each for theme in THEMES for each in vars(theme).values() if isinstance(each, Rule))


def all_findings(case: Case) -> Answers:
    for each in RULES:
        yield from each.findings(case)
