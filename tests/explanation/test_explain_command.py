"""nanolens explain, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanolens.cli import main
from tests.explanation.given_logs import EVERY_500TH, SHAKESPEARE, long_log


@pytest.fixture
def log(tmp_path: Path) -> list[str]:
    """The arguments that name a log, its config and its hardware."""
    path, config = tmp_path / "train.log", tmp_path / "known.toml"
    path.write_text(SHAKESPEARE.text)
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in SHAKESPEARE.config.items()))
    return [str(path), "--config", str(config), "--hardware", SHAKESPEARE.hardware or ""]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out


def test_a_log(capsys: pytest.CaptureFixture[str], log: list[str]) -> None:
    out = said(capsys, *log)
    assert out.startswith("What is trained\n") and "\niter 5000: loss 0.8236, time 4446.83ms, mfu 9.99%\n" in out
    assert "\x1b" not in out and all(len(line) <= 100 for line in out.splitlines())


def test_a_log_in_hindi_keeps_its_numbers(capsys: pytest.CaptureFixture[str], log: list[str]) -> None:
    out = said(capsys, *log, "--lang=hi")
    assert "लाइन-दर-लाइन" in out and "43.6%" in out and "35.0 TFLOP/s" in out
    prose = [line for line in out.splitlines() if line and line not in SHAKESPEARE.text]
    assert sum(any("\u0900" <= letter <= "\u097f" for letter in line) for line in prose) > 0.9 * len(prose)


def test_markdown(capsys: pytest.CaptureFixture[str], log: list[str]) -> None:
    out = said(capsys, *log, "--format=md")
    assert "## Line by line" in out and "```\nstep 5000: train loss 0.6224, val loss 1.7044\n```" in out
    assert "`iter 4980` is the update" in out


def test_json_holds_the_values_behind_the_sentences(capsys: pytest.CaptureFixture[str], log: list[str]) -> None:
    found = json.loads(said(capsys, *log, "--json"))
    slow = next(line for line in found["lines"] if line["step"] == 5001)
    batches = next(remark for remark in slow["remarks"] if remark["topic"] == "eval_interval")
    assert batches["values"]["each"] == pytest.approx((4.44683 - 0.033225) / 400)
    assert [section["name"] for section in found["story"]] == ["course", "time", "cost", "verdict"]


def test_what_is_given_on_the_command_line_counts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(EVERY_500TH.text)
    out = said(
        capsys,
        str(path),
        "--batch_size=8",
        "--block-size=1024",
        "--gradient_accumulation_steps=4",
        "--dataset_tokens=3,276,800",
    )
    assert "One update: 8 sequences x 1,024 tokens x 4 micro-batches = 32,768 tokens." in out
    assert "10 epochs of 3,276,800 training tokens." in " ".join(out.split())


def test_a_preset_before_it_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    out = " ".join(said(capsys, "shakespeare_char").split())
    for number in (
        "10.75M parameters",
        "16,384 tokens",
        "81.6 epochs of 1,003,854 training characters",
        "ln 65 = 4.1744",
        "1.4697",
        "5.81 PFLOP",
        "129 MB",
    ):
        assert number in out
    assert "dropout = 0.2: share of activations" in out


def test_a_config_file_before_it_is_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "n_layer = 12\nn_head = 12\nn_embd = 384\nblock_size = 1024\nbatch_size = 16\ngradient_accumulation_steps = "
        "32\nmax_iters = 20000\n"
    )
    out = " ".join(
        said(capsys, str(path), "--vocab_size=50304", "--dataset_tokens=1_000_000_000", "--hardware=RTX 4070").split()
    )
    for number in (
        "40.95M parameters",
        "524,288 tokens",
        "10.5B tokens",
        "10.5 epochs of 1,000,000,000",
        "58.3 TFLOP/s",
    ):
        assert number in out


def test_a_term_alone_and_in_a_run(capsys: pytest.CaptureFixture[str], log: list[str]) -> None:
    assert "43.6%" not in said(capsys, "--term=mfu")
    assert "43.6%" in said(capsys, "--term=mfu", *log)
    assert json.loads(said(capsys, "--term=ppl", "--json"))["term"] == "perplexity"
    assert said(capsys, "--term=mfu", "--format=md").startswith("## MFU")


def test_mistakes_are_answered_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 1
    assert "--term=mfu" in capsys.readouterr().err
    assert main(["explain", "--term=perplexty"]) == 1
    assert "did you mean perplexity?" in capsys.readouterr().err
    assert main(["explain", "no-such-thing.log"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def _piped(text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "nanolens", "explain", "-"], input=text, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_pipe_that_is_already_full_is_explained_like_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "train.log"
    path.write_text(EVERY_500TH.text)
    assert _piped(EVERY_500TH.text) == said(capsys, str(path))


def test_a_pipe_is_explained_while_it_is_still_growing() -> None:
    lines = long_log(600).splitlines(keepends=True)
    command = [sys.executable, "-m", "nanolens", "explain", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write("".join(lines[:30]))
        child.stdin.flush()
        first = [child.stdout.readline() for _ in range(6)]  # would hang if all were kept for the end
        time.sleep(0.1)
        child.stdin.write("".join(lines[30:]))
        child.stdin.close()
        rest = child.stdout.read()
    assert child.returncode == 0
    assert first[0] == "What is trained\n"
    out = "".join(first) + rest
    assert (
        out.count("What is trained") == 1
        and " ".join(out.split()).count("how far off the model's predictions were") == 1
    )
    assert "How it went" in rest and "step 500: train loss" in rest


def test_a_config_is_held_against_the_size_that_it_claims_and_against_its_data(tmp_path, capsys):
    (tmp_path / "big.py").write_text(
        "wandb_run_name = 'gpt2-350M'\nn_layer = 12\nn_head = 12\nn_embd = 768\nblock_size = 1024\nbatch_size = 12\n"
        "gradient_accumulation_steps = 5 * 8\nmax_iters = 600000\nlr_decay_iters = 600000\nwarmup_iters = 0\n"
    )
    assert main(["explain", str(tmp_path / "big.py")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "claims 350M" in said and "its shape gives 124.4M" in said
    assert "repeat the data 32.6 times" in said and "val will likely rise" not in said
    assert "6e-4 from the first update on" in said
