"""A GPT-2 in Hugging Face's format becomes ours, number for number. The reference arithmetic is written out here, by
their names."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from nanolens.config.fields import Config
from nanolens.convert.foreign import fit
from nanolens.convert.hf_folder import hugging_face_folder, read_hugging_face
from nanolens.data.tokenizers import CharTokenizer
from nanolens.errors import UserError
from nanolens.message import msg
from nanolens.model import build
from nanolens.training.checkpoint import fill

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 2, 2, 8, 16, 11


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * 0.3

    weights = {"transformer.wte.weight": draw(VOCAB, WIDTH), "transformer.wpe.weight": draw(CONTEXT, WIDTH)}
    for layer in range(LAYERS):
        at = f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            weights |= {f"{at}{norm}.weight": 1 + draw(WIDTH), f"{at}{norm}.bias": draw(WIDTH)}
        for name, rows, columns in (
            ("attn.c_attn", 1, 3),
            ("attn.c_proj", 1, 1),
            ("mlp.c_fc", 1, 4),
            ("mlp.c_proj", 4, 1),
        ):
            weights |= {
                f"{at}{name}.weight": draw(rows * WIDTH, columns * WIDTH),
                f"{at}{name}.bias": draw(columns * WIDTH),
            }
        weights[f"{at}attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT)  # the mask buffer that old files carry
    weights |= {"transformer.ln_f.weight": 1 + draw(WIDTH), "transformer.ln_f.bias": draw(WIDTH)}
    save_file(weights, tmp_path / "model.safetensors")
    shape = {
        "model_type": "gpt2",
        "activation_function": "gelu",
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_embd": WIDTH,
        "n_positions": CONTEXT,
        "vocab_size": VOCAB,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return tmp_path


def their_logits(folder: Path, idx: torch.Tensor) -> torch.Tensor:
    w = load_file(folder / "model.safetensors")
    x = w["transformer.wte.weight"][idx] + w["transformer.wpe.weight"][: idx.shape[1]]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"])

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    for layer in range(LAYERS):
        at = f"transformer.h.{layer}."
        parts = linear(norm(x, f"{at}ln_1"), f"{at}attn.c_attn").split(WIDTH, dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + linear(mixed, f"{at}attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, f"{at}ln_2"), f"{at}mlp.c_fc")), f"{at}mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].t()


WHERE = msg("here")


@pytest.mark.parametrize("block_size", [CONTEXT, 6])
def test_the_logits_are_theirs_also_with_a_shorter_context(folder: Path, block_size: int):
    assert hugging_face_folder(str(folder)) == folder
    model = read_hugging_face(folder)
    config, weights = fit(model, Config(block_size=block_size), WHERE)
    assert (config.n_layer, config.n_head, config.n_embd, config.vocab_size, config.bias) == (
        LAYERS,
        HEADS,
        WIDTH,
        VOCAB,
        True,
    )
    idx = torch.randint(VOCAB, (3, 6), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(filled(config, weights, VOCAB)(idx), their_logits(folder, idx), atol=1e-5)


def filled(config: Config, weights: dict[str, torch.Tensor], rows: int) -> torch.nn.Module:
    module = build(config, rows)
    fill(module, dict(weights), WHERE)
    return module.eval()


def test_rows_that_are_added_take_next_to_no_probability(folder: Path):
    model = read_hugging_face(folder)
    config, weights = fit(model, Config(block_size=6, vocab_size=VOCAB + 5), WHERE)
    idx = torch.randint(VOCAB, (3, 6), generator=torch.Generator().manual_seed(1))
    logits, theirs = filled(config, weights, VOCAB + 5)(idx), their_logits(folder, idx)
    assert torch.allclose(logits[..., :VOCAB], theirs, atol=1e-5)
    worse = logits.logsumexp(-1) - theirs.logsumexp(-1)
    assert 0 < worse.max() <= math.log(1 + 5 / VOCAB)


def test_what_does_not_fit_is_told_at_once(folder: Path):
    with pytest.raises(UserError) as raised:
        fit(read_hugging_face(folder), Config(block_size=CONTEXT + 1, arch="modern", vocab_size=VOCAB - 1), WHERE)
    assert len(raised.value.faults) == 3


def test_a_model_that_ours_cannot_be_is_refused_with_all_reasons(folder: Path):
    about = json.loads((folder / "config.json").read_text())
    strange = {
        "activation_function": "relu",
        "layer_norm_epsilon": 1e-3,
        "scale_attn_by_inverse_layer_idx": True,
        "n_inner": 7,
    }
    (folder / "config.json").write_text(json.dumps({**about, **strange}))
    with pytest.raises(UserError) as raised:
        read_hugging_face(folder)
    assert len(raised.value.faults) == 4 and "relu" in str(raised.value)
    (folder / "config.json").write_text(json.dumps({**about, "model_type": "llama"}))
    with pytest.raises(UserError, match="models of type llama are not supported"):
        read_hugging_face(folder)


def test_a_folder_that_holds_something_else_is_refused(folder: Path):
    save_file({"weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(UserError, match="the weights are missing 28 of 28 tensors"):
        read_hugging_face(folder)
    (folder / "model.safetensors").write_bytes(b"no such thing")
    with pytest.raises(UserError, match="cannot be read"):
        read_hugging_face(folder)
    assert hugging_face_folder("nowhere") is None


def test_weights_in_several_files_are_one_model(folder: Path):
    whole = load_file(folder / "model.safetensors")
    names = sorted(whole)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: whole[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = read_hugging_face(folder).weights
    assert torch.equal(weights["position.weight"], whole["transformer.wpe.weight"])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    with pytest.raises(UserError, match="does not list files in this folder"):
        read_hugging_face(folder)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder: Path):
    with pytest.raises(UserError, match="the tokenizer has 12 tokens and the model 11"):
        read_hugging_face(folder, CharTokenizer("abcdefghijkl"))
