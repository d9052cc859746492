"""What the models are made of: linear layers that keep less, operations with their derivatives written out, and
attention over tokens that were already read.

What goes into a linear layer has to stay until the backward pass. Where it is a cheap function of something that stays
anyway (a norm, a GELU), computing it again costs less than keeping it: GPT-2's blocks then keep 10 numbers per channel
instead of 16, for 1 % of the time, and the result is the same bit for bit. Small micro-batches take the plain way,
which is faster.

Norm, ReLU squared, rotary positions and attention over short contexts have their derivatives written out. PyTorch
derives the same from elementary steps, each of which walks through memory; on a CPU that took a fifth of a small
model's step. Measured for 1,536 tokens of 96 channels, forward and backward, one thread: norm 0.54 -> 0.30 ms, ReLU
squared 6.2 -> 0.7 ms (the derivative of a power is slow), rotation and norm 3.4 -> 0.8 ms. Attention with 4 heads of 32
channels, two threads: 6.6 -> 4.4 ms for 24 x 64 tokens, 8.8 -> 7.6 for 16 x 128, nothing won for 8 x 256, where the
scores outgrow the cache. Compilers and GPUs do better with the elementary form and get it."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanolens.config.fields import Config

LEAN_FROM = 1 << 20  # numbers in the layer's input: 4 MB


def norm_linear(norm: nn.LayerNorm, linear: nn.Linear, x: Tensor) -> Tensor:
    """linear(norm(x))"""
    if is_worth_it(x):
        return _NormLinear.apply(x, norm.weight, norm.bias, linear.weight, linear.bias)
    return linear(F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps))


def gelu_linear(linear: nn.Linear, x: Tensor, kind: str = "none") -> Tensor:
    """linear(gelu(x)); `kind` is torch's word for how it is approximated: "none" or "tanh"."""
    if is_worth_it(x):
        return _GeluLinear.apply(x, linear.weight, linear.bias, kind)
    return linear(F.gelu(x, approximate=kind))


def is_worth_it(x: Tensor) -> bool:
    """A compiler decides by itself what to keep."""
    return x.numel() >= LEAN_FROM and torch.is_grad_enabled() and not torch.compiler.is_compiling()


class Context(Protocol):
    """What a forward pass leaves for its backward pass."""

    saved_tensors: tuple[Tensor, ...]
    autocast: Autocast
    kind: str
    scale: float

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


class _NormLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, x: Tensor, gain: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.autocast = Autocast(x.device.type)
        ctx.save_for_backward(x, gain, shift, weight, bias)
        return F.linear(F.layer_norm(x, gain.shape, gain, shift), weight, bias)

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, shift, weight, bias = ctx.saved_tensors
        with torch.enable_grad(), ctx.autocast.again():
            x, gain = x.detach().requires_grad_(), gain.detach().requires_grad_()
            shift = shift.detach().requires_grad_() if shift is not None else None
            normed = F.layer_norm(x, gain.shape, gain, shift)
        d_normed, d_weight, d_bias = linear_backward(dy, normed.detach(), weight, bias, ctx.autocast)
        wanted = [x, gain] + ([shift] if shift is not None else [])
        dx, d_gain, *d_shift = torch.autograd.grad(normed, wanted, d_normed.to(normed.dtype))
        return dx, d_gain, d_shift[0] if d_shift else None, d_weight, d_bias


class _GeluLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None, kind: str) -> Tensor:
        ctx.autocast, ctx.kind = Autocast(x.device.type), kind
        ctx.save_for_backward(x, weight, bias)
        return F.linear(F.gelu(x, approximate=kind), weight, bias)

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        d_inner, d_weight, d_bias = linear_backward(dy, F.gelu(x, approximate=ctx.kind), weight, bias, ctx.autocast)
        d_inner = d_inner.to(x.dtype)
        d_x = torch.ops.aten.gelu_backward.grad_input(d_inner, x, approximate=ctx.kind, grad_input=d_inner)  # in place
        return d_x, d_weight, d_bias, None


