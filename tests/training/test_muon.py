"""Muon and Adam in one optimizer: what an update is, that batching changes nothing, and that the state can be kept."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from nanolens.config.fields import Config
from nanolens.model.gpt2 import GPT2
from nanolens.model.modern import Modern
from nanolens.training import optimizers
from nanolens.training.optimizers import Muon, build_muon, groups_by_shape, momentum_at, orthogonalised, peak_lr

TINY = Config(
    arch="modern",
    optimizer="muon",
    n_layer=2,
    n_head=2,
    n_embd=16,
    block_size=8,
    ngram_rows=32,
    learning_rate=0.002,
    weight_decay=0.1,
)


def matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(5, 24, 24), (3, 24, 96), (1, 1, 7)])
def test_an_update_has_singular_values_near_one_in_the_directions_of_the_gradient(shape):
    given = matrix(*shape)
    u, _, vh = torch.linalg.svd(given, full_matrices=False)
    before = torch.linalg.svdvals(given)
    # Five steps reach everything above a fiftieth of the matrix' length; what is smaller than that is mostly noise.
    values = torch.linalg.svdvals(orthogonalised(given))[before > 0.02 * before.norm(dim=1, keepdim=True)]
    assert len(values) > 0.8 * before.numel()
    assert values.min() > 0.6 and values.max() < 1.3
    # The polynomial acts on singular values only: in the basis of the gradient the update is diagonal.
    turned = u.mT @ orthogonalised(given) @ vh.mT
    assert (turned - torch.diag_embed(turned.diagonal(dim1=1, dim2=2))).abs().max() < 1e-3


def test_a_batch_gives_what_its_matrices_give_alone():
    given = matrix(6, 16, 64)
    torch.testing.assert_close(
        orthogonalised(given), torch.cat([orthogonalised(one[None]) for one in given]), atol=1e-6, rtol=1e-5
    )


def test_splitting_a_batch_that_is_too_large_changes_nothing(monkeypatch):
    whole, split = trained_for(3), None
    monkeypatch.setattr(optimizers, "LARGEST_BATCH", 600)
    split = trained_for(3)
    for one, other in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_a_step_is_torchs_muon_up_to_its_bfloat16():
    """torch.optim.Muon loops over matrices and works in bfloat16; ours is float32 and batched, and must say the same
    roughly."""
    ours, theirs = torch.nn.Parameter(matrix(24, 48)), torch.nn.Parameter(matrix(24, 48))
    mine = Muon([{"role": "matrix", "params": [ours], "lr": 0.02, "weight_decay": 0.1}])
    other = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, momentum=momentum_at(1), nesterov=True)
    ours.grad, theirs.grad = matrix(24, 48, seed=1), matrix(24, 48, seed=1)
    mine.step()
    other.step()
    moved, moved_there = ours - matrix(24, 48), theirs - matrix(24, 48)
    assert (moved - moved_there).norm() < 0.03 * moved.norm()


def test_q_k_and_v_are_orthogonalised_each_by_itself():
    stacked, apart = (
        torch.nn.Parameter(torch.zeros(48, 16)),
        [torch.nn.Parameter(torch.zeros(16, 16)) for _ in range(3)],
    )
    gradient = matrix(48, 16)
    stacked.grad = gradient.clone()
    for p, part in zip(apart, gradient.chunk(3), strict=True):
        p.grad = part.clone()
    Muon([{"role": "matrix", "params": [stacked], "parts": 3, "lr": 1.0}]).step()
    Muon([{"role": "matrix", "params": apart, "lr": 1.0}]).step()
    torch.testing.assert_close(stacked, torch.cat(apart), atol=1e-6, rtol=1e-5)


def test_a_matrix_that_widens_moves_further():
    tall = torch.nn.Parameter(torch.zeros(64, 16))
    tall.grad = matrix(64, 16)
    Muon([{"role": "matrix", "params": [tall], "lr": 1.0}]).step()
    assert torch.linalg.svdvals(tall.detach()).mean() == pytest.approx(math.sqrt(64 / 16), rel=0.2)


def test_what_is_no_matrix_is_updated_as_torchs_adamw_does():
    ours, theirs = torch.nn.Parameter(matrix(7, 5)), torch.nn.Parameter(matrix(7, 5))
    mine = Muon(
        [{"role": "embedding", "params": [ours], "lr": 0.01, "weight_decay": 0.1}], betas=(0.8, 0.95), eps=1e-10
    )
    other = torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-10)
    for seed in range(5):
        ours.grad, theirs.grad = matrix(7, 5, seed=seed), matrix(7, 5, seed=seed)
        mine.step()
        other.step()
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_a_saved_state_goes_on_bit_for_bit():
    straight = trained_for(6)
    model, optimizer = fresh()
    take_steps(model, optimizer, range(3))
    state, weights = optimizer.state_dict(), model.state_dict()
    later, anew = fresh()
    later.load_state_dict(weights)
    anew.load_state_dict(state)
    take_steps(later, anew, range(3, 6))
    for one, other in zip(straight.parameters(), later.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_gradient_is_left_as_it_was():
    """Logged gradient norms and accumulation rely on it."""
    p = torch.nn.Parameter(matrix(8, 8))
    p.grad = matrix(8, 8, seed=1)
    optimizer = Muon([{"role": "matrix", "params": [p], "lr": 0.1}])
    optimizer.step()
    assert torch.equal(p.grad, matrix(8, 8, seed=1))


def test_a_model_that_does_not_name_its_roles_is_sorted_by_shape():
    config = Config(n_layer=2, n_head=2, n_embd=16, block_size=8, optimizer="muon")
    model = GPT2(config, 11)
    groups = groups_by_shape(model, 0.1)
    matrices = {id(p) for g in groups if g["role"] == "matrix" for p in g["params"]}
    assert matrices == {id(p) for p in model.blocks.parameters() if p.ndim == 2}
    assert sorted(id(p) for g in groups for p in g["params"]) == sorted(id(p) for p in model.parameters())
    build_muon(model, config)


def test_adams_rate_follows_the_width_and_muons_does_not():
    wide, narrow = replace(TINY, n_embd=768), replace(TINY, n_embd=192)
    assert peak_lr("head", wide) == wide.learning_rate
    assert peak_lr("head", narrow) == pytest.approx(2 * wide.learning_rate)
    assert peak_lr("matrix", wide) == peak_lr("matrix", narrow) == wide.matrix_learning_rate
    assert {g["role"]: g["lr"] for g in build_muon(Modern(narrow, 11), narrow).param_groups}["table"] == peak_lr(
        "table", narrow
    )


def test_groups_without_roles_are_sorted_by_shape_too():
    class Own(GPT2):
        def optimizer_groups(self, config):
            return [{"params": list(self.parameters())}]

    config = Config(n_layer=1, n_head=2, n_embd=16, block_size=8, optimizer="muon")
    assert "matrix" in {group["role"] for group in build_muon(Own(config, 11), config).param_groups}


def test_the_loss_falls():
    model, optimizer = fresh()
    losses = take_steps(model, optimizer, range(30))
    assert losses[-1] < 0.7 * losses[0]


def fresh() -> tuple[Modern, Muon]:
    torch.manual_seed(0)
    model = Modern(TINY, 11)
    return model, build_muon(model, TINY)


def trained_for(steps: int) -> Modern:
    model, optimizer = fresh()
    take_steps(model, optimizer, range(steps))
    return model


def take_steps(model: Modern, optimizer: Muon, steps: range) -> list[float]:
    losses = []
    for _ in steps:
        x = (torch.arange(9)[None] + torch.arange(6)[:, None]) % 11  # the next token is always one more
        loss = torch.nn.functional.cross_entropy(model(x[:, :-1]).view(-1, 11), x[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("rank", [24, 3])
def test_a_wide_matrix_is_orthogonalised_by_its_gram_matrix_to_the_same_result(
    rank: int, monkeypatch: pytest.MonkeyPatch
):
    draw = torch.Generator().manual_seed(0)
    batch = torch.randn(2, 24, rank, generator=draw) @ torch.randn(2, rank, 96, generator=draw) + 1e-3 * torch.randn(
        2, 24, 96, generator=draw
    )
    by_gram = optimizers.orthogonalised(batch)
    monkeypatch.setattr(optimizers, "GRAM_FROM", 1000)
    torch.testing.assert_close(by_gram, optimizers.orthogonalised(batch), rtol=1e-3, atol=1e-4)
