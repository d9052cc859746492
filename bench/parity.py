"""nanoGPT's CPU demo, trained by nanoGPT's own train.py and by nanolens: the printed losses side by side.

    NANOLENS_DATA=FOLDER python bench/parity.py --nanogpt PATH [--max_iters 2000] [--threads 2]

Both run in a temporary folder with nanoGPT's own files and the same train.bin and val.bin, made from
tinyshakespeare.txt as nanoGPT makes them. The first 100 iterations must agree in all four printed decimals, evaluations
within 0.01, the last val loss within 0.02."""

from __future__ import annotations

import argparse
import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SETTINGS = {
    "device": "cpu",
    "compile": False,
    "eval_iters": 20,
    "eval_interval": 250,
    "log_interval": 1,
    "block_size": 64,
    "batch_size": 12,
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "dropout": 0.0,
}
CONFIG = "config/train_shakespeare_char.py"
EXACT, EVALUATIONS_WITHIN, LAST_WITHIN = 100, 0.01, 0.02


@dataclass(frozen=True)
class Printed:
    """What a trainer printed."""

    iters: dict[int, str]
    evals: dict[int, tuple[float, float]]
    ms: list[float]

    @classmethod
    def read(cls, text: str) -> Printed:
        iters = {int(n): loss for n, loss in re.findall(r"^iter (\d+): loss ([\d.]+)", text, re.M)}
        evals = {
            int(n): (float(a), float(b))
            for n, a, b in re.findall(r"^step (\d+): train loss ([\d.]+), val loss ([\d.]+)", text, re.M)
        }
        return cls(iters, evals, [float(x) for x in re.findall(r"^iter \d+: .*time ([\d.]+)ms", text, re.M)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--max_iters", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of both; 0: as each chooses")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepare(given.nanogpt, Path(folder))
        options = [
            f"--{key}={value}"
            for key, value in {**SETTINGS, "max_iters": given.max_iters, "lr_decay_iters": given.max_iters}.items()
        ]
        theirs = run(
            "nanoGPT", [sys.executable, "train.py", CONFIG, *options, "--out_dir=theirs"], folder, given.threads
        )
        ours = run(
            "nanolens",
            [
                sys.executable,
                "-m",
                "nanolens",
                "train",
                CONFIG,
                *options,
                "--data_order=nanogpt",
                "--sample_interval=0",
                "--out_dir=ours",
            ],
            folder,
            given.threads,
        )
    return 0 if compare(theirs, ours) else 1


def prepare(nanogpt: Path, folder: Path) -> None:
    """nanoGPT's files, and the data as its prepare.py leaves it."""
    for name in ("train.py", "model.py", "configurator.py"):
        shutil.copy(nanogpt / name, folder / name)
    shutil.copytree(nanogpt / "config", folder / "config")
    source = Path(os.environ.get("NANOLENS_DATA", "."), "tinyshakespeare.txt")
    if not source.is_file():
        sys.exit(f"{source} is not there: name the folder of tinyshakespeare.txt in NANOLENS_DATA")
    text = source.read_text(encoding="utf-8")
    letters = sorted(set(text))
    number = {letter: place for place, letter in enumerate(letters)}
    ids = np.array([number[letter] for letter in text], dtype=np.uint16)
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    cut = int(0.9 * len(ids))
    ids[:cut].tofile(data / "train.bin")
    ids[cut:].tofile(data / "val.bin")
    with open(data / "meta.pkl", "wb") as file:
        pickle.dump({"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": number}, file)


def run(name: str, command: list[str], folder: str, threads: int) -> Printed:
    print(f"{name} is training ...", file=sys.stderr, flush=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parent.parent), *sys.path[1:]]),
    }
    if threads:
        environment |= {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return Printed.read(done.stdout)


def compare(theirs: Printed, ours: Printed) -> bool:
    shown = sorted({*range(0, min(EXACT, max(theirs.iters)) + 1, 10), *theirs.evals} & theirs.iters.keys())
    print(f"{'':>10}{'nanoGPT':>12}{'nanolens':>12}")
    for number in shown:
        print(f"iter {number:>5}{theirs.iters[number]:>12}{ours.iters.get(number, '-'):>12}")
    print(f"\n{'':>10}{'train':>20}{'val':>22}")
    for step, (train, val) in theirs.evals.items():
        our_train, our_val = ours.evals.get(step, (float("nan"), float("nan")))
        print(
            f"step {step:>5}{train:>12.4f} {our_train:<10.4f}{val:>10.4f} {our_val:<10.4f} apart by "
            f"{abs(val - our_val):.4f}"
        )
    first = [
        number for number in range(min(EXACT, len(theirs.iters))) if theirs.iters[number] != ours.iters.get(number)
    ]
    apart = [
        max(abs(a - b) for a, b in zip(both, ours.evals[step], strict=True)) for step, both in theirs.evals.items()
    ]
    last = abs(theirs.evals[max(theirs.evals)][1] - ours.evals[max(theirs.evals)][1])
    checks = {
        f"the first {EXACT} iterations agree in all four decimals ({len(first)} differ)": not first,
        f"evaluations agree within {EVALUATIONS_WITHIN} (largest difference {max(apart):.4f})": max(apart)
        <= EVALUATIONS_WITHIN,
        f"the last val loss agrees within {LAST_WITHIN} ({last:.4f})": last <= LAST_WITHIN,
        f"as many updates ({len(theirs.iters)} and {len(ours.iters)})": len(theirs.iters) == len(ours.iters),
    }
    for sentence, holds in checks.items():
        print(f"{'yes' if holds else 'NO ':4}{sentence}")
    a, b = statistics.median(theirs.ms), statistics.median(ours.ms)
    print(f"median time of an iteration: nanoGPT {a:.1f} ms, nanolens {b:.1f} ms ({a / b:.2f} times as fast)")
    return all(checks.values())


if __name__ == "__main__":
    sys.exit(main())
