"""GGUF files: what is in them, what is refused, and (heavy) what llama.cpp makes of them."""

from __future__ import annotations

import dataclasses
import json
import math
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanolens.convert.exporting import export_model
from nanolens.convert.gguf import escaped, faults_of, write_gguf
from nanolens.errors import UserError
from nanolens.loaded import load
from nanolens.model.generate import SamplingParams, generate
from nanolens.model.loss import logits_of
from nanolens.training.checkpoint import tensors_of
from tests.convert.made_models import SHAPE, TEXT, made_run, random_model, tokenizer

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_the_file_holds_the_weights_and_the_tokenizer(kind: str, tmp_path: Path):
    words = tokenizer("bpe-gpt2")
    model = random_model(SHAPE, words.vocab_size + 9)
    write_gguf(tmp_path / "a.gguf", SHAPE, tensors_of(model), words, words.vocab_size, kind=kind, name="a")
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    tensors = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    ours = tensors_of(model)
    apart = {"f32": 0.0, "f16": 1e-3, "q8_0": 1e-2}[kind]
    for theirs, name in (
        ("token_embd.weight", "embedding.weight"),
        ("blk.1.ffn_down.weight", "blocks.1.mlp.down.weight"),
    ):
        assert np.abs(tensors[theirs] - ours[name][: len(tensors[theirs])].numpy()).max() <= apart
    assert len(tensors["token_embd.weight"]) == words.vocab_size and not tensors["blk.0.attn_qkv.bias"].any()
    assert np.array_equal(tensors["position_embd.weight"], ours["position.weight"].numpy()), (
        "positions and vectors are never packed"
    )
    field = reader.fields["tokenizer.ggml.tokens"]
    assert bytes(field.parts[field.data[-1]]).decode() == "<|endoftext|>" and len(field.data) == words.vocab_size


def test_characters_are_spelled_by_their_bytes():
    assert [escaped(character) for character in "a~\n \\'न"] == [
        "a",
        "~",
        "\\x0a",
        "\\x20",
        "\\x5c",
        "\\x27",
        "\\xe0\\xa4\\xa8",
    ]


def test_what_llama_cpp_cannot_have_is_refused_with_all_reasons():
    modern = dataclasses.replace(SHAPE, arch="modern", n_embd=48)
    said = [str(fault.what) for fault in faults_of(modern, tokenizer("bpe"), "q8_0")]
    assert (
        len(said) == 3
        and "does not have this architecture" in said[0]
        and "cannot split" in said[1]
        and "q8_0" in said[2]
    )
    assert not list(faults_of(SHAPE, tokenizer("gpt2"), "q8_0")) + list(faults_of(SHAPE, tokenizer("char"), "f16"))


