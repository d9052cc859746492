"""Opening what was prepared, by us or by nanoGPT."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from nanolens.data.prepare import prepare
from nanolens.data.store import open_dataset, open_folder
from nanolens.data.tokenizers import GPT2Tokenizer
from nanolens.errors import UserError
from nanolens.show.words import say

TEXT = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 60


def as_nanogpt_does(folder: Path, text: str = TEXT) -> Path:
    """The two bin files and meta.pkl of a character-level dataset, made from nanoGPT's description of them."""
    folder.mkdir(parents=True)
    characters = sorted(set(text))
    ids = np.array([characters.index(c) for c in text], dtype=np.uint16)
    ids[: int(len(ids) * 0.9)].tofile(folder / "train.bin")
    ids[int(len(ids) * 0.9) :].tofile(folder / "val.bin")
    meta = {
        "vocab_size": len(characters),
        "itos": dict(enumerate(characters)),
        "stoi": {c: n for n, c in enumerate(characters)},
    }
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_nanogpts_folder_is_the_same_dataset_as_ours(here: Path):
    (here / "input.txt").write_text(TEXT)
    ours = open_folder(prepare([here / "input.txt"], "char", here / "ours").folder)
    theirs = open_folder(as_nanogpt_does(here / "theirs"))
    assert ours.fingerprint == theirs.fingerprint and ours.tokenizer == theirs.tokenizer
    assert ours.vocab_size == theirs.vocab_size and theirs.tokenizer.decode(theirs.train[:20]) == TEXT[:20]
    for fact in (
        "dataset_tokens",
        "val_tokens",
        "unigram_nats",
        "bigram_nats",
        "bytes_per_token",
        "val_bytes_per_token",
        "vocab_used",
    ):
        assert ours.facts[fact] == pytest.approx(theirs.facts[fact]), fact


def test_our_character_folder_has_the_meta_that_nanogpt_reads(here: Path):
    (here / "input.txt").write_text(TEXT)
    folder = prepare([here / "input.txt"], "char", here / "ours").folder
    expected = pickle.loads((as_nanogpt_does(here / "theirs") / "meta.pkl").read_bytes())
    assert pickle.loads((folder / "meta.pkl").read_bytes()) == expected
    for split in ("train", "val"):
        assert (folder / f"{split}.bin").read_bytes() == (here / "theirs" / f"{split}.bin").read_bytes()


def test_without_a_meta_the_tokens_are_gpt2s_and_that_is_said(here: Path):
    gpt2, folder = GPT2Tokenizer(), here / "owt"
    folder.mkdir()
    for split in ("train", "val"):
        np.array(gpt2.encode(TEXT), dtype=np.uint16).tofile(folder / f"{split}.bin")
    found = open_folder(folder)
    assert found.tokenizer == gpt2 and found.vocab_size == 50257
    assert found.facts["bytes_per_token"] == pytest.approx(len(TEXT) / len(gpt2.encode(TEXT)))
    assert found.chosen[0]["value"] == "gpt2" and "these are GPT-2's tokens" in found.chosen[0]["because"]
    np.array([1, 60_000], dtype=np.uint16).tofile(folder / "val.bin")
    strange = open_folder(folder)
    assert strange.tokenizer is None and strange.vocab_size == 60_001 and strange.tokenizer_fingerprint == ""


def test_a_hostile_meta_is_refused(here: Path):
    folder = as_nanogpt_does(here / "theirs")

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {here / 'canary'}",)

    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 5, "itos": Evil()}))
    with pytest.raises(UserError, match="this pickle contains more than plain data, and was not opened"):
        open_folder(folder)
    assert not (here / "canary").exists()


@pytest.mark.parametrize("meta", [{}, [], {"vocab_size": "5"}, {"vocab_size": -1}, {"vocab_size": True}])
def test_a_meta_without_a_size_is_refused(here: Path, meta):
    folder = as_nanogpt_does(here / "theirs")
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    with pytest.raises(UserError, match="does not state the vocabulary size"):
        open_folder(folder)


