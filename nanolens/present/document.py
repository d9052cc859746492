"""What analysis found and explained, as plain data for JSON: each sentence in the reader's language with the values it was made from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nanolens.message import Message
from nanolens.show.words import say

if TYPE_CHECKING:
    from nanolens.analysis.explanation import Explanation, Remark, Section
    from nanolens.analysis.glossary import Entry


def explanation(explained: Explanation, lang: str = "en") -> dict[str, object]:
    return {
        "name": explained.name,
        "about": [_remark(remark, lang) for remark in explained.about.remarks] if explained.about is not None else [],
        "lines": [
            {
                "kind": passage.kind, "step": passage.step, "line": passage.line, "text": passage.quote,
                "remarks": [_remark(remark, lang) for remark in passage.remarks],
            }
            for passage in explained.lines
        ],
        "left_out": None if explained.left_out is None else say(explained.left_out, lang),
        "story": [_section(section, lang) for section in explained.story],
        "lacking": [say(message, lang) for message in explained.lacking],
    }  # fmt: skip


def glossary_entry(entry: Entry, lang: str = "en") -> dict[str, object]:
    return {
        "term": entry.term.name,
        "title": say(entry.term.title, lang),
        "meaning": [say(message, lang) for message in entry.term.meaning],
        "here": [_message(message, lang) for message in entry.here],
        "see": list(entry.term.see),
    }


def plain(value: object) -> object:
    """A value as JSON can hold it: what is not finite becomes its name."""
    if isinstance(value, Message):
        return say(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _section(section: Section, lang: str) -> dict[str, object]:
    return {"name": section.name, "title": say(section.title, lang), "remarks": [_remark(remark, lang) for remark in section.remarks]}


def _remark(remark: Remark, lang: str) -> dict[str, object]:
    return {"topic": remark.topic, **_message(remark.words, lang)}


def _message(message: Message, lang: str) -> dict[str, object]:
    values = {name: plain(value) for name, value in message.args.items() if not isinstance(value, Message)}
    return {"text": say(message, lang), "values": values}
