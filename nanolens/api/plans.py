"""Plans that were made are remembered, so that a run can later be held against what was expected of it.

A plan is kept by what it plans: the settings that shape a run, whatever the output is called. It lies in the user's cache folder, never in
a run folder, and losing it costs nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanolens import files
from nanolens.config.fields import settings

if TYPE_CHECKING:
    from nanolens.analysis.plan import Plan
    from nanolens.analysis.plan_actual import Held
    from nanolens.record.run import Run

KEPT = 200  # plans; the oldest go
UNTOUCHED = {"checkpoint", "output"}  # groups of settings that do not change what a run costs or reaches
ROWS = ("parameters", "memory_total", "update_s", "tokens_per_s", "eval_s", "total_s", "final_loss")


def remember(plan: Plan) -> None:
    """Keeps the rows that a run can be held against. A cache that cannot be written is done without."""
    rows = {}
    for section in plan.sections:
        for row in section.rows:
            if row.key in ROWS and row.is_known:
                rows[row.key] = {"value": row.value, "low": row.low, "high": row.high, "source": row.source}
    folder = plans_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.write_whole(folder / name_of(dataclasses.asdict(plan.config)), json.dumps({"machine": plan.machine.name, "rows": rows}))
        for old in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return


def recall(config: Mapping[str, object]) -> dict[str, Any] | None:
    """The plan that was made for these settings, if one was."""
    try:
        found = json.loads((plans_folder() / name_of(config)).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) and isinstance(found.get("rows"), dict) else None
    except (OSError, ValueError):
        return None


def planned_for(run: Run) -> tuple[Held, ...]:
    """The run against the plan that was made for its settings, if one was. `explain` and `diagnose` show this."""
    from nanolens.analysis.plan_actual import plan_against_actual

    plan = recall({name: run.get(name) for name in settings()})
    return plan_against_actual(run, plan["rows"]) if plan is not None else ()


def name_of(config: Mapping[str, object]) -> str:
    shaping = {name: config.get(name) for name, known in settings().items() if known.group not in UNTOUCHED and name not in AUTOMATIC}
    return hashlib.sha256(json.dumps(shaping, sort_keys=True, default=str).encode()).hexdigest()[:24] + ".json"


AUTOMATIC = {"vocab_size", "chunked_head", "compile", "threads", "device", "dtype", "seed"}
"""Settings that `auto` leaves to the program: a plan and its run may write them differently."""


def plans_folder() -> Path:
    from nanolens.data.corpora import cache_folder

    return cache_folder() / "plans"
