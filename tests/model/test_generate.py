"""Writing with a cache is writing without one, only faster."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from nanolens.config.fields import Config
from nanolens.model import build
from nanolens.model.generate import (
    WEIGHT_PARTS,
    WEIGHTS_AT_LEAST,
    CachedReader,
    SamplingParams,
    draw,
    fast_rows,
    generate,
)

SMALL = Config(n_layer=2, n_head=2, n_embd=32, block_size=24, dropout=0.1, ngram_rows=64)
TASTES = [
    SamplingParams(),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(top_p=0.8),
    SamplingParams(temperature=0),
    SamplingParams(1.3, 10, 0.9),
]


def model_of(arch: str, **changes) -> tuple[nn.Module, Config]:
    torch.manual_seed(0)
    config = replace(SMALL, arch=arch, **changes)
    model = build(config, 19)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model, config


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
@pytest.mark.parametrize("sampling", TASTES, ids=str)
def test_cached_equals_uncached_token_for_token_up_to_block_size(arch: str, sampling: SamplingParams):
    model, config = model_of(arch)
    for start in (1, 2, 3, 10):
        prompt = torch.randint(19, (3, start))
        cached = generate(model, config, prompt, 24 - start, sampling=sampling)
        assert torch.equal(cached, generate(model, config, prompt, 24 - start, sampling=sampling, use_cache=False))


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
@pytest.mark.parametrize("start", [1, 24, 40])
def test_it_writes_past_block_size_and_keeps_half_a_window_in_view(arch: str, start: int):
    """Beyond block_size the model sees the newest tokens, at least half a window of them: checked against reading those
    anew."""
    model, config = model_of(arch)
    prompt = torch.randint(19, (2, start))
    seen = generate(model, config, prompt, 70, sampling=SamplingParams(temperature=0))
    assert seen.shape == (2, start + 70)
    assert torch.equal(seen[:, :start], prompt)
    for place in (start + 30, start + 69):
        choices = set()
        for reach in range(12, 25):
            logits = model.eval()(seen[:, place - reach : place])[:, -1]
            choices.add(tuple(logits.argmax(-1).tolist()))
        assert tuple(seen[:, place].tolist()) in choices


def test_the_seed_decides_and_nothing_else_does():
    model, config = model_of("gpt2")
    prompt = torch.randint(19, (2, 4))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = generate(model, config, prompt, 30, seed=1)
    assert torch.equal(torch.get_rng_state(), before), "sampling leaves the run's random numbers alone"
    torch.manual_seed(6)
    assert torch.equal(one, generate(model, config, prompt, 30, seed=1))
    assert not torch.equal(one, generate(model, config, prompt, 30, seed=2))


def test_a_row_of_a_batch_is_written_from_its_own_prompt():
    model, config = model_of("gpt2")
    prompts = torch.randint(19, (4, 5))
    together = generate(model, config, prompts, 15, sampling=SamplingParams(temperature=0))
    for row in range(4):
        assert torch.equal(
            together[row],
            generate(model, config, prompts[row : row + 1], 15, sampling=SamplingParams(temperature=0))[0],
        )


def test_top_k_and_top_p_keep_the_likeliest():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4000, 1)
    generator = torch.Generator().manual_seed(0)
    assert set(draw(logits, SamplingParams(top_k=2), generator).tolist()) == {0, 1}
    assert set(draw(logits, SamplingParams(top_p=0.79), generator).tolist()) == {0, 1}
    assert set(draw(logits, SamplingParams(top_p=0.81), generator).tolist()) == {0, 1, 2}
    assert set(draw(logits, SamplingParams(top_p=0.001), generator).tolist()) == {0}
    assert set(draw(logits, SamplingParams(temperature=0), generator).tolist()) == {0}
    counts = torch.bincount(draw(logits, SamplingParams(), generator), minlength=4) / 4000
    torch.testing.assert_close(counts, torch.tensor([0.5, 0.3, 0.15, 0.05]), atol=0.03, rtol=0)
    hot = torch.bincount(draw(logits, SamplingParams(temperature=100.0), generator), minlength=4) / 4000
    torch.testing.assert_close(hot, torch.full((4,), 0.25), atol=0.03, rtol=0)


def test_tokens_are_told_as_they_come_and_the_teller_may_stop():
    model, config = model_of("gpt2")
    model.train()
    told: list[list[int]] = []
    whole = generate(
        model, config, torch.zeros(2, 1, dtype=torch.long), 6, on_token=lambda column: told.append(column.tolist())
    )
    assert whole[:, 1:].T.tolist() == told

    class Enough(Exception):
        pass

    def stop(column):
        raise Enough

    with pytest.raises(Enough):
        generate(model, config, torch.zeros(2, 1, dtype=torch.long), 6, on_token=stop)
    assert model.training, "the model is given back as it was"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 8, 9])
def test_large_linear_layers_give_the_same_by_parts(bias: bool, rows: int):
    layer = nn.Linear(256, WEIGHTS_AT_LEAST // 256 // WEIGHT_PARTS * WEIGHT_PARTS, bias=bias)
    x = torch.randn(rows, 1, 256)
    wanted = layer(x)
    with torch.no_grad(), fast_rows(nn.Sequential(layer), 1):
        assert "forward" in layer.__dict__, "this layer is large enough to be replaced"
        found = layer(x)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert "forward" not in layer.__dict__


def test_a_draw_is_torchs_own():
    logits = torch.randn(7, 65, generator=torch.Generator().manual_seed(1))
    ours = draw(logits, SamplingParams(), torch.Generator().manual_seed(2))
    theirs = torch.multinomial(logits.softmax(-1), 1, generator=torch.Generator().manual_seed(2))[:, 0]
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_a_wide_model_writes_what_it_would_write_without_haste(arch: str):
    model, config = model_of(arch, n_layer=1, n_embd=512)
    prompt = torch.randint(19, (3, 2), generator=torch.Generator().manual_seed(0))
    assert any(module.weight.numel() >= WEIGHTS_AT_LEAST for module in model.modules() if isinstance(module, nn.Linear))
    hasty, slow = (
        generate(model, config, prompt, 4, sampling=SamplingParams(temperature=0), use_cache=use)
        for use in (True, False)
    )
    assert torch.equal(hasty, slow)


def test_threads_are_as_before_when_the_text_is_written():
    model, config = model_of("gpt2")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = []
        generate(
            model,
            config,
            torch.zeros(1, 1, dtype=torch.long),
            2,
            on_token=lambda token: seen.append(torch.get_num_threads()),
        )
        assert seen == [1, 1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("more", [{"bias": False}, {"bias": True, "gelu": "tanh"}], ids=str)
def test_one_token_at_a_time_has_the_hidden_state_of_the_whole(more: dict):
    model, config = model_of("gpt2", **more)
    idx = torch.randint(19, (3, 9), generator=torch.Generator().manual_seed(0))
    reader = CachedReader(model.eval(), config, idx)
    assert reader._short is not None
    with torch.inference_mode():
        for place in range(1, 10):
            torch.testing.assert_close(reader.next_logits(place), model(idx[:, :place])[:, -1])
