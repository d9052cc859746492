"""Keys and values of the tokens that were already read, in buffers that are made once, so that each new token costs one row of work."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class LayerCache:
    """One block's part. `attention` is all that a model needs, or `extend` where it attends in its own way."""

    def __init__(self, keys: Tensor, values: Tensor):
        self.keys, self.values = keys, values  # (B, H, size, channels of a head)
        self.length = 0

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of the new tokens, each (B, H, T, channels of a head), to themselves and to all that came before."""
        k, v, mask = self.extend(k, v)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None and k.shape[2] == q.shape[2])

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keeps the new keys and values and gives back all of them, with the mask that attention needs (None: none, or plainly causal)."""
        old, new = self.length, k.shape[2]
        end = old + new
        self.keys[:, :, old:end] = k
        self.values[:, :, old:end] = v
        self.length = end
        mask = None
        if old and new > 1:
            mask = torch.ones(new, end, dtype=torch.bool, device=k.device).tril(diagonal=old)
        return self.keys[:, :, :end], self.values[:, :, :end], mask


class Cache:
    """`length` and `tokens` tell a model what came before the ids at hand; `Model.hidden(idx, cache)` must extend every layer once."""

    def __init__(self, n_layer: int, batch: int, n_head: int, size: int, head_size: int, *, device: torch.device, dtype: torch.dtype):
        shape = (batch, n_head, size, head_size)
        self.layers = [
            LayerCache(torch.empty(shape, device=device, dtype=dtype), torch.empty(shape, device=device, dtype=dtype))
            for _ in range(n_layer)
        ]
        self.size = size
        self.length = 0
        self._tokens = torch.empty((batch, size), device=device, dtype=torch.long)

    @property
    def tokens(self) -> Tensor:
        """(B, length): the ids read so far, for models that look at their neighbours (shifts, n-grams)."""
        return self._tokens[:, : self.length]

    def advance(self, idx: Tensor) -> None:
        """The generator says this after `hidden`: these ids are now behind us."""
        self._tokens[:, self.length : self.length + idx.shape[1]] = idx
        self.length += idx.shape[1]

    def clear(self) -> None:
        self.length = 0
        for layer in self.layers:
            layer.length = 0
