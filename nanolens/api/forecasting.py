"""What `--at` means for a run: a step, or so many tokens of it."""

from __future__ import annotations

from nanolens.errors import fault
from nanolens.facts.case import Case
from nanolens.message import msg
from nanolens.planning.budget import budget_named
from nanolens.record.run import Run


def step_named(text: str, run: Run) -> int:
    """`20000` is a step, `500Mtok` the step at which so many tokens have been seen."""
    plain = text.replace(",", "").replace("_", "")
    if plain.isdigit() and int(plain) > 0:
        return int(plain)
    budget = budget_named(text) if any(letter.isalpha() for letter in text) else None
    if budget is None or budget.kind != "tokens":
        raise fault(
            msg("{text:code} is neither a step nor a number of tokens", text=text),
            where=msg("{option:code}", option="--at"),
            fix=msg("write {examples:code}", examples=("20000", "500Mtok")),
        )
    per_update = Case(run).tokens_per_update
    if per_update is None or per_update.value <= 0:
        raise fault(
            msg("the tokens per update of this run are not known"),
            where=msg("{option:code}", option="--at"),
            fix=msg("give a step instead"),
        )
    return max(1, round(budget.amount / per_update.value))
