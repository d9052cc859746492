"""The loss that a run would end at, with a range and its source, or why that cannot be said beforehand.

Three sources, the nearest first: the very preset was run before; a run of this shape, corpus and length is published; or the corpus is web
text in GPT-2's tokens, where published laws give differences from a known run. For any other corpus a fifth of the run and `nanolens
forecast` know more than any law, and that is what is said."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nanolens.analysis.corpora import corpus_named
from nanolens.analysis.plan_rows import Row, estimated, measured, unknown
from nanolens.config.fields import Config
from nanolens.config.preset import Preset
from nanolens.facts.laws import LOSS_LAWS, critical_batch, tokens_wasted, worth_of_tokens
from nanolens.facts.references import REFERENCES
from nanolens.message import msg
from nanolens.planning.figures import DataFacts
from nanolens.sizing import Shape, parameters


@dataclass(frozen=True)
class Anchor:
    """A run whose end is known: laws are used for differences from it."""

    corpus: str
    N: float
    D: float
    loss: float
    spread: float  # how well `loss` is known for a run of this kind
    source: str


ANCHORS = (
    Anchor("fineweb", 124.4e6, 10.26e9, 3.272, 0.03, "llm.c's 124M run on FineWeb, 10.3 B tokens: 3.272"),
    Anchor("fineweb-edu", 124.4e6, 10e9, 3.10, 0.10, "community reports of 124M runs on FineWeb-Edu, 10 B tokens: 3.0 to 3.2"),
    Anchor("openwebtext", 124.4e6, 295e9, 2.85, 0.03, "nanoGPT's 124M run on OpenWebText, 295 B tokens: 2.85"),
)
PER_E_FOLD = 0.03
"""Nats by which the range widens for each factor e of parameters or tokens away from the anchor: between 5,000 and 19,560 updates of
llm.c's run (1.4 e-folds) the three laws err by 0.01 to 0.02 and differ from each other by as much."""


def expected_loss(config: Config, shape: Shape, data: DataFacts, preset: Preset | None = None) -> Row:
    what = msg("val loss at the end")
    tokens = config.tokens_per_update * config.max_iters
    if preset is not None and preset.val_loss is not None and preset.val_loss_source is not None:
        return measured(
            "final_loss",
            msg("val loss that this preset reaches"),
            preset.val_loss,
            "nats",
            msg("this preset: {source}", source=preset.val_loss_source),
            preset.val_loss - 0.03,
            preset.val_loss + 0.03,
        )
    if not tokens:
        return unknown("final_loss", what, "nats", msg("the run has no updates"))
    corpus = corpus_named(f"{data.name} {'char' if data.is_char else ''}")
    published = corpus and _published(config, shape, corpus.name)
    if published:
        return published
    anchor = next((each for each in ANCHORS if corpus is not None and each.corpus == corpus.name), None)
    if anchor is None or data.is_char:
        return unknown("final_loss", what, "nats", _ask_forecast(config))
    return _from_anchor(anchor, config, shape, data, tokens)


SAME_LENGTH = 0.02


def _published(config: Config, shape: Shape, corpus: str) -> Row | None:
    """The end of a known run with this shape, batch and length, where there is one."""
    if config.arch != "gpt2" or config.optimizer != "adamw" or config.init_from != "scratch":
        return None
    asked = (corpus, shape.n_layer, shape.n_embd, shape.block_size, config.tokens_per_update)
    for known in REFERENCES:
        if (known.corpus, known.n_layer, known.n_embd, known.block_size, known.tokens_per_update) != asked:
            continue
        if known.end_val is None or not known.end_step or abs(config.max_iters / known.end_step - 1) > SAME_LENGTH:
            continue
        source = msg("a known run of this shape and length: {source}", source=known.source)
        return estimated(
            "final_loss", msg("val loss at the end"), known.end_val, "nats", source, known.end_val - 2 * known.spread,
            known.end_val + 2 * known.spread,
        )  # fmt: skip
    return None


def _ask_forecast(config: Config):
    return msg(
        "no run on this corpus is known; after about {steps:count} updates {command:code} says more than any law",
        steps=max(1, config.max_iters // 5), command="nanolens forecast RUN",
    )  # fmt: skip


def _from_anchor(anchor: Anchor, config: Config, shape: Shape, data: DataFacts, tokens: float) -> Row:
    worth = worth_of_tokens(tokens, data.train_tokens) if data.train_tokens else float(tokens)
    loss, low, high = loss_from(anchor, parameters(shape).total, worth, config.tokens_per_update)
    return estimated(
        "final_loss",
        msg("val loss at the end"),
        loss,
        "rough_nats",
        msg(
            "differences of three published laws from {anchor}; batch and repetition are counted as lost tokens, the "
            "learning rate is taken as well chosen",
            anchor=anchor.source,
        ),
        low,
        high,
    )


def loss_from(anchor: Anchor, N: float, tokens: float, tokens_per_update: float) -> tuple[float, float, float]:
    """(expected, low, high) of a model of N parameters after so many fresh tokens."""
    # A batch beyond the critical one costs tokens; the runs behind the laws had batches up to it.
    tokens *= min(1.0, 2 / tokens_wasted(tokens_per_update, critical_batch(tokens)))
    losses = [anchor.loss + law.loss(N, tokens) - law.loss(anchor.N, anchor.D) for law in LOSS_LAWS]
    away = abs(math.log(N / anchor.N)) + abs(math.log(tokens / anchor.D))
    margin = anchor.spread + PER_E_FOLD * away
    return losses[0], min(losses) - margin, max(losses) + margin


def web_text_loss(corpus: str | None, N: float, tokens: float, tokens_per_update: float) -> tuple[float, float]:
    """(low, high) on that corpus, or on any of the web texts whose runs are known where it is not named."""
    anchors = [each for each in ANCHORS if each.corpus == corpus] or ANCHORS
    ranges = [loss_from(anchor, N, tokens, tokens_per_update) for anchor in anchors]
    return min(low for _, low, _ in ranges), max(high for _, _, high in ranges)
