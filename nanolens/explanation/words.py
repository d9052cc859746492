"""An explanation, or a term of the glossary, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from nanolens.explanation.glossary import Term
from nanolens.explanation.pick import Explanation, Passage, Section
from nanolens.message import Message, msg
from nanolens.show.answer import Answer, JsonObject, plain, typed
from nanolens.show.document import GAP, Part, TextBlock, bullet
from nanolens.show.findings import ReadingData
from nanolens.show.words import say


def answer_of(found: Explanation) -> Answer[Explanation]:
    return Answer(found, lambda lang: list(explanation_parts(found)), lambda lang: explanation_data(found, lang))


def term_answer(term: Term) -> Answer[Term]:
    return Answer(term, lambda lang: list(_term_parts(term)), lambda lang: _term_data(term, lang))


def explanation_parts(explained: Explanation) -> Iterator[Part]:
    if explained.about is not None and explained.about.remarks:
        yield from section_parts(explained.about)
    if explained.lines:
        yield from (GAP, TextBlock(msg("Line by line"), "head"))
    yield from passage_parts(explained.lines)
    if explained.left_out is not None:
        yield from (GAP, TextBlock(explained.left_out, "note"))
    for section in explained.story:
        yield from (GAP, *section_parts(section))
    if explained.lacking:
        yield from (GAP, TextBlock(msg("To say more, nanolens needs"), "head"))
        yield from (bullet(message, "note") for message in explained.lacking)


def passage_parts(passages: Iterable[Passage]) -> Iterator[Part]:
    """Each line with what is said of it. Where one line of the source has several rows, it is quoted once."""
    for _, group in groupby(passages, key=lambda passage: (passage.line, passage.quote)):
        rows = list(group)
        quote = rows[0].quote.strip()
        yield GAP
        if quote:
            yield TextBlock(quote, "quote")
        for passage in rows:
            if not quote or len(rows) > 1:
                yield TextBlock(passage.title, "quote")
            yield from (bullet(remark.words) for remark in passage.remarks)


def section_parts(section: Section) -> list[Part]:
    return [TextBlock(section.title, "head"), *(bullet(remark.words) for remark in section.remarks)]


def _term_parts(term: Term) -> Iterator[Part]:
    yield TextBlock(term.title, "title")
    yield from (TextBlock(message, indent=2) for message in term.meaning)
    yield from (bullet(message, "good") for message in term.here)
    if term.see:
        yield TextBlock(msg("See also: {terms:code}", term.see), "note", indent=2)


# --- as JSON


class SentenceData(msgspec.Struct):
    text: str
    values: JsonObject  # what the sentence was made from


class RemarkData(SentenceData):
    topic: str


class LineData(msgspec.Struct):
    kind: str
    step: int
    line: int
    text: str
    remarks: list[RemarkData]


class SectionData(msgspec.Struct):
    name: str
    title: str
    remarks: list[RemarkData]


class ExplanationData(msgspec.Struct):
    name: str
    reading: ReadingData | None
    about: list[RemarkData]
    lines: list[LineData]
    left_out: str | None
    story: list[SectionData]
    lacking: list[str]


class EntryData(msgspec.Struct):
    term: str
    title: str
    meaning: list[str]
    here: list[SentenceData]
    see: list[str]


def explanation_data(explained: Explanation, lang: str = "en") -> ExplanationData:
    def remarks(source: Passage | Section) -> list[RemarkData]:
        return [RemarkData(say(each.words, lang), _values(each.words, lang), each.topic) for each in source.remarks]

    return typed(
        ExplanationData,
        explained,
        lang,
        reading=None if explained.reading is None else typed(ReadingData, explained.reading, lang),
        about=[] if explained.about is None else remarks(explained.about),
        lines=[typed(LineData, line, lang, text=line.quote, remarks=remarks(line)) for line in explained.lines],
        story=[typed(SectionData, section, lang, remarks=remarks(section)) for section in explained.story],
    )


def _term_data(term: Term, lang: str) -> EntryData:
    here = [SentenceData(say(message, lang), _values(message, lang)) for message in term.here]
    return typed(EntryData, term, lang, term=term.name, here=here)


def _values(message: Message, lang: str) -> dict[str, object]:
    return {name: plain(value, lang) for name, value in message.args.items() if not isinstance(value, Message)}
