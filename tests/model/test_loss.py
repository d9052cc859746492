"""The chunked loss equals the plain one and never holds all logits."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from nanolens.config.fields import Config
from nanolens.model import build
from nanolens.model.loss import WithLoss, chunked_cross_entropy, cross_entropy, softcapped


def both(dtype, cap, smoothing, chunk=16, rows=(3, 37), vocab=50, width=24):
    torch.manual_seed(0)
    hidden = (2 * torch.randn(*rows, width, dtype=dtype)).requires_grad_()
    weight = torch.randn(vocab, width, dtype=dtype).requires_grad_()
    targets = torch.randint(vocab, rows)
    plain = cross_entropy(softcapped(hidden @ weight.T, cap), targets, smoothing)
    chunked = chunked_cross_entropy(hidden, weight, targets, cap, smoothing, chunk)
    gradients = [torch.autograd.grad(losses.objective * 0.7, (hidden, weight)) for losses in (plain, chunked)]
    return plain, chunked, *gradients


@pytest.mark.parametrize("cap", [0.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
@pytest.mark.parametrize("chunk", [1, 16, 111, 1000])
def test_chunked_equals_plain_to_rounding(dtype, tolerance, cap, smoothing, chunk):
    plain, chunked, wanted, found = both(dtype, cap, smoothing, chunk)
    torch.testing.assert_close(chunked.objective, plain.objective, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(chunked.plain, plain.plain, rtol=tolerance, atol=tolerance)
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() <= tolerance * other.abs().max()


def test_the_reported_loss_is_plain_however_the_objective_is_smoothed():
    for losses in both(torch.float32, 0.0, 0.3)[:2]:
        assert abs(losses.plain.item() - losses.objective.item()) > 1e-3
    smooth, sharp = both(torch.float32, 0.0, 0.3)[0], both(torch.float32, 0.0, 0.0)[0]
    assert smooth.plain.item() == sharp.plain.item() == sharp.objective.item()


@pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"), reason="this torch has no chunked loss of its own to compare with"
)
def test_chunked_equals_torchs_own():
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(200, 32), torch.randn(77, 32), torch.randint(77, (200,))
    ours = chunked_cross_entropy(hidden[None], weight, targets[None], chunk=64).plain
    torch.testing.assert_close(ours, F.linear_cross_entropy(hidden, weight, targets))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_both_forms_round_alike(dtype):
    torch.manual_seed(0)
    model = build(Config(n_layer=1, n_head=2, n_embd=32, block_size=16), 60)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x, y = torch.randint(60, (2, 4, 16))
    found = {}
    for chunked in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            losses = WithLoss(model, chunked=chunked)(x, y)
        losses.objective.backward()
        found[chunked] = (losses.plain.item(), {name: parameter.grad for name, parameter in model.named_parameters()})
    assert found[True][0] == pytest.approx(found[False][0], rel=2e-3)
    for name, gradient in found[True][1].items():
        assert gradient.dtype == torch.float32
        assert (gradient - found[False][1][name]).norm() <= 0.02 * found[False][1][name].norm(), name


class LargestTensor(TorchDispatchMode):
    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_no_tensor_as_large_as_all_logits_is_ever_made(trains: bool, cap: float):
    hidden, weight = torch.randn(4, 64, 8, requires_grad=trains), torch.randn(500, 8, requires_grad=trains)
    targets = torch.randint(500, (4, 64))
    with LargestTensor() as seen, torch.set_grad_enabled(trains):
        losses = chunked_cross_entropy(hidden, weight, targets, cap, chunk=32)
        if trains:
            losses.objective.backward()
    assert seen.elements <= 32 * 500
    with LargestTensor() as plain:
        cross_entropy(hidden @ weight.T, targets, 0.0)
    assert plain.elements == 4 * 64 * 500, "the plain form does make one, so the test can tell"


def test_a_whole_model_learns_the_same_either_way():
    for arch in ("gpt2", "modern"):
        torch.manual_seed(0)
        model = build(Config(arch=arch, n_layer=1, n_head=2, n_embd=32, block_size=16, ngram_rows=16), 40)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        x, y = torch.randint(40, (2, 4, 16))
        gradients = []
        for chunked in (False, True):
            model.zero_grad()
            WithLoss(model, chunked=chunked)(x, y).objective.backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        for one, other in zip(*gradients, strict=True):
            assert (one - other).abs().max() <= 1e-5 * other.abs().max()
