"""nanoGPT's own train.py and sample.py against our door for its checkpoints, both ways.

    NANOLENS_DATA=FOLDER python bench/nanogpt_door.py --nanogpt PATH [--steps 20]

1. nanoGPT trains and writes ckpt.pt, then resumes from it and prints the losses of the next steps.
2. nanolens imports that ckpt.pt and resumes under data_order=nanogpt: its next losses must equal nanoGPT's to three
   decimals.
3. nanolens exports its run as ckpt.pt; nanoGPT resumes from it, and nanolens resumes its own: again the same losses to
   three decimals.
4. nanoGPT's sample.py writes with the exported checkpoint, and nanolens with nanoGPT's `out` folder as it is.

All in a temporary folder with copies of nanoGPT's files and tinyshakespeare.txt prepared as nanoGPT prepares it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from parity import CONFIG, prepare

START = 40
SHARED = {
    "device": "cpu",
    "compile": False,
    "eval_iters": 3,
    "eval_interval": START,
    "log_interval": 1,
    "block_size": 32,
    "batch_size": 8,
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 32,
    "dropout": 0.1,
    "lr_decay_iters": 200,
    "warmup_iters": 10,
    "gradient_accumulation_steps": 1,
    "always_save_checkpoint": True,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--steps", type=int, default=20, help="how many losses are compared")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(given.nanogpt, folder)
        shutil.copy(given.nanogpt / "sample.py", folder / "sample.py")
        checks = [*into(folder, given.steps), *out_of(folder, given.steps), *samples(folder)]
    for sentence, holds in checks:
        print(f"{'yes' if holds else 'NO ':4}{sentence}")
    return 0 if all(holds for _, holds in checks) else 1


def into(folder: Path, steps: int) -> list[tuple[str, bool]]:
    nanogpt(folder, "train.py", CONFIG, *options(max_iters=START), "--out_dir=theirs")
    shutil.copytree(folder / "theirs", folder / "copy")
    theirs = losses(
        nanogpt(folder, "train.py", CONFIG, *options(max_iters=START + steps), "--out_dir=theirs", "--init_from=resume")
    )
    nanolens(folder, "import", "copy", "-o", "runs/theirs")
    more = [
        f"--max_iters={START + steps}",
        "--log_interval=1",
        "--sample_interval=0",
        "--dtype=float32",
        "--device=cpu",
        "--compile=False",
    ]
    ours = losses(nanolens(folder, "train", "--init_from=resume", "--out_dir=runs/theirs", *more))
    return [same("nanoGPT's checkpoint goes on here", theirs, ours, steps)]


def out_of(folder: Path, steps: int) -> list[tuple[str, bool]]:
    plain = ["--data_order=nanogpt", "--sample_interval=0", "--dtype=float32"]
    nanolens(folder, "train", CONFIG, *options(max_iters=START), *plain, "--out_dir=runs/ours")
    # nanoGPT makes one update more than max_iters, and its checkpoint is from before that one.
    nanolens(folder, "export", f"runs/ours@{START}", "--to=nanogpt", "out")
    again = folder / "out-again"
    shutil.copytree(folder / "out", again)
    theirs = losses(
        nanogpt(folder, "train.py", CONFIG, *options(max_iters=START + steps), "--out_dir=out", "--init_from=resume")
    )
    ours = losses(
        nanolens(
            folder,
            "train",
            CONFIG,
            *options(max_iters=START + steps),
            *plain,
            "--out_dir=out-again",
            "--init_from=resume",
        )
    )
    return [same("our checkpoint goes on in nanoGPT, as nanoGPT's folder does here", theirs, ours, steps)]


def samples(folder: Path) -> list[tuple[str, bool]]:
    theirs = nanogpt(
        folder, "sample.py", "--out_dir=out", "--device=cpu", "--num_samples=1", "--max_new_tokens=40", "--start=ROMEO"
    )
    ours = nanolens(folder, "sample", "--out_dir=copy", "--max_new_tokens=40", "--start=ROMEO")
    return [
        ("nanoGPT's sample.py writes with our checkpoint", "ROMEO" in theirs and len(theirs) > 60),
        ("sample --out_dir writes with nanoGPT's folder as it is", ours.startswith("ROMEO") and len(ours) > 40),
    ]


def same(what: str, theirs: dict[int, float], ours: dict[int, float], steps: int) -> tuple[str, bool]:
    numbers = range(START, START + steps)
    apart = [abs(theirs[number] - ours[number]) for number in numbers if number in theirs and number in ours]
    print(f"{what}:")
    for number in numbers:
        print(f"  iter {number:>4}{theirs.get(number, float('nan')):>10.4f}{ours.get(number, float('nan')):>10.4f}")
    largest = max(apart, default=float("inf"))
    return f"{what}: {len(apart)} losses, largest difference {largest:.4f}", len(apart) == steps and largest < 0.0005


def options(max_iters: int) -> list[str]:
    return [f"--{key}={value}" for key, value in {**SHARED, "max_iters": max_iters}.items()]


def losses(text: str) -> dict[int, float]:
    return {int(number): float(loss) for number, loss in re.findall(r"^iter (\d+): loss ([\d.]+)", text, re.M)}


def nanogpt(folder: Path, *command: str) -> str:
    return run([sys.executable, *command], folder)


def nanolens(folder: Path, *command: str) -> str:
    return run([sys.executable, "-m", "nanolens", *command], folder)


def run(command: list[str], folder: Path) -> str:
    print("$", " ".join(command[1:4]), "...", file=sys.stderr, flush=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parent.parent), *sys.path[1:]]),
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
