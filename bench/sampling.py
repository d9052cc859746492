"""How fast text is written, nanoGPT and nanolens taking turns on this machine: random weights, since speed does not
depend on them.

    python bench/sampling.py --nanogpt PATH [--turns=3] [--threads=2] [--only=demo|124m] [--whole]

`demo` is the model of nanoGPT's CPU demo writing 4 texts of 500 characters, as its sample.py does (one after another)
and as `nanolens sample --num_samples=4` does (together), from one character, temperature 0.8, top_k 200. `124m` is
GPT-2's shape writing 200 tokens after a prompt of 512. Building the model is not counted, reading the prompt is.
nanoGPT reads the whole window anew for each token, so that its time for a token grows with the place alone: for 124m
its first and last 20 of the 200 tokens are timed and the mean is taken for all, unless --whole has it write them all.
Each measurement is a process of its own, after one short text to warm up."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TASKS: dict[str, dict[str, Any]] = {
    "demo": {
        "shape": {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64},
        "vocab": 65,
        "texts": 4,
        "prompt": 1,
        "new": 500,
    },
    "124m": {
        "shape": {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024},
        "vocab": 50304,
        "texts": 1,
        "prompt": 512,
        "new": 200,
    },
}
ENDS = 20  # tokens of nanoGPT's that are timed at each end of a long text
TASTE = {"temperature": 0.8, "top_k": 200}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=tuple(TASKS))
    parser.add_argument(
        "--whole", action="store_true", help="have nanoGPT write all 200 tokens of 124m (three minutes a turn)"
    )
    parser.add_argument("--measure", nargs=2, metavar=("WHO", "TASK"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        who, task = given.measure
        print(
            json.dumps(
                nanogpts(given.nanogpt, TASKS[task], given.whole) if who == "nanoGPT" else ours(who, TASKS[task])
            )
        )
        return
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    print(f"{'':8}{'':10}{'turn':>5}{'tokens/s':>11}{'seconds':>10}")
    for task in [given.only] if given.only else list(TASKS):
        seen: dict[str, list[float]] = {"nanoGPT": [], "gpt2": [], "modern": []}
        for turn in range(1, given.turns + 1):
            for who, took in seen.items():
                took.append(measured(given, who, task))
                count = TASKS[task]["texts"] * TASKS[task]["new"]
                print(f"{task:8}{who:10}{turn:5}{count / took[-1]:11.1f}{took[-1]:10.2f}", flush=True)
        for who in ("gpt2", "modern"):
            ratios = [theirs / own for theirs, own in zip(seen["nanoGPT"], seen[who], strict=True)]
            print(
                f"{task}: arch={who} is {statistics.median(ratios):.1f} x as fast as nanoGPT ({min(ratios):.1f} to "
                f"{max(ratios):.1f})"
            )


def measured(given: argparse.Namespace, who: str, task: str) -> float:
    words = [
        sys.executable,
        __file__,
        "--nanogpt",
        str(given.nanogpt),
        "--measure",
        who,
        task,
        *(["--whole"] if given.whole else []),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])["seconds"]


def nanogpts(path: Path, task: dict[str, Any], whole: bool) -> dict[str, float]:
    sys.path.insert(0, str(path))
    import torch
    from model import GPT, GPTConfig  # type: ignore[import-not-found]  # nanoGPT's own

    torch.manual_seed(0)
    model = GPT(GPTConfig(**task["shape"], vocab_size=task["vocab"], bias=False, dropout=0.0)).eval()

    def seconds(length: int, new: int) -> float:
        prompt = torch.randint(task["vocab"], (1, length))
        started_at_s = time.perf_counter()
        with torch.no_grad():
            model.generate(prompt, new, **TASTE)
        return time.perf_counter() - started_at_s

    seconds(8, 8)
    if whole or task["new"] > 200:
        return {"seconds": sum(seconds(task["prompt"], task["new"]) for _ in range(task["texts"]))}
    both = seconds(task["prompt"], ENDS) + seconds(task["prompt"] + task["new"] - ENDS, ENDS)
    return {"seconds": both / (2 * ENDS) * task["new"] * task["texts"]}


def ours(arch: str, task: dict[str, Any]) -> dict[str, float]:
    import torch

    from nanolens.config.fields import Config
    from nanolens.model import build
    from nanolens.model.generate import SamplingParams, generate

    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    config = Config(arch=arch, **task["shape"])
    model = build(config, task["vocab"]).eval()
    generate(model, config, torch.randint(task["vocab"], (1, 8)), 8, sampling=SamplingParams(**TASTE))
    prompt = torch.randint(task["vocab"], (task["texts"], task["prompt"]))
    started_at_s = time.perf_counter()
    generate(model, config, prompt, task["new"], sampling=SamplingParams(**TASTE))
    return {"seconds": time.perf_counter() - started_at_s}


if __name__ == "__main__":
    main()
