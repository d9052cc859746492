"""nanolens sample RUN [RUN ...] [--prompt=TEXT | FILE:PATH | -] [--max_new_tokens=N] [--temperature] [--top_k] [--top_p] [--seed]"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from nanolens.cli.arguments import Parser, UsageError
from nanolens.errors import Fault, fault
from nanolens.message import msg

if TYPE_CHECKING:
    from nanolens.loaded import Model

HELP = msg("let a trained model write; several runs write side by side, from the same prompt and seed")
SEPARATOR = "---------------"  # nanoGPT's


def arguments(parser: Parser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help=msg("a run folder or its name below runs/; RUN@500 is its step 500"))
    parser.add_argument("--out_dir", action="append", default=[], metavar="DIR", help=msg("the same, as nanoGPT spells it"))
    parser.add_argument(
        "--prompt", "--start", default="\n", metavar="TEXT", help=msg("where the text begins: words, FILE:path, or - for standard input")
    )
    parser.add_argument("--best", action="store_true", help=msg("the weights of the best evaluation instead of the newest"))
    parser.add_argument("--num_samples", type=int, default=1, metavar="N", help=msg("how many texts (default 1)"))
    parser.add_argument("--max_new_tokens", type=int, default=500, metavar="N", help=msg("how many tokens to write (default 500)"))
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="X", help=msg("below 1: more careful, above: bolder, 0: always the likeliest")
    )
    parser.add_argument("--top_k", type=int, default=200, metavar="N", help=msg("only among the N likeliest tokens; 0: all (default 200)"))
    parser.add_argument("--top_p", type=float, metavar="X", help=msg("only among the likeliest that together have this probability"))
    parser.add_argument("--seed", type=int, default=1337, metavar="N", help=msg("start of the random numbers (default 1337)"))
    parser.add_argument("--device", default="auto", metavar="DEVICE", help=msg("auto, cpu, cuda, cuda:1, mps"))
    parser.add_argument("--arch", metavar="FILE.py", help=msg("the file of a model of your own"))


def run(given: Namespace) -> int:
    names = [*given.runs, *given.out_dir]
    if not names:
        raise UsageError(Fault(msg("which run?"), fix=msg("name one: {command:code} lists them", command="nanolens runs")))
    prompt = _prompt(given.prompt)
    from nanolens.cli import say
    from nanolens.loaded import load

    models = [load(name, best=given.best, device=given.device, arch=given.arch) for name in names]
    for model in models:
        if model.note is not None:
            print(say(model.note, given.lang), file=sys.stderr)
    if len(models) == 1:
        _one(models[0], prompt, given)
    else:
        _several(models, prompt, given)
    return 0


def _prompt(text: str) -> str:
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("FILE:"):
        return text
    path = Path(text.removeprefix("FILE:"))
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise fault(msg("there is no file {path:code}", path=str(path)), where=msg("{option:code}", option=f"--prompt={text}")) from None
    except (OSError, UnicodeDecodeError) as error:
        raise fault(msg("{path:code} cannot be read: {problem}", path=str(path), problem=str(error))) from None


def _taste(given: Namespace) -> dict:
    return {
        "max_new_tokens": given.max_new_tokens, "num_samples": given.num_samples, "temperature": given.temperature, "top_k": given.top_k,
        "top_p": given.top_p, "seed": given.seed,
    }  # fmt: skip


def _one(model: Model, prompt: str, given: Namespace) -> None:
    """The first text comes as it is written, the others when they are done."""
    out = sys.stdout
    if not out.isatty():
        _print_all(model, prompt, given)
        return
    out.write(_safe(prompt))
    out.flush()

    def show(piece: str) -> None:
        out.write(_safe(piece))
        out.flush()

    texts = model.generate(prompt, on_text=show, **_taste(given))
    print()
    for text in texts[1:] if isinstance(texts, list) else []:
        print(f"{SEPARATOR}\n{_safe(text)}")


def _print_all(model: Model, prompt: str, given: Namespace) -> None:
    texts = model.generate(prompt, **_taste(given))
    if isinstance(texts, str):
        print(texts)
        return
    for text in texts:
        print(f"{text}\n{SEPARATOR}")


def _several(models: list[Model], prompt: str, given: Namespace) -> None:
    import shutil

    from nanolens.present.table import side_by_side

    written = [model.generate(prompt, **_taste(given)) for model in models]
    names = [model.name for model in models]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for k in range(given.num_samples):
        texts = [text[k] if isinstance(text, list) else text for text in written]
        if width // len(models) >= 30:
            print("\n".join(side_by_side(names, texts, width)))
        else:
            print("\n".join(f"=== {name}\n{_safe(text) if width else text}" for name, text in zip(names, texts, strict=True)))
        if given.num_samples > 1:
            print(SEPARATOR)


def _safe(text: str) -> str:
    """For a terminal: what a model writes may hold any character that its data held, escape sequences included."""
    return "".join(c if c.isprintable() or c in "\n\t" else "·" for c in text)
