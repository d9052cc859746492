"""Peak resident memory and step time of GPT-2 124M on a CPU: nanoGPT's model and update beside ours.

    python bench/memory.py --nanogpt PATH [--steps 2] [--batch_size 4] [--block_size 1024] [--n_layer 12] [--n_head 12]
        [--n_embd 768]

Each side runs in a process of its own, on the same random tokens; the peak is the operating system's (ru_maxrss), torch
and all."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

VOCAB = 50304
DEFAULTS = {"steps": 2, "batch_size": 4, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768, "threads": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT; without it only our side runs")
    for name, default in (
        ("steps", 2),
        ("batch_size", 4),
        ("block_size", 1024),
        ("n_layer", 12),
        ("n_head", 12),
        ("n_embd", 768),
        ("threads", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--side", choices=("nanogpt", "nanolens"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(json.dumps(nanogpt_side(given) if given.side == "nanogpt" else our_side(given)))
        return
    found = {side: run(side) for side in (["nanogpt"] if given.nanogpt else []) + ["nanolens"]}
    show(found)


def run(side: str) -> dict[str, float]:
    print(f"running {side} ...", file=sys.stderr, flush=True)
    command = [sys.executable, __file__, *sys.argv[1:], f"--side={side}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def show(found: dict[str, dict[str, float]]) -> None:
    print(f"{'':12}{'parameters':>14}{'peak resident':>16}{'step':>10}{'loss':>10}")
    for side, seen in found.items():
        print(
            f"{side:12}{seen['parameters']:>14,}{seen['peak_bytes'] / 1e9:>13.2f} GB{seen['step_s']:>8.1f} "
            f"s{seen['loss']:>10.4f}"
        )
    if len(found) == 2:
        theirs, ours = found["nanogpt"], found["nanolens"]
        memory, took = ours["peak_bytes"] / theirs["peak_bytes"], ours["step_s"] / theirs["step_s"]
        print(f"memory: {memory:.1%} of nanoGPT's; time: {took:.1%} of nanoGPT's")


def measured(step, parameters: int, steps: int) -> dict[str, float]:
    """The fastest of `steps` steps, and the peak over all of them."""
    times, loss = [], 0.0
    for _ in range(steps):
        started_at_s = time.perf_counter()
        loss = step()
        times.append(time.perf_counter() - started_at_s)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"parameters": parameters, "peak_bytes": peak, "step_s": min(times), "loss": loss}


def nanogpt_side(given: argparse.Namespace) -> dict[str, float]:
    sys.path.insert(0, str(given.nanogpt))
    sys.stdout, report = sys.stderr, sys.stdout  # nanoGPT prints; the last line must be ours
    import torch
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    if given.threads:
        torch.set_num_threads(given.threads)
    torch.manual_seed(1337)
    shape = {"n_layer": given.n_layer, "n_head": given.n_head, "n_embd": given.n_embd, "block_size": given.block_size}
    model = GPT(GPTConfig(vocab_size=VOCAB, bias=False, dropout=0.0, **shape))
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cpu")
    tokens = torch.randint(VOCAB, (2, given.batch_size, given.block_size), generator=torch.Generator().manual_seed(0))

    def step() -> float:
        _, loss = model(tokens[0], tokens[1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    seen = measured(step, sum(p.numel() for p in model.parameters()), given.steps)
    sys.stdout = report
    return seen


def our_side(given: argparse.Namespace) -> dict[str, float]:
    import numpy as np

    from nanolens.config.fields import Config
    from nanolens.data.store import Dataset
    from nanolens.training.begin import Beginning
    from nanolens.training.setup import set_up
    from nanolens.training.state import Clock
    from nanolens.training.step import take_update

    config = Config(
        n_layer=given.n_layer,
        n_head=given.n_head,
        n_embd=given.n_embd,
        block_size=given.block_size,
        batch_size=given.batch_size,
        gradient_accumulation_steps=1,
        vocab_size=VOCAB,
        device="cpu",
        dtype="float32",
        compile=False,
        threads=given.threads or None,
    )
    tokens = np.random.default_rng(0).integers(0, VOCAB, 4 * given.batch_size * given.block_size).astype(np.uint16)
    data = Dataset("random", Path(os.devnull), tokens, tokens, VOCAB, None, {})
    workshop = set_up(config, data, Beginning(None, False, None, ()), lambda event: None, None)
    trainee, clock = workshop.trainee, Clock()
    count = sum(p.numel() for p in trainee.model.parameters())
    return measured(
        lambda: take_update(trainee, config, workshop.machine, clock, lambda: None).loss, count, given.steps
    )


if __name__ == "__main__":
    main()
