"""nanolens sweep PRESET --key=A..B [--key=C..D] [--budget=30m]"""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from nanolens.cli.arguments import Parser
from nanolens.message import Message, msg

if TYPE_CHECKING:
    from nanolens.api.sweep import Swept

HELP = msg("a few short runs over a range of settings, the better ones for longer, and the best as a config")


def arguments(parser: Parser) -> None:
    parser.takes_settings()
    parser.add_argument("source", nargs="?", metavar="PRESET", help=msg("a preset or a config file; without one, the quickstart"))
    parser.add_argument("--budget", default="30m", metavar="TIME", help=msg("time for all runs together, as 90s, 10m or 2h"))
    parser.add_argument("--json", action="store_true", help=msg("the answer as JSON"))


def run(given: Namespace) -> int:
    from nanolens.api.budget import seconds_named
    from nanolens.api.sweep import sweep
    from nanolens.show.words import say

    def tell(message: Message) -> None:
        print(say(message, given.lang), file=sys.stderr, flush=True)

    found = sweep(given.source, given.overrides, seconds_named(given.budget), tell)
    if given.json:
        print(json.dumps(_as_json(found), indent=1))
        return 0
    print("\n".join(_lines(found, given.lang)))
    return 0


def _lines(found: Swept, lang: str) -> list[str]:
    from nanolens.present.table import table
    from nanolens.show.words import say, show

    keys = [each.key for each in found.ranges]
    header = [*keys, *(say(word, lang) for word in (msg("updates"), msg("val loss")))]
    rows = []
    for trial in sorted(found.trials, key=lambda trial: (-trial.updates, trial.val)):
        val = show(trial.val, "nats") if math.isfinite(trial.val) else say(msg("diverged"), lang)
        rows.append([*(show(trial.values[key], "rate") for key in keys), show(trial.updates, "count"), val])
    best = [f"{key}={value:g}" for key, value in found.best.values.items()]
    said = [msg("Best: {settings:code}, val loss {val:nats}.", settings=best, val=found.best.val)]
    if found.equal:
        others = [[f"{key}={value:g}" for key, value in trial.values.items()] for trial in found.equal]
        said.append(msg("Not worse by more than noise: {others:code}.", others=[" ".join(other) for other in others]))
    elif found.margin is not None:
        said.append(msg("Ahead of the next by {margin:nats}, more than noise.", margin=found.margin))
    said.append(msg("A longer run likes a somewhat lower learning rate than these short ones."))
    said.append(msg("The settings are in {file:code}; to train with them: {command:code}", file=str(found.config_file),
                    command=f"nanolens train {found.config_file}"))  # fmt: skip
    return [*table(header, rows, left=()), "", *(say(each, lang) for each in said)]


def _as_json(found: Swept) -> dict[str, Any]:
    def trial(each: Any) -> dict[str, Any]:
        val = each.val if math.isfinite(each.val) else None
        return {"values": each.values, "run": str(each.folder), "updates": each.updates, "val": val}

    return {
        "best": trial(found.best), "equal": [trial(each) for each in found.equal], "margin": found.margin,
        "trials": [trial(each) for each in found.trials], "config_file": str(found.config_file), "took_s": found.took_s,
    }  # fmt: skip
