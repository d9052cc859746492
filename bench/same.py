"""The same arithmetic, nanoGPT's train.py and `nanolens train` with arch=gpt2 taking turns: tokens per second.

    NANOLENS_DATA=FOLDER python bench/same.py --nanogpt PATH [--turns=3] [--threads=2] [--only=demo|124m]

`demo` is nanoGPT's CPU demo (4 x 4 x 128, block 64, batch 12) for 400 iterations, `124m` GPT-2's shape with block 1024
and batch 1 on random tokens for 4. For both the time of an iteration is the median wall time from one to the next,
whatever happens in between (nanoGPT prints each, nanolens records each); nanolens runs as a user would run it, with the
settings of nanoGPT."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from recipe import prepare_nanogpt, spread

SHAPES = {
    "demo": {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "batch_size": 12},
    "124m": {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "batch_size": 1},
}
ITERATIONS = {"demo": 400, "124m": 4}
RANDOM_TOKENS = 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=tuple(SHAPES))
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        theirs = prepare_nanogpt(Path(folder, "nanogpt"), given.nanogpt)
        draw_tokens(theirs / "data" / "random")
        for task in [given.only] if given.only else list(SHAPES):
            compare(task, theirs, given.turns)


def compare(task: str, folder: Path, turns: int) -> None:
    tokens = SHAPES[task]["batch_size"] * SHAPES[task]["block_size"]
    ratios = []
    for turn in range(1, turns + 1):
        theirs_s, ours_s = nanogpts(task, folder), ours(task, folder)
        ratios.append(theirs_s / ours_s)
        print(
            f"{task}, turn {turn}: nanoGPT {1000 * theirs_s:.1f} ms an iteration ({tokens / theirs_s:.0f} tokens/s), "
            f"nanolens {1000 * ours_s:.1f} ms ({tokens / ours_s:.0f} tokens/s)",
            flush=True,
        )
    print(f"{task}: nanolens is {spread(ratios, '.3f')} x as fast")


def options(task: str) -> list[str]:
    count = ITERATIONS[task]
    of_the_run = {
        "device": "cpu",
        "compile": False,
        "dtype": "float32",
        "dropout": 0.0,
        "gradient_accumulation_steps": 1,
        "max_iters": count,
        "lr_decay_iters": count,
        "warmup_iters": 1,
        "eval_interval": 10 * count,
        "eval_iters": 1,
        "log_interval": 1,
        "bias": False,
        "always_save_checkpoint": False,
        "dataset": "shakespeare_char" if task == "demo" else "random",
    }
    return [f"--{key}={value}" for key, value in {**SHAPES[task], **of_the_run}.items()]


def nanogpts(task: str, folder: Path) -> float:
    words = [sys.executable, "train.py", *options(task), "--out_dir=theirs"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    times = [float(ms) / 1000 for ms in re.findall(r"^iter \d+: .*time ([\d.]+)ms", done.stdout, re.M)]
    return statistics.median(times[1:])  # the first holds the evaluation


def ours(task: str, folder: Path) -> float:
    from nanolens.record.read import read_run

    run = folder / "ours"
    shutil.rmtree(run, ignore_errors=True)
    words = [
        sys.executable,
        "-m",
        "nanolens",
        "train",
        "gpt2-124m",
        *options(task),
        f"--out_dir={run}",
        "--sample_interval=0",
    ]
    subprocess.run([*words, "--data_order=nanogpt"], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return float(np.median(np.diff(read_run(run).steps.at_s)))


def draw_tokens(folder: Path) -> None:
    folder.mkdir(parents=True)
    for split in ("train", "val"):
        np.random.default_rng(0).integers(0, 50257, RANDOM_TOKENS).astype(np.uint16).tofile(folder / f"{split}.bin")


if __name__ == "__main__":
    main()
