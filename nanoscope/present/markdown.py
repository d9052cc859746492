"""What analysis found and explained, as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nanoscope.message import Message, msg
from nanoscope.present.text import SURENESS, setting_line
from nanoscope.present.words import TIE, show, tied

if TYPE_CHECKING:
    from nanoscope.analysis.finding import Evidence, Finding
    from nanoscope.analysis.diagnose import Diagnosis


def findings(diagnosis: Diagnosis, lang: str = "en") -> str:
    parts = [_finding(finding, number, lang) for number, finding in enumerate(diagnosis.findings, 1)]
    if not parts:
        parts = [said(msg("Nothing stands out."), lang)]
    if diagnosis.not_checked:
        rows = "\n".join(f"- `{item.code}`: {said(item.because, lang)}" for item in diagnosis.not_checked)
        parts.append(f"### {said(msg('Not checked'), lang)}\n\n{rows}")
    return "\n\n".join(parts) + "\n"


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
        "\n".join(f"- {_evidence(item, lang)}" for item in finding.evidence),
    ]
    if finding.change is not None:
        parts.append(said(msg("To do: {what}", what=finding.change.words), lang))
        lines = [setting_line(finding.change)] if finding.change.key else []
        lines += [finding.change.command] if finding.change.command else []
        parts += [fenced("\n".join(lines))] if lines else []
    parts.append(said(msg("This is wrong if {what}", what=finding.wrong_if), lang))
    return "\n\n".join(parts)


def _evidence(item: Evidence, lang: str) -> str:
    line = msg(
        "{what}: {seen}, usual {usual} ({where}; {how})",
        what=item.what, seen=show(item.seen, item.kind, lang), usual=show(item.usual, item.kind, lang), where=item.where, how=item.how,
    )  # fmt: skip
    return said(line, lang)


def _as_code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
