"""What analysis found and explained, as Markdown."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from nanolens.message import Message, msg
from nanolens.present.text import SURENESS, evidence_words, setting_line
from nanolens.show.words import TIE, tied

if TYPE_CHECKING:
    from nanolens.analysis.explanation import Explanation, Section
    from nanolens.analysis.glossary import Entry
    from nanolens.diagnosis import Diagnosis
    from nanolens.facts.finding import Finding


def findings(diagnosis: Diagnosis, lang: str = "en") -> str:
    parts = [_finding(finding, number, lang) for number, finding in enumerate(diagnosis.findings, 1)]
    if not parts:
        parts = [said(msg("Nothing stands out."), lang)]
    if diagnosis.not_checked:
        rows = "\n".join(f"- `{item.code}`: {said(item.because, lang)}" for item in diagnosis.not_checked)
        parts.append(f"### {said(msg('Not checked'), lang)}\n\n{rows}")
    return "\n\n".join(parts) + "\n"


def explanation(explained: Explanation, lang: str = "en") -> str:
    parts = [_section(explained.about, lang)] if explained.about is not None and explained.about.remarks else []
    if explained.lines:
        parts.append(f"## {said(msg('Line by line'), lang)}")
    for _, group in groupby(explained.lines, key=lambda passage: (passage.line, passage.quote)):
        passages = list(group)
        quote = passages[0].quote.strip()
        parts += [fenced(quote)] if quote else []
        for passage in passages:
            parts += [f"**{said(passage.title, lang)}**"] if not quote or len(passages) > 1 else []
            parts.append("\n".join(f"- {said(remark.words, lang)}" for remark in passage.remarks))
    if explained.left_out is not None:
        parts.append(said(explained.left_out, lang))
    parts += [_section(section, lang) for section in explained.story]
    if explained.lacking:
        rows = "\n".join(f"- {said(message, lang)}" for message in explained.lacking)
        parts.append(f"## {said(msg('It could say more if it knew'), lang)}\n\n{rows}")
    return "\n\n".join(parts) + "\n"


def glossary_entry(entry: Entry, lang: str = "en") -> str:
    parts = [f"## {said(entry.term.title, lang)}", *(said(message, lang) for message in entry.term.meaning)]
    if entry.here:
        parts.append("\n".join(f"- {said(message, lang)}" for message in entry.here))
    if entry.term.see:
        parts.append(said(msg("See also: {terms:code}", terms=entry.term.see), lang))
    return "\n\n".join(parts) + "\n"


def _section(section: Section, lang: str) -> str:
    rows = "\n".join(f"- {said(remark.words, lang)}" for remark in section.remarks)
    return f"## {said(section.title, lang)}\n\n{rows}"


def said(message: Message, lang: str) -> str:
    return tied(message, lang, code=_as_code).replace(TIE, " ")


def fenced(text: str) -> str:
    """A code block whose fence is longer than any run of backticks inside it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def _finding(finding: Finding, number: int, lang: str) -> str:
    parts = [
        f"### {number}. {said(finding.claim, lang)}",
        f"`{finding.code}`, {said(SURENESS[finding.sureness], lang)}",
        "\n".join(f"- {said(evidence_words(item, lang), lang)}" for item in finding.evidence),
    ]
    if finding.change is not None:
        parts.append(said(msg("To do: {what}", what=finding.change.words), lang))
        lines = [setting_line(finding.change)] if finding.change.key else []
        lines += [finding.change.command] if finding.change.command else []
        parts += [fenced("\n".join(lines))] if lines else []
    parts.append(said(msg("This is wrong if {what}", what=finding.wrong_if), lang))
    return "\n\n".join(parts)


def _as_code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
