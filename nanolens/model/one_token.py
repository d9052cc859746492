"""One more token through a small GPT-2, in as few operations as it takes.

A layer of the CPU demo's model multiplies for some 60 microseconds; modules, views and dispatch around that take longer. Written out
on rows (B, d) with the residual added by the product itself, a column of tokens takes a quarter less time. The numbers are those of
`GPT2.hidden` to rounding. Models that are large enough to be held up by memory gain nothing and do not come here.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nanolens.model.cache import Cache
from nanolens.model.gpt2 import GPT2, Block


class OneToken:
    """`step(idx)` is `model.hidden(idx, cache)` for one column of ids: (B, 1) -> (B, d)."""

    def __init__(self, model: GPT2, cache: Cache):
        self._cache = cache
        self._embedding, self._position, self._norm = model.embedding.weight, model.position.weight, _norm(model.norm)
        blocks = [block for block in model.blocks if isinstance(block, Block)]
        self._blocks = [
            (
                _norm(block.norm1), _linear(block.attention.qkv), _linear(block.attention.out),
                _norm(block.norm2), _linear(block.mlp.up), _linear(block.mlp.down),
                layer,
            )
            for block, layer in zip(blocks, cache.layers, strict=True)
        ]  # fmt: skip
        self._gelu = blocks[0].mlp.gelu
        heads, width = cache.layers[0].keys.shape[1], cache.layers[0].keys.shape[3]
        self._shape = (-1, 3, heads, 1, width)

    def step(self, idx: Tensor) -> Tensor:
        x = F.embedding(idx[:, 0], self._embedding) + self._position[self._cache.length]
        rows, size = x.shape
        for norm1, qkv, out, norm2, up, down, layer in self._blocks:
            q, k, v = _times(F.layer_norm(x, *norm1), qkv).view(self._shape).unbind(1)  # each (B, H, 1, d / H)
            mixed = layer.attention(q, k, v)
            x = _times(mixed.reshape(rows, size), out, onto=x)
            x = _times(F.gelu(_times(F.layer_norm(x, *norm2), up), approximate=self._gelu), down, onto=x)
        return F.layer_norm(x, *self._norm)


Linear = tuple[Tensor, Tensor | None]  # the weight turned for a product from the right, and the bias


def _linear(layer: torch.nn.Linear) -> Linear:
    return layer.weight.t(), layer.bias


def _norm(layer: torch.nn.LayerNorm) -> tuple[tuple[int, ...], Tensor, Tensor | None, float]:
    return tuple(layer.normalized_shape), layer.weight, layer.bias, layer.eps


def _times(x: Tensor, linear: Linear, onto: Tensor | None = None) -> Tensor:
    weight, bias = linear
    if onto is not None:
        y = torch.addmm(onto, x, weight)
        return y if bias is None else y.add_(bias)
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)
