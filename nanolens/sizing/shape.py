"""The numbers that fix a model's size, and what follows from them: parameters by part, and FLOPs per token.

The convention for FLOPs (PaLM, appendix B; nanoGPT, nanochat and torchtitan count the same): 6 for each parameter a
token is multiplied with, plus 12 x layers x width x context for attention, as if every token saw the whole context;
recomputation is not counted. `causal` counts only the half of the attention that a causal mask leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nanolens.config.fields import Config
from nanolens.errors import fault
from nanolens.message import msg


@dataclass(frozen=True, kw_only=True)
class Shape:
    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int
    arch: str = "gpt2"
    bias: bool = False
    tied: bool = True  # the head is the embedding matrix
    softcap: float = 0.0  # arch=modern only, as are the next three
    token_shift: bool = False
    ngram_rows: int = 0
    ngram_order: int = 3  # the longest n-gram that has a table


def shape_of(config: Config, vocab_size: int | None = None) -> Shape:
    """The shape that a config asks for; `vocab_size` is the data's, where the config leaves it to the data."""
    vocab = config.vocab_size if config.vocab_size is not None else vocab_size
    assert vocab is not None, "the vocabulary's size is in neither the config nor the call"
    is_modern = config.arch == "modern"
    return Shape(
        arch=config.arch,
        n_layer=config.n_layer,
        n_head=config.n_head,
        n_embd=config.n_embd,
        block_size=config.block_size,
        vocab_size=vocab,
        bias=config.bias,
        tied=not is_modern,
        softcap=config.softcap if is_modern else 0.0,
        token_shift=config.token_shift and is_modern,
        ngram_rows=config.ngram_rows if is_modern else 0,
        ngram_order=config.ngram_order,
    )


GPT2_FAMILY = {
    name: Shape(n_layer=layers, n_head=heads, n_embd=width, block_size=1024, vocab_size=50257, bias=True)
    for name, layers, heads, width in (
        ("gpt2", 12, 12, 768),
        ("gpt2-medium", 24, 16, 1024),
        ("gpt2-large", 36, 20, 1280),
        ("gpt2-xl", 48, 25, 1600),
    )
}
"""The published GPT-2 checkpoints, by the names that `init_from` takes."""


@dataclass(frozen=True)
class Parameters:
    by_part: Mapping[str, int]  # "token embedding", "position embedding", "attention", "mlp", "norms", "head", …
    matmul: int  # what each token is multiplied with: blocks and head; a lookup costs nothing
    as_nanogpt_prints: int  # nanoGPT's "number of parameters": all but the position table, the tied embedding kept

    @property
    def total(self) -> int:
        return sum(self.by_part.values())

    @property
    def without_embeddings(self) -> int:
        """The blocks and their norms: what scaling laws of Kaplan's kind call N."""
        return sum(count for part, count in self.by_part.items() if part not in EMBEDDINGS)


EMBEDDINGS = ("token embedding", "position embedding", "head", "n-gram tables")


def parameters(shape: Shape) -> Parameters:
    width, layers, head = shape.n_embd, shape.n_layer, shape.vocab_size * shape.n_embd
    parts = {"token embedding": head}
    if shape.arch == "gpt2":
        with_bias = int(shape.bias)
        parts["position embedding"] = shape.block_size * width
        parts["attention"] = layers * (4 * width * width + with_bias * 4 * width)
        parts["mlp"] = layers * (8 * width * width + with_bias * 5 * width)
        parts["norms"] = (2 * layers + 1) * width * (1 + with_bias)
    elif shape.arch == "modern":  # norms without weights, rotary positions
        parts["n-gram tables"] = (shape.ngram_order - 1) * shape.ngram_rows * width
        parts["token shift"] = width if shape.token_shift else 0
        parts["attention"] = 4 * layers * width * width
        parts["mlp"] = 8 * layers * width * width
    else:
        what = msg("the size of arch = {arch:code} is unknown without building it", shape.arch)
        raise fault(what, fix=msg("use {one:code} or {other:code}", "gpt2", "modern"))
    if shape.arch == "modern" or not shape.tied:
        parts["head"] = head
    printed = sum(parts.values()) - parts.get("position embedding", 0)
    return Parameters(parts, matmul=12 * layers * width * width + head, as_nanogpt_prints=printed)


@dataclass(frozen=True)
class Flops:
    matmul: float  # of a token: forward and backward, 6 per parameter
    attention: float  # forward and backward, the whole context

    @property
    def training(self) -> float:
        return self.matmul + self.attention

    @property
    def training_causal(self) -> float:
        return self.matmul + self.attention / 2

    @property
    def forward(self) -> float:
        """Evaluation and sampling: the backward pass costs twice the forward one."""
        return self.training / 3


def flops_per_token(shape: Shape) -> Flops:
    return Flops(6.0 * parameters(shape).matmul, 12.0 * shape.n_layer * shape.n_embd * shape.block_size)
