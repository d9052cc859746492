"""nanolens sample RUN [RUN ...] [--prompt=TEXT | FILE:PATH | -] [--max_new_tokens=N] [--temperature=X] ..."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from pathlib import Path

from nanolens.cli.arguments import UsageError
from nanolens.cli.progress import tell
from nanolens.errors import Fault, fault
from nanolens.loaded import DEFAULT_PROMPT, Model, load
from nanolens.message import msg
from nanolens.show.document import side_by_side

SEPARATOR = "---------------"  # nanoGPT's
PARAMETERS = ("max_new_tokens", "num_samples", "temperature", "top_k", "top_p", "seed")
NARROWEST_COLUMN = 30


def run(given: Namespace) -> int:
    names = [*given.runs, *(given.out_dir or ())]
    if not names:
        raise UsageError(Fault(msg("which run?"), fix=msg("name one: {command:code} lists them", "nanolens runs")))
    prompt = DEFAULT_PROMPT if given.prompt is None else _prompt(given.prompt)
    options = {key: value for key in PARAMETERS if (value := getattr(given, key)) is not None}
    models = [load(name, best=given.best, device=given.device or "auto", arch=given.arch) for name in names]
    for model in models:
        if model.note is not None:
            tell(model.note, given.lang)
    if len(models) > 1:
        _several(models, prompt, options)
    elif sys.stdout.isatty():
        _streamed(models[0], prompt, options)
    else:
        texts = _texts(models[0], prompt, options)
        print("\n".join(texts if len(texts) == 1 else [f"{text}\n{SEPARATOR}" for text in texts]))
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
        raise fault(msg("there is no file {path:code}", str(path)), where=f"--prompt={text}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise fault(msg("{path:code} cannot be read: {problem}", str(path), str(error))) from None


def _texts(model: Model, prompt: str, options: dict) -> list[str]:
    texts = model.generate(prompt, **options)
    return [texts] if isinstance(texts, str) else texts


def _streamed(model: Model, prompt: str, options: dict) -> None:
    """The first text comes as it is written, the others when they are done."""

    def show(piece: str) -> None:
        print(_safe(piece), end="", flush=True)

    show(prompt)
    texts = model.generate(prompt, on_text=show, **options)
    print()
    for text in texts[1:] if isinstance(texts, list) else []:
        print(f"{SEPARATOR}\n{_safe(text)}")


def _several(models: list[Model], prompt: str, options: dict) -> None:
    names = [model.name for model in models]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    rounds = list(zip(*(_texts(model, prompt, options) for model in models), strict=True))
    for texts in rounds:
        if width // len(models) >= NARROWEST_COLUMN:
            print("\n".join(side_by_side(names, texts, width)))
        else:
            shown = [_safe(text) if width else text for text in texts]
            print("\n".join(f"=== {name}\n{text}" for name, text in zip(names, shown, strict=True)))
        if len(rounds) > 1:
            print(SEPARATOR)


def _safe(text: str) -> str:
    """For a terminal: what a model writes may hold any character that its data held, escape sequences included."""
    return "".join(c if c.isprintable() or c in "\n\t" else "·" for c in text)
