"""Models and tokenizers go out in Hugging Face's format and come back the same; what has no place there is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanolens.convert.exporting import export_model
from nanolens.convert.hf_folder import read_hugging_face, read_tokenizer, tokenizer_files, write_hugging_face
from nanolens.convert.importing import import_model
from nanolens.errors import UserError
from nanolens.loaded import load
from nanolens.training.checkpoint import tensors_of
from tests.convert.made_models import SHAPE, TEXT, TOKENIZERS, made_run, random_model, tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_run(tmp_path_factory.mktemp("runs") / "made")


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_weights_and_tokenizer_come_back_to_the_bit(arch: str, kind: str, tmp_path: Path):
    words = tokenizer(kind)
    config = dataclasses.replace(SHAPE, arch=arch, bias=arch == "gpt2", gelu="tanh")
    model = random_model(config, words.vocab_size + 7)
    write_hugging_face(tmp_path, config, tensors_of(model), words, words.vocab_size)
    back = read_hugging_face(tmp_path)
    assert back.tokenizer == words and back.vocab_size == words.vocab_size
    for name, tensor in tensors_of(model).items():
        expected = tensor[: words.vocab_size] if name in ("embedding.weight", "head.weight") else tensor
        assert torch.equal(back.weights[name], expected), name
    assert back.settings["arch"] == arch and (arch == "modern" or back.settings["gelu"] == "tanh")


def test_a_model_without_biases_gets_zeros_there(tmp_path: Path):
    model = random_model(SHAPE, 11)
    write_hugging_face(tmp_path, SHAPE, tensors_of(model), tokenizer("char"), 11)
    weights = read_hugging_face(tmp_path, tokenizer=type(tokenizer("char"))("abcdefghijk")).weights
    assert weights["blocks.1.mlp.up.bias"].count_nonzero() == 0 and weights["norm.bias"].shape == (32,)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_tokenizers_library_gives_the_same_ids(kind: str, tmp_path: Path):
    library = pytest.importorskip("tokenizers")
    ours = tokenizer(kind)
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(tokenizer_files(ours, 32)["tokenizer.json"], ensure_ascii=False), encoding="utf-8"
    )
    theirs = library.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    letters = (
        st.sampled_from(sorted(set(TEXT)))
        if kind == "char"
        else st.sampled_from(sorted(set(TEXT))) | st.characters(codec="utf-8")
    )

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(text=st.text(letters, max_size=60))
    def same(text: str) -> None:
        if "<|endoftext|>" not in text:  # a token of its own there, ordinary text here
            ids = theirs.encode(text).ids
            assert ids == ours.encode(text) and theirs.decode(ids, skip_special_tokens=False) == text

    same()
    assert theirs.encode(TEXT).ids == ours.encode(TEXT)
    if kind == "char":
        with pytest.raises(Exception, match="UNK"):
            theirs.encode("\N{SNOWMAN}")
    assert read_tokenizer(tmp_path) == ours


def test_tokenizers_that_ours_cannot_be_are_refused(tmp_path: Path):
    whole = tokenizer_files(tokenizer("bpe"), 32)["tokenizer.json"]
    changed = {
        "changes the text": {**whole, "normalizer": {"type": "NFC"}},
        "ids have gaps": {**whole, "model": {**whole["model"], "vocab": {**whole["model"]["vocab"], "zz": 9999}}},
        "a Unigram model": {**whole, "model": {**whole["model"], "type": "Unigram"}},
        "splits text in a way": {**whole, "pre_tokenizer": {"type": "Whitespace"}},
        "not in the order": {**whole, "model": {**whole["model"], "merges": whole["model"]["merges"][::-1]}},
    }
    for reason, content in changed.items():
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        with pytest.raises(UserError, match=reason):
            read_tokenizer(tmp_path)


def test_an_export_holds_all_that_its_reader_needs(run: Path, tmp_path: Path):
    done = export_model(run, "hf", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "README.md",
    }
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    for fact in ("GPT2LMHeadModel", "| val loss |", "| tokens seen | 1,536 |", "| data | made |", "from_pretrained"):
        assert fact in card, fact
    assert done.name == "made@12" and (tmp_path / "out" / "model.safetensors").stat().st_mode & 0o044
    assert "loss.png" in card or "```\n" in card, "the curve, as a picture or in letters"


def test_theirs_to_ours_to_theirs_is_the_same_file(run: Path, tmp_path: Path):
    export_model(run, "hf", tmp_path / "one")
    imported = import_model(str(tmp_path / "one"), str(tmp_path / "run"))
    export_model(imported.run, "hf", tmp_path / "two")
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()
    assert (tmp_path / "one" / "config.json").read_bytes() == (tmp_path / "two" / "config.json").read_bytes()


def test_an_imported_model_and_the_folder_itself_write_what_the_run_writes(run: Path, tmp_path: Path):
    export_model(run, "hf", tmp_path / "out")
    imported = import_model(str(tmp_path / "out"), str(tmp_path / "run"))
    texts = [
        load(place).generate("The", max_new_tokens=20, temperature=0) for place in (run, imported.run, tmp_path / "out")
    ]
    assert texts[0] == texts[1] == texts[2]


def test_what_has_no_place_there_is_refused_with_all_reasons(tmp_path: Path):
    run = made_run(tmp_path / "run", arch="modern", token_shift=True, ngram_rows=64, max_iters=1, eval_interval=1)
    with pytest.raises(UserError) as raised:
        export_model(run, "hf", run, dtype="int3")
    said = [str(fault.what) for fault in raised.value.faults]
    assert len(said) == 4 and "int3" in said[1] and "token_shift" in said[2] and "ngram_rows" in said[3]
    for to, reason in (
        ("gguf", "llama.cpp does not have this architecture"),
        ("nanogpt", "nanoGPT supports only GPT-2"),
    ):
        with pytest.raises(UserError, match=reason):
            export_model(run, to, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_replaced_unasked_and_nothing_is_left_half_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = tmp_path / "out"
    export_model(run, "hf", place)
    with pytest.raises(UserError, match="the destination already exists"):
        export_model(run, "hf", place)
    export_model(run, "nanogpt", place, overwrite=True)
    assert (place / "ckpt.pt").is_file() and not (place / "config.json").exists()
    own = tmp_path / "own"
    own.mkdir()
    (own / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not made by an export"):
        export_model(run, "hf", own, overwrite=True)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nanolens.convert.hf_folder.tokenizer_files", full)
    monkeypatch.setattr("nanolens.convert.gguf.merges_of", full)
    with pytest.raises(OSError, match="No space"):
        export_model(run, "hf", tmp_path / "full")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "own"]
    monkeypatch.setattr("nanolens.convert.importing.write_run_file", full)
    with pytest.raises(OSError, match="No space"):
        import_model(str(place), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
