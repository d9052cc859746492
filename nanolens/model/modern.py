"""A GPT that learns more from each FLOP than GPT-2's design does; docs/recipe.md measures what each part is worth.

    idx (B, T) -> embedding (+ shift + n-grams) -> n_layer x [attention, mlp] -> norm -> head -> soft-capped logits

Every norm is an RMSNorm without weights; there are no biases; positions enter by rotation (RoPE) of queries and keys,
which are then normed; the mlp's activation is ReLU squared; the head is a matrix of its own. Head and projections back
into the residual stream start at zero: the first loss is ln V exactly, and every block begins as the identity. With
`token_shift` off and `ngram_rows` 0 this is, number for number, the NanoChat architecture of the transformers library.

Letters in comments: B sequences, T tokens in each, d = n_embd channels, H heads of d / H channels, V token ids."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanolens.config.fields import Config
from nanolens.errors import fault
from nanolens.message import msg
from nanolens.model.kernels import Cache, LayerCache, apply_rotary, causal_attention, dropped, norm, relu_squared
from nanolens.model.loss import softcapped

ROPE_BASE = 10_000.0


class Modern(nn.Module):
    cos_sin: Tensor

    def __init__(self, config: Config, vocab_size: int):
        super().__init__()
        head_size = config.n_embd // config.n_head
        if head_size % 2:
            raise fault(
                msg("n_embd / n_head = {size:count} is odd, and rotary positions need pairs of channels", head_size),
                fix=msg("choose n_embd and n_head so that their quotient is even"),
            )
        self.softcap = config.softcap
        self.embedding = nn.Embedding(vocab_size, config.n_embd)
        self.shift = nn.Parameter(torch.zeros(config.n_embd)) if config.token_shift else None
        self.ngrams = NgramTables(config, vocab_size) if config.ngram_rows else None
        self.reach = config.ngram_order - 1  # how far back an embedding looks, at most
        self.dropout = config.dropout
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.head = nn.Linear(config.n_embd, vocab_size, bias=False)
        angle = torch.outer(torch.arange(config.block_size), ROPE_BASE ** -(torch.arange(0, head_size, 2) / head_size))
        # (block_size, d / H / 2, 2); backwards, as NanoChat turns
        cos_sin = torch.stack((angle.cos(), -angle.sin()), dim=-1)
        self.register_buffer("cos_sin", cos_sin[:, None, None], persistent=False)
        nn.init.normal_(self.embedding.weight)
        nn.init.zeros_(self.head.weight)

    def hidden(self, idx: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T) ids -> (B, T, d), ready for the head. With a cache, `idx` continues the tokens that it has seen."""
        start = cache.length if cache else 0
        x = self._embed(idx, cache.tokens[:, -self.reach :] if cache else idx[:, :0])
        x = dropped(x, self.dropout, self.training)
        cos_sin = self.cos_sin[start : start + idx.shape[1]]
        for number, block in enumerate(self.blocks):
            x = block(x, cos_sin, cache.layers[number] if cache else None)
        return norm(x)

    def forward(self, idx: Tensor) -> Tensor:
        return softcapped(self.head(self.hidden(idx)), self.softcap)

    def optimizer_groups(self, config: Config) -> list[dict[str, object]]:
        """Parameters by their role, which decides how training/optimizers.py updates them. qkv is three in one."""
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        stacked = [block.attention.qkv.weight for block in blocks]
        single = [block.attention.out.weight for block in blocks]
        single += [matrix.weight for block in blocks for matrix in (block.mlp.up, block.mlp.down)]
        decay = config.weight_decay
        groups: list[dict[str, object]] = [
            {"role": "matrix", "params": stacked, "parts": 3, "weight_decay": decay},
            {"role": "matrix", "params": single, "weight_decay": decay},
            {"role": "embedding", "params": [self.embedding.weight], "weight_decay": 0.0},
            {"role": "head", "params": [self.head.weight], "weight_decay": decay},
        ]
        if self.shift is not None:
            groups.append({"role": "vector", "params": [self.shift], "weight_decay": 0.0})
        if self.ngrams is not None:
            groups.append({"role": "table", "params": [self.ngrams.rows.weight], "weight_decay": 0.0})
        return groups

    def _embed(self, idx: Tensor, before: Tensor) -> Tensor:
        """`before` holds the ids that stand before `idx` and that its shift and n-grams reach back to."""
        ids = torch.cat((before, idx), dim=1) if before.shape[1] else idx
        x = self.embedding(ids)
        if self.shift is not None:
            x = x + self.shift * F.pad(x, (0, 0, 1, -1))
        if self.ngrams is not None:
            x = x + self.ngrams(ids)
        return norm(x)[:, before.shape[1] :]


