"""Parameters by part, and how many of them a token is multiplied with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nanolens.errors import fault
from nanolens.message import msg
from nanolens.sizing.shape import Shape


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
    if shape.arch == "gpt2":
        return _gpt2(shape)
    if shape.arch == "modern":
        return _modern(shape)
    raise fault(
        msg("the sizes of arch = {arch:code} are not known without building it", arch=shape.arch),
        fix=msg("use {one:code} or {other:code}", one="gpt2", other="modern"),
    )


def matmul_parameters(shape: Shape) -> int:
    return parameters(shape).matmul


def _gpt2(shape: Shape) -> Parameters:
    width, layers = shape.n_embd, shape.n_layer
    with_bias = int(shape.bias)
    parts = {
        "token embedding": shape.vocab_size * width,
        "position embedding": shape.block_size * width,
        "attention": layers * (4 * width * width + with_bias * 4 * width),
        "mlp": layers * (8 * width * width + with_bias * 5 * width),
        "norms": (2 * layers + 1) * width * (1 + with_bias),
    }
    if not shape.tied:
        parts["head"] = shape.vocab_size * width
    return Parameters(
        parts, matmul=12 * layers * width * width + shape.vocab_size * width,
        as_nanogpt_prints=sum(parts.values()) - parts["position embedding"],
    )  # fmt: skip


def _modern(shape: Shape) -> Parameters:
    """model/modern.py: a head of its own, norms without weights, rotary positions; lookups in the n-gram tables cost no multiplication."""
    width, layers = shape.n_embd, shape.n_layer
    parts = {
        "token embedding": shape.vocab_size * width,
        "n-gram tables": (shape.ngram_order - 1) * shape.ngram_rows * width,
        "token shift": width if shape.token_shift else 0,
        "attention": 4 * layers * width * width,
        "mlp": 8 * layers * width * width,
        "head": shape.vocab_size * width,
    }
    total = sum(parts.values())
    return Parameters(parts, matmul=12 * layers * width * width + shape.vocab_size * width, as_nanogpt_prints=total)
