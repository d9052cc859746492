"""`nanolens prepare` as a user types it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nanolens.cli import main
from nanolens.data.prepare.pipeline import PrepareProgress
from nanolens.data.store import open_dataset


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    texts = [f"Document {n}. The cat sat on the mat, and the dog sat on the cat. " * (1 + n % 5) for n in range(200)]
    Path("books.jsonl").write_text("".join(json.dumps({"body": text, "n": 1}) + "\n" for text in texts) + "{torn\n")
    Path("novel.txt").write_text("It was a dark and stormy night; the rain fell in torrents. " * 200)
    return tmp_path


def test_a_text_file_becomes_a_dataset_that_train_finds(here: Path, capsys):
    assert main(["prepare", "novel.txt"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("data/novel written: 11.8 kB read in ")
    assert "  train: 10,620 tokens, documents: 1\n  val: 1,180 tokens, documents: 1\n" in said
    assert "chosen: tokenizer = char, because the sources have 11.8 kB" in said
    assert said.endswith("next: nanolens train --dataset=novel\n")
    assert open_dataset("novel").tokenizer.kind == "char"


def test_every_option_at_once_with_dashes_or_underscores(here: Path, capsys):
    options = [
        "--tokenizer",
        "bpe",
        "--vocab-size=300",
        "--text_column=body",
        "--dedup=exact",
        "--val-frac",
        "0.2",
        "--out=somewhere/else",
        "--workers=1",
    ]
    assert main(["prepare", "books.jsonl", "novel.txt", *options]) == 0
    said = capsys.readouterr().out
    assert "damaged rows or files left out: 1\n    books.jsonl line 201: " in said
    assert "tokenizer bpe, 300 tokens" in said and "next: nanolens train --dataset=somewhere/else" in said
    about = json.loads(Path("somewhere/else/dataset.json").read_text())
    assert about["settings"]["dedup"] == "exact" and about["facts"]["documents"] == 201


def test_the_second_time_it_was_ready(here: Path, capsys):
    main(["prepare", "novel.txt"])
    capsys.readouterr()
    assert main(["prepare", "novel.txt"]) == 0
    assert capsys.readouterr().out.startswith("data/novel is up to date: same sources and settings\n")


def test_a_named_corpus(here: Path, capsys):
    assert main(["prepare", "pydocs"]) == 0
    assert "data/pydocs written" in capsys.readouterr().out
    assert open_dataset("pydocs").folder == Path("data/pydocs")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["nothing.txt"], 1, "there is no such file or folder"),
        (["novel.txt", "--tokenizer=word"], 1, "there is no tokenizer named word"),
        (["novel.txt", "--dedup=fuzzy"], 2, "fuzzy"),
        (["novel.txt", "--vocabsize=3"], 2, "did you mean --vocab_size?"),
        ([], 2, "SOURCE"),
    ],
)
def test_mistakes_go_to_stderr_without_a_traceback(here: Path, capsys, words: list[str], code: int, sentence: str):
    assert main(["prepare", *words]) == code
    said = capsys.readouterr()
    assert sentence in said.err and said.out == "" and "Traceback" not in said.err
    assert not Path("data").exists()


def test_a_pipe_gets_a_line_now_and_then(capsys, monkeypatch):
    from nanolens.cli import progress

    monkeypatch.setattr(progress, "PREPARE_EVERY_S", 0.0)
    with progress.preparing("en") as told:
        told(PrepareProgress("encode", 0, 100))
        told(PrepareProgress("encode", 50_000_000, 100_000_000, 10, 20))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("encoding: 50.0 MB of 100 MB, ") and line.endswith(" to go")


@pytest.mark.skipif(os.name == "nt", reason="has no pseudo terminals")
def test_a_terminal_gets_a_bar_with_rate_and_time_left(here: Path):
    code = """
import time
from nanolens.cli.progress import preparing
from nanolens.data.prepare.pipeline import PrepareProgress
with preparing("en") as told:
    for done in range(0, 11):
        told(PrepareProgress("encode", done * 10**7, 10**8, done * 5, done * 10**6))
        time.sleep(0.1)
"""
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "140"}
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the end, on Linux
        pass
    finally:
        os.close(ours)
    assert process.wait(30) == 0
    shown = said.decode()
    assert "encoding" in shown and "MB/s" in shown and "/100.0 MB" in shown and "0:00:0" in shown
    assert re.search(r"50 documents, 10(\.0)?.?M tokens", shown)
