"""What a tracker costs a training: `python bench/trackers.py [--rounds=6] [--steps=150] [--with=tensorboard,wandb,trackio]`.

Trains the same small model in turns: without a tracker, with a W&B that sleeps 10 seconds in every call, with one that raises in every
call, and with the libraries themselves where asked. A round has each of them once, in an order that rotates. Told is the time from one
update to the next (evaluations left out), against the run without a tracker of the same round.
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
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--with", dest="real", default="")
    given = parser.parse_args()
    kinds = ["none", "sleeps", "raises", *filter(None, given.real.split(","))]
    took_ms: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="nanoscope-trackers-") as place:
        root = Path(place)
        (root / "fake").mkdir()
        (root / "fake" / "wandb.py").write_text(FAKE)
        for round_ in range(given.rounds):
            for kind in kinds[round_ % len(kinds) :] + kinds[: round_ % len(kinds)]:
                took_ms[kind].append(one(kind, root / f"{kind}-{round_}", root, given.steps))
                print(f"round {round_}: {kind} {took_ms[kind][-1]:.3f} ms", file=sys.stderr, flush=True)
    none = took_ms["none"]
    for kind in kinds:
        extra = [mine / theirs - 1 for mine, theirs in zip(took_ms[kind], none, strict=True)]
        found = {
            "tracker": kind, "median_ms": round(statistics.median(took_ms[kind]), 3), "rounds": given.rounds, "steps": given.steps,
            "over_none": round(statistics.median(extra), 5), "over_none_of_each_round": [round(each, 4) for each in extra],
        }  # fmt: skip
        print(json.dumps(found))


def one(kind: str, folder: Path, root: Path, steps: int) -> float:
    """Median milliseconds from one update to the next."""
    environment = {**os.environ, "WANDB_MODE": "offline", "TRACKIO_DIR": str(root / "trackio")}
    if kind in ("sleeps", "raises"):
        environment |= {"FAKE": kind, "PYTHONPATH": os.pathsep.join([str(root / "fake"), os.environ.get("PYTHONPATH", "")])}
    tracker = {"none": "none", "sleeps": "wandb", "raises": "wandb"}.get(kind, kind)
    words = [
        "train",
        "quickstart",
        *SETTINGS,
        f"--max_iters={steps}",
        f"--lr_decay_iters={steps}",
        f"--trackers={tracker}",
        f"--out_dir={folder}",
    ]
    subprocess.run([sys.executable, "-m", "nanoscope", *words], env=environment, check=True, stdout=subprocess.DEVNULL)
    told = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    at_s = [event["at_s"] for event in told if event["event"] == "step_taken"]
    return 1000 * statistics.median(later - earlier for earlier, later in itertools.pairwise(at_s[10:]))


if __name__ == "__main__":
    main()