class NgramTables(nn.Module):
    """A vector for each pair of tokens, each triple and so on, found by hashing: so the blocks need not learn them."""

    def __init__(self, config: Config, vocab_size: int):
        super().__init__()
        self.base = vocab_size + 1  # one more than there are tokens: 0 stands for "nothing before"
        self.n_rows, self.order, self.dropout = config.ngram_rows, config.ngram_order, config.ngram_dropout
        self.rows = nn.Embedding((self.order - 1) * self.n_rows, config.n_embd)  # pairs first, then triples, ...
        nn.init.zeros_(self.rows.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) ids -> (B, T, d): the sum of the vectors of all n-grams that end there."""
        last = gram = ids + 1
        places = []
        for back in range(1, self.order):
            earlier = F.pad(last, (back, 0))[:, : ids.shape[1]]  # 0 where nothing stood so far back
            gram = gram + pow(self.base, back, 1 << 61) * earlier
            places.append((back - 1) * self.n_rows + self.row_of(gram))
        found = self.rows(torch.stack(places))  # (order - 1, B, T, d)
        if self.training and self.dropout:
            # Whole n-grams are left out, not channels of them: a rare one is otherwise memorised at its first sight.
            found = found * F.dropout(found.new_ones(found.shape[:-1]), self.dropout)[..., None]
        return found.sum(0)

    def row_of(self, gram: Tensor) -> Tensor:
        # the golden ratio in 32 bits: neighbouring numbers land far apart; int64 wraps the same on every device
        mixed = gram * 0x9E3779B1
        return (mixed ^ (mixed >> 15)) % self.n_rows


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.attention = Attention(config)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos_sin: Tensor, cache: LayerCache | None) -> Tensor:
        x = x + self.attention(norm(x), cos_sin, cache)
        return x + self.mlp(norm(x))


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.out = nn.Linear(config.n_embd, config.n_embd, bias=False)
        nn.init.normal_(self.qkv.weight, std=config.n_embd**-0.5)
        nn.init.zeros_(self.out.weight)
        self.n_head, self.dropout = config.n_head, config.dropout

    def forward(self, x: Tensor, cos_sin: Tensor, cache: LayerCache | None) -> Tensor:
        B, T, d = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.n_head, -1)
        q, k = apply_rotary(qkv[:, :, :2], cos_sin).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), qkv[:, :, 2].transpose(1, 2)  # each (B, H, T, d / H)
        # No dropout of attention weights: on a CPU it would rule out the fused kernel, for no gain that we measured.
        y = causal_attention(q, k, v) if cache is None else cache.attention(q, k, v)
        return dropped(self.out(y.transpose(1, 2).reshape(B, T, d)), self.dropout, self.training)


class MLP(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.up = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.down = nn.Linear(4 * config.n_embd, config.n_embd, bias=False)
        nn.init.normal_(self.up.weight, std=config.n_embd**-0.5)
        nn.init.zeros_(self.down.weight)
        self.dropout = config.dropout

    def forward(self, x: Tensor) -> Tensor:
        return dropped(self.down(relu_squared(self.up(x))), self.dropout, self.training)
