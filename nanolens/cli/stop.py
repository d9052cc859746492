"""nanolens stop RUN [--wait=SECONDS]"""

from __future__ import annotations

from argparse import Namespace

from nanolens.cli.arguments import Parser
from nanolens.message import msg

HELP = msg("ask a run to save and stop")


def arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help=msg("a run folder, or its name below runs/"))
    parser.add_argument("--wait", type=float, default=300.0, metavar="SECONDS", help=msg("how long to wait for it (default 300)"))


def run(given: Namespace) -> int:
    from nanolens.cli import say
    from nanolens.record.layout import step_of
    from nanolens.record.store import RunAt, find_checkpoint, find_run
    from nanolens.session.detach import stop

    folder = find_run(given.run, or_starting=True).folder
    has_ended = stop(folder, given.wait)
    newest = find_checkpoint(RunAt(folder))
    step = step_of(newest) if newest is not None else None
    if not has_ended:
        print(
            say(
                msg(
                    "{run} was asked to stop and is still busy after {waited:seconds}; it will stop by itself",
                    run=folder.name,
                    waited=given.wait,
                ),
                given.lang,
            )
        )
        return 1
    if step is None:
        print(say(msg("{run} has stopped before its first checkpoint", run=folder.name), given.lang))
        return 0
    print(say(msg("{run} has stopped; step {step:count} is saved", run=folder.name, step=step), given.lang))
    print(say(msg("go on with {command:code}", command=f"nanolens train --init_from=resume --out_dir={folder}"), given.lang))
    return 0
