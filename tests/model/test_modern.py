"""The modern architecture: causal, cached equals uncached, counted as torch counts it, and NanoChat's where it promises
to be."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nanolens.config.fields import Config
from nanolens.errors import UserError
from nanolens.model.kernels import Cache
from nanolens.model.modern import Modern, NgramTables

TINY = {"arch": "modern", "n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 12, "ngram_rows": 64}
VOCAB = 11
PLAIN = {"token_shift": False, "ngram_rows": 0}


def tiny(**changes) -> Modern:
    return Modern(Config(**{**TINY, **changes}), VOCAB)


def randomised(model: Modern) -> Modern:
    """Zero-initialised matrices hide faults: every parameter gets a random value."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3)
    return model.eval()


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(3))


def test_an_untrained_model_is_exactly_as_surprised_as_chance():
    x = ids(3, 13)
    loss = F.cross_entropy(tiny()(x[:, :-1]).view(-1, VOCAB), x[:, 1:].reshape(-1))
    assert loss.item() == pytest.approx(math.log(VOCAB), abs=1e-6)


@pytest.mark.parametrize("changes", [{}, PLAIN, {"token_shift": False}, {"ngram_rows": 0}])
def test_no_position_sees_what_comes_after_it(changes):
    model, x = randomised(tiny(**changes)), ids(1, 12)
    before = model(x)
    for t in range(1, 12):
        other = x.clone()
        other[0, t] = (other[0, t] + 1) % VOCAB
        after = model(other)
        assert torch.equal(after[0, :t], before[0, :t])
        assert not torch.allclose(after[0, t], before[0, t])


@pytest.mark.parametrize("changes", [{}, PLAIN, {"ngram_order": 5}])
@pytest.mark.parametrize("pieces", [(12,), (1,) * 12, (5, 1, 1, 1, 4), (1, 11)])
def test_reading_piece_by_piece_with_a_cache_gives_the_same_hidden_states(changes, pieces):
    model, x = randomised(tiny(**changes)), ids(2, 12)
    cache = Cache(Config(**TINY), 2, device=x.device, dtype=torch.float32)
    seen = []
    for piece in x.split(pieces, dim=1):
        seen.append(model.hidden(piece, cache))
        cache.advance(piece)
    torch.testing.assert_close(torch.cat(seen, dim=1), model.hidden(x), atol=2e-6, rtol=1e-5)


def test_a_shift_sees_the_token_before_and_the_tables_as_far_as_their_order():
    """The embedding itself reaches back one token with the shift, order - 1 with the tables, and no further."""
    for changes, reach in (
        ({"ngram_rows": 0}, 1),
        ({"token_shift": False}, 2),
        ({"token_shift": False, "ngram_order": 5}, 4),
        (PLAIN, 0),
    ):
        model, x = randomised(tiny(**changes)), ids(1, 12)
        other = x.clone()
        other[0, 4] = (other[0, 4] + 1) % VOCAB
        nothing = x[:, :0]
        moved = (model._embed(x, nothing) != model._embed(other, nothing)).any(-1)[0].nonzero().flatten().tolist()
        assert moved == list(range(4, 5 + reach))


def test_different_pairs_get_different_rows_where_the_table_has_room():
    model = Modern(Config(**{**TINY, "ngram_rows": 4096}), VOCAB)
    pairs = torch.arange((VOCAB + 1) ** 2)
    rows = model.ngrams.row_of(pairs)
    assert rows.min() >= 0 and rows.max() < 4096
    assert len(set(rows.tolist())) > 0.95 * len(pairs)


@pytest.mark.parametrize(
    "changes", [{}, PLAIN, {"n_layer": 3, "n_embd": 24, "n_head": 3, "ngram_rows": 10}, {"ngram_order": 5}]
)
def test_parameters_are_the_ones_of_the_formula(changes):
    config = Config(**{**TINY, **changes})
    d = config.n_embd
    expected = (
        2 * VOCAB * d
        + 12 * config.n_layer * d * d
        + (d if config.token_shift else 0)
        + (config.ngram_order - 1) * config.ngram_rows * d
    )
    assert sum(p.numel() for p in Modern(config, VOCAB).parameters()) == expected


