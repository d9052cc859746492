"""nanolens plan [PRESET] [--key=value ...] [--hardware=NAME] [--budget=2h|1e15flop|3Btok]"""

from __future__ import annotations

import dataclasses
import json
import sys
from argparse import Namespace

from nanolens.cli.arguments import Parser
from nanolens.message import msg

HELP = msg("what a config would cost and reach, before it costs anything")


def arguments(parser: Parser) -> None:
    parser.takes_settings()
    parser.add_argument("source", nargs="?", metavar="PRESET", help=msg("a preset or a config file; without one, the quickstart"))
    parser.add_argument("--hardware", metavar="NAME", help=msg("plan for this device instead of this machine: RTX 4070, 8x A100, M3 Max"))
    parser.add_argument("--budget", metavar="N", help=msg("the other way round: the best config for 2h, 1e15flop or 3Btok"))
    parser.add_argument("--price", type=float, metavar="N", help=msg("price of an hour of one device"))
    parser.add_argument("--difference", type=float, metavar="NATS", help=msg("smallest difference in val loss that you want to see"))
    parser.add_argument("--dataset_tokens", type=int, metavar="N", help=msg("training tokens, where the data is not prepared yet"))
    parser.add_argument("--val_tokens", type=int, metavar="N", help=msg("tokens of the val split"))
    parser.add_argument(
        "--machines", type=int, default=1, metavar="N", help=msg("N such machines that train together: would they be faster?")
    )
    parser.add_argument("--network", default="1Gbit", metavar="RATE", help=msg("what connects them: 1Gbit, 2.5Gbit, 110MB (default 1Gbit)"))
    parser.add_argument("--speeds", metavar="1,0.5", help=msg("how fast each machine is, this one being 1"))
    parser.add_argument("--no_measure", action="store_true", help=msg("do not measure on this machine"))
    parser.add_argument("-o", "--out", metavar="FILE", help=msg("write the settings as a config file"))
    parser.add_argument("--format", choices=("text", "md", "json"), default="text", help=msg("form of the answer"))
    parser.add_argument("--json", action="store_true", help=msg("the same as --format=json"))


def run(given: Namespace) -> int:
    from nanolens.analysis.plan_ranks import asked_ranks
    from nanolens.api.planning import Question, answer, command_of, write_config
    from nanolens.api.plans import remember
    from nanolens.present.blocks import for_stream
    from nanolens.present.plan import blocks_of, config_text, json_of, markdown_of

    found = answer(
        Question(
            given.source,
            given.overrides,
            given.hardware,
            given.budget,
            given.price,
            given.difference,
            given.dataset_tokens,
            given.val_tokens,
            measure=not given.no_measure,
            ranks=asked_ranks(given.machines, given.network, given.speeds) if given.machines > 1 else None,
        )
    )
    remember(found.plan)
    as_asked = dataclasses.replace(found.plan.config, chunked_head=found.settings.config.chunked_head)  # `auto` stays the trainer's choice
    text = config_text(as_asked, f"nanolens plan --budget={given.budget}" if given.budget else "nanolens plan")
    command = command_of(found, given.out)
    if given.out:
        write_config(given.out, text)
    if given.json or given.format == "json":
        print(json.dumps({**json_of(found.plan), "config_file": text, "command": command}, indent=1))
    elif given.format == "md":
        print(markdown_of(found.plan, given.lang, found.reasons) + f"\n```\n{command}\n```")
    else:
        print(for_stream(blocks_of(found.plan, given.lang, found.reasons), sys.stdout), end="")
        print(for_stream(_ending(text if given.budget else "", command, given), sys.stdout), end="")
    return 0


def _ending(text: str, command: str, given: Namespace) -> list:
    from nanolens.present.blocks import GAP, Block
    from nanolens.show.words import tied

    blocks = []
    if text:
        title = (
            msg("Config file, written to {path:code}", path=given.out)
            if given.out
            else msg("Config file ({option:code} writes it)", option="-o FILE.toml")
        )
        blocks += [Block(tied(title, given.lang), "head"), Block(text.rstrip(), "quote", indent=2), GAP]
    return [*blocks, Block(tied(msg("To start it:"), given.lang), "head"), Block(command, "command", indent=2)]
