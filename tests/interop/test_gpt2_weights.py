"""A GPT-2 in Hugging Face's format becomes ours, number for number. The reference arithmetic is written out here, by their names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from nanoscope.config.fields import Config
from nanoscope.errors import UserError
from nanoscope.interop.gpt2_weights import gpt2_folder, read_gpt2
from nanoscope.model import build

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
        for name, rows, columns in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            weights |= {f"{at}{name}.weight": draw(rows * WIDTH, columns * WIDTH), f"{at}{name}.bias": draw(columns * WIDTH)}
        weights[f"{at}attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT)  # the mask buffer that old files carry
    weights |= {"transformer.ln_f.weight": 1 + draw(WIDTH), "transformer.ln_f.bias": draw(WIDTH)}
    save_file(weights, tmp_path / "model.safetensors")
    shape = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "n_positions": CONTEXT, "vocab_size": VOCAB}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return tmp_path


def their_logits(folder: Path, idx: torch.Tensor) -> torch.Tensor:
    from safetensors.torch import load_file

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


@pytest.mark.parametrize("block_size", [CONTEXT, 6])
def test_the_logits_are_theirs_also_with_a_shorter_context(folder: Path, block_size: int):
    assert gpt2_folder(str(folder)) == folder
    config, weights = read_gpt2(folder, Config(block_size=block_size, init_from=str(folder)))
    assert (config.n_layer, config.n_head, config.n_embd, config.vocab_size, config.bias) == (LAYERS, HEADS, WIDTH, VOCAB, True)
    model = build(config, VOCAB)
    model.load_state_dict(weights)
    idx = torch.randint(VOCAB, (3, 6), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(model.eval()(idx), their_logits(folder, idx), atol=1e-5)


def test_what_does_not_fit_is_told_at_once(folder: Path):
    with pytest.raises(UserError) as raised:
        read_gpt2(folder, Config(block_size=CONTEXT + 1, arch="modern"))
    assert len(raised.value.faults) == 2


def test_a_folder_that_holds_something_else_is_refused(folder: Path):
    save_file({"weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(UserError, match="holds no GPT-2"):
        read_gpt2(folder, Config(block_size=4))
    (folder / "model.safetensors").write_bytes(b"no such thing")
    with pytest.raises(UserError, match="cannot be read"):
        read_gpt2(folder, Config(block_size=4))
    assert gpt2_folder("nowhere") is None
    assert dataclasses.is_dataclass(Config)
