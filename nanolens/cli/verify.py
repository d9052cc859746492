"""nanolens verify RUN"""

from __future__ import annotations

from argparse import Namespace

from nanolens.cli.arguments import Parser
from nanolens.message import msg

HELP = msg("check every byte of a run: its record, and each checkpoint against its manifest")


def arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help=msg("a run folder, or its name below runs/"))


def run(given: Namespace) -> int:
    from nanolens.api.verifying import verify_run
    from nanolens.cli import say
    from nanolens.record.store import find_run

    damaged = 0
    for checked in verify_run(find_run(given.run).folder):
        state = msg("DAMAGED") if checked.problems else msg("ok")
        facts = "" if checked.facts is None else f"  {say(checked.facts, given.lang)}"
        print(f"{say(state, given.lang):<8} {checked.what}{facts}", flush=True)
        for said in (*checked.problems, *checked.notes):
            print(f"         {say(said, given.lang)}")
        damaged += bool(checked.problems)
    if damaged:
        print(
            say(
                msg("{count:count} of its parts are damaged; resuming takes the newest checkpoint that is whole", count=damaged), given.lang
            )
        )
        return 1
    print(say(msg("all is as it was written"), given.lang))
    return 0
