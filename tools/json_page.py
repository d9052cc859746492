"""docs/json.md, made from the types of the answers: `python tools/json_page.py > docs/json.md`."""

from __future__ import annotations

import json

import msgspec

from nanolens.comparison.words import ComparisonData
from nanolens.diagnosis.pages import PageData
from nanolens.diagnosis.words import DiagnosisData
from nanolens.explanation.words import EntryData, ExplanationData
from nanolens.forecasting.words import ForecastData
from nanolens.measure.sweep import SweepData
from nanolens.measure.trying import TryData
from nanolens.measure.tune import TuneData
from nanolens.planning.words import PlanData
from nanolens.probing.words import ProbeData, ProbePlanData
from nanolens.refereeing.words import RefereeData
from nanolens.show.runs import RunRowData

ANSWERS: dict[str, object] = {
    "diagnose": DiagnosisData,
    "diagnose --why": PageData,
    "explain": ExplanationData,
    "explain --term": EntryData,
    "compare": ComparisonData,
    "referee": RefereeData,
    "plan": PlanData,
    "forecast": ForecastData,
    "probe": ProbeData,
    "probe --plan": ProbePlanData,
    "tune": TuneData,
    "sweep": SweepData,
    "try": TryData,
    "runs": list[RunRowData],
}
HEAD = """# The JSON of the answers

What `--json` prints and `answer.data()` returns, as [JSON Schema](https://json-schema.org). Keys stay as they are
between releases of one minor version; new ones may be added. Sentences are in the language of `--lang`. A number that
is not finite is a string ("nan", "inf"), one that is not known is null.

This page is made from the code: `python tools/json_page.py > docs/json.md`.
"""


def json_markdown() -> str:
    pages = [HEAD]
    for name, kind in ANSWERS.items():
        schema = json.dumps(msgspec.json.schema(kind), indent=1)
        pages.append(f"## nanolens {name}\n\n```json\n{schema}\n```\n")
    return "\n".join(pages)


if __name__ == "__main__":
    print(json_markdown(), end="")
