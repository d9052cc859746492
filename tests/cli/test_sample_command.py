"""Models write from the command line and from Python, and the same text from both."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import nanolens
from nanolens.cli import main
from tests.cli.tiny import LETTERS, SETTINGS, make_data


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampling")
    make_data(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LC_ALL", "C.UTF-8")
        for seed in (1, 2):
            assert main(["train", *SETTINGS, f"--out_dir=runs/m{seed}", f"--seed={seed}", "--keep_checkpoints=3"]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def said(capsys, *words: str) -> str:
    assert main(["sample", *words]) == 0
    return capsys.readouterr().out


def test_the_command_and_the_api_write_the_same(capsys):
    text = said(capsys, "m1", "--prompt=abc", "--max_new_tokens=60")
    assert text == nanolens.load("m1").generate("abc", max_new_tokens=60) + "\n"
    assert text.startswith("abc") and len(text) == 3 + 60 + 1
    both = nanolens.sample("m1", "m2@20", prompt="abc", max_new_tokens=60)
    assert both.value["m1@20"] == [text[:-1]] and list(both.data()) == ["m1@20", "m2@20"] and "=== m2@20" in str(both)


def test_the_seed_decides_the_text(capsys):
    one = said(capsys, "m1", "--max_new_tokens=40", "--seed=1")
    assert one == said(capsys, "m1", "--max_new_tokens=40", "--seed=1")
    assert one != said(capsys, "m1", "--max_new_tokens=40", "--seed=2")


def test_nanogpts_spelling_works(capsys):
    assert said(capsys, "--out_dir=runs/m1", "--start=abc", "--max-new-tokens=20") == said(
        capsys, "m1", "--prompt=abc", "--max_new_tokens=20"
    )


def test_a_prompt_comes_from_a_file_or_from_standard_input(capsys, monkeypatch: pytest.MonkeyPatch):
    Path("prompt.txt").write_text("abcd")
    from_file = said(capsys, "m1", "--prompt=FILE:prompt.txt", "--max_new_tokens=20")
    monkeypatch.setattr("sys.stdin", io.StringIO("abcd"))
    assert said(capsys, "m1", "--prompt=-", "--max_new_tokens=20") == from_file
    assert from_file.startswith("abcd")


def test_a_step_of_a_run_writes_something_else(capsys):
    texts = {said(capsys, run, "--max_new_tokens=200") for run in ("m1@10", "m1@20", "m2@20")}
    assert len(texts) == 3
    assert said(capsys, "m1", "--max_new_tokens=200") == said(capsys, "m1@20", "--max_new_tokens=200")


def test_it_writes_past_the_context(capsys):
    assert len(said(capsys, "m1", "--max_new_tokens=100")) == 1 + 100 + 1  # block_size is 16


def test_temperature_zero_takes_the_likeliest_whatever_the_seed(capsys):
    assert said(capsys, "m1", "--temperature=0", "--seed=1") == said(capsys, "m1", "--temperature=0", "--seed=2")


def test_several_samples_are_separated_as_in_nanogpt(capsys):
    parts = said(capsys, "m1", "--num_samples=3", "--max_new_tokens=12", "--prompt=abc").split("\n---------------\n")
    assert len(parts) == 4 and parts[-1] == ""
    assert all(part.startswith("abc") for part in parts[:3])
    assert parts[0] == nanolens.load("m1").generate("abc", num_samples=3, max_new_tokens=12)[0]


def test_several_runs_write_from_the_same_prompt_and_seed(capsys):
    text = said(capsys, "m1", "m2", "--prompt=abc", "--max_new_tokens=30")
    one = nanolens.load("m1").generate("abc", max_new_tokens=30)
    two = nanolens.load("m2").generate("abc", max_new_tokens=30)
    assert text == f"=== m1@20\n{one}\n=== m2@20\n{two}\n"


def test_on_a_terminal_they_stand_side_by_side():
    from nanolens.show.document import side_by_side

    assert side_by_side(["m1@20", "m2@20"], ["one two\nthree", "four"], 17) == [
        "m1@20   │ m2@20",
        "─────── │ ───────",
        "one two │ four",
        "three   │",
    ]


def test_the_text_streams_piece_by_piece():
    pieces: list[str] = []
    text = nanolens.load("m1").generate("abc", max_new_tokens=30, on_text=pieces.append)
    assert len(pieces) == 30 and "abc" + "".join(pieces) == text


def test_what_a_model_writes_cannot_steer_the_terminal():
    from nanolens.cli.sample import _safe

    assert _safe("a\x1b[31mb\nc\td\x07") == "a·[31mb\nc\td·"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "error: which run?\n  fix: name one: nanolens runs lists them\n"),
        (["m11"], "error: there is no run named m11\n  fix: did you mean m1?\n"),
        (["m1@11"], "error: runs/m1 has no checkpoint at step 11\n  fix: available: 0, 10, 20\n"),
        (["m1", "--prompt=FILE:none.txt"], "error: there is no file none.txt\n  in: --prompt=FILE:none.txt\n"),
        (
            ["m1", "--temperature=-1", "--max_new_tokens=0"],
            "error: max_new_tokens = 0 is not a number of tokens\n  fix: use 1 or more\n"
            "error: temperature = -1.0 is below 0 or not a number\n  fix: use 0 to 2; 0 always takes the most likely token\n",
        ),
    ],
)
def test_a_mistake_is_one_clear_message(capsys, words: list[str], told: str):
    assert main(["sample", *words]) in (1, 2)
    assert capsys.readouterr().err == told


def test_a_character_outside_the_vocabulary_is_named(capsys):
    assert main(["sample", "m1", "--prompt=abcXYZ"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: the character 'X' is not among the {len(LETTERS)} in this data\n")


def test_the_run_is_there_as_columns():
    run = nanolens.Run("m1")
    assert list(run.steps.step) == list(range(1, 21))
    assert list(run.evals.step) == [0, 10, 20]
    assert run.evals.val[-1] < run.evals.val[0]
    assert run.state == "finished" and run.config["n_embd"] == 16
    assert repr(run) == "Run('m1')"
    assert all(finding.code for finding in run.findings())
    assert run.model(10).name == "m1@10"


def test_training_from_python_gives_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_data(tmp_path)
    settings = dict(word.removeprefix("--").split("=", 1) for word in SETTINGS) | {"max_iters": 6, "out_dir": "out"}
    seen: list = []
    run = nanolens.train("quickstart", quiet=True, listeners=[seen.append], **settings)
    assert list(run.steps.step) == [1, 2, 3, 4, 5, 6]
    assert [event.step for event in seen if type(event).__name__ == "StepTaken"] == [1, 2, 3, 4, 5, 6]
    assert capsys.readouterr().out == ""
    again = nanolens.train(
        "quickstart", quiet=True, **(settings | {"out_dir": "again"})
    )  # the name is still a function afterwards
    assert (again.steps.loss == run.steps.loss).all()


def test_a_loop_that_is_not_ours_writes_the_same_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = nanolens.start_run(config={"batch_size": 4, "block_size": 8})
    for step in range(1, 6):
        nanolens.log(step=step, loss=4.0 / step, lr=1e-3)
    nanolens.log(step=5, train_loss=0.9, val_loss=1.0)
    nanolens.end_run()
    run = nanolens.Run(folder)
    assert list(run.steps.loss) == [4.0, 2.0, 4.0 / 3, 1.0, 0.8]
    assert list(run.evals.val) == [1.0]
    assert main(["runs"]) == 0
