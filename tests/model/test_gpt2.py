"""GPT-2 as nanoGPT has it."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from nanolens.config.fields import Config
from nanolens.model import build, kernels
from nanolens.model.loss import WithLoss, logits_of

TINY = Config(n_layer=2, n_head=2, n_embd=32, block_size=16)
# First three numbers and the sum of parameters that nanoGPT draws with seed 1337 for this shape and 17 tokens.
DRAWN = {
    False: {
        "embedding.weight": ([-0.019293179735541344, -0.013278290629386902, -0.015634335577487946], 0.4254296850731407),
        "position.weight": ([0.0081426240503788, -0.0066926139406859875, -0.007750981952995062], 0.7438137045828626),
        "blocks.1.attention.qkv.weight": (
            [-0.01956467516720295, 0.0005108461482450366, -0.004933149088174105],
            1.1634677171596195,
        ),
        "blocks.1.attention.out.weight": (
            [0.01345543097704649, -0.008762632496654987, -0.0025895866565406322],
            -0.1644296056801977,
        ),
        "blocks.1.mlp.up.weight": (
            [0.01639561355113983, -0.0009298144723288715, 0.04219910502433777],
            -0.7294971337314564,
        ),
        "blocks.1.mlp.down.weight": (
            [0.005028842948377132, 0.0018903625896200538, 0.010044721886515617],
            -0.14750743070396766,
        ),
    },
    True: {
        "embedding.weight": ([-0.03536343574523926, -0.01890105940401554, 0.014413625001907349], 0.1783196347532794),
        "position.weight": ([-0.011826187372207642, 0.017217561602592468, 0.031325142830610275], 0.0005677875951732858),
        "blocks.1.mlp.down.weight": (
            [0.0004412748967297375, -0.0025760193821042776, -0.007950998842716217],
            0.21961227582107767,
        ),
    },
}


@pytest.mark.parametrize("bias", [False, True])
def test_the_same_seed_draws_nanogpts_weights(bias: bool):
    torch.manual_seed(1337)
    model = build(Config(n_layer=2, n_head=2, n_embd=32, block_size=16, bias=bias), 17)
    named = dict(model.named_parameters())
    assert sum(parameter.numel() for parameter in named.values()) == (26528 if bias else 25792)
    for name, (first, total) in DRAWN[bias].items():
        assert named[name].flatten()[:3].tolist() == first, name
        assert named[name].double().sum().item() == pytest.approx(total, abs=1e-12), name


def test_an_untrained_model_is_as_surprised_as_chance():
    torch.manual_seed(0)
    for vocab_size in (17, 65, 1000):
        loss = WithLoss(build(TINY, vocab_size))
        x, y = torch.randint(vocab_size, (2, 8, 16))
        assert loss(x, y).plain.item() == pytest.approx(math.log(vocab_size), abs=0.05)


def test_the_head_is_the_embedding():
    model = build(TINY, 17)
    assert model.head.weight is model.embedding.weight
    assert "head.weight" not in dict(model.named_parameters())


@pytest.mark.parametrize("bias", [False, True])
def test_logits_are_those_of_attention_written_out(bias: bool):
    """The same arithmetic by hand: softmax of scores under a triangle, heads side by side, exact GELU."""
    torch.manual_seed(1)
    model = build(Config(n_layer=2, n_head=2, n_embd=32, block_size=16, bias=bias), 17)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    idx = torch.randint(17, (3, 11))
    p = dict(model.named_parameters())

    def linear(x, name):
        return x @ p[f"{name}.weight"].T + (p[f"{name}.bias"] if bias else 0)

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * p[f"{name}.weight"] + (
            p[f"{name}.bias"] if bias else 0
        )

    x = p["embedding.weight"][idx] + p["position.weight"][:11]
    future = torch.ones(11, 11).triu(1).bool()
    for block in ("blocks.0", "blocks.1"):
        q, k, v = linear(norm(x, f"{block}.norm1"), f"{block}.attention.qkv").chunk(3, dim=-1)
        heads = []
        for head in range(2):
            part = slice(16 * head, 16 * head + 16)
            scores = (q[..., part] @ k[..., part].transpose(1, 2)) / 4
            heads.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ v[..., part])
        x = x + linear(torch.cat(heads, -1), f"{block}.attention.out")
        inner = linear(norm(x, f"{block}.norm2"), f"{block}.mlp.up")
        x = x + linear(0.5 * inner * (1 + torch.erf(inner / math.sqrt(2))), f"{block}.mlp.down")
    by_hand = norm(x, "norm") @ p["embedding.weight"].T
    torch.testing.assert_close(logits_of(model.eval(), idx), by_hand, rtol=1e-4, atol=1e-4)


def test_dropout_drops_in_training_only():
    torch.manual_seed(0)
    model = build(Config(n_layer=1, n_head=2, n_embd=32, block_size=16, dropout=0.5), 17)
    idx = torch.randint(17, (2, 16))
    assert not torch.equal(model(idx), model(idx))
    model.eval()
    assert torch.equal(model(idx), model(idx))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keeping_less_for_the_backward_pass_changes_no_bit(
    bias: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    torch.manual_seed(0)
    model = build(Config(n_layer=2, n_head=2, n_embd=32, block_size=16, bias=bias, dropout=0.1), 17)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x, y = torch.randint(17, (2, 4, 16))
    found = []
    for lean_from in (1 << 40, 1):
        monkeypatch.setattr(kernels, "LEAN_FROM", lean_from)
        model.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = WithLoss(model)(x, y).objective
        loss.backward()
        found.append([loss, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_less_is_kept_for_the_backward_pass():
    """Bytes that autograd holds between forward and backward, of a model just large enough."""
    held = {}
    for is_lean in (False, True):
        torch.manual_seed(0)
        model = build(Config(n_layer=2, n_head=2, n_embd=64, block_size=64), 17)
        kept: dict[int, int] = {}

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        kernels.LEAN_FROM, before = (1 if is_lean else 1 << 40), kernels.LEAN_FROM
        try:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                hidden = model.hidden(torch.randint(17, (8, 64)))
            assert hidden.requires_grad
        finally:
            kernels.LEAN_FROM = before
        held[is_lean] = sum(size for place, size in kept.items() if place not in weights)
    assert held[True] < 0.7 * held[False]


@pytest.mark.parametrize("lean_from", [1 << 40, 1])
def test_the_activation_is_the_one_that_is_asked_for(lean_from: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "LEAN_FROM", lean_from)
    linear, x = torch.nn.Linear(8, 3).double(), torch.randn(5, 8, dtype=torch.double, requires_grad=True)
    for kind in ("none", "tanh"):
        expected = torch.autograd.grad(linear(torch.nn.functional.gelu(x, approximate=kind)).sum(), x)[0]
        assert torch.allclose(torch.autograd.grad(kernels.gelu_linear(linear, x, kind).sum(), x)[0], expected)
    shape = Config(n_layer=1, n_head=1, n_embd=4, block_size=4)
    assert [build(dataclasses.replace(shape, gelu=word), 5).blocks[0].mlp.gelu for word in ("exact", "tanh")] == [
        "none",
        "tanh",
    ]