def test_an_export_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = made_run(tmp_path / "run", max_iters=1, eval_interval=1)
    export_model(run, "gguf", tmp_path / "a.gguf", dtype="float16")
    before = (tmp_path / "a.gguf").read_bytes()
    monkeypatch.setattr(
        gguf.GGUFWriter,
        "write_tensors_to_file",
        lambda self: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    with pytest.raises(OSError, match="No space"):
        export_model(run, "gguf", tmp_path / "a.gguf", overwrite=True)
    assert (tmp_path / "a.gguf").read_bytes() == before and {path.name for path in tmp_path.iterdir()} == {
        "a.gguf",
        "run",
    }
    with pytest.raises(UserError, match="is a folder"):
        export_model(run, "gguf", tmp_path)


# --- llama.cpp itself


@contextmanager
def llama(path: Path, context: int) -> Iterator[Any]:
    library = pytest.importorskip("xllamacpp")
    given = library.CommonParams()
    given.model.path, given.n_ctx, given.n_parallel, given.warmup, given.verbosity = str(path), context, 1, False, -1
    given.cpuparams.n_threads = 1
    given.flash_attn_type = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    yield library.Server(given)


def asked(server: Any, what: str, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{server.listening_address}/{what}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def next_tokens(server: Any, ids: list[int], count: int) -> list[int]:
    """The likeliest continuation."""
    wanted = {
        "n_predict": count,
        "temperature": 0,
        "top_k": 1,
        "return_tokens": True,
        "ignore_eos": True,
        "repeat_penalty": 1.0,
    }
    return asked(server, "completion", prompt=ids, **wanted)["tokens"]


TRAINED = {
    "n_embd": 64,
    "n_head": 4,
    "block_size": 128,
    "max_iters": 150,
    "eval_interval": 150,
    "lr_decay_iters": 150,
    "batch_size": 8,
}


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("char", {}),
        ("char", {"bias": True, "gelu": "tanh"}),
        ("bpe-gpt2", {"vocab_size": 448}),
        ("gpt2", {"max_iters": 40, "lr_decay_iters": 40, "batch_size": 2}),
    ],
)
def test_llama_cpp_writes_what_we_write(kind: str, changes: dict[str, Any], tmp_path: Path):
    model = load(made_run(tmp_path / "run", kind, **{**TRAINED, **changes}), device="cpu")
    export_model(tmp_path / "run", "gguf", tmp_path / "a.gguf")
    ids = model.tokenizer.encode("The doors of the")
    with llama(tmp_path / "a.gguf", 128) as server:
        theirs = next_tokens(server, ids, 100)
    ours = generate(model.module, model.config, torch.tensor([ids]), 100, sampling=SamplingParams(temperature=0))[
        0, len(ids) :
    ].tolist()
    assert theirs == ours


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["char", "bpe-gpt2", "gpt2"])
def test_llama_cpp_reads_text_as_we_do(kind: str, tmp_path: Path):
    made_run(tmp_path / "run", kind, max_iters=1, eval_interval=1)
    export_model(tmp_path / "run", "gguf", tmp_path / "a.gguf")
    with llama(tmp_path / "a.gguf", 128) as server:
        for text in (TEXT, "Don't  they\n\n\n say   12 apples", "नमस्ते, दुनिया! 你好", " \n \n"):
            assert asked(server, "tokenize", content=text)["tokens"] == tokenizer(kind).encode(text)


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("packing", ["f32", "q8_0"])
def test_the_perplexity_is_ours(packing: str, tmp_path: Path):
    """Of 96 tokens that follow one another; q8_0 within 1 %, f32 within a thousandth."""
    model = load(made_run(tmp_path / "run", "char", **TRAINED), device="cpu")
    export_model(tmp_path / "run", "gguf", tmp_path / "a.gguf", dtype=packing)
    ids = model.tokenizer.encode(TEXT[-120:])[:97]
    with torch.no_grad():
        chances = logits_of(model.module, torch.tensor([ids[:-1]])).log_softmax(-1)[0]
    ours = -float(chances[range(96), ids[1:]].mean())
    total = worst = 0.0
    with llama(tmp_path / "a.gguf", 128) as server:
        for place in range(1, 97):
            count = model.tokenizer.vocab_size
            answer = asked(
                server, "completion", prompt=ids[:place], n_predict=1, temperature=0, n_probs=count, cache_prompt=True
            )
            likeliest = answer["completion_probabilities"][0]["top_logprobs"]
            total -= next(each["logprob"] for each in likeliest if each["id"] == ids[place])
            worst = max(worst, *(abs(each["logprob"] - float(chances[place - 1, each["id"]])) for each in likeliest))
    apart = abs(math.exp(total / 96) / math.exp(ours) - 1)
    print(
        f"\n{packing}: perplexity {math.exp(ours):.4f} here, {math.exp(total / 96):.4f} there, {apart:.5f} apart; "
        f"log-probabilities by {worst:.4f}"
    )
    assert apart < {"f32": 0.001, "q8_0": 0.01}[packing] and (packing != "f32" or worst < 0.02)
