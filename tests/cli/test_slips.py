"""What a newcomer types wrong, and the one line that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanolens.cli import main


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(list(words))
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("train quickstart max_iters=10", "write --max_iters=10"),
        ("train quickstart -max_iters=10", "write --max_iters=10"),
        ("train quickstart --lr=1e-3", "did you mean learning_rate?"),
        ("train quickstart --epochs=3", "did you mean max_iters?"),
        ("train quickstart --context_length=64", "did you mean block_size?"),
        ("train --resume", "did you mean init_from=resume?"),
        ("train quickstart --wandb", "did you mean trackers?"),
        ("train quickstart --wandb_log=yes", "for example --wandb_log=True"),
        (
            "train quickstart --trackers=tensorbord",
            "use one or more of mlflow, none, tensorboard, trackio, wandb, separated by commas",
        ),
        ("train quickstart --detach=maybe", "write --detach"),
        ("train quickstart --out_dir", "write --out_dir=VALUE"),
        ("train quickstart --view=film", "use one of live, lines"),
        (
            "train input.txt",
            "to train on this text, prepare it with nanolens prepare input.txt, then run nanolens train "
            "--dataset=input",
        ),
        ("train data/plays", "give the data with --dataset=data/plays"),
        ("resume first", "did you mean nanolens train --init_from=resume --out_dir=first?"),
        ("generate first", "did you mean nanolens sample first?"),
        ("list", "did you mean nanolens runs?"),
        ("trian", "did you mean train?"),
        ("sample first --temperature=hot", "see nanolens sample --help"),
        ("send first --to=comet", "use one of tensorboard, wandb, trackio, mlflow"),
        ("send first", "see nanolens send --help"),
        (
            "send nothing --to=tensorboard",
            "give a run folder, a name below runs/, the path of a log, or - for standard input",
        ),
    ],
)
def test_a_slip_gets_a_fix(
    words: str, fix: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.txt").write_text("hello world\n")
    (tmp_path / "data" / "plays").mkdir(parents=True)
    code, words_said = said(capsys, *words.split())
    assert code in (1, 2)
    assert f"fix: {fix}" in words_said.replace("\n         ", " "), words_said
    assert "Traceback" not in words_said