def test_a_meta_of_another_kind_gives_no_tokenizer(here: Path):
    folder = as_nanogpt_does(here / "theirs")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 500, "words": ["a"]}))
    found = open_folder(folder)
    assert found.tokenizer is None and found.vocab_size == 500 and "bytes_per_token" not in found.facts


def test_ids_beyond_the_vocabulary_are_found(here: Path):
    folder = as_nanogpt_does(here / "theirs")
    np.array([1, 2, 3, 999], dtype=np.uint16).tofile(folder / "val.bin")
    with pytest.raises(UserError, match="the tokens contain the id 999, and the vocabulary ends at"):
        open_folder(folder)


def test_damaged_folders_are_told(here: Path):
    (here / "x.txt").write_text(TEXT)
    folder = prepare([here / "x.txt"], "char", here / "ours").folder
    whole = shutil.copytree(folder, here / "whole")

    def damaged(change, sentence: str) -> None:
        shutil.rmtree(folder)
        shutil.copytree(whole, folder)
        change()
        with pytest.raises(UserError, match=sentence):
            open_folder(folder)

    damaged(lambda: (folder / "val.bin").unlink(), "val.bin is missing")
    damaged(lambda: (folder / "val.bin").write_bytes(b"123"), "has 3 bytes, not a multiple of the 2 bytes per token")
    damaged(lambda: (folder / "val.bin").write_bytes(b""), "has 0 bytes")
    damaged(lambda: (folder / "train.bin").write_bytes(b"1234"), "the train split has 2 tokens and should have")
    damaged(lambda: (folder / "tokenizer.nanolens.json").unlink(), "there is no tokenizer here")
    about = json.loads((folder / "dataset.json").read_text())
    damaged(
        lambda: (folder / "dataset.json").write_text(json.dumps(about | {"format": 99})), "prepared by a newer nanolens"
    )
    other = prepare([here / "x.txt"], "bpe", here / "other", vocab_size=300).folder
    damaged(lambda: shutil.copy(other / "tokenizer.nanolens.json", folder), "is not the one its tokens were made with")


def test_names_are_looked_for_as_folders_then_below_data_then_as_corpora(here: Path):
    as_nanogpt_does(here / "data" / "shakespeare_char")
    as_nanogpt_does(here / "elsewhere" / "mine")
    assert open_dataset("shakespeare_char").folder == Path("data/shakespeare_char")
    assert open_dataset("shakespeare-char").folder == Path("data/shakespeare_char")
    assert open_dataset("elsewhere/mine").name == "mine"
    assert open_dataset(str(here / "elsewhere" / "mine")).name == "mine"


def test_a_wrong_name_gets_the_nearest_and_raw_text_the_command(here: Path):
    as_nanogpt_does(here / "data" / "mybook")
    (here / "novel.txt").write_text(TEXT)
    for name, fix in (
        ("mybok", "did you mean mybook?"),
        ("shakespear_char", "did you mean shakespeare_char?"),
        ("novel.txt", "run nanolens prepare novel.txt first"),
    ):
        with pytest.raises(UserError) as caught:
            open_dataset(name)
        assert say(caught.value.faults[0].fix) == fix
    with pytest.raises(UserError) as caught:
        open_dataset("zzzzz")
    assert "mybook, pydocs, shakespeare_char" in say(caught.value.faults[0].fix)


def test_where_documents_end_is_known(here: Path):
    lines = [f"document {n} " * (n + 1) for n in range(40)]
    (here / "x.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    found = open_folder(prepare([here / "x.jsonl"], "gpt2", here / "out").folder)
    ends = found.document_ends("train")
    assert np.array_equal(np.flatnonzero(found.train == 50256) + 1, ends)
    assert open_folder(as_nanogpt_does(here / "theirs")).document_ends("train") is None
