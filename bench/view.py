"""What the live view costs the training: one run, the view switched on and off by turns, step times compared.

    python bench/view.py [--seconds=60] [--preset=quickstart]

Turns of two seconds, so that whatever else the machine does falls on both alike. The view draws 120 x 40 characters
that nobody reads."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

TURN_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--preset", default="quickstart")
    given = parser.parse_args()
    from nanolens.session.job import plan_job, run_job

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = [
            ("out_dir", str(run)),
            ("max_iters", "1000000"),
            ("eval_interval", "1000000"),
            ("sample_interval", "0"),
        ]
        turns = Turns(given.seconds, run)
        run_job(plan_job(given.preset, settings), lambda progress, where: [turns.view(progress)])
    report(turns)


class Turns:
    """Listens to the steps, and lets the view draw in every other turn."""

    name = "turns"
    poll_s = 0.25
    patience_s = 5.0

    def __init__(self, seconds: float, run: Path):
        self.seconds, self.run = seconds, run
        self.steps: list[tuple[float, float]] = []
        self.spent_s = 0.0
        self.started_at_s = 0.0

    def view(self, progress):
        from rich.console import Console

        from nanolens.show.live import LiveView

        nowhere = open(os.devnull, "w")  # noqa: SIM115 - open for as long as the view draws
        self.live = LiveView(progress, Console(file=nowhere, force_terminal=True, width=120, height=40))
        return self

    def __call__(self, event) -> None:
        from nanolens.record import STOP_FILE
        from nanolens.record.events import StepTaken

        self.live(event)
        if isinstance(event, StepTaken):
            self.started_at_s = self.started_at_s or event.at_s
            self.steps.append((event.at_s, event.took_s))
            if event.at_s - self.started_at_s > self.seconds:
                (self.run / STOP_FILE).touch()

    def tick(self) -> None:
        if self.started_at_s and self.is_on(time.time()):
            started_s = time.thread_time()
            self.live.tick()
            self.spent_s += time.thread_time() - started_s

    def close(self) -> None:
        self.live.close()

    def is_on(self, at_s: float) -> bool:
        return int((at_s - self.started_at_s) / TURN_S) % 2 == 1


def report(turns: Turns) -> None:
    """Each pair of turns gives one ratio; their median is what the view costs."""
    by_turn: dict[int, list[float]] = {}
    for at_s, took_s in turns.steps[10:]:
        by_turn.setdefault(int((at_s - turns.started_at_s) / TURN_S), []).append(took_s)
    ratios = [
        statistics.mean(by_turn[k + 1]) / statistics.mean(by_turn[k])
        for k in sorted(by_turn)
        if k % 2 == 0 and k + 1 in by_turn
    ]
    drawn_s = sum(took for at, took in turns.steps if turns.is_on(at))
    print(f"{len(turns.steps)} steps, {len(ratios)} pairs of turns")
    print(
        f"drawing took {turns.spent_s:.3f} s of CPU time within {drawn_s:.1f} s of training: "
        f"{turns.spent_s / drawn_s:.2%} of one core"
    )
    spread = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    print(
        f"step time with the view / without: median {statistics.median(ratios):.4f}, mean "
        f"{statistics.mean(ratios):.4f} ± {spread:.4f}"
    )


if __name__ == "__main__":
    main()
