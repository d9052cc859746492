"""GPT-2, as nanoGPT trains it: same parameters, same initial weights from the same seed, same arithmetic.

    idx (B, T) -> embedding + position -> n_layer x [attention, mlp] -> norm -> head (= embedding) -> logits (B, T, V)

Letters in comments: B sequences, T tokens in each, d = n_embd channels, H heads of d / H channels, V token ids."""

from __future__ import annotations

import math

from torch import Tensor, nn

from nanolens.config.fields import Config
from nanolens.model.kernels import Cache, LayerCache, causal_attention, dropped, gelu_linear, norm_linear


class GPT2(nn.Module):
    cropped_by_block_size = ("position.weight",)  # may be cut at its first dimension when the context shrinks

    def __init__(self, config: Config, vocab_size: int):
        super().__init__()
        self.block_size = config.block_size
        self.embedding = nn.Embedding(vocab_size, config.n_embd)
        self.position = nn.Embedding(config.block_size, config.n_embd)
        self.dropout = config.dropout
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.norm = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.head = nn.Linear(config.n_embd, vocab_size, bias=False)
        self.embedding.weight = self.head.weight
        self._draw_weights(config.n_layer)

    def hidden(self, idx: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T) ids -> (B, T, d), ready for the head. With a cache, `idx` continues the tokens that it has seen."""
        start = cache.length if cache else 0
        x = self.embedding(idx) + self.position.weight[start : start + idx.shape[1]]
        x = dropped(x, self.dropout, self.training)
        for number, block in enumerate(self.blocks):
            x = block(x, cache.layers[number] if cache else None)
        return self.norm(x)

    def forward(self, idx: Tensor) -> Tensor:
        return self.head(self.hidden(idx))

    def _draw_weights(self, n_layer: int) -> None:
        """In nanoGPT's order: the tied matrix is drawn twice (as embedding, as head) and the projections back into the
        residual stream a second time, smaller. Random numbers come one after another: the order decides the weights."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for name, weight in self.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.down.weight")):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * n_layer))


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cache: LayerCache | None) -> Tensor:
        x = x + self.attention(self.norm1, x, cache)
        return x + self.mlp(self.norm2, x)


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.out = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.n_head, self.dropout = config.n_head, config.dropout

    def forward(self, norm: nn.LayerNorm, x: Tensor, cache: LayerCache | None) -> Tensor:
        B, T, d = x.shape
        qkv = norm_linear(norm, self.qkv, x).view(B, T, 3, self.n_head, -1)
        q, k, v = qkv.transpose(1, 3).unbind(2)  # each (B, H, T, d / H)
        dropout = self.dropout if self.training else 0.0
        y = causal_attention(q, k, v, dropout) if cache is None else cache.attention(q, k, v)
        return dropped(self.out(y.transpose(1, 2).reshape(B, T, d)), self.dropout, self.training)


class MLP(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.up = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.down = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.gelu = "tanh" if config.gelu == "tanh" else "none"  # torch's words
        self.dropout = config.dropout

    def forward(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        return dropped(gelu_linear(self.down, norm_linear(norm, self.up, x), self.gelu), self.dropout, self.training)
