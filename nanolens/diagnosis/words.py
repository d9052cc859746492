"""A diagnosis in words and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from nanolens.diagnosis import FAULTS, Diagnosis, is_fault
from nanolens.diagnosis.rule import FINE, GIVES
from nanolens.facts.case import Case
from nanolens.facts.finding import Finding, NotChecked
from nanolens.facts.reading import what_was_read
from nanolens.message import msg
from nanolens.show.answer import Answer, Scalar, typed
from nanolens.show.document import GAP, Part, Role, TextBlock, bullet
from nanolens.show.findings import SURENESS_WORDS, ReadingData, change_parts, values_of
from nanolens.show.words import say


def answer_of(diagnosis: Diagnosis, more: Iterable[Part] = (), is_all: bool = False) -> Answer[Diagnosis]:
    """`more` stands below the findings in words, and not in the JSON."""

    def parts(_: object) -> list[Part]:
        return [*diagnosis_parts(diagnosis, is_all), *more]

    return Answer(diagnosis, parts, lambda lang: diagnosis_data(diagnosis, lang))


def diagnosis_parts(diagnosis: Diagnosis, is_all: bool = False) -> list[Part]:
    """Beside faults, what is in order is one line, and so is what could not be checked; `is_all` shows both in full."""
    parts: list[Part] = []
    if diagnosis.reading is not None:
        parts.append(TextBlock(diagnosis.reading.sentence, "note"))
    parts.append(TextBlock(diagnosis.headline, _role_of(diagnosis)))
    if diagnosis.reading is not None:
        parts += [TextBlock(note, "note") for note in diagnosis.reading.notes]
    parts.append(GAP)
    fine = [] if is_all else _in_order(diagnosis.findings)
    for number, finding in enumerate((each for each in diagnosis.findings if each not in fine), 1):
        parts += [*finding_parts(finding, number), GAP]
    if fine:
        parts += [TextBlock(msg("Nothing wrong with: {what}.", [FINE[each.code] for each in fine])), GAP]
    parts += _not_checked(diagnosis.not_checked) if is_all else _could_be_checked(diagnosis.not_checked)
    for other in diagnosis.others:
        parts += [GAP, *_other_parts(other)]
    return parts


def _other_parts(diagnosis: Diagnosis) -> Iterator[Part]:
    """Another run of the text: what was read of it, and what was found, without its evidence."""
    yield TextBlock(msg("{name:code}, lines {span}", diagnosis.run.name, diagnosis.run.reading.span), "head")
    if diagnosis.reading is not None:
        yield TextBlock(diagnosis.reading.sentence, "note", indent=2)
    yield TextBlock(diagnosis.headline, _role_of(diagnosis), indent=2)
    yield from (_claim(finding, number, indent=2) for number, finding in enumerate(diagnosis.findings, 1))


def _role_of(diagnosis: Diagnosis) -> Role:
    """Of the headline."""
    first = next((each for each in diagnosis.findings if is_fault(each)), None)
    if first is not None:
        return first.sureness
    return "good" if any(each.code == "healthy" for each in diagnosis.findings) else "head"


def _in_order(findings: Iterable[Finding]) -> list[Finding]:
    """What is fine matters little beside faults; alone it is the answer."""
    findings = list(findings)
    if not any(map(is_fault, findings)):
        return []
    return [each for each in findings if each.code in FINE and each.sureness != "possible"]


MOST_OPTIONS = 3


def _could_be_checked(unchecked: Iterable[NotChecked]) -> list[Part]:
    """One line: the options with which most of the rest could be answered."""
    unchecked = list(unchecked)
    options = Counter(GIVES[each.because.msgid] for each in unchecked if each.because.msgid in GIVES)
    best = [option for option, _ in options.most_common(MOST_OPTIONS)]
    if not unchecked:
        return []
    count = len(unchecked)
    said = msg("Not checked, for lack of data: {count:count cause|causes} ({all:code} names them)", count, "--all")
    if best:
        said = msg(
            "Not checked: {count:count cause|causes}; most would be with {options:code} ({all:code} names them)",
            count,
            best,
            "--all",
        )
    return [TextBlock(said, "note")]


def finding_parts(finding: Finding, number: int) -> Iterator[Part]:
    yield _claim(finding, number)
    for item in finding.evidence:
        yield bullet(values_of(item), indent=3)
        yield TextBlock(msg("{where}; {how}", item.where, item.how), "note", indent=5)
    if finding.change is not None:
        yield from change_parts(finding.change)
    yield TextBlock(msg("This is wrong if {what}", finding.wrong_if), "note", indent=3)


def _claim(finding: Finding, number: int, indent: int = 0) -> TextBlock:
    claim = msg("{sureness}: {claim} ({code:code})", SURENESS_WORDS[finding.sureness], finding.claim, finding.code)
    return TextBlock(claim, _role(finding), indent, mark=f"{number}. ")


def _role(finding: Finding) -> Role:
    """Faults in the colour of how sure they are; what explains or reassures is no alarm."""
    if finding.code == "healthy":
        return "good"
    return finding.sureness if finding.code in FAULTS else "head"


def _not_checked(unchecked: Iterable[NotChecked]) -> list[Part]:
    """Grouped by reason: one missing fact often keeps several rules from being tried."""
    by_reason: dict[str, list[NotChecked]] = {}
    for item in unchecked:
        by_reason.setdefault(say(item.because), []).append(item)
    if not by_reason:
        return []
    reasons = [
        msg("{codes:code}: {reason}", [item.code for item in items], items[0].because) for items in by_reason.values()
    ]
    return [TextBlock(msg("Not checked"), "head"), *(bullet(reason, "note") for reason in reasons)]


# --- as JSON


class EvidenceData(msgspec.Struct):
    what: str
    seen: Scalar | list[Scalar]
    usual: Scalar | list[Scalar]
    where: str
    how: str
    kind: str
    at_step: int | None


class ChangeData(msgspec.Struct):
    words: str
    key: str
    old: Scalar | list[Scalar]
    new: Scalar | list[Scalar]
    command: str


class FindingData(msgspec.Struct):
    code: str
    sureness: str
    claim: str
    evidence: list[EvidenceData]
    change: ChangeData | None
    wrong_if: str


class NotCheckedData(msgspec.Struct):
    code: str
    because: str


class KnownData(msgspec.Struct):
    value: Scalar | list[Scalar] | dict[str, Any]  # an object: what a probe has found
    origin: str
    where: str


class DerivedData(msgspec.Struct):
    value: Scalar | list[Scalar]
    origin: str
    how: str


class RunData(msgspec.Struct):
    name: str
    trainer: str
    steps: int
    evaluations: int
    known: dict[str, KnownData]
    derived: dict[str, DerivedData]
    reading: ReadingData


class OtherRunData(msgspec.Struct):
    """Another run of the same text."""

    name: str
    lines: str
    reading: ReadingData
    headline: str
    findings: list[FindingData]


class DiagnosisData(msgspec.Struct):
    headline: str
    run: RunData
    findings: list[FindingData]
    not_checked: list[NotCheckedData]
    others: list[OtherRunData]


def diagnosis_data(diagnosis: Diagnosis, lang: str = "en") -> DiagnosisData:
    run = diagnosis.run
    about = typed(
        RunData,
        run,
        lang,
        trainer=run.conventions.trainer,
        steps=len(run.steps),
        evaluations=len(run.evals),
        derived=dict(diagnosis.facts),
        reading=typed(ReadingData, diagnosis.reading or what_was_read(Case(run)), lang),
    )
    return typed(
        DiagnosisData, diagnosis, lang, run=about, others=[_other_data(each, lang) for each in diagnosis.others]
    )


def _other_data(diagnosis: Diagnosis, lang: str) -> OtherRunData:
    run = diagnosis.run
    reading = typed(ReadingData, diagnosis.reading or what_was_read(Case(run)), lang)
    return typed(OtherRunData, diagnosis, lang, name=run.name, lines=run.reading.span, reading=reading)
