"""`modern` against `gpt2` on GPT-2 tokens of real text, at equal FLOPs, gpt2 with the best learning rate of a sweep.

    python bench/bpe.py [--seeds=3] [--updates=150] [--only=gpt2|modern|plain] [--losses=FILE.json] [--key=value ...]

The text is what Python's documentation says (the corpus `pydocs`, 1.7 MB) in GPT-2's 50,257 tokens; of its last tenth,
val, 16,384 tokens are evaluated, the same for all. FLOPs are those of the model (nanolens/sizing/shape.py), forward and
backward, and of Muon's Newton-Schulz steps, which `gpt2` with AdamW does not have: it gets as many more updates as they
cost. gpt2's rate is swept with the first seed; the best is then run with all seeds. modern has the rates of the preset
`quickstart`, which were not tuned on this text; `plain` is modern without token shift and tables."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
from pathlib import Path

from nanolens.cli import main as nanolens
from nanolens.config.fields import Config
from nanolens.config.load import load
from nanolens.data.store import Dataset, open_folder
from nanolens.sizing.memory import padded_vocab
from nanolens.sizing.shape import flops_per_token, shape_of
from nanolens.training.loop import train
from nanolens.training.optimizers import NEWTON_SCHULZ_STEPS

SHAPE = {
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 96,
    "block_size": 64,
    "batch_size": 8,
    "gradient_accumulation_steps": 1,
    "dropout": 0.0,
}
VAL_TOKENS = 16_384  # at 50,257 logits each, more would take longer than the training
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--only", choices=("gpt2", "modern", "plain"))
    parser.add_argument(
        "--losses", type=Path, help="a JSON file of losses so far, read and written: one part can follow another"
    )
    parser.add_argument(
        "--data", type=Path, help="where the tokens are, or are to be kept; a temporary folder if not given"
    )
    given, more = parser.parse_known_args()
    changes = [tuple(word.removeprefix("--").split("=", 1)) for word in more]
    with tempfile.TemporaryDirectory() as folder:
        tokens = given.data or Path(folder, "tokens")
        if not tokens.is_dir():
            assert nanolens(["prepare", "pydocs", "--tokenizer=gpt2", f"--out={tokens}"]) == 0
        dataset = open_folder(tokens)
        compare(dataclasses.replace(dataset, val=dataset.val[: VAL_TOKENS + 1]), given, changes)


def compare(dataset: Dataset, given: argparse.Namespace, changes: list[tuple[str, ...]]) -> None:
    modern = configured(
        {"arch": "modern", "optimizer": "muon", "weight_decay": 0.0, "beta1": 0.8, "beta2": 0.95},
        given.updates,
        changes,
    )
    gpt2 = configured(
        {"arch": "gpt2", "optimizer": "adamw", "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0},
        given.updates,
        changes,
    )
    vocab = padded_vocab(dataset.vocab_size)
    updates = round(given.updates * flops_of_update(modern, vocab) / flops_of_update(gpt2, vocab))
    gpt2 = dataclasses.replace(
        gpt2, max_iters=updates, eval_interval=updates, schedule="cosine", warmup_iters=updates // 10
    )
    print(
        f"{len(dataset.train):,} tokens to train on, {len(dataset.val):,} to validate; {gpt2.tokens_per_update} "
        f"tokens an update; "
        f"{given.updates} updates of modern cost as much as {updates} of gpt2: "
        f"{given.updates * flops_of_update(modern, vocab):.2e} FLOP"
    )
    losses: dict[str, list[float]] = (
        json.loads(given.losses.read_text()) if given.losses and given.losses.is_file() else {}
    )
    if given.only in (None, "modern"):
        losses["modern"] = seeds("modern", modern, dataset, given.seeds)
    if given.only in (None, "plain"):
        plain = dataclasses.replace(modern, token_shift=False, ngram_rows=0)
        losses["plain"] = seeds("modern without shift and tables", plain, dataset, given.seeds)
    if given.only in (None, "gpt2"):
        losses["gpt2"] = swept(gpt2, dataset, given.seeds)
    if given.losses:
        given.losses.write_text(json.dumps(losses))
    for name in ("modern", "plain"):
        if name in losses and "gpt2" in losses and given.seeds > 1:
            print(f"{name} against gpt2: {difference(losses['gpt2'], losses[name])}")


def configured(settings: dict[str, object], updates: int, changes: list[tuple[str, ...]]) -> Config:
    base = load("quickstart", changes).config  # type: ignore[arg-type]
    given = {key for key, *_ in changes}
    kept = {key: value for key, value in SHAPE.items() if key not in given}
    return dataclasses.replace(
        base,
        **kept,
        **settings,
        max_iters=updates,
        eval_interval=updates,
        eval_whole=True,
        eval_iters=1,
        sample_interval=0,
    )  # type: ignore[arg-type]


def flops_of_update(config: Config, vocab_size: int) -> float:
    model = flops_per_token(shape_of(config, vocab_size)).training * config.tokens_per_update
    return model + (newton_schulz_flops(config) if config.optimizer == "muon" else 0.0)


def newton_schulz_flops(config: Config) -> float:
    """Each step has three products: n x m by m x n, n x n by n x n, n x n by n x m."""

    def of(n: int, m: int) -> float:
        return NEWTON_SCHULZ_STEPS * 2.0 * (2 * n * n * m + n**3)

    d = config.n_embd
    return config.n_layer * (4 * of(d, d) + 2 * of(d, 4 * d))


def swept(config: Config, dataset: Dataset, count: int) -> list[float]:
    best: tuple[float, float] = (math.inf, 0.0)
    for rate in RATES:
        loss = trained(dataclasses.replace(config, learning_rate=rate, min_lr=rate / 10), dataset, 1337)
        print(f"gpt2, rate {rate:g}: {loss:.4f}", flush=True)
        best = min(best, (loss, rate))
    chosen = dataclasses.replace(config, learning_rate=best[1], min_lr=best[1] / 10)
    return [best[0], *(seeds(f"gpt2, rate {best[1]:g}", chosen, dataset, count, first=1))]


def seeds(name: str, config: Config, dataset: Dataset, count: int, first: int = 0) -> list[float]:
    losses = []
    for seed in range(first, count):
        losses.append(trained(config, dataset, 1337 + seed))
        print(f"{name}, seed {1337 + seed}: {losses[-1]:.4f}", flush=True)
    return losses


def difference(gpt2: list[float], other: list[float]) -> str:
    gain = statistics.mean(gpt2) - statistics.mean(other)
    error = math.sqrt(sum(statistics.variance(losses) / len(losses) for losses in (gpt2, other)))
    return f"{gain:.4f} nats lower, {gain / error:.1f} standard errors (of {error:.4f})"


def trained(config: Config, dataset: Dataset, seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        outcome = train(
            dataclasses.replace(config, seed=seed, out_dir=str(run)), dataset, run, lambda event: None, may_refuse=False
        )
    if outcome.why != "finished":  # the loop takes a signal as the wish to save and stop
        raise SystemExit(f"{outcome.why}: {outcome.because}")
    return outcome.val_loss


if __name__ == "__main__":
    main()
