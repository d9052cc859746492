"""A dataset made in parts is byte for byte the one that a single machine makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanolens.cli import main
from nanolens.data.prepare import prepare
from nanolens.data.prepare.parts import PartOf, files_of
from nanolens.data.prepare.readers import find_files
from nanolens.errors import UserError


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(7):
        rows = [
            {"text": f"document {number}.{row}: " + "one word and another, " * (row % 17)}
            for row in range(40 + 30 * number)
        ]
        (folder / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "3.jsonl").write_text((folder / "3.jsonl").read_text() + "\nthis is no JSON\n")
    return folder


@pytest.mark.parametrize(("tokenizer", "parts"), [("gpt2", 3), ("char", 2), ("gpt2", 7), ("gpt2", 1)])
def test_parts_joined_are_what_one_machine_makes(tokenizer: str, parts: int, corpus: Path, tmp_path: Path):
    whole, joined = tmp_path / "whole" / "set", tmp_path / "joined" / "set"
    prepare([corpus], tokenizer, whole, val_frac=0.2)
    for number in reversed(range(1, parts + 1)):  # in any order
        prepare([corpus], tokenizer, joined, val_frac=0.2, part=f"{number}/{parts}")
    prepare([corpus], tokenizer, joined, val_frac=0.2, part="join")
    names = sorted(path.name for path in whole.iterdir())
    assert sorted(path.name for path in joined.iterdir()) == names
    for name in set(names) - {"manifest.json", "sources.json", "dataset.json"}:
        assert (joined / name).read_bytes() == (whole / name).read_bytes(), name
    one, other = (json.loads((folder / "dataset.json").read_text()) for folder in (whole, joined))
    one.pop("chosen"), other.pop("chosen")  # which encoder was faster is no part of the result
    assert other == one
    assert prepare([corpus], tokenizer, joined, val_frac=0.2).was_ready


def test_every_file_is_in_one_part_and_parts_are_about_equal(corpus: Path):
    found = find_files([corpus])
    for count in (1, 2, 3, 5, 7):
        parts = [files_of(found, PartOf(number, count)) for number in range(1, count + 1)]
        assert [file for part in parts for file in part] == found
        assert all(parts)
        largest = max(sum(file.bytes for file in part) for part in parts)
        assert largest <= sum(file.bytes for file in found) / count + max(file.bytes for file in found)


def refused(*arguments, **options) -> str:
    with pytest.raises(UserError) as refusal:
        prepare(*arguments, **options)
    return str(refusal.value)


def test_what_cannot_be_joined_is_said_clearly(corpus: Path, tmp_path: Path):
    out = tmp_path / "set"
    assert "there are no parts" in refused([corpus], "gpt2", out, val_frac=0.2, part="join")
    assert "7 files for 8 parts" in refused([corpus], "gpt2", out, part="1/8")
    assert "is not a part" in refused([corpus], "gpt2", out, part="4/3")
    assert "sees all documents" in refused([corpus], "gpt2", out, part="1/3", dedup="exact")
    assert "a single file" in refused([corpus / "1.jsonl"], "gpt2", out, part="1/1")
    for number in (1, 3):
        prepare([corpus], "gpt2", out, val_frac=0.2, part=f"{number}/3")
    assert "these are missing: [2]" in refused([corpus], "gpt2", out, val_frac=0.2, part="join").replace("(2,)", "[2]")
    prepare([corpus], "gpt2", out, val_frac=0.3, part="2/3")
    assert "other files or with other options" in refused([corpus], "gpt2", out, val_frac=0.2, part="join")
    prepare([corpus], "gpt2", out, val_frac=0.2, part="2/3")
    tokens = tmp_path / "set.parts" / "2-of-3" / "train.bin"
    tokens.write_bytes(tokens.read_bytes()[:-1] + b"x")
    assert "has changed since it was written" in refused([corpus], "gpt2", out, val_frac=0.2, part="join")


def test_the_command_prepares_parts_and_joins_them(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ["prepare", str(corpus), "--tokenizer=gpt2", "--val_frac=0.2", "--out=set"]
    for number in (1, 2):
        assert main([*words, f"--part={number}/2"]) == 0
        assert f"set.parts/{number}-of-2 written: part {number}/2" in capsys.readouterr().out
    assert main([*words, "--part=join"]) == 0
    assert "set written" in capsys.readouterr().out
