"""What `diagnose --why=CODE` says: the pages of pages.md."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec

from nanolens.errors import fault
from nanolens.message import msg
from nanolens.show.answer import Answer
from nanolens.show.document import GAP, Part, TextBlock
from nanolens.show.words import is_literal, paragraphs


@dataclass(frozen=True)
class Page:
    """What `diagnose --why` says of some codes."""

    codes: tuple[str, ...]
    text: str  # a title, paragraphs that begin with what they are about, and quoted lines


@cache
def pages() -> tuple[Page, ...]:
    text = files("nanolens.diagnosis").joinpath("pages.md").read_text(encoding="utf-8")
    return tuple(map(_page, text.split("\n## ")[1:]))


def _page(section: str) -> Page:
    title, codes, *paragraphs = section.strip().split("\n\n")
    sentence = title if title.endswith("?") else f"{title}."
    text = "\n\n".join([sentence, *(re.sub(r"^\*\*(.*?)\*\*", r"\1", each) for each in paragraphs)])
    return Page(tuple(re.findall(r"`(\w+)`", codes)), text)


def page_of(code: str) -> Page | None:
    return next((page for page in pages() if code in page.codes), None)


def page_named(code: str) -> Page:
    page = page_of(code)
    if page is None:
        codes = [code for page in pages() for code in page.codes]
        near = difflib.get_close_matches(code, codes, n=1, cutoff=0.6)
        fix = msg("did you mean {nearest:code}?", near[0]) if near else msg("the codes are {codes:code}", codes)
        raise fault(msg("there is no finding named {code:code}", code), fix=fix)
    return page


class PageData(msgspec.Struct):
    codes: list[str]
    title: str
    paragraphs: list[str]


def page_answer(page: Page) -> Answer[Page]:
    return Answer(page, lambda lang: _page_parts(page, lang), lambda lang: _page_data(page, lang))


def _page_data(page: Page, lang: str) -> PageData:
    title, *rest = paragraphs(page.text, lang)
    return PageData(list(page.codes), title, rest)


def _page_parts(page: Page, lang: str) -> list[Part]:
    first, *rest = paragraphs(page.text, lang)
    parts: list[Part] = [TextBlock(first, "title")]
    for paragraph in rest:
        if is_literal(paragraph):
            parts += [GAP, TextBlock(paragraph, "quote")]
            continue
        match = _FIRST_SENTENCE.match(paragraph)
        assert match is not None
        parts += [GAP, TextBlock(match[1] + match[2], "head"), *([TextBlock(match[3], indent=2)] if match[3] else [])]
    return parts


_FIRST_SENTENCE = re.compile(r"([^.।]*)([.।]?) ?(.*)", re.S)
