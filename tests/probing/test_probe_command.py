"""nanolens probe, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanolens.cli import main


def test_the_plan_says_what_would_be_done_and_cost(run: Path, capsys: pytest.CaptureFixture):
    assert main(["probe", f"{run}@24", "--plan", "--question=lr"]) == 0
    said = capsys.readouterr().out
    assert "as-planned-20: unchanged: the rest of the schedule, compressed into 20 updates" in said
    assert "of the run" in said
    assert main(["probe", f"{run}@24", "--plan", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["questions"]) == 7


def test_the_answer_is_a_ranked_table_and_is_kept(run: Path, capsys: pytest.CaptureFixture):
    assert main(["probe", f"{run}@24", "--question=numbers", "--question=data"]) == 0
    said = capsys.readouterr()
    assert "gain in the branch" in said.out and "unchanged" in said.err
    kept = json.loads((run / "probes" / "answer-000024.json").read_text())
    assert {effect["cause"] for effect in kept["effects"]} == {"val_differs", "data_too_little"}
    assert main(["runs", str(run)]) == 0
    assert "000024-unchanged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["@7"], "has no checkpoint at step 7"),
        (["@24", "--budget=3Btok"], "is not a valid time"),
        (["@24", "--question=weather"], "is not a valid choice"),
    ],
)
def test_a_mistake_is_told_without_a_traceback(run: Path, words: list[str], said: str, capsys: pytest.CaptureFixture):
    assert main(["probe", f"{run}{words[0]}", *words[1:]]) in (1, 2)
    assert said in capsys.readouterr().err
