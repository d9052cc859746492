"""Runs that are known, with the conditions under which they say something about another run.

A reference speaks only for the same corpus, the same tokenizer and nearly the same model; where one of these is unknown it is
silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nanolens.config.preset import named_preset


@dataclass(frozen=True)
class Reference:
    name: str
    source: str
    corpus: str  # a name of corpora.CORPORA
    n_layer: int
    n_embd: int
    block_size: int | None = None
    tokens_per_update: int | None = None
    val_by_step: tuple[tuple[int, float], ...] = ()  # (updates done, val loss), for the same tokens per update
    best_val: float | None = None
    best_step: int | None = None
    train_at_best: float | None = None  # train loss of the evaluation where val was best
    end_val: float | None = None
    end_step: int | None = None
    spread: float = 0.01  # by which two runs of it may differ: seeds and evaluation batches
    tokens_at_end: float | None = None
    notes: tuple[str, ...] = field(default=())


def _recorded(preset: str) -> tuple[tuple[int, float], ...]:
    """The curve that the preset carries."""
    known = named_preset(preset)
    return tuple((step, mean) for step, mean, _ in known.curve if step) if known is not None else ()


REFERENCES = (
    Reference(
        "nanoGPT shakespeare_char", "nanoGPT README; issues 211 and 493", "shakespeare_char", n_layer=6, n_embd=384, block_size=256,
        tokens_per_update=16_384, best_val=1.4697, best_step=1_750, train_at_best=1.15, end_val=1.70, end_step=5_000, spread=0.02,
        tokens_at_end=81.9e6,
    ),
    Reference(
        "nanoGPT shakespeare_char on a CPU", "nanoGPT README; steps by bench/curves.py", "shakespeare_char", n_layer=4, n_embd=128,
        block_size=64, tokens_per_update=768, val_by_step=_recorded("shakespeare-char-cpu"), end_val=1.88, end_step=2_000, spread=0.03,
        tokens_at_end=1.536e6,
    ),
    Reference(
        "nanoGPT GPT-2 124M on OpenWebText", "nanoGPT README; issue 644", "openwebtext", n_layer=12, n_embd=768, block_size=1024,
        tokens_per_update=491_520, val_by_step=((400_000, 2.905), (600_000, 2.85)), end_val=2.85, end_step=600_000, spread=0.004,
        tokens_at_end=295e9,
    ),
    Reference(
        "llm.c GPT-2 124M on FineWeb", "llm.c main.log", "fineweb", n_layer=12, n_embd=768, block_size=1024, tokens_per_update=524_288,
        val_by_step=((250, 6.171), (500, 5.374), (1_000, 4.317), (2_500, 3.765), (5_000, 3.554), (10_000, 3.392), (15_000, 3.300),
                     (19_560, 3.272)),
        end_val=3.272, end_step=19_560, spread=0.004, tokens_at_end=10.26e9,
    ),
)  # fmt: skip

SEED_SPREAD = 0.0019
"""Standard deviation of the final val loss over 80 seeds of a 124M run that ends at 3.28 (modded-nanogpt)."""
