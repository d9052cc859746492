"""What each ingredient of the recipe is worth: a preset trained as it is, and again with one thing taken away or put
back.

    python bench/ablation.py [--preset=shakespeare-fast] [--seeds=3] [--only=TEXT] [--key=value ...]
    python bench/ablation.py --widths=64,128,256 [--seeds=1] [--key=value ...]  do the rates fit other widths without a
        new search?

Prints, for each variant, the loss on the whole val split over the seeds and the time of an update. Ingredients that are
settings are switched by them; the others are replaced in the model from here, so that the model itself stays one page.
Rates are the preset's for all, except where the optimizer is another: there several are tried, and the best counts.
With --widths both rates of the preset are halved, kept and doubled at each width (heads of 32 channels): where the rule
of training/optimizers.py holds, the middle column is the lowest, or nearly, in every row."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nanolens.config.fields import Config
from nanolens.config.load import load
from nanolens.data.store import Dataset, open_dataset
from nanolens.model import modern
from nanolens.record.events import Event, StepTaken
from nanolens.training.loop import train

ADAMW_RATES = (1e-3, 2e-3, 4e-3, 8e-3)
RATE_FACTORS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Variant:
    settings: Mapping[str, object]
    instead: Callable[[], AbstractContextManager[object]] = nullcontext


def variants() -> dict[str, Variant]:
    adamw = {
        f"AdamW instead of Muon, rate {rate:g}": Variant(
            {"optimizer": "adamw", "learning_rate": rate, "weight_decay": 0.1}
        )
        for rate in ADAMW_RATES
    }
    gpt2 = {
        f"GPT-2 with AdamW, rate {rate:g}": Variant(
            {"arch": "gpt2", "optimizer": "adamw", "learning_rate": rate, "weight_decay": 0.1}
        )
        for rate in ADAMW_RATES
    }
    return {
        "the recipe": Variant({}),
        "without token shift": Variant({"token_shift": False}),
        "without tables": Variant({"ngram_rows": 0}),
        "without shift and tables": Variant({"token_shift": False, "ngram_rows": 0}),
        "tables of pairs only": Variant({"ngram_order": 2}),
        "tables of pairs and triples": Variant({"ngram_order": 3}),
        "tables up to four": Variant({"ngram_order": 4}),
        "without leaving n-grams out": Variant({"ngram_dropout": 0.0}),
        "without soft-cap": Variant({"softcap": 0.0}),
        "GELU instead of ReLU squared": Variant({}, lambda: patch.object(modern, "relu_squared", F.gelu)),
        "queries and keys not normed": Variant({}, lambda: patch.object(modern, "apply_rotary", rotated_only)),
        "no positions at all": Variant(
            {}, lambda: patch.object(modern, "apply_rotary", lambda x, cos_sin: modern.norm(x))
        ),
        "LayerNorm instead of RMSNorm": Variant(
            {}, lambda: patch.object(modern, "norm", lambda x: F.layer_norm(x, x.shape[-1:]))
        ),
        "projections begin random": Variant({}, lambda: begin_random(("out.weight", "down.weight"))),
        "head begins random": Variant({}, lambda: begin_random(("head.weight",))),
        "q, k and v orthogonalised as one": Variant({}, one_part),
        **adamw,
        **gpt2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="shakespeare-fast")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="variants whose name holds this text")
    parser.add_argument("--widths", help="instead: these widths, each with half, the same and twice the rates")
    given, more = parser.parse_known_args()
    overrides = [tuple(text.removeprefix("--").split("=", 1)) for text in more]
    config = dataclasses.replace(load(given.preset, overrides).config, eval_whole=True, eval_iters=1, sample_interval=0)  # type: ignore[arg-type]
    config = dataclasses.replace(config, eval_interval=config.max_iters)
    dataset = open_dataset(config.dataset)
    print(
        f"{given.preset} {' '.join(more)}: {config.max_iters} updates of {config.tokens_per_update} tokens, "
        f"{given.seeds} seeds"
    )
    if given.widths:
        other_widths(config, dataset, [int(width) for width in given.widths.split(",")], given.seeds)
    else:
        one_by_one(config, dataset, given)


def other_widths(config: Config, dataset: Dataset, widths: list[int], seeds: int) -> None:
    print(f"{'n_embd':>8}" + "".join(f"{f'rates x {factor:g}':>14}" for factor in RATE_FACTORS))
    for width in widths:
        row = []
        for factor in RATE_FACTORS:
            rates = {name: factor * getattr(config, name) for name in ("learning_rate", "matrix_learning_rate")}
            variant = Variant({"n_embd": width, "n_head": max(1, width // 32), **rates})
            row.append(statistics.mean(trained(config, variant, dataset, seed)[0] for seed in range(seeds)))
        print(f"{width:8}" + "".join(f"{loss:14.4f}" for loss in row), flush=True)


def one_by_one(config: Config, dataset: Dataset, given: argparse.Namespace) -> None:
    print(f"{'':44}{'val loss':>10}{'sd':>8}{'worth':>9}{'ms/update':>11}")
    base = None
    for name, variant in variants().items():
        if given.only not in name and name != "the recipe":
            continue
        losses, took = zip(*(trained(config, variant, dataset, seed) for seed in range(given.seeds)), strict=True)
        mean = statistics.mean(losses)
        base = mean if base is None else base
        deviation = statistics.stdev(losses) if len(losses) > 1 else float("nan")
        print(f"{name:44}{mean:10.4f}{deviation:8.4f}{mean - base:+9.4f}{statistics.median(took):11.1f}", flush=True)


def trained(config: Config, variant: Variant, dataset: Dataset, seed: int) -> tuple[float, float]:
    """Loss on the whole val split after the last update, and the median update's milliseconds."""
    took: list[float] = []

    def hear(event: Event) -> None:
        if isinstance(event, StepTaken):
            took.append(event.took_s)

    with tempfile.TemporaryDirectory() as folder, variant.instead():
        changed = dataclasses.replace(config, **variant.settings, seed=1337 + seed, out_dir=folder)  # type: ignore[arg-type]
        outcome = train(changed, dataset, Path(folder, "run"), hear, may_refuse=False)
    if outcome.why != "finished":  # the loop takes a signal as the wish to save and stop
        raise SystemExit(f"{outcome.why}: {outcome.because}")
    return outcome.val_loss, 1000 * float(np.median(took))


def rotated_only(x: Tensor, cos_sin: Tensor) -> Tensor:
    one, other = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos_sin.unbind(-1)
    return torch.stack((one * cos - other * sin, other * cos + one * sin), dim=-1).flatten(-2)


def begin_random(endings: tuple[str, ...]) -> AbstractContextManager[object]:
    build = modern.Modern.__init__

    def built(self: modern.Modern, config: Config, vocab_size: int) -> None:
        build(self, config, vocab_size)
        for name, p in self.named_parameters():
            if name.endswith(endings):
                nn.init.normal_(p, std=p.shape[1] ** -0.5)

    return patch.object(modern.Modern, "__init__", built)


def one_part() -> AbstractContextManager[object]:
    groups = modern.Modern.optimizer_groups

    def unsplit(self: modern.Modern, config: Config) -> list[dict]:
        return [{**group, "parts": 1} for group in groups(self, config)]

    stack = ExitStack()
    stack.enter_context(patch.object(modern.Modern, "optimizer_groups", unsplit))
    return stack


if __name__ == "__main__":
    main()
