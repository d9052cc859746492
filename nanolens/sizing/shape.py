"""The numbers that fix a model's size."""

from __future__ import annotations

from dataclasses import dataclass

from nanolens.config.fields import Config


@dataclass(frozen=True, kw_only=True)
class Shape:
    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int
    arch: str = "gpt2"
    bias: bool = False
    tied: bool = True  # the head is the embedding matrix
    softcap: float = 0.0  # arch=modern only, as are the next three
    token_shift: bool = False
    ngram_rows: int = 0
    ngram_order: int = 3  # the longest n-gram that has a table

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head


def shape_of(config: Config, vocab_size: int | None = None) -> Shape:
    """The shape that a config asks for; `vocab_size` is the data's, where the config leaves it to the data."""
    vocab = config.vocab_size if config.vocab_size is not None else vocab_size
    assert vocab is not None, "the vocabulary's size is in neither the config nor the call"
    is_modern = config.arch == "modern"
    return Shape(
        arch=config.arch, n_layer=config.n_layer, n_head=config.n_head, n_embd=config.n_embd, block_size=config.block_size,
        vocab_size=vocab, bias=config.bias, tied=not is_modern, softcap=config.softcap if is_modern else 0.0,
        token_shift=config.token_shift and is_modern, ngram_rows=config.ngram_rows if is_modern else 0, ngram_order=config.ngram_order,
    )  # fmt: skip


GPT2_FAMILY = {
    name: Shape(n_layer=layers, n_head=heads, n_embd=width, block_size=1024, vocab_size=50257, bias=True)
    for name, layers, heads, width in (
        ("gpt2", 12, 12, 768),
        ("gpt2-medium", 24, 16, 1024),
        ("gpt2-large", 36, 20, 1280),
        ("gpt2-xl", 48, 25, 1600),
    )
}
"""The published GPT-2 checkpoints, by the names that `init_from` takes."""
