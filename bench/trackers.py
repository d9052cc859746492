"""What a tracker costs a training: `python bench/trackers.py [--preset=quickstart] [--with=tensorboard,wandb,trackio]`.

Runs the preset with a W&B that sleeps 10 seconds in every call, with one that raises in every call, and with the
libraries themselves where asked. Told is all the processor time that the tracker took while the training went on: that
of its process, and of its listener in the training's process, as a share of the training's wall time. That is more than
it can have cost, for it counts as if the training had been able to use every one of these moments; two runs compared by
the clock differ by several percent without any tracker on a machine like ours."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
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
# The training's own command, with a clock around the tracker's listener.
TRAINING = """
import sys, time
from nanolens.trackers.live import Tracking
from nanolens.cli import main
spent_s = 0.0
def timed(method):
    def call(*given):
        global spent_s
        started = time.thread_time()
        try:
            return method(*given)
        finally:
            spent_s += time.thread_time() - started
    return call
Tracking.tick, Tracking.__call__ = timed(Tracking.tick), timed(Tracking.__call__)
code = main(sys.argv[1:])
print("listener", spent_s, file=sys.stderr)
sys.exit(code)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="quickstart")
    parser.add_argument("--with", dest="real", default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nanolens-trackers-") as place:
        root = Path(place)
        (root / "fake").mkdir()
        (root / "fake" / "wandb.py").write_text(FAKE)
        for kind in ["sleeps", "raises", *filter(None, given.real.split(","))]:
            told(kind, given.preset, root)


def told(kind: str, preset: str, root: Path) -> None:
    environment = {**os.environ, "WANDB_MODE": "offline", "TRACKIO_DIR": str(root / "trackio")}
    if kind in ("sleeps", "raises"):
        environment |= {
            "FAKE": kind,
            "PYTHONPATH": os.pathsep.join([str(root / "fake"), os.environ.get("PYTHONPATH", "")]),
        }
    tracker, folder = {"sleeps": "wandb", "raises": "wandb"}.get(kind, kind), root / kind
    words = ["train", preset, f"--trackers={tracker}", f"--out_dir={folder}", "--view=lines"]
    training = subprocess.Popen(
        [sys.executable, "-c", TRAINING, *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen_s: dict[int, float] = {}
    watcher = threading.Thread(target=watch, args=(training, seen_s))
    watcher.start()
    _, errors = training.communicate()
    watcher.join()
    if training.returncode:
        raise SystemExit(errors)
    listener_s = float(errors.rsplit("listener", 1)[1])
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    at_s = {event["event"]: event["at_s"] for event in events}
    wall_s = at_s["run_ended"] - at_s["run_started"]
    share = (sum(seen_s.values()) + listener_s) / wall_s
    print(
        f"{kind}: process {sum(seen_s.values()):.2f} s, listener {listener_s:.3f} s, training {wall_s:.1f} s: "
        f"{share:.2%}",
        flush=True,
    )


def watch(training: subprocess.Popen, seen_s: dict[int, float]) -> None:
    """Processor time of all that the training starts, until it ends."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    while training.poll() is None:
        for pid in below(training.pid):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            seen_s[pid] = (int(fields[11]) + int(fields[12])) * tick_s
        time.sleep(0.2)


def below(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in path.read_text().split()]
        except OSError:
            continue
        found += children + [each for child in children for each in below(child)]
    return found


if __name__ == "__main__":
    main()
