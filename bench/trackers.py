"""What a tracker costs a training: `python bench/trackers.py [--rounds=3] [--steps=400] [--with=tensorboard,wandb,trackio]`.

Trains the same small model with a tracker and without one at the same time, each on a core of its own, the tracker on its training's core;
then with the cores exchanged. So whatever else the machine does falls on both. Trackers: a W&B that sleeps 10 seconds in every call, one
that raises in every call, and the libraries themselves where asked. Told is the time from the first update to the last (the tracker's start
is in it), and the median update, against the training without a tracker beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

FAKE = """
import os, time
def trouble():
    if os.environ["FAKE"] == "raises":
        raise ConnectionError("no such project")
    time.sleep(10)
class Settings:
    def __init__(self, **more): self.sync_dir = "somewhere"
class Html:
    def __init__(self, *args, **more): pass
class Run:
    url, settings, summary = "https://example", Settings(), {}
    def log(self, data, step): trouble()
    def finish(self, exit_code): trouble()
def init(**more):
    return Run()
"""
SETTINGS = (
    "--n_layer=3 --n_head=4 --n_embd=128 --block_size=128 --batch_size=8 --gradient_accumulation_steps=1 --eval_interval=100000 "
    "--eval_iters=1 --sample_interval=0 --compile=False --warmup_iters=10 --log_interval=50 --view=lines"
).split()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--with", dest="real", default="")
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("two cores are needed, one for each training")
    with tempfile.TemporaryDirectory(prefix="nanoscope-trackers-") as place:
        root = Path(place)
        (root / "fake").mkdir()
        (root / "fake" / "wandb.py").write_text(FAKE)
        for kind in ["sleeps", "raises", *filter(None, given.real.split(","))]:
            found = [over_none(kind, root / f"{kind}-{round_}", root, given.steps, cores) for round_ in range(given.rounds)]
            for what, ratios in zip(("whole", "median update"), zip(*found, strict=True), strict=True):
                each = ", ".join(f"{ratio - 1:+.2%}" for ratio in ratios)
                print(f"{kind}, {what}: {statistics.median(ratios) - 1:+.2%} over none (rounds: {each})", flush=True)


def over_none(kind: str, folder: Path, root: Path, steps: int, cores: list[int]) -> tuple[float, float]:
    """(whole time, median update) with the tracker over those without, the mean of both ways round on the two cores."""
    ratios = []
    for way, (mine, other) in enumerate((cores, cores[::-1])):
        names = {kind: mine, "none": other}
        running = [started(name, folder / f"{way}-{name}", root, steps, core) for name, core in names.items()]
        if any(process.wait() for process in running):
            raise SystemExit("a training failed; see above")
        with_it, without = (taken_s(folder / f"{way}-{name}") for name in names)
        ratios.append([a / b for a, b in zip(with_it, without, strict=True)])
    whole, usual = (statistics.geometric_mean(each) for each in zip(*ratios, strict=True))
    return whole, usual


def started(kind: str, folder: Path, root: Path, steps: int, core: int) -> subprocess.Popen:
    environment = {**os.environ, "WANDB_MODE": "offline", "TRACKIO_DIR": str(root / "trackio"), "OMP_NUM_THREADS": "1"}
    if kind in ("sleeps", "raises"):
        environment |= {"FAKE": kind, "PYTHONPATH": os.pathsep.join([str(root / "fake"), os.environ.get("PYTHONPATH", "")])}
    tracker = {"none": "none", "sleeps": "wandb", "raises": "wandb"}.get(kind, kind)
    words = ["train", "quickstart", *SETTINGS, f"--max_iters={steps}", f"--lr_decay_iters={steps}"]
    return subprocess.Popen(
        [sys.executable, "-m", "nanoscope", *words, f"--trackers={tracker}", f"--out_dir={folder}"], env=environment,
        stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip


def taken_s(folder: Path) -> tuple[float, float]:
    """From the first update to the last, and the median from one to the next."""
    told = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    at_s = [event["at_s"] for event in told if event["event"] == "step_taken"]
    return at_s[-1] - at_s[0], statistics.median(later - earlier for earlier, later in itertools.pairwise(at_s))


if __name__ == "__main__":
    main()
