"""`nanolens tune`, and the `--batch_size=auto` that takes its answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanolens.cli import main
from tests.cli.tiny import SETTINGS, make_data


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_data(tmp_path)
    return tmp_path


@pytest.mark.heavy
def test_what_tune_found_is_what_train_takes(here: Path, capsys):
    assert main(["tune", *SETTINGS, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["size"] for row in answer["rows"]] == [1, 2, 4]
    assert answer["command"].endswith("--batch_size=auto") and len(answer["why"]) >= 1
    assert (
        main(
            [
                "train",
                "shakespeare-char-cpu",
                *SETTINGS,
                "--batch_size=4",
                "--batch_size=auto",
                "--out_dir=run",
                "--view=lines",
            ]
        )
        == 0
    )
    assert "measuring" not in capsys.readouterr().err  # it was remembered, whatever preset the same settings came from
    facts = json.loads((here / "run" / "run.json").read_text())
    assert {key: facts["config"][key] for key in answer["winner"]} == answer["winner"]
    assert facts["came_from"]["batch_size"].startswith("auto: the fastest")


@pytest.mark.heavy
def test_a_model_that_does_not_fit_is_refused_with_words(capsys):
    assert main(["tune", *SETTINGS, "--memory=0.01"]) == 1
    said = capsys.readouterr().err
    assert "does not fit here" in said and "fix:" in said
