"""`nanolens plan` as a user types it: without torch, with all faults at once, with a measurement, and as a file to
start from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nanolens.cli import main
from nanolens.config.load import load
from nanolens.errors import UserError
from nanolens.planning.question import Question, answer, data_facts, plan_file, planned_for, recall, remember
from tests.cli.tiny import make_data

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from nanolens.cli import main; sys.exit(main(sys.argv[1:]))"
TINY = [
    "--n_layer=1",
    "--n_head=1",
    "--n_embd=32",
    "--block_size=16",
    "--batch_size=2",
    "--max_iters=20",
    "--lr_decay_iters=20",
    "--warmup_iters=2",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(*words: str, capsys) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_a_plan_for_a_named_card(capsys):
    text = plan("shakespeare-char", "--hardware=RTX 4070 Ti", "--price=0.4", capsys=capsys)
    assert "10.75M" in text and "81.6" in text and "cost:" in text and "RTX 4070 Ti" in text
    assert "data_repeated" in text and "nanolens train shakespeare-char" in text


def test_without_torch_everything_but_the_measurement_works(here):
    for words in (
        ["plan", "gpt2-124m", "--hardware=8x A100", "--json"],
        ["plan", "shakespeare-char", "--json"],
        ["plan", "gpt2-124m", "--hardware=A100", "--budget=2h", "--json"],
    ):
        done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, cwd=here)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["plan"]
        assert found["model"]["parameters"]["value"] > 1e6 and found["memory"]["memory_total"]["value"] > 0
        if not any(word.startswith("--hardware") for word in words):
            assert (
                found["time"]["total_s"]["value"] is None
                and "torch is not installed" in found["time"]["total_s"]["from"]
            )


def test_every_fault_of_a_question_is_told_at_once(capsys):
    code = main(
        [
            "plan",
            "shakespeare-char",
            "--n_head=7",
            "--min_lr=1",
            "--lr_decay_iters=50",
            "--eval_iters=0",
            "--hardware=Quantum 9000",
            "--budget=soon",
        ]
    )
    told = capsys.readouterr().err
    assert code == 1
    for words in ("is not divisible", "min_lr", "warm-up", "eval_iters", "Quantum 9000", "is not a valid budget"):
        assert words in told, words


def test_a_context_longer_than_the_text_is_refused():
    with pytest.raises(UserError, match="less than one context"):
        answer(Question("shakespeare-char", [("block_size", "200000")], hardware="A100", dataset_tokens=1000))


def test_a_laptop_part_is_not_taken_for_the_card_of_the_same_name():
    with pytest.raises(UserError, match="is not in the device table"):
        answer(Question("shakespeare-char", hardware="RTX 4070 Laptop GPU"))


def test_a_budget_becomes_a_config_file_that_trains(here, capsys):
    text = plan("shakespeare-char", "--hardware=RTX 4070", "--budget=10min", "-o", "planned.toml", capsys=capsys)
    assert "nanolens train planned.toml" in text
    config = load("planned.toml").config
    assert config.max_iters == config.lr_decay_iters and config.dataset == "shakespeare_char"
    assert (
        main(["plan", "shakespeare-char", "--hardware=RTX 4070", "--budget=10min", "-o", "planned.toml"]) == 1
    )  # never over an old file


def test_the_printed_command_is_the_planned_config(capsys):
    found = json.loads(plan("fineweb-edu-12gb", "--hardware=RTX 4070", "--budget=3Btok", "--json", capsys=capsys))
    words = found["command"].split()
    assert words[:3] == ["nanolens", "train", "fineweb-edu-12gb"]
    config = load(words[2], [tuple(word[2:].split("=", 1)) for word in words[3:]]).config
    assert config.n_embd == found["config"]["n_embd"] and config.learning_rate == found["config"]["learning_rate"]
    assert config.max_iters == found["config"]["max_iters"]


def test_markdown(capsys):
    text = plan("gpt2-124m", "--hardware=A100", "--format=md", capsys=capsys)
    assert text.startswith("## Plan") and "- parameters: 124.4M (calculated" in text


def test_a_nanogpt_folder_is_counted(here):
    import numpy as np

    folder = here / "data" / "mine"
    folder.mkdir(parents=True)
    np.zeros(5000, np.uint16).tofile(folder / "train.bin")
    np.zeros(500, np.uint16).tofile(folder / "val.bin")
    found = data_facts(load("gpt2-124m", [("dataset", "mine")]).config)
    assert (found.train_tokens, found.val_tokens, found.vocab_size) == (5000, 500, 50304)


def test_the_automatic_choices_are_the_trainers():
    pytest.importorskip("torch")
    from types import SimpleNamespace

    from nanolens.config.fields import Config
    from nanolens.sizing.memory import is_head_chunked, padded_vocab
    from nanolens.training.setup import choose_chunked, choose_vocab_size

    for vocab in (65, 96, 999, 1000, 8192, 50257):
        assert padded_vocab(vocab) == choose_vocab_size(Config(), SimpleNamespace(vocab_size=vocab), lambda event: None)
    for size in (1, 4, 16, 64):
        config = Config(batch_size=size)
        assert is_head_chunked(config, 50304) == choose_chunked(config, 50304, lambda event: None, None)


def test_a_measurement_of_a_tiny_model_and_the_plan_against_the_run(here, capsys):
    """The whole way round: plan with a measurement, train, and hold the run against the plan."""
    pytest.importorskip("torch")
    from nanolens import train
    from nanolens.record.read import read_run

    make_data(here)
    found = json.loads(
        plan("quickstart", *TINY, "--eval_iters=2", "--threads=1", "--sample_interval=0", "--json", capsys=capsys)
    )
    update = found["plan"]["time"]["update_s"]
    assert update["source"] == "measured" and 1e-4 < update["value"] < 5
    assert found["plan"]["memory"]["memory_total"]["source"] == "measured"
    settings = dict(word[2:].split("=") for word in TINY)
    run = train("quickstart", quiet=True, out_dir="runs/x", eval_iters=2, threads=1, sample_interval=0, **settings)
    held = {each.key: each for each in planned_for(read_run(run.folder))}
    assert held["parameters"].verdict == "as_planned" and held["parameters"].planned == held["parameters"].actual
    assert {"update_s", "total_s", "memory_total"} <= held.keys()
    assert str(held["parameters"].words)


def test_a_plan_is_remembered_by_what_it_plans():
    first = answer(Question("shakespeare-char", hardware="A100")).plan
    remember(first)
    other = load("shakespeare-char", [("out_dir", "elsewhere"), ("seed", "7")]).config
    assert recall(vars(other))["rows"]["parameters"]["value"] == 10_745_088
    assert recall(vars(load("shakespeare-char", [("n_layer", "5")]).config)) is None
    assert plan_file(vars(other)) == plan_file(vars(first.config))


def test_explain_and_diagnose_hold_the_run_against_its_plan(here, capsys, monkeypatch):
    pytest.importorskip("torch")
    from nanolens import train

    make_data(here)
    plan("quickstart", *TINY, "--no-measure", "--hardware=A100", "--sample_interval=0", capsys=capsys)
    settings = dict(word[2:].split("=") for word in TINY)
    train("quickstart", quiet=True, out_dir="runs/x", threads=1, sample_interval=0, **settings)
    capsys.readouterr()
    assert main(["diagnose", "runs/x"]) == 0
    assert "Plan vs actual" not in capsys.readouterr().out  # an answer depends on what was asked, not on a cache
    assert main(["diagnose", "runs/x", "--plan"]) == 0
    told = capsys.readouterr().out
    assert "Plan vs actual" in told and "as planned" in told
    assert main(["explain", "runs/x"]) == 0
    assert "Plan vs actual" in capsys.readouterr().out
    assert main(["explain", "runs/x", "--json"]) == 0
    json.loads(capsys.readouterr().out)
