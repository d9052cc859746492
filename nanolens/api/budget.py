"""A budget of time as a user writes it."""

from __future__ import annotations

from nanolens.errors import fault
from nanolens.message import msg
from nanolens.planning.budget import budget_named


def seconds_named(text: str) -> float:
    budget = budget_named(text)
    if budget.kind != "seconds":
        raise fault(
            msg("{text:code} is not a time", text=text),
            where=msg("{option:code}", option=f"--budget={text}"),
            fix=msg("write {examples:code}", examples=("90s", "10m", "2h")),
        )
    return budget.amount
