"""Records where a preset's run should be at each step: its val loss over several seeds, written into the preset itself.

    NANOLENS_DATA=FOLDER python bench/curves.py shakespeare-char-cpu [--seeds=4] [--points=10] [--runs=FOLDER] [--write]

Each seed changes the weights at the start and the order of the text. The evaluation is the preset's own, on as many
batches as a user's run has, so that the band holds what a user will see and not only what the seeds do. With `--runs`
finished runs are kept and found again."""

from __future__ import annotations

import argparse
import re
import tempfile
from importlib import resources
from pathlib import Path

import numpy as np

from nanolens.config.fields import as_text
from nanolens.config.load import load
from nanolens.data.store import open_dataset
from nanolens.record import is_run
from nanolens.record.read import read_run
from nanolens.record.write import Recorder
from nanolens.training.loop import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        every = [
            curve_of(given.preset, seed, given.points, given.runs or Path(folder)) for seed in range(1, given.seeds + 1)
        ]
    steps = every[0][0]
    losses = np.array([losses for _, losses in every])
    rows = list(zip(steps.tolist(), losses.mean(0).tolist(), losses.std(0, ddof=1).tolist(), strict=True))
    for step, mean, spread in rows:
        print(f"{step:7,}  {mean:.4f} ± {spread:.4f}")
    if given.write:
        curve = ", ".join(f"[{step}, {mean:.4f}, {spread:.4f}]" for step, mean, spread in rows)
        write(given.preset, curve, f"--seeds={given.seeds} --points={given.points}")


def curve_of(preset: str, seed: int, points: int, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Steps and val losses of one run; evaluating more often changes nothing of the training."""
    out = folder / f"{preset}-seed-{seed}"
    if not (is_run(out) and read_run(out).get("state") == "finished"):
        length = load(preset, []).config.max_iters
        changes = {
            "seed": seed,
            "eval_interval": max(1, length // points),
            "sample_interval": 0,
            "overwrite": True,
            "keep_checkpoints": 1,
        }
        settings = load(preset, [(key, as_text(value)) for key, value in changes.items()])
        recorder = Recorder(out)
        outcome = train(
            settings.config, open_dataset(settings.config.dataset), out, recorder, came_from=settings.came_from
        )
        recorder.close()
        if outcome.why != "finished":
            raise SystemExit(f"{preset}, seed {seed}: {outcome.why} at step {outcome.step}")
        print(f"{preset}, seed {seed}: val {outcome.val_loss:.4f}, {outcome.wall_s:.0f} s", flush=True)
    evals = read_run(out).evals
    return evals.step, evals.val


def write(preset: str, curve: str, options: str) -> None:
    path = Path(str(resources.files("nanolens.config") / "presets" / f"{preset}.toml"))
    text = re.sub(r"(# [^\n]*\n)?curve = [^\n]*\n", "", path.read_text(encoding="utf-8"))
    text += (
        f"# Step, mean val loss and standard deviation over seeds: python bench/curves.py {preset} {options} --write\n"
    )
    text += f"curve = [{curve}]\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
