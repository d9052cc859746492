"""The derivatives written by hand are the ones that PyTorch finds."""

from __future__ import annotations

import pytest
import torch

from nanolens.model import kernels


def cos_sin(T: int, pairs: int) -> torch.Tensor:
    angle = torch.outer(
        torch.arange(T, dtype=torch.float64),
        torch.rand(pairs, dtype=torch.float64, generator=torch.Generator().manual_seed(2)),
    )
    return torch.stack((angle.cos(), -angle.sin()), dim=-1)[:, None]


CASES = {
    "norm": (kernels.norm, (3, 5, 8)),
    "relu squared": (kernels.relu_squared, (3, 5, 8)),
    "rotated": (lambda x: kernels.apply_rotary(x, cos_sin(5, 4)), (2, 5, 3, 8)),
    "rotated part of a larger tensor": (lambda x: kernels.apply_rotary(x[:, :, :2], cos_sin(5, 4)), (2, 5, 3, 8)),
    "attention": (lambda x: kernels.causal_attention(*x.transpose(1, 3).unbind(2)), (2, 7, 3, 2, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_by_hand_and_elementary_agree_in_value_and_gradient(name, monkeypatch):
    function, shape = CASES[name]
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    answers = []
    for by_hand in (True, False):
        monkeypatch.setattr(kernels, "uses_manual_backward", lambda _, by_hand=by_hand: by_hand)
        inner = x.clone().requires_grad_()
        y = function(inner)
        (y * torch.arange(y.numel(), dtype=torch.float64).view(y.shape).cos()).sum().backward()
        answers.append((y.detach(), inner.grad))
    torch.testing.assert_close(answers[0][0], answers[1][0])
    torch.testing.assert_close(answers[0][1], answers[1][1])


@pytest.mark.parametrize("name", CASES)
def test_the_derivative_is_the_slope(name):
    function, shape = CASES[name]
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert torch.autograd.gradcheck(function, (x,))


def test_scores_of_turned_vectors_depend_on_their_distance_only():
    q, k = torch.randn(1, 1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 1, 8, dtype=torch.float64)
    at = (
        kernels.apply_rotary(q.expand(1, 6, 1, 8), cos_sin(6, 4)),
        kernels.apply_rotary(k.expand(1, 6, 1, 8), cos_sin(6, 4)),
    )
    scores = torch.einsum("bqhd,bkhd->qk", *at)
    for distance in range(6):
        assert scores.diagonal(-distance).std(correction=0) < 1e-12


def test_half_precision_takes_the_elementary_way():
    assert not kernels.uses_manual_backward(torch.zeros(2, dtype=torch.bfloat16))
    assert kernels.uses_manual_backward(torch.zeros(2))


def test_long_contexts_and_dropout_are_left_to_the_kernel(monkeypatch):
    monkeypatch.setattr(kernels._ShortAttention, "apply", lambda *given: "by hand")
    short, long = (torch.zeros(1, 1, count, 4) for count in (kernels.SHORT_CONTEXT, kernels.SHORT_CONTEXT + 1))
    assert kernels.causal_attention(short, short, short) == "by hand"
    assert isinstance(kernels.causal_attention(short, short, short, 0.1), torch.Tensor)
    assert isinstance(kernels.causal_attention(long, long, long), torch.Tensor)
