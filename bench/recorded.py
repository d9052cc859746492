"""Records the runs that bench/forecast.py and bench/compare_noise.py look at: many small ones, each trained by the
project's own loop.

    python bench/recorded.py forecast FOLDER [--seconds=N]      24 runs, four schedules, two corpora, both architectures
    python bench/recorded.py tuning FOLDER               40 others, on which the constants of the forecast may be chosen
    python bench/recorded.py seeds FOLDER                         30 runs: three configs, ten seeds each
    python bench/recorded.py other-seeds FOLDER                  the same with ten seeds on which no constant was chosen

Runs that are there already are left alone, so it can be stopped and started again, and several processes may share the
work: a run that another one is making is left to it. With `--seconds` no run is begun when they are over."""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SCHEDULES = {
    "cosine": {"schedule": "cosine"},
    "linear": {"schedule": "linear"},
    "wsd": {"schedule": "wsd", "decay_frac": 0.2},
    "constant": {"schedule": "wsd", "decay_frac": 0.0},
}
SIZES = (  # layers, heads, width, context, sequences, updates, learning rate
    (1, 2, 64, 32, 16, 1800, 2.5e-3),
    (2, 4, 64, 48, 16, 1260, 3e-3),
)
MODERN = (1, 2, 64, 48, 16, 720, 4e-3)
TUNING_SIZES = (
    (1, 2, 48, 32, 16, 1440, 3e-3),
    (2, 2, 64, 64, 12, 1080, 2e-3),
    (1, 4, 96, 48, 16, 1260, 1.5e-3),
    (2, 2, 48, 48, 12, 900, 2.5e-3),
)
TUNING_MODERN = (2, 2, 64, 64, 12, 720, 4e-3)
SEED_SIZES = ((1, 2, 48, 32, 16, 720, 3e-3), (2, 2, 64, 64, 12, 540, 2e-3), (1, 4, 96, 48, 16, 900, 1.5e-3))
SEEDS = 10
EVALUATIONS = 36  # of a forecast run; of the seeds' runs a third


@dataclass(frozen=True)
class Spec:
    name: str
    settings: dict[str, object]


def forecast_specs() -> Iterator[Spec]:
    yield from _specs(SIZES, MODERN, seed=21)


def tuning_specs() -> Iterator[Spec]:
    """Other sizes, lengths and seeds than those of `forecast_specs`."""
    yield from _specs(TUNING_SIZES, TUNING_MODERN, seed=11)


def _specs(sizes: Sequence[tuple], modern: tuple, seed: int) -> Iterator[Spec]:
    for corpus in ("shakespeare_char", "pydocs"):
        for name, schedule in SCHEDULES.items():
            for size in sizes:
                yield spec(f"{corpus}-{_word(size)}-{name}", size, corpus, schedule, seed)
            with_muon = {**schedule, "arch": "modern", "optimizer": "muon", "ngram_rows": 512}
            yield spec(f"{corpus}-modern-{_word(modern)}-{name}", modern, corpus, with_muon, seed + 1)


def seed_specs(first: int = 0) -> Iterator[Spec]:
    for seed in range(first, first + SEEDS):
        for size in SEED_SIZES:
            yield spec(f"{_word(size)}-seed-{seed:02d}", size, "shakespeare_char", SCHEDULES["cosine"], seed)


def spec(name: str, size: tuple, corpus: str, schedule: dict[str, object], seed: int) -> Spec:
    layers, heads, width, context, sequences, updates, rate = size
    least = rate if schedule.get("decay_frac") == 0.0 else rate / 10
    return Spec(
        name,
        {
            "dataset": corpus,
            "arch": "gpt2",
            "optimizer": "adamw",
            "n_layer": layers,
            "n_head": heads,
            "n_embd": width,
            "block_size": context,
            "batch_size": sequences,
            "gradient_accumulation_steps": 1,
            "max_iters": updates,
            "lr_decay_iters": updates,
            "warmup_iters": updates // 20,
            "learning_rate": rate,
            "min_lr": least,
            "beta2": 0.99,
            "dropout": 0.0,
            "eval_interval": updates // EVALUATIONS,
            "eval_iters": 24,
            "sample_interval": 0,
            "checkpoint_interval": updates,
            "keep_checkpoints": 1,
            "compile": False,
            "seed": seed,
            "device": "cpu",
            **schedule,
        },
    )


def _word(size: tuple) -> str:
    return f"{size[0]}x{size[2]}-t{size[3]}"


def record(folder: Path, specs: Iterator[Spec], seconds: float) -> None:
    """By the loop itself, without views and without a diagnosis at the end."""
    until_s = time.monotonic() + seconds
    from nanolens.config.fields import as_text
    from nanolens.config.load import load
    from nanolens.data.store import open_dataset
    from nanolens.record import is_run
    from nanolens.record.read import read_run
    from nanolens.record.write import Recorder
    from nanolens.training.loop import train

    every = list(specs)
    random.Random(0).shuffle(every)  # whatever is there when it is stopped is a fair sample
    folder.mkdir(parents=True, exist_ok=True)
    for each in every:
        out = folder / each.name
        if time.monotonic() > until_s:
            return
        claim = open(folder / f".{each.name}.lock", "w")  # noqa: SIM115  held until the run is finished
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        if is_run(out) and read_run(out).get("state") == "finished":
            continue
        settings = load(
            "shakespeare-char-cpu",
            [(key, as_text(value)) for key, value in {**each.settings, "overwrite": True}.items()],
        )
        recorder = Recorder(out)
        outcome = train(
            settings.config, open_dataset(settings.config.dataset), out, recorder, came_from=settings.came_from
        )
        recorder.close()
        claim.close()
        print(each.name, f"val {outcome.val_loss:.4f}", f"{outcome.wall_s:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(WHAT))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # models so small gain nothing from a second core
    record(given.folder, WHAT[given.what](), given.seconds)


WHAT = {
    "forecast": forecast_specs,
    "tuning": tuning_specs,
    "seeds": seed_specs,
    "other-seeds": lambda: seed_specs(first=SEEDS),
}


if __name__ == "__main__":
    sys.exit(main())
