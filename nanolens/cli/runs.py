"""nanolens runs [DIR]"""

from __future__ import annotations

import json
import math
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from nanolens.cli.arguments import Parser
from nanolens.message import msg

if TYPE_CHECKING:
    from nanolens.api.inventory import Row

HELP = msg("list the runs: how far they are, how good, how fast")


def arguments(parser: Parser) -> None:
    parser.add_argument("folder", nargs="?", metavar="DIR", help=msg("where to look; runs/ if not given"))
    parser.add_argument("--json", action="store_true", help=msg("as JSON, one object a run"))


def run(given: Namespace) -> int:
    from nanolens.api.inventory import list_runs
    from nanolens.cli import say
    from nanolens.record.layout import RUNS

    root = Path(given.folder) if given.folder else None
    rows = list_runs(root)
    if given.json:
        print(json.dumps([_as_json(row) for row in rows], indent=1))
        return 0
    if not rows:
        print(
            say(msg("no runs in {folder:code}; {command:code} makes one", folder=str(root or RUNS), command="nanolens train"), given.lang)
        )
        return 0
    print("\n".join(_lines(rows, given.lang)))
    return 0


def _lines(rows: list[Row], lang: str) -> list[str]:
    from nanolens.present.table import table
    from nanolens.show.live import STATES, clean
    from nanolens.show.words import say, show

    def text(value: object, kind: str) -> str:
        return "-" if isinstance(value, float) and math.isnan(value) else show(value, kind, lang)

    header = [
        say(word, lang)
        for word in (msg("run"), msg("state"), msg("step"), msg("loss"), msg("best val"), msg("tokens/s"), msg("changed"), msg("size"))
    ]
    lines = []
    for row in rows:
        state = say(STATES[row.state][0], lang) if row.state in STATES else say(msg("unreadable"), lang)
        step = text(row.step, "count") + (f" / {text(row.max_iters, 'count')}" if row.max_iters is not None else "")
        speed = text(round(row.tokens_per_s) if math.isfinite(row.tokens_per_s) else math.nan, "count")
        age = say(msg("{age:rough_seconds} ago", age=time.time() - row.changed_at_s), lang) if math.isfinite(row.changed_at_s) else "-"
        lines.append(
            [clean(row.folder.name), state, step, text(row.loss, "nats"), text(row.best_val, "nats"), speed, age, text(row.bytes, "bytes")]
        )
    return table(header, lines, left=(0, 1))


def _as_json(row: Row) -> dict:
    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "run": str(row.folder), "state": row.state, "step": row.step, "max_iters": row.max_iters, "loss": finite(row.loss),
        "best_val": finite(row.best_val), "tokens_per_s": finite(row.tokens_per_s), "changed_at_s": finite(row.changed_at_s),
        "bytes": row.bytes, "warnings": row.warnings,
    }  # fmt: skip
