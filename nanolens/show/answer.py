"""What every feature answers with: a value, and the forms in which it can be read. What is in its JSON, and in which
form, a msgspec Struct says, of which docs/json.md is made too: numbers stay numbers, sentences are in the language of
the reader, what is not finite is a string ("nan")."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any, Generic, TypeAlias, TypeVar, get_args, get_origin

import msgspec

from nanolens.message import Message
from nanolens.show import document
from nanolens.show.document import LITERAL, PIPE_WIDTH, Chart, Part, Table, Text, TextBlock
from nanolens.show.words import say

Value = TypeVar("Value")


@dataclass(frozen=True, repr=False)
class Answer(Generic[Value]):
    """An answer of a command, as Python gives it and as the command prints it; `lang` is "en" or "hi"."""

    value: Value
    parts: Callable[[str], Sequence[Part]]  # (lang)
    typed: Callable[[str], object]  # (lang) -> the value of the JSON, of the types in docs/json.md
    exit_code: int = 0

    def text(self, lang: str = "en", width: int = PIPE_WIDTH) -> str:
        return document.plain(self.parts(lang), width, lang)

    def markdown(self, lang: str = "en") -> str:
        return markdown(self.parts(lang), lang)

    def html(self, lang: str = "en") -> str:
        return html(self.parts(lang), lang)

    def data(self, lang: str = "en") -> dict[str, object]:
        """Dicts, lists, numbers and texts: the shape of `--json`."""
        return msgspec.to_builtins(self.typed(lang))

    def __str__(self) -> str:
        return self.text().rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.html()


# --- as JSON

Struct = TypeVar("Struct", bound=msgspec.Struct)
Scalar: TypeAlias = str | int | float | bool | None
JsonObject: TypeAlias = dict[str, Any]


def typed(kind: type[Struct], source: object, lang: str, **others: object) -> Struct:
    """`kind` with each field taken from the attribute of that name of `source`, or from `others`."""
    values = {}
    for field in msgspec.structs.fields(kind):
        value = others[field.name] if field.name in others else getattr(source, field.name)
        values[field.name] = _converted(field.type, value, lang)
    return kind(**values)


def plain(value: object, lang: str = "en") -> object:
    """A value as JSON can hold it."""
    if isinstance(value, Message):
        return say(value, lang)
    if isinstance(value, dict):
        return {str(key): plain(item, lang) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, lang) for item in value]
    if isinstance(value, float):  # numpy's too
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, msgspec.Struct) or value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def dumped(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False)


def _converted(kind: object, value: object, lang: str) -> object:
    if value is None or isinstance(value, msgspec.Struct):
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if origin is list and isinstance(value, (list, tuple)):
        return [_converted(inner[0], item, lang) for item in value]
    if origin is dict and isinstance(value, dict):
        return {str(key): _converted(inner[1], item, lang) for key, item in value.items()}
    structs = [each for each in (kind, *inner) if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    return typed(structs[0], value, lang) if structs else plain(value, lang)


# --- as Markdown and HTML


def markdown(parts: Iterable[Part], lang: str = "en") -> str:
    say = partial(said_in_markdown, lang=lang)

    def table(part: Table) -> str:
        head, *rows = [[say(cell).replace("|", "\\|") for cell in row] for row in (part.header, *part.rows)]
        rule = ["---" if i in part.left else "---:" for i in range(len(head))]
        return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))

    out = []
    for kind, texts in _nodes(parts, say, table, lang):
        if kind == "ul":
            out.append("\n".join(f"- {text}" for text in texts))
        elif kind == "pre":
            out.append(fenced("\n".join(texts)))
        else:
            out.append({"h2": "## ", "h3": "### "}.get(kind, "") + texts[0])
    return "\n\n".join(out) + "\n"


def html(parts: Iterable[Part], lang: str = "en") -> str:
    def say(text: Text) -> str:
        escaped = escape(document.said(text, lang, lambda code: f"\ue000{code}\ue001"))
        return escaped.replace("\ue000", "<code>").replace("\ue001", "</code>")

    def table(part: Table) -> str:
        head, *rows = ["".join(f"<td>{say(cell)}</td>" for cell in row) for row in (part.header, *part.rows)]
        return "".join(f"<tr>{row}</tr>" for row in (head.replace("td>", "th>"), *rows))

    out = []
    for kind, texts in _nodes(parts, say, table, lang):
        content = "".join(f"<li>{text}</li>" for text in texts) if kind == "ul" else "\n".join(texts)
        out.append(f"<{kind}>{escape(content) if kind == 'pre' else content}</{kind}>")
    return "\n".join(out) + "\n"


def said_in_markdown(text: Text, lang: str) -> str:
    return document.said(text, lang, lambda code: f"`` {code} ``" if "`" in code else f"`{code}`")


def fenced(text: str) -> str:
    """A code block whose fence is longer than any run of backticks inside it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def _nodes(
    parts: Iterable[Part], say: Callable[[Text], str], table: Callable[[Table], str], lang: str
) -> list[tuple[str, list[str]]]:
    """HTML's names of the parts with their texts: of `ul` those of its bullets, of `pre` those of its lines."""
    nodes: list[tuple[str, list[str]]] = []
    indent = 0
    for part in parts:
        kind, text = _node(part, say, table, lang)
        previous, texts = nodes[-1] if nodes else ("", [])
        if kind == "p" and previous == "ul" and isinstance(part, TextBlock) and part.indent > indent:
            texts[-1] += "; " + text  # hangs below its bullet
        elif kind == previous and kind in ("ul", "pre"):
            texts.append(text)
        else:
            nodes.append((kind, [text]))
        if kind == "ul" and isinstance(part, TextBlock):
            indent = part.indent
    return [node for node in nodes if node[0] != "gap"]


def _node(part: Part, say: Callable[[Text], str], table: Callable[[Table], str], lang: str) -> tuple[str, str]:
    if isinstance(part, Table):
        return "table", table(part)
    if isinstance(part, Chart):
        return "pre", document.plain([part], lang=lang).rstrip()
    if part.role in LITERAL:
        return "pre", "\n".join(map(document.clean, document.said(part.text, lang).splitlines()))
    if not part.text:
        return "gap", ""
    if part.role in ("title", "head") or part.mark[:1].isdigit():
        return "h2" if part.role == "title" else "h3", part.mark + say(part.text)
    return "ul" if part.mark else "p", say(part.text)
