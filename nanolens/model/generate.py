"""Writing text with a model: batched, one new token at a time, each read once.

Keys and values of what was read are kept (see cache.py). Learned positions cannot slide, so when the context is full the last half of it is
read again and writing goes on from there; up to `block_size` tokens the result is what reading everything anew for each token would give.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanolens.config.fields import Config
from nanolens.model.cache import Cache
from nanolens.model.gpt2 import GPT2
from nanolens.model.loss import logits_of, softcapped
from nanolens.model.one_token import OneToken


@dataclass(frozen=True)
class Taste:
    """How the next token is drawn."""

    temperature: float = 1.0  # 0: always the likeliest
    top_k: int | None = None  # only among the k likeliest
    top_p: float | None = None  # only among the likeliest that together have this probability


def generate(
    model: nn.Module, config: Config, prompt: Tensor, max_new_tokens: int, *, taste: Taste | None = None, seed: int = 1337,
    on_token: Callable[[Tensor], None] | None = None, use_cache: bool = True,
) -> Tensor:  # fmt: skip
    """(B, T) ids -> (B, T + max_new_tokens). `on_token` is called with each column of B new ids, and may raise to stop."""
    taste, was_training = taste or Taste(), model.training
    generator = torch.Generator(device=prompt.device).manual_seed(seed)
    start, end = prompt.shape[1], prompt.shape[1] + max_new_tokens
    assert start > 0, "a prompt needs at least one token"
    text = torch.empty((prompt.shape[0], end), dtype=torch.long, device=prompt.device)
    text[:, :start] = prompt
    model.eval()
    try:
        with torch.inference_mode(), fitting_threads(model, prompt.shape[0]), fast_rows(model, prompt.shape[0]):
            reader = CachedReader(model, config, text) if use_cache and takes_cache(model) else PlainReader(model, config, text)
            for place in range(start, end):
                token = draw(reader.next_logits(place), taste, generator)
                text[:, place] = token
                if on_token is not None:
                    on_token(token)
    finally:
        model.train(was_training)
    return text


def draw(logits: Tensor, taste: Taste, generator: torch.Generator) -> Tensor:
    """(B, V) -> (B,) ids."""
    if taste.temperature == 0:
        return logits.argmax(dim=-1)
    logits = logits.float() / taste.temperature
    if taste.top_k is not None and taste.top_k < logits.shape[-1]:
        smallest = logits.topk(taste.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if taste.top_p is not None and taste.top_p < 1:
        ordered, places = logits.sort(descending=True)
        chances = ordered.softmax(dim=-1)
        # A token stays while those before it do not yet reach top_p; so the likeliest always stays.
        is_beyond = chances.cumsum(dim=-1) - chances >= taste.top_p
        logits = logits.masked_fill(is_beyond.gather(1, places.argsort()), -torch.inf)
    # What torch.multinomial does for one draw, number for number, without its checks, which take as long as the rest of the drawing.
    chances = logits.softmax(dim=-1)
    return (chances / torch.empty_like(chances).exponential_(generator=generator)).argmax(dim=-1)


class CachedReader:
    """Reads each token once."""

    def __init__(self, model: nn.Module, config: Config, text: Tensor):
        self._model, self._text = model, text
        self._size = config.block_size
        weight = next(model.parameters())
        self._cache = Cache(
            config.n_layer, text.shape[0], config.n_head, self._size, config.n_embd // config.n_head, device=text.device, dtype=weight.dtype
        )
        self._read = 0  # tokens of the text that were read or skipped
        self._short = OneToken(model, self._cache) if type(model) is GPT2 and is_small(model, text.shape[0]) else None

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


class PlainReader:
    """Reads the whole window for each token: for models that know no cache, and as what the cached one is tested against."""

    def __init__(self, model: nn.Module, config: Config, text: Tensor):
        self._model, self._text, self._size = model, text, config.block_size

    def next_logits(self, place: int) -> Tensor:
        return logits_of(self._model, self._text[:, max(0, place - self._size) : place])[:, -1]


def takes_cache(model: nn.Module) -> bool:
    return hasattr(model, "hidden") and "cache" in inspect.signature(model.hidden).parameters  # type: ignore[arg-type]


ALONE_BELOW = 1 << 23  # multiplications for a column of new tokens


def is_small(model: nn.Module, rows: int) -> bool:
    """Whether a column of new tokens is so little work on a CPU that getting to it takes longer."""
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    return next(model.parameters()).device.type == "cpu" and rows * weights <= ALONE_BELOW


@contextlib.contextmanager
def fitting_threads(model: nn.Module, rows: int) -> Iterator[None]:
    """One thread where the work for a token is so little that several would spend their time waiting for each other."""
    before = torch.get_num_threads()
    if not is_small(model, rows) or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


ROWS_AT_MOST, WEIGHTS_AT_LEAST, PARTS = 8, 1 << 18, 8


@contextlib.contextmanager
def fast_rows(model: nn.Module, rows: int) -> Iterator[None]:
    """Makes large linear layers fast for few rows on a CPU: one row of `F.linear` runs at a third of the memory's speed there, a batched
    product over parts of the weight's rows at nearly all of it."""
    layers = [
        module for module in model.modules()
        if isinstance(module, nn.Linear) and module.weight.device.type == "cpu" and module.weight.numel() >= WEIGHTS_AT_LEAST
        and module.out_features % PARTS == 0 and rows <= ROWS_AT_MOST
    ]  # fmt: skip
    for layer in layers:
        layer.forward = _by_parts(layer)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own is found again


def _by_parts(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    parts = layer.weight.detach().view(PARTS, -1, layer.in_features)

    def forward(x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if rows > ROWS_AT_MOST:
            return nn.functional.linear(x, layer.weight, layer.bias)
        columns = x.reshape(rows, -1).t().expand(PARTS, -1, -1)
        y = torch.bmm(parts, columns).view(layer.out_features, rows).t().contiguous()
        return (y + layer.bias if layer.bias is not None else y).reshape(*x.shape[:-1], -1)

    return forward