def test_training_flops_are_the_ones_torch_counts():
    config = Config(**TINY)
    model, x = randomised(tiny()), ids(2, 12)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    d, L, T = config.n_embd, config.n_layer, config.block_size
    # The first block's qkv has no lookup to send a gradient through only if nothing below it is trained; here the
    # embedding is.
    assert counter.get_total_flops() == x.numel() * (6 * (12 * L * d * d + VOCAB * d) + 12 * L * d * T)


def test_logits_stay_within_the_cap_and_only_with_one():
    x = ids(1, 12)
    big = randomised(tiny())
    with torch.no_grad():
        big.head.weight.mul_(50)
    assert big(x).abs().max() <= 15.0
    big.softcap = 0.0
    assert big(x).abs().max() > 15.0


def test_every_parameter_is_in_one_group_and_blocks_are_matrices():
    model = tiny()
    groups = model.optimizer_groups(Config(**TINY))
    named = [id(p) for group in groups for p in group["params"]]
    assert sorted(named) == sorted(id(p) for p in model.parameters())
    matrices = {id(p) for group in groups if group["role"] == "matrix" for p in group["params"]}
    assert matrices == {id(p) for p in model.blocks.parameters()}


def test_an_odd_head_size_is_refused_in_words():
    with pytest.raises(UserError, match="odd"):
        tiny(n_embd=18, n_head=2)


def test_bfloat16_autocast_runs_and_agrees_roughly():
    model, x = randomised(tiny()), ids(2, 12)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(x)
    torch.testing.assert_close(low.float(), model(x), atol=0.5, rtol=0.1)


def test_without_shift_and_tables_it_is_the_nanochat_of_transformers():
    transformers = pytest.importorskip(
        "transformers", reason="compares with transformers' own NanoChat, which is not installed"
    )
    ours = randomised(tiny(**PLAIN))
    theirs = transformers.NanoChatForCausalLM(
        transformers.NanoChatConfig(
            vocab_size=VOCAB,
            hidden_size=16,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=12,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            final_logit_softcapping=15.0,
        )
    ).eval()
    names = {"model.embed_tokens.weight": ours.embedding.weight, "lm_head.weight": ours.head.weight}
    for number, block in enumerate(ours.blocks):
        q, k, v = block.attention.qkv.weight.chunk(3)
        q, k = halves(q), halves(k)
        at = f"model.layers.{number}"
        names |= {
            f"{at}.self_attn.q_proj.weight": q,
            f"{at}.self_attn.k_proj.weight": k,
            f"{at}.self_attn.v_proj.weight": v,
        }
        names |= {f"{at}.self_attn.o_proj.weight": block.attention.out.weight}
        names |= {f"{at}.mlp.fc1.weight": block.mlp.up.weight, f"{at}.mlp.fc2.weight": block.mlp.down.weight}
    theirs.load_state_dict(names, strict=True)
    x = ids(3, 12)
    torch.testing.assert_close(theirs(x).logits, ours(x), atol=1e-5, rtol=1e-5)


def halves(weight: torch.Tensor) -> torch.Tensor:
    """Our heads turn channels 0 and 1, 2 and 3, ...; theirs 0 and h / 2, 1 and h / 2 + 1, ...: the same heads in
    another order."""
    return weight.view(2, 4, 2, 16).transpose(1, 2).reshape(16, 16)


def test_left_out_ngrams_are_left_out_whole_in_training_and_never_when_asked_for_an_answer():
    torch.manual_seed(0)
    tables = NgramTables(Config(ngram_rows=16, ngram_order=2, n_embd=8, ngram_dropout=0.5), 5)
    nn.init.ones_(tables.rows.weight)
    ids = torch.randint(5, (4, 200))
    seen = tables.train()(ids)
    assert torch.equal(seen, seen[..., :1].expand_as(seen))  # a vector is there or not, never a part of it
    assert set(seen.unique().tolist()) == {0.0, 2.0} and 0.8 < seen.mean() < 1.2  # kept ones stand for the others
    assert torch.equal(tables.eval()(ids), torch.ones(4, 200, 8))
