"""Corpora that many runs use and runs that are known (references.toml), to compare another run with.

The unigram level is what a model reaches that knows only how frequent each token is; the bigram level, one that looks
at the token before. A run that stays at either uses no more of its context than that."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import msgspec

from nanolens.config.load import named_preset


@dataclass(frozen=True)
class CorpusFacts:
    name: str
    pattern: str  # of the words that people use for it
    vocab_size: int
    is_char: bool
    train_tokens: int | None = None
    val_tokens: int | None = None
    unigram_nats: float | None = None
    bigram_nats: float | None = None
    is_web_text: bool = False
    lowest_val: float | None = None  # lowest val loss that is known of a small model trained on it from scratch
    lowest_source: str = ""


@dataclass(frozen=True)
class Reference:
    name: str
    source: str
    corpus: str  # the name of one of CORPORA
    n_layer: int
    n_embd: int
    block_size: int | None = None
    tokens_per_update: int | None = None
    val_by_step: tuple[tuple[int, float], ...] = ()  # (updates done, val loss), for the same tokens per update
    curve_of: str = ""  # the preset that carries that curve
    best_val: float | None = None
    best_step: int | None = None
    train_at_best: float | None = None  # train loss of the evaluation where val was best
    end_val: float | None = None
    end_step: int | None = None
    spread: float = 0.01  # by which two runs of it may differ: seeds and evaluation batches


_TABLES = tomllib.loads(files("nanolens.facts").joinpath("references.toml").read_text(encoding="utf-8"))
CORPORA = msgspec.convert(_TABLES["corpora"], tuple[CorpusFacts, ...])
PADDED_GPT2_VOCAB = 50304

WEB_TEXT_UNIGRAM = (7.3, 8.0)
"""GPT-2's tokens on any English web text: the unigram level lies in here."""


def corpus_named(text: str) -> CorpusFacts | None:
    return next((corpus for corpus in CORPORA if re.search(corpus.pattern, text.lower())), None)


@cache
def published_runs() -> tuple[Reference, ...]:
    return tuple(map(_with_curve, msgspec.convert(_TABLES["runs"], tuple[Reference, ...])))


def _with_curve(run: Reference) -> Reference:
    preset = named_preset(run.curve_of) if run.curve_of else None
    if preset is None:
        return run
    return replace(run, val_by_step=tuple((step, mean) for step, mean, _ in preset.curve if step))


SEED_SPREAD = 0.0019
"""Standard deviation of the final val loss over 80 seeds of a 124M run that ends at 3.28 (modded-nanogpt)."""
