"""What checkpointing costs: nanoGPT's CPU demo with a checkpoint every 100 steps.

    NANOLENS_DATA=FOLDER python bench/stall.py [--max_iters 500] [--interval 100]

Counted: the time that the loop stood still, plus the CPU time of the thread that wrote, over the whole wall time of the
run."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from nanolens.config.load import load
from nanolens.data.store import open_dataset
from nanolens.record.events import CheckpointSaved, Event, StepTaken
from nanolens.record.write import Recorder
from nanolens.training.loop import train

ALLOWED = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max_iters", type=int, default=500)
    parser.add_argument("--interval", type=int, default=100)
    parser.add_argument("--dataset", default="shakespeare_char")
    given = parser.parse_args()
    saves: list[CheckpointSaved] = []
    steps: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, CheckpointSaved):
            saves.append(event)
        elif isinstance(event, StepTaken):
            steps.append(event.took_s)

    config = replace(
        load("shakespeare-char-cpu", []).config,
        max_iters=given.max_iters,
        lr_decay_iters=given.max_iters,
        checkpoint_interval=given.interval,
        eval_interval=given.max_iters,
        sample_interval=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        recorder = Recorder(run)
        outcome = train(config, open_dataset(given.dataset), run, lambda event: listen(recorder(event)))
        recorder.close()
    stall_s, thread_s = outcome.parts["checkpoint"], sum(save.cpu_s for save in saves)
    print(f"{len(saves)} checkpoints of {saves[-1].bytes / 1e6:.1f} MB over {len(steps)} steps, {outcome.wall_s:.1f} s")
    print(
        f"the loop stood still {stall_s:.3f} s (copies {sum(s.stall_s for s in saves):.3f} s, the rest waiting at "
        f"the start and the end)"
    )
    print(f"the writing thread used {thread_s:.3f} s of CPU ({thread_s / len(saves) * 1000:.0f} ms a checkpoint)")
    share = (stall_s + thread_s) / outcome.wall_s
    print(f"{'yes' if share < ALLOWED else 'NO ':4}together {share:.2%} of the wall time (allowed: {ALLOWED:.0%})")
    return 0 if share < ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
