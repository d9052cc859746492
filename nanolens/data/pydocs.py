"""The corpus that needs no download: English text that every CPython carries.

The language reference of `help()`'s topics, and the docstrings of the standard library, which are taken from the sources without
importing anything. Plain ASCII, each paragraph once (topics repeat each other), a module or topic per document; about 1.5 MB. It is
the same on every machine with the same Python.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from nanolens.errors import fault
from nanolens.message import msg

VERSION = 2  # of how the text is put together
PASSED_OVER = frozenset(
    """test tests idlelib lib2to3 site-packages dist-packages turtledemo tkinter ensurepip __pycache__ pydoc_data distutils encodings
    lib-dynload __phello__ msilib""".split()
)
FEWEST_BYTES = 1_000_000
SHORTEST = 200  # a document of less is a name and half a sentence


def pydocs_as_jsonl() -> bytes:
    """One document a line."""
    seen: set[str] = set()
    lines = []
    for name, text in (*_topics(), *_modules()):
        if len(kept := _new_paragraphs(text, seen)) >= SHORTEST:
            lines.append(json.dumps({"name": name, "text": kept}))
    if sum(map(len, lines)) < FEWEST_BYTES:
        raise fault(
            msg("this Python came without the sources of its library, of which the built-in corpus is made"),
            where=msg("{path:code}", path=sysconfig.get_path("stdlib")),
            fix=msg("use a Python from python.org or your system, or prepare a text of your own"),
        )
    return "\n".join(lines).encode() + b"\n"


def _topics() -> Iterator[tuple[str, str]]:
    from pydoc_data import topics  # one dict of strings

    for name, text in sorted(topics.topics.items()):
        yield f"topic {name}", text


def _modules() -> Iterator[tuple[str, str]]:
    library = Path(sysconfig.get_path("stdlib"))
    for folder, below, files in os.walk(library):
        below[:] = sorted(name for name in below if name not in PASSED_OVER and not name.startswith("config-"))
        for path in (Path(folder) / file for file in sorted(files) if file.endswith(".py")):
            source = path.read_bytes()
            if _is_worth_parsing(source):
                name = ".".join(path.relative_to(library).with_suffix("").parts).removesuffix(".__init__")
                yield name, "\n\n".join(_docstrings(_parsed(source), name))


def _parsed(source: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library's own style, such as escapes that are on their way out
        return ast.parse(source)


def _is_worth_parsing(source: bytes) -> bool:
    """Parsing takes nearly all of the time, so only files of which a tenth looks like docstrings are parsed."""
    return sum(len(text) for text in re.findall(rb'"""(.*?)"""', source, re.DOTALL)) * 10 >= len(source)


def _docstrings(node: ast.AST, name: str) -> Iterator[str]:
    """In the order of the source, each under the name of what it describes."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        text = ast.get_docstring(node)
        if text:
            yield f"{name}{_signature(node)}\n\n{text}"
        for child in node.body:
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from _docstrings(child, f"{name}.{child.name}")


def _signature(node: ast.AST) -> str:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return ""
    return "(" + ", ".join(argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)) + ")"


def _new_paragraphs(text: str, seen: set[str]) -> str:
    kept = []
    for paragraph in re.split(r"\n[ \t]*\n", text.expandtabs()):
        paragraph = paragraph.strip("\n").rstrip()
        plain = " ".join(paragraph.split())
        # Short ones (a name, "Example:") may come again: they belong to what follows.
        if not plain or not paragraph.isascii() or not plain.isprintable() or (len(plain) > 40 and plain in seen):
            continue
        seen.add(plain)
        kept.append(paragraph)
    return "\n\n".join(kept)
