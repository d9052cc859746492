"""Writing text with a model: batched, one new token at a time, each read once.

Keys and values of what was read are kept (`Cache` in kernels.py). Learned positions cannot slide, so when the context
is full its last half is read again; up to `block_size` tokens that gives what reading all anew for each would."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanolens.config.fields import Config
from nanolens.model.gpt2 import GPT2, Block
from nanolens.model.kernels import Cache
from nanolens.model.loss import logits_of, softcapped


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is drawn."""

    temperature: float = 1.0  # 0: always the likeliest
    top_k: int | None = None  # only among the k likeliest
    top_p: float | None = None  # only among the likeliest that together have this probability


def generate(
    model: nn.Module,
    config: Config,
    prompt: Tensor,
    max_new_tokens: int,
    *,
    sampling: SamplingParams | None = None,
    seed: int = 1337,
    on_token: Callable[[Tensor], None] | None = None,
    use_cache: bool = True,
) -> Tensor:
    """(B, T) ids -> (B, T + max_new_tokens). `on_token` gets each column of B new ids, and may raise to stop."""
    sampling, was_training = sampling or SamplingParams(), model.training
    generator = torch.Generator(device=prompt.device).manual_seed(seed)
    start, end = prompt.shape[1], prompt.shape[1] + max_new_tokens
    assert start > 0, "a prompt needs at least one token"
    text = torch.empty((prompt.shape[0], end), dtype=torch.long, device=prompt.device)
    text[:, :start] = prompt
    model.eval()
    try:
        with torch.inference_mode(), fitting_threads(model, prompt.shape[0]), fast_rows(model, prompt.shape[0]):
            takes_cache = hasattr(model, "hidden") and "cache" in inspect.signature(model.hidden).parameters  # type: ignore[arg-type]
            reader = CachedReader(model, config, text) if use_cache and takes_cache else None
            for place in range(start, end):
                if reader is not None:
                    logits = reader.next_logits(place)
                else:  # the whole window anew for each token
                    logits = logits_of(model, text[:, max(0, place - config.block_size) : place])[:, -1]
                token = draw(logits, sampling, generator)
                text[:, place] = token
                if on_token is not None:
                    on_token(token)
    finally:
        model.train(was_training)
    return text


def draw(logits: Tensor, sampling: SamplingParams, generator: torch.Generator) -> Tensor:
    """(B, V) -> (B,) ids."""
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    logits = logits.float() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, places = logits.sort(descending=True)
        chances = ordered.softmax(dim=-1)
        # A token stays while those before it do not yet reach top_p; so the likeliest always stays.
        is_beyond = chances.cumsum(dim=-1) - chances >= sampling.top_p
        logits = logits.masked_fill(is_beyond.gather(1, places.argsort()), -torch.inf)
    # What torch.multinomial does for one draw, number for number, without its checks, which take as long as the rest.
    chances = logits.softmax(dim=-1)
    return (chances / torch.empty_like(chances).exponential_(generator=generator)).argmax(dim=-1)


class CachedReader:
    """Reads each token once."""

    def __init__(self, model: nn.Module, config: Config, text: Tensor):
        self._model, self._text, self._size = model, text, config.block_size
        self._cache = Cache(config, text.shape[0], device=text.device, dtype=next(model.parameters()).dtype)
        self._read = 0  # tokens of the text that were read or skipped
        self._short: OneToken | None = None
        if type(model) is GPT2 and type(model.blocks[0]) is Block and is_small(model, text.shape[0]):
            self._short = OneToken(model, self._cache)  # not of a sharded model, whose blocks have another type

    def next_logits(self, place: int) -> Tensor:
        if self._cache.length + place - self._read > self._size:
            self._cache.clear()
            self._read = max(0, place - max(1, self._size // 2))
        idx = self._text[:, self._read : place]
        if self._short is not None and idx.shape[1] == 1:
            hidden = self._short.step(idx)
        else:
            hidden = self._model.hidden(idx, self._cache)[:, -1]  # type: ignore[operator]
        self._cache.advance(idx)
        self._read = place
        return softcapped(self._model.head(hidden), getattr(self._model, "softcap", 0.0))  # type: ignore[operator]


class OneToken:
    """One more token through a small GPT-2, in as few operations as it takes: `step(idx)` is `model.hidden(idx, cache)`
    for one column of ids, (B, 1) -> (B, d), to rounding.

    A layer of the CPU demo's model multiplies for some 60 microseconds; modules, views and dispatch around that take
    longer. On rows (B, d), with the residual added by the product itself, a column takes a quarter less time."""

    def __init__(self, model: GPT2, cache: Cache):
        self._cache = cache
        self._embedding, self._position, self._norm = model.embedding.weight, model.position.weight, _norm(model.norm)
        blocks = [block for block in model.blocks if isinstance(block, Block)]
        attentions = [(_norm(b.norm1), _linear(b.attention.qkv), _linear(b.attention.out)) for b in blocks]
        mlps = [(_norm(b.norm2), _linear(b.mlp.up), _linear(b.mlp.down)) for b in blocks]
        self._blocks = list(zip(attentions, mlps, cache.layers, strict=True))
        self._gelu = blocks[0].mlp.gelu
        _, heads, _, width = cache.layers[0].keys.shape
        self._shape = (-1, 3, heads, 1, width)

    def step(self, idx: Tensor) -> Tensor:
        x = F.embedding(idx[:, 0], self._embedding) + self._position[self._cache.length]
        rows, size = x.shape
        for (norm1, qkv, out), (norm2, up, down), layer in self._blocks:
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


ALONE_BELOW = 1 << 23  # multiplications for a column of new tokens


def is_small(model: nn.Module, rows: int) -> bool:
    """Whether a column of new tokens is so little work on a CPU that getting to it takes longer."""
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    return next(model.parameters()).device.type == "cpu" and rows * weights <= ALONE_BELOW


@contextlib.contextmanager
def fitting_threads(model: nn.Module, rows: int) -> Iterator[None]:
    """One thread where the work for a token is so little that several would spend their time waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if is_small(model, rows) else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


ROWS_AT_MOST, WEIGHTS_AT_LEAST, WEIGHT_PARTS = 8, 1 << 18, 8


@contextlib.contextmanager
def fast_rows(model: nn.Module, rows: int) -> Iterator[None]:
    """Makes large linear layers fast for few rows on a CPU: one row of `F.linear` runs at a third of the memory's speed
    there, a batched product over parts of the weight's rows at nearly all of it."""

    def gains(layer: nn.Linear) -> bool:
        is_large = layer.weight.numel() >= WEIGHTS_AT_LEAST and layer.out_features % WEIGHT_PARTS == 0
        is_whole = not hasattr(layer.weight, "to_local")  # of a sharded layer this is a part
        return is_large and is_whole and layer.weight.device.type == "cpu" and rows <= ROWS_AT_MOST

    layers = [module for module in model.modules() if isinstance(module, nn.Linear) and gains(module)]
    for layer in layers:
        layer.forward = _by_parts(layer)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own is found again


def _by_parts(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    parts = layer.weight.detach().view(WEIGHT_PARTS, -1, layer.in_features)

    def forward(x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if rows > ROWS_AT_MOST:
            return nn.functional.linear(x, layer.weight, layer.bias)
        columns = x.reshape(rows, -1).t().expand(WEIGHT_PARTS, -1, -1)
        y = torch.bmm(parts, columns).view(layer.out_features, rows).t().contiguous()
        return (y + layer.bias if layer.bias is not None else y).reshape(*x.shape[:-1], -1)

    return forward
