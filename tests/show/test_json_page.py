"""The schema that is published is the one of the code, and what the commands print keeps to it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import nanolens
from tools.json_page import ANSWERS, json_markdown

LOG = "".join(f"iter {k}: loss {4.2 - 0.01 * k:.4f}, time 50.00ms, mfu 1.00%\n" for k in range(60))


def test_the_page_is_made_from_the_code() -> None:
    page = Path(__file__).parents[2] / "docs" / "json.md"
    assert page.read_text(encoding="utf-8") == json_markdown(), "run: python tools/json_page.py > docs/json.md"


@pytest.mark.parametrize("name", ["diagnose", "explain", "compare", "forecast", "plan", "explain --term", "runs"])
def test_an_answer_keeps_to_its_schema(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "train.log"
    log.write_text(LOG)
    answers = {
        "compare": lambda: nanolens.compare(log, log),
        "plan": lambda: nanolens.plan("quickstart", hardware="RTX 4070"),
        "explain --term": lambda: nanolens.explain(term="mfu"),
        "runs": lambda: nanolens.runs(),
    }
    data = answers.get(name, lambda: getattr(nanolens, name)(log))().data()
    text = json.dumps(data, allow_nan=False)
    msgspec.json.decode(text, type=ANSWERS[name], strict=True)
