"""nanolens probe RUN[@STEP] [--question=NAME] [--budget=10m] [--plan]"""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from nanolens.cli.arguments import Parser
from nanolens.message import Message, msg
from nanolens.probing.judge import QUESTIONS

HELP = msg("ask a run by experiment what limits its loss: short branches from a checkpoint, each with one change")


def arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN[@STEP]", help=msg("a run, at its newest checkpoint or at that of a step"))
    parser.add_argument("--question", action="append", choices=QUESTIONS, help=msg("only this one; may be given several times"))
    parser.add_argument("--budget", default="10m", metavar="TIME", help=msg("time for all branches together, as 90s, 10m or 2h"))
    parser.add_argument("--plan", action="store_true", help=msg("say what would be done and what it would cost, and do nothing"))
    parser.add_argument("--arch", metavar="FILE", help=msg("the model's file, where the run is of a model of your own"))
    parser.add_argument("--json", action="store_true", help=msg("the answer as JSON"))


def run(given: Namespace) -> int:
    from nanolens.api.budget import seconds_named
    from nanolens.api.probe import plan, probe
    from nanolens.api.probe.branches import Interrupted
    from nanolens.api.probe.keep import as_plain
    from nanolens.present.blocks import for_stream
    from nanolens.present.probe import blocks_of, plan_blocks, plan_json
    from nanolens.show.words import say

    questions, budget_s = tuple(given.question or QUESTIONS), seconds_named(given.budget)
    if given.plan:
        planned = plan(given.run, questions, budget_s, given.arch)
        print(json.dumps(plan_json(planned), indent=1) if given.json else for_stream(plan_blocks(planned, given.lang), sys.stdout), end="")
        return 0

    def tell(message: Message) -> None:
        print(say(message, given.lang), file=sys.stderr, flush=True)

    try:
        answer = probe(given.run, questions, budget_s, given.arch, tell)
    except Interrupted:
        return 130
    print(json.dumps(as_plain(answer), indent=1) if given.json else for_stream(blocks_of(answer, given.lang), sys.stdout), end="")
    return 0
