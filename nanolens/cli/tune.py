"""nanolens tune [PRESET | FILE] [--key=value ...] [--memory=GB] [--try_compile]"""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from nanolens.cli.arguments import Parser
from nanolens.message import Message, msg

HELP = msg("the fastest way to run a config on this machine: which micro-batch, with the same tokens per update")


def arguments(parser: Parser) -> None:
    parser.add_argument("source", nargs="?", metavar="PRESET | FILE", help=msg("a preset or a config file; without one, the quickstart"))
    parser.add_argument(
        "--memory", type=float, metavar="GB", help=msg("use no more memory than this; otherwise nine tenths of what is free")
    )
    parser.add_argument(
        "--try_compile", action="store_true", help=msg("measure torch.compile too, where that is not done by itself (on a CPU)")
    )
    parser.add_argument("--json", action="store_true", help=msg("the answer as JSON"))
    parser.takes_settings()


def run(given: Namespace) -> int:
    from nanolens.api.tuning import tune
    from nanolens.present.tune import json_of, text_of

    limit = given.memory * 1e9 if given.memory else None
    found = tune(
        given.source, given.overrides, limit_bytes=limit, try_compile=given.try_compile, tell=lambda words: _tell(words, given.lang)
    )
    kept = [f"--{key}={value}" for key, value in given.overrides if key != "batch_size"]
    command = " ".join(["nanolens train", *([given.source] if given.source else []), *kept, "--batch_size=auto"])
    print(json.dumps(json_of(found, command), indent=1) if given.json else text_of(found, command, sys.stdout, given.lang), end="")
    return 0


def _tell(words: Message, lang: str) -> None:
    from nanolens.cli import say

    print(say(words, lang), file=sys.stderr, flush=True)
