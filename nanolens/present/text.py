"""What analysis found and explained, as text for a terminal or a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from nanolens.errors import UserError
from nanolens.message import Message, msg
from nanolens.present.blocks import GAP, Block, Role, plain
from nanolens.show.words import paragraphs, show, tied

if TYPE_CHECKING:
    from nanolens.analysis.explanation import Explanation, Passage, Section
    from nanolens.analysis.glossary import Entry
    from nanolens.diagnosis import Diagnosis
    from nanolens.facts.finding import Change, Evidence, Finding, NotChecked

SURENESS = {"certain": msg("certain"), "likely": msg("likely"), "possible": msg("possible")}


def findings(diagnosis: Diagnosis, lang: str = "en", width: int = 80) -> str:
    return plain(findings_blocks(diagnosis, lang), width)


def findings_blocks(diagnosis: Diagnosis, lang: str = "en") -> list[Block]:
    blocks: list[Block] = []
    for number, finding in enumerate(diagnosis.findings, 1):
        blocks += [*finding_blocks(finding, number, lang), GAP]
    if not diagnosis.findings:
        blocks += [Block(tied(msg("Nothing stands out."), lang), "good"), GAP]
    return blocks + not_checked_blocks(diagnosis.not_checked, lang)


def finding_blocks(finding: Finding, number: int, lang: str) -> list[Block]:
    said = msg("{sureness}: {claim}", sureness=SURENESS[finding.sureness], claim=finding.claim)
    blocks = [Block(f"{tied(said, lang)} ({finding.code})", _role(finding), mark=f"{number}. ")]
    for item in finding.evidence:
        blocks += evidence_blocks(item, lang)
    if finding.change is not None:
        blocks += change_blocks(finding.change, lang)
    return [*blocks, Block(tied(msg("This is wrong if {what}", what=finding.wrong_if), lang), "note", indent=3)]


def _role(finding: Finding) -> Role:
    """Faults in the colour of how sure they are; what explains or reassures is no alarm."""
    from nanolens.diagnosis import FAULTS

    if finding.code == "healthy":
        return "good"
    return finding.sureness if finding.code in FAULTS else "head"


def evidence_blocks(item: Evidence, lang: str) -> list[Block]:
    """The number beside what is usual; below it, for whoever wants to check it, where it was read and how it was worked out."""
    seen, usual = _shown(item.seen, item.kind, lang), _shown(item.usual, item.kind, lang)
    said = msg("{what}: {seen}, usual {usual}", what=item.what, seen=seen, usual=usual)
    source = msg("{where}; {how}", where=item.where, how=item.how)
    return [Block(tied(said, lang), indent=3, mark="- "), Block(tied(source, lang), "note", indent=5)]


def evidence_line(item: Evidence, lang: str) -> str:
    return tied(evidence_words(item, lang), lang)


def evidence_words(item: Evidence, lang: str) -> Message:
    return msg(
        "{what}: {seen}, usual {usual} ({where}; {how})",
        what=item.what, seen=_shown(item.seen, item.kind, lang), usual=_shown(item.usual, item.kind, lang), where=item.where, how=item.how,
    )  # fmt: skip


def _shown(value: object, kind: str, lang: str) -> object:
    """A pair is a range."""
    if isinstance(value, tuple) and len(value) == 2 and not isinstance(value[0], (str, Message)):
        return msg("{low} to {high}", low=show(value[0], kind, lang), high=show(value[1], kind, lang))
    return show(value, kind, lang)


def change_blocks(change: Change, lang: str) -> list[Block]:
    blocks = [Block(tied(msg("To do: {what}", what=change.words), lang), indent=3)]
    if change.key:
        blocks.append(Block(setting_line(change), "command", indent=5))
    if change.command:
        blocks.append(Block(change.command, "command", indent=5))
    return blocks


def setting_line(change: Change) -> str:
    """As it is typed into a config; what it was stands behind, as a comment."""
    new = f"{change.key} = {_typed(change.new)}"
    return new if change.old is None else f"{new}   # {_typed(change.old)}"


def _typed(value: object) -> str:
    if isinstance(value, float) and not isinstance(value, bool):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(f"{value:.4g}"))
    return str(value)


def not_checked_blocks(unchecked: Iterable[NotChecked], lang: str) -> list[Block]:
    """Grouped by reason: one missing fact often keeps several rules from being tried."""
    by_reason: dict[str, list[str]] = {}
    for item in unchecked:
        by_reason.setdefault(tied(item.because, lang), []).append(item.code)
    if not by_reason:
        return []
    head = Block(tied(msg("Not checked"), lang), "head")
    return [head, *(Block(f"{', '.join(codes)}: {reason}", "note", indent=2, mark="- ") for reason, codes in by_reason.items())]


def faults_blocks(error: UserError, lang: str = "en") -> list[Block]:
    blocks = []
    for fault in error.faults:
        blocks.append(Block(tied(msg("error: {what}", what=fault.what), lang), "bad"))
        if fault.where is not None:
            blocks.append(Block(tied(msg("in: {where}", where=fault.where), lang), indent=2))
        if fault.fix is not None:
            blocks.append(Block(tied(msg("fix: {fix}", fix=fault.fix), lang), indent=2))
    return blocks


def page_blocks(docstring: str, lang: str = "en") -> list[Block]:
    """A symptom's page, from its module's docstring: a claim, paragraphs that begin with what they are about, and quoted lines."""
    first, *rest = paragraphs(docstring, lang)
    blocks = [Block(first, "title"), GAP]
    for paragraph in rest:
        if paragraph.startswith("    "):
            blocks += [Block(paragraph, "quote"), GAP]
            continue
        head, end, text = _FIRST_SENTENCE.match(paragraph).groups()  # type: ignore[union-attr]
        blocks += [Block(head + end, "head"), *([Block(text, indent=2)] if text else []), GAP]
    return blocks[:-1]


_FIRST_SENTENCE = re.compile(r"([^.।]*)([.।]?) ?(.*)", re.S)


def explanation(explained: Explanation, lang: str = "en", width: int = 80) -> str:
    return plain(explanation_blocks(explained, lang), width)


def explanation_blocks(explained: Explanation, lang: str = "en") -> list[Block]:
    blocks = section_blocks(explained.about, lang) if explained.about is not None and explained.about.remarks else []
    if explained.lines:
        blocks += [GAP, Block(tied(msg("Line by line"), lang), "head")]
    blocks += passages_blocks(explained.lines, lang)
    if explained.left_out is not None:
        blocks += [GAP, Block(tied(explained.left_out, lang), "note")]
    for section in explained.story:
        blocks += [GAP, *section_blocks(section, lang)]
    if explained.lacking:
        blocks += [GAP, Block(tied(msg("It could say more if it knew"), lang), "head")]
        blocks += [Block(tied(message, lang), "note", indent=2, mark="- ") for message in explained.lacking]
    return blocks


def passages_blocks(passages: Iterable[Passage], lang: str) -> list[Block]:
    """Each line with what is said of it. Where one line of the source tells of several rows, it is quoted once."""
    blocks: list[Block] = []
    for _, group in groupby(passages, key=lambda passage: (passage.line, passage.quote)):
        rows = list(group)
        quote = rows[0].quote.strip()
        blocks.append(GAP)
        if quote:
            blocks.append(Block(quote, "quote"))
        for passage in rows:
            if not quote or len(rows) > 1:
                blocks.append(Block(tied(passage.title, lang), "quote"))
            blocks += [Block(tied(remark.words, lang), indent=2, mark="- ") for remark in passage.remarks]
    return blocks


def section_blocks(section: Section, lang: str) -> list[Block]:
    head = Block(tied(section.title, lang), "head")
    return [head, *(Block(tied(remark.words, lang), indent=2, mark="- ") for remark in section.remarks)]


def entry_blocks(entry: Entry, lang: str = "en") -> list[Block]:
    blocks = [Block(tied(entry.term.title, lang), "head"), *(Block(tied(message, lang), indent=2) for message in entry.term.meaning)]
    blocks += [Block(tied(message, lang), "good", indent=2, mark="- ") for message in entry.here]
    if entry.term.see:
        blocks.append(Block(tied(msg("See also: {terms:code}", terms=entry.term.see), lang), "note", indent=2))
    return blocks