def linear_backward(
    dy: Tensor, inner: Tensor, weight: Tensor, bias: Tensor | None, autocast: Autocast
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of `F.linear(inner, weight, bias)`, in the precision that the forward pass had."""
    rows = dy.reshape(-1, dy.shape[-1])
    with autocast.again():
        d_weight = rows.t() @ inner.reshape(-1, inner.shape[-1])
        d_inner = dy @ weight
    return d_inner, d_weight.to(weight.dtype), rows.sum(0).to(bias.dtype) if bias is not None else None


class Autocast:
    """Whether mixed precision was on in the forward pass: the backward pass, outside of it, turns it on again."""

    def __init__(self, kind: str):
        self.kind, self.enabled, self.dtype = kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def again(self) -> torch.autocast:
        return torch.autocast(self.kind, dtype=self.dtype, enabled=self.enabled)


NORM_EPS = 1e-6
SHORT_CONTEXT = 128  # tokens of context


def norm(x: Tensor) -> Tensor:
    """Every vector along the last dimension brought to a mean square of one: RMSNorm without weights."""
    if not uses_manual_backward(x):
        return F.rms_norm(x, (x.shape[-1],), eps=NORM_EPS)
    return _Norm.apply(x) if torch.is_grad_enabled() else x * scale_of(x)


def relu_squared(x: Tensor) -> Tensor:
    return _ReluSquared.apply(x) if uses_manual_backward(x) and torch.is_grad_enabled() else F.relu(x).square()


def apply_rotary(x: Tensor, cos_sin: Tensor) -> Tensor:
    """norm(x), each pair of channels (0 and 1, 2 and 3, ...) rotated by the angles of `cos_sin` (..., pairs, 2)."""
    if uses_manual_backward(x):
        return _Rotary.apply(x, cos_sin) if torch.is_grad_enabled() else rotated(x, cos_sin, scale_of(x))
    one, other = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos_sin.unbind(-1)
    return norm(torch.stack((one * cos - other * sin, other * cos + one * sin), dim=-1).flatten(-2)).type_as(x)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """Each (B, H, T, D) -> (B, H, T, D): every token attends to itself and to those before it."""
    if uses_manual_backward(q) and q.shape[2] <= SHORT_CONTEXT and not dropout and torch.is_grad_enabled():
        return _ShortAttention.apply(q, k, v)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)


def uses_manual_backward(x: Tensor) -> bool:
    """Without gradients the same steps are taken unwrapped: the wrapping costs as much as they do for a single row."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling()


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        scale = scale_of(x)
        y = x * scale
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> Tensor:
        return norm_backward(dy, *ctx.saved_tensors)


class _ReluSquared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (dy * positive).mul_(2)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, cos_sin: Tensor) -> Tensor:
        scale = scale_of(x)  # a rotation keeps lengths
        y = rotated(x, cos_sin, scale)
        ctx.save_for_backward(y, scale, cos_sin)
        return y

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor, None]:
        y, scale, cos_sin = ctx.saved_tensors
        return times(norm_backward(dy, y, scale), torch.view_as_complex(cos_sin).conj()), None


class _ShortAttention(torch.autograd.Function):
    """Keeps the weights of all pairs of tokens, unlike PyTorch's kernel: of 128 tokens as much as 4 heads' queries."""

    @staticmethod
    def forward(ctx: Context, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shape, ctx.scale = q.shape, q.shape[-1] ** -0.5
        q, k, v = (each.reshape(-1, *shape[2:]) for each in (q, k, v))
        weights = torch.baddbmm(later_tokens(shape[2], q.dtype), q, k.transpose(1, 2), alpha=ctx.scale).softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return torch.bmm(weights, v).view(shape)

    @staticmethod
    def backward(ctx: Context, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, weights = ctx.saved_tensors
        shape = dy.shape
        dy = dy.reshape(-1, *shape[2:])
        d_weights = torch.bmm(dy, v.transpose(1, 2))
        d_scores = torch.ops.aten._softmax_backward_data(d_weights, weights, -1, weights.dtype).mul_(ctx.scale)
        dq, dk = torch.bmm(d_scores, k), torch.bmm(d_scores.transpose(1, 2), q)
        dv = torch.bmm(weights.transpose(1, 2), dy)
        return dq.view(shape), dk.view(shape), dv.view(shape)


@lru_cache(maxsize=8)
def later_tokens(count: int, dtype: torch.dtype) -> Tensor:
    """To be added to scores: minus infinity where the second token comes after the first."""
    return torch.full((count, count), float("-inf"), dtype=dtype).triu_(1)


def rotated(x: Tensor, cos_sin: Tensor, scale: Tensor) -> Tensor:
    return times(x, torch.view_as_complex(cos_sin)).mul_(scale)


def scale_of(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().mul_(1 / x.shape[-1]).add_(NORM_EPS).rsqrt_()


def norm_backward(dy: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    """What lies along y itself does not change it: that part of the gradient is taken out."""
    return torch.addcmul(dy, y, (dy * y).mean(-1, keepdim=True), value=-1).mul_(scale)


def times(x: Tensor, rotation: Tensor) -> Tensor:
    """Pairs of channels as complex numbers, multiplied with complex numbers of length one."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * rotation).flatten(-2)


def dropped(x: Tensor, dropout: float, is_training: bool) -> Tensor:
    return F.dropout(x, dropout) if is_training and dropout else x


class LayerCache:
    """Keys and values of one block. A model needs `attention` alone, or `extend` where it attends in its own way."""

    def __init__(self, shape: tuple[int, int, int, int], device: torch.device, dtype: torch.dtype):
        self.keys = torch.empty(shape, device=device, dtype=dtype)  # (B, H, size, channels of a head)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Of the new tokens, each (B, H, T, channels of a head), to themselves and to all that came before."""
        k, v, mask = self.extend(k, v)
        is_causal = mask is None and k.shape[2] == q.shape[2]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keeps the new keys and values; all of them, and the mask that attention needs (None: none, or causal)."""
        old, new = self.length, k.shape[2]
        self.length = end = old + new
        self.keys[:, :, old:end] = k
        self.values[:, :, old:end] = v
        needs_mask = old and new > 1
        mask = torch.ones(new, end, dtype=torch.bool, device=k.device).tril(diagonal=old) if needs_mask else None
        return self.keys[:, :, :end], self.values[:, :, :end], mask


class Cache:
    """Keys and values of the tokens already read, in buffers that are made once: each new token costs one row of work.
    `length` and `tokens`: what came before the ids at hand. `Model.hidden(idx, cache)` extends every layer once."""

    def __init__(self, config: Config, rows: int, *, device: torch.device, dtype: torch.dtype):
        shape = (rows, config.n_head, config.block_size, config.n_embd // config.n_head)
        self.layers = [LayerCache(shape, device, dtype) for _ in range(config.n_layer)]
        self.length = 0
        self._tokens = torch.empty((rows, config.block_size), device=device, dtype=torch.long)

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
