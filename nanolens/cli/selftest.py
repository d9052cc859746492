"""nanolens selftest [--device=cuda]"""

from __future__ import annotations

from argparse import Namespace

from nanolens.cli.arguments import Parser
from nanolens.message import msg

HELP = msg("check nanolens on this machine: precision, resume, memory, speed; five minutes, and a report to paste into an issue")


def arguments(parser: Parser) -> None:
    parser.add_argument("--device", default="auto", metavar="DEVICE", help=msg("auto, cpu, cuda, cuda:1, mps"))


def run(given: Namespace) -> int:
    from nanolens.measure.selftest import Check, selftest
    from nanolens.show.words import say, show

    words = {"ok": msg("ok"), "failed": msg("FAILED"), "skipped": msg("skipped")}

    def tell(check: Check) -> None:
        state = say(words[check.state], given.lang)
        print(
            f"  {state:<8}{say(check.name, given.lang)} ({show(check.took_s, 'seconds', given.lang)}): {say(check.said, given.lang)}",
            flush=True,
        )

    print(say(msg("nanolens selftest: eight checks, about five minutes"), given.lang), flush=True)
    report = selftest(given.device, tell)
    print()
    for key, value in report.machine.items():
        shown = show(value, {"memory_bytes": "bytes", "peak_flops": "flops_per_s"}.get(key, "text"), given.lang)
        print(f"  {key}: {shown}")
    failed = [say(check.name, given.lang) for check in report.checks if check.state == "failed"]
    print()
    if failed:
        print(say(msg("failed: {names}; please paste all of the above into an issue", names=failed), given.lang))
        return 1
    print(say(msg("all is well on {device:code}", device=report.device), given.lang))
    return 0
