"""A diagnosis as JSON: the shape that scripts read. Numbers stay numbers; sentences are in the reader's language; NaN is the string
"nan".
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from nanolens.message import Message
from nanolens.show.words import say

if TYPE_CHECKING:
    from nanolens.diagnosis import Diagnosis
    from nanolens.facts.finding import Change, Evidence, Finding
    from nanolens.record.run import Run


def diagnosis_json(diagnosis: Diagnosis, lang: str = "en") -> str:
    document = {
        "run": run_facts(diagnosis, lang),
        "findings": [_finding(finding, lang) for finding in diagnosis.findings],
        "not_checked": [{"code": item.code, "because": say(item.because, lang)} for item in diagnosis.not_checked],
    }
    return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)


def run_facts(diagnosis: Diagnosis, lang: str) -> dict[str, object]:
    run: Run = diagnosis.run
    reading = run.reading
    return {
        "name": run.name,
        "trainer": run.words.trainer,
        "steps": len(run.steps),
        "evaluations": len(run.evals),
        "known": {
            key: {"value": _plain(known.value, lang), "origin": known.origin, "where": known.where} for key, known in run.known.items()
        },
        "derived": {
            name: {"value": _plain(fact.value, lang), "origin": fact.origin, "how": say(fact.how, lang)}
            for name, fact in diagnosis.facts.items()
        },
        "reading": {
            "lines": reading.lines,
            "not_understood": reading.not_understood,
            "duplicates": reading.duplicates,
            "glued": reading.glued,
            "cut": reading.cut,
            "notes": [say(note, lang) for note in reading.notes],
        },
    }


def _finding(finding: Finding, lang: str) -> dict[str, object]:
    return {
        "code": finding.code,
        "sureness": finding.sureness,
        "claim": say(finding.claim, lang),
        "evidence": [_evidence(item, lang) for item in finding.evidence],
        "change": None if finding.change is None else _change(finding.change, lang),
        "wrong_if": say(finding.wrong_if, lang),
    }


def _evidence(item: Evidence, lang: str) -> dict[str, object]:
    return {
        "what": say(item.what, lang),
        "seen": _plain(item.seen, lang),
        "usual": _plain(item.usual, lang),
        "where": say(item.where, lang),
        "how": say(item.how, lang),
        "kind": item.kind,
        "at_step": item.at_step,
    }


def _change(change: Change, lang: str) -> dict[str, object]:
    return {
        "words": say(change.words, lang),
        "key": change.key,
        "old": _plain(change.old, lang),
        "new": _plain(change.new, lang),
        "command": change.command,
    }


def _plain(value: object, lang: str) -> object:
    if isinstance(value, Message):
        return say(value, lang)
    if isinstance(value, (list, tuple)):
        return [_plain(item, lang) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)
