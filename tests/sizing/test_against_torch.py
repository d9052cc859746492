"""The counts against the models themselves, and against PyTorch's FLOP counter, on random shapes."""

import random

import pytest

from nanolens.config.fields import Config
from nanolens.sizing.shape import flops_per_token, parameters, shape_of

torch = pytest.importorskip("torch")


def random_configs(arch, count):
    draw = random.Random(7)
    for _ in range(count):
        heads = draw.choice([1, 2, 4])
        yield (
            Config(
                arch=arch,
                n_layer=draw.randint(1, 3),
                n_head=heads,
                n_embd=heads * draw.choice([8, 16, 24]),
                block_size=draw.choice([8, 16, 32]),
                bias=draw.random() < 0.5,
                token_shift=draw.random() < 0.5,
                ngram_rows=draw.choice([0, 64]),
                ngram_order=draw.choice([2, 3, 5]),
            ),
            draw.randint(11, 97),
        )


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_parameters_are_those_that_torch_counts(arch):
    from nanolens.model import build

    for config, vocab in random_configs(arch, 25):
        model = build(config, vocab)
        assert parameters(shape_of(config, vocab)).total == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_flops_are_those_that_torch_counts(arch):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from nanolens.model import build

    for config, vocab in random_configs(arch, 25):
        model = build(config, vocab)
        ids = torch.randint(vocab, (2, config.block_size))
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(ids).sum().backward()
        assert counter.get_total_flops() == flops_per_token(shape_of(config, vocab)).training * ids.numel()
