"""`nanolens compare` and `nanolens forecast` as a user types them: logs, run folders, groups of seeds, pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanolens.cli import main
from tests.cli.tiny import make_data

LOG = """# run A (batch 16 x 32, n_embd 384, lr 1e-3)
step 500: train loss 5.5328, val loss 5.5328
iter 800: loss 4.8000, time 3900.00ms, mfu 12.90%
step 1000: train loss 4.4593, val loss 4.4593
# run B (batch 8 x 64, n_embd 768, lr 3e-4)
step 500: train loss 5.5194, val loss 5.5194
iter 800: loss 4.8000, time 9340.00ms, mfu 15.40%
"""
SHARED = "block_size = 1024\nn_layer = 12\nn_head = 12\nvocab_size = 50304\nbias = false\n"
A = f"batch_size = 16\ngradient_accumulation_steps = 32\nn_embd = 384\nlearning_rate = 0.001\n{SHARED}"
B = f"batch_size = 8\ngradient_accumulation_steps = 64\nn_embd = 768\nlearning_rate = 0.0003\n{SHARED}"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "both.log").write_text(LOG)
    (tmp_path / "both.toml").write_text(f"[A]\n{A}\n[B]\n{B}")
    (tmp_path / "a.toml").write_text(A)
    (tmp_path / "b.toml").write_text(B)
    (tmp_path / "a.log").write_text(LOG.split("# run B")[0])
    (tmp_path / "b.log").write_text("# run B" + LOG.split("# run B")[1])
    return tmp_path


def compared(*words: str, capsys) -> dict:
    assert main(["compare", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "words",
    [
        ["both.log", "--config=both.toml"],
        ["both.log", "--config=a.toml", "--config=b.toml"],
        ["a.log", "b.log", "--config=a.toml", "--config=b.toml"],
    ],
)
def test_one_log_with_two_runs_or_two_logs(words, capsys):
    found = compared(*words, "--hardware=1x RTX 4070 12GB", capsys=capsys)
    a, b = found["runs"]
    assert (a["mfu"], b["mfu"]) == (pytest.approx(0.692, abs=1e-3), pytest.approx(0.823, abs=1e-3))
    assert a["tokens_per_s"] / b["tokens_per_s"] == pytest.approx(2.395, abs=0.01)
    time = next(outcome for outcome in found["outcomes"] if outcome["axis"] == "time")
    assert time["verdicts"][0]["result"] == "ahead" and time["verdicts"][0]["by"] == pytest.approx(1.06, abs=0.01)
    steps = next(outcome for outcome in found["outcomes"] if outcome["axis"] == "steps")
    assert steps["verdicts"][0]["result"] == "cannot_say"


def test_hardware_by_label(capsys):
    found = compared(
        "both.log", "--config=both.toml", "--hardware=A: laptop CPU; B: 1x RTX 4070 Ti 12GB", capsys=capsys
    )
    assert [run["peak_flops"] for run in found["runs"]] == [None, pytest.approx(80.2e12, rel=1e-3)]
    assert next(each for each in found["differences"] if each["key"] == "hardware")["effect"] == "cannot"


def test_text_and_markdown(capsys):
    assert main(["compare", "both.log", "--config=both.toml", "--hardware=RTX 4070"]) == 0
    text = capsys.readouterr().out
    assert text.index("What differed") < text.index("Verdict") < text.index("Notes")
    assert "2.39x slower per token" in text
    assert main(["compare", "both.log", "--config=both.toml", "--format=md"]) == 0
    assert capsys.readouterr().out.startswith("## Comparison")


def test_one_run_alone_is_refused_with_a_way_out(capsys):
    assert main(["compare", "a.log"]) == 1
    assert "contains only one run" in capsys.readouterr().err


def test_a_picture_needs_a_pictures_name(capsys):
    assert main(["compare", "both.log", "-o", "curves.txt"]) == 1
    assert ".png" in capsys.readouterr().err


def test_a_log_cannot_be_scored_again(capsys):
    pytest.importorskip("torch")
    assert main(["compare", "a.log", "b.log", "--rescore"]) == 1
    assert "is a log" in capsys.readouterr().err


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Two seeds of one config, and one of a worse one."""
    pytest.importorskip("torch")
    from nanolens import train

    folder = tmp_path_factory.mktemp("trained")
    make_data(folder)
    small = {
        "dataset": str(folder / "data" / "tiny"),
        "n_layer": 1,
        "n_head": 1,
        "n_embd": 32,
        "block_size": 16,
        "batch_size": 8,
        "max_iters": 60,
        "lr_decay_iters": 60,
        "warmup_iters": 3,
        "eval_interval": 3,
        "eval_iters": 10,
        "sample_interval": 0,
        "threads": 1,
        "checkpoint_interval": 60,
    }
    for name, changes in {
        "good-1": {"seed": 1},
        "good-2": {"seed": 2},
        "bad-1": {"seed": 1, "learning_rate": 5e-5, "min_lr": 5e-6},
    }.items():
        train(
            "quickstart",
            quiet=True,
            out_dir=str(folder / name),
            **{**small, "learning_rate": 5e-3, "min_lr": 5e-4, **changes},
        )
    return folder


def test_run_folders_groups_and_rescoring(trained, here, capsys):
    good, more, bad = (str(trained / name) for name in ("good-1", "good-2", "bad-1"))
    found = compared(good, bad, "--rescore", capsys=capsys)
    assert found["rescored"][0]["ahead"] == "good-1" and found["rescored"][0]["standard_error"] > 0
    steps = found["outcomes"][0]["verdicts"][0]
    assert steps["ahead"] == "good-1" and "paired" in steps["noise"][0]
    assert {each["key"] for each in found["differences"]} >= {"learning_rate"}
    grouped = compared(good, more, "--against", bad, capsys=capsys)
    assert [run["count"] for run in grouped["runs"]] == [2, 1] and grouped["outcomes"][0]["verdicts"][0][
        "result"
    ] == "ahead"
    seeds = compared(good, more, capsys=capsys)
    assert seeds["outcomes"][0]["verdicts"][0]["result"] == "no_difference"
    assert next(each for each in seeds["differences"] if each["key"] == "seed")["effect"] == "within_spread"


def test_a_forecast_of_a_run_at_a_step(trained, here, capsys):
    assert main(["forecast", f"{trained / 'good-1'}@51", "--at=60", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = answer["forecast"]
    assert found is not None, answer["refused"]
    assert found["at_step"] == 60 and found["low"] < found["loss"] < found["high"]
    assert main(["forecast", f"{trained / 'good-1'}@51", "--at=6000"]) == 0
    assert "No forecast, because" in capsys.readouterr().out


def test_pictures(trained, here):
    pytest.importorskip("matplotlib")
    assert main(["compare", str(trained / "good-1"), str(trained / "bad-1"), "-o", "c.png"]) == 0
    assert main(["forecast", f"{trained / 'good-1'}@51", "--at=60", "-o", "f.svg"]) == 0
    assert (here / "c.png").read_bytes().startswith(b"\x89PNG") and b"<svg" in (here / "f.svg").read_bytes()
