"""nanolens export RUN[@STEP] --to=hf|gguf|nanogpt PATH [--dtype=...]"""

from __future__ import annotations

import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nanolens.cli.arguments import Parser
from nanolens.message import Message, msg

HELP = msg("write a trained model for other programs: Hugging Face transformers, llama.cpp (GGUF), nanoGPT")
EVERY_S = 2.0


def arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help=msg("a run folder or its name below runs/; RUN@500 is its step 500"))
    parser.add_argument("path", metavar="PATH", help=msg("the folder to make (hf, nanogpt), or the .gguf file"))
    parser.add_argument("--to", required=True, metavar="hf|gguf|nanogpt", choices=("hf", "gguf", "nanogpt"), help=msg("for which program"))
    parser.add_argument("--best", action="store_true", help=msg("the weights of the best evaluation instead of the newest"))
    parser.add_argument("--dtype", metavar="TYPE", help=msg("hf: float32 (default), float16, bfloat16; gguf: f32 (default), f16, q8_0"))
    parser.add_argument("--overwrite", action="store_true", help=msg("replace what is at PATH"))


def run(given: Namespace) -> int:
    from nanolens.cli import say
    from nanolens.convert.exporting import export_model

    with shown_progress(given.lang) as told:
        done = export_model(
            given.run, given.to, given.path, best=given.best, dtype=given.dtype, overwrite=given.overwrite, told=told, lang=given.lang
        )
    print(
        say(
            msg(
                "{run:code} is now {path:code}: {what}, {dtype:code}, {size:bytes}",
                run=done.name, path=str(done.path), what=done.what, dtype=done.dtype, size=done.bytes,
            ),
            given.lang,
        )
    )  # fmt: skip
    for note in (*done.notes, *done.uses):
        print(say(note, given.lang))
    return 0


STAGES: dict[str, Message] = {"read": msg("reading"), "write": msg("writing")}


@contextmanager
def shown_progress(lang: str) -> Iterator[Callable[[str, int, int], None]]:
    """Tells on stderr, every two seconds, what is being done and for how long: nothing where it is done sooner."""
    from nanolens.cli import say

    begun_at_s = time.monotonic()
    now: list[tuple[str, int]] = [("read", 0)]
    is_done = threading.Event()

    def told(stage: str, done: int, total: int) -> None:
        now[0] = (stage, total)

    def tell() -> None:
        while not is_done.wait(EVERY_S):
            stage, total = now[0]
            took_s = time.monotonic() - begun_at_s
            line = msg("{stage} {total:bytes}, {took:rough_seconds} so far", stage=STAGES[stage], total=total, took=took_s)
            if not total:
                line = msg("{stage}, {took:rough_seconds} so far", stage=STAGES[stage], took=took_s)
            print(say(line, lang), file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield told
    finally:
        is_done.set()
        teller.join()
