"""The published counts of SCIENCE's tables, to the last digit."""

import pytest

from nanolens.config.fields import Config
from nanolens.sizing.memory import memory
from nanolens.sizing.shape import GPT2_FAMILY, Shape, flops_per_token, parameters, shape_of


def gpt(layers, width, vocab, context, *, bias=False, heads=None, tied=True):
    return Shape(
        n_layer=layers,
        n_head=heads or max(1, width // 64),
        n_embd=width,
        block_size=context,
        vocab_size=vocab,
        bias=bias,
        tied=tied,
    )


@pytest.mark.parametrize(
    ("shape", "total", "printed"),
    [
        (gpt(12, 384, 50304, 1024), 40_953_216, 40_560_000),
        (gpt(12, 384, 50304, 1024, bias=True), 41_004_288, 40_611_072),
        (gpt(12, 384, 50304, 256), 40_658_304, 40_560_000),
        (gpt(6, 384, 65, 256), 10_745_088, 10_646_784),
        (gpt(6, 384, 65, 256, bias=True), 10_770_816, 10_672_512),
        (gpt(4, 128, 65, 64), 804_096, 795_904),
        (gpt(12, 768, 50304, 1024), 124_373_760, 123_587_328),
        (gpt(12, 768, 50304, 1024, bias=True), 124_475_904, 123_689_472),
    ],
)
def test_totals_are_those_of_the_known_models(shape, total, printed):
    assert parameters(shape).total == total
    assert parameters(shape).as_nanogpt_prints == printed


def test_gpt2_xl_is_the_1558_million_that_openai_published():
    assert parameters(GPT2_FAMILY["gpt2-xl"]).total == 1_557_611_200
    assert parameters(GPT2_FAMILY["gpt2"]).total == 124_439_808


def test_an_untied_head_adds_one_embedding_but_no_flops():
    tied, untied = gpt(12, 768, 50304, 1024), gpt(12, 768, 50304, 1024, tied=False)
    assert parameters(untied).total - parameters(tied).total == 50304 * 768
    assert flops_per_token(untied) == flops_per_token(tied)


@pytest.mark.parametrize(
    ("shape", "matmul", "training"),
    [
        (gpt(12, 384, 50304, 1024), 40_550_400, 299.9e6),
        (gpt(12, 768, 50304, 1024), 123_568_128, 854.7e6),
        (gpt(6, 384, 65, 256), 10_641_792, 70.9e6),
        (gpt(4, 128, 65, 64), 794_752, 5.16e6),
    ],
)
def test_flops_per_token_are_those_of_the_table(shape, matmul, training):
    assert parameters(shape).matmul == matmul
    assert flops_per_token(shape).training == pytest.approx(training, rel=1e-3)


def test_causal_counting_halves_attention_only():
    counted = flops_per_token(gpt(12, 384, 50304, 1024))
    assert counted.training_causal == pytest.approx(271.6e6, rel=1e-3)
    assert counted.forward == pytest.approx(counted.training / 3)


def test_the_shape_of_a_config_takes_the_data_s_vocabulary_where_it_names_none():
    assert shape_of(Config(n_layer=6, n_head=6, n_embd=384, block_size=256), vocab_size=65).vocab_size == 65


def test_the_state_of_gpt2_xl_does_not_fit_24_gb_whatever_the_batch():
    assert memory(GPT2_FAMILY["gpt2-xl"], batch_size=1, dtype="bfloat16").state == 16 * 1_557_611_200


def test_logits_outweigh_the_layers_of_a_small_model_with_a_large_vocabulary():
    parts = memory(gpt(12, 384, 50304, 1024), batch_size=12, dtype="bfloat16")
    assert 6e9 < parts.logits < 10e9
    assert parts.activations < parts.logits / 2
    assert (
        memory(gpt(12, 384, 50304, 1024), batch_size=12, dtype="bfloat16", chunked_head=True).logits < parts.logits / 10
    )
