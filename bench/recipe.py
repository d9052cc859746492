"""Time to nanoGPT's losses on tinyshakespeare, nanoGPT and nanolens taking turns on this machine.

    python bench/recipe.py --nanogpt PATH [--turns=3] [--threads=2]     its CPU demo against the preset shakespeare-fast
    python bench/recipe.py --best [--turns=1]                   the preset shakespeare-best against nanoGPT's GPU result

Every loss is of the whole val split (the last tenth of the text, 111,540 characters): windows of the model's own
block_size that follow each other without overlap, and one shorter window for the rest, each target once, in eval mode.
Both models are scored by the same function, from the checkpoint that their process left. `training` is the time of the
updates alone: for nanoGPT the sum of what it prints for every iteration, with the iterations that hold an evaluation
counted as a median one; for nanolens the part `train` of the run's record. `process` is the wall time from starting
Python to its end, checkpoint saved, evaluations included; both have their data prepared beforehand. `CPU` is the
processor time of that process: on a machine that is not idle, with --threads=1, it is the figure to go by."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DEMO = (
    "--device=cpu",
    "--compile=False",
    "--eval_iters=20",
    "--log_interval=1",
    "--block_size=64",
    "--batch_size=12",
    "--n_layer=4",
    "--n_head=4",
    "--n_embd=128",
    "--max_iters=2000",
    "--lr_decay_iters=2000",
    "--dropout=0.0",
)
GPU_RESULT = 1.4697  # what nanoGPT's README reports for its GPU demo
# What can be exported needs more updates and a larger model to get as far: nanoGPT's own shape and batch.
PLAIN = (
    "--token_shift=False",
    "--ngram_rows=0",
    "--n_layer=4",
    "--n_head=4",
    "--n_embd=128",
    "--batch_size=12",
    "--learning_rate=0.0012",
    "--matrix_learning_rate=0.02",
    "--max_iters=250",
    "--eval_interval=250",
)


@dataclass(frozen=True)
class Measured:
    training_s: float
    process_s: float
    cpu_s: float  # of all its threads: what is left of a comparison when the machine is not idle
    val_loss: float
    step_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--best", action="store_true", help="only ours: the preset shakespeare-best")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--ours", action="store_true", help="leave nanoGPT out: only our losses and times")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--score", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.score:
        kind, folder = given.score
        print(json.dumps(score_nanogpt(Path(folder)) if kind == "nanogpt" else score_ours(Path(folder))))
        return
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        if given.best:
            best(Path(folder), given.turns or 1)
        else:
            if given.nanogpt is None and not given.ours:
                parser.error("--nanogpt PATH is needed, or --best or --ours")
            against_nanogpt(Path(folder), None if given.ours else given.nanogpt, given.turns or 3)


def against_nanogpt(folder: Path, nanogpt: Path | None, turns: int) -> None:
    contenders: dict[str, Callable[[str], Measured]] = {}
    if nanogpt is not None:
        theirs = prepare_nanogpt(folder / "nanogpt", nanogpt)
        contenders["nanoGPT, CPU demo"] = lambda seed: run_nanogpt(theirs)
    contenders["shakespeare-fast"] = lambda seed: run_ours(folder / "ours", "shakespeare-fast", seed)
    contenders["without shift and tables"] = lambda seed: run_ours(folder / "plain", "shakespeare-fast", *PLAIN, seed)
    seen: dict[str, list[Measured]] = {name: [] for name in contenders}
    print(f"{'':26}{'turn':>5}{'training':>11}{'process':>11}{'CPU':>11}{'ms/update':>11}{'val loss':>10}")
    for turn in range(1, turns + 1):  # taking turns, so that whatever else the machine does falls on all
        for name, run in contenders.items():
            measured = run(f"--seed={1336 + turn}")
            seen[name].append(measured)
            print(
                f"{name:26}{turn:5}{measured.training_s:10.2f}s{measured.process_s:10.2f}s{measured.cpu_s:10.2f}s"
                f"{measured.step_ms:11.1f}{measured.val_loss:10.4f}",
                flush=True,
            )
    if nanogpt is None:
        return
    first, *others = seen
    goal = max(m.val_loss for m in seen[first])
    for name in others:
        ours, nanogpts = ([m.val_loss for m in seen[who]] for who in (name, first))
        print(f"\n{name}: val loss {spread(ours, '.4f')}, nanoGPT {spread(nanogpts, '.4f')}")
        for what in ("training_s", "process_s", "cpu_s"):
            ratios = [getattr(a, what) / getattr(b, what) for a, b in zip(seen[first], seen[name], strict=True)]
            print(f"  {what.removesuffix('_s')}: {spread(ratios, '.1f')} x shorter")
        if max(m.val_loss for m in seen[name]) > goal:
            print("  NOT COMPARABLE: a turn ended above nanoGPT's loss")


def best(folder: Path, turns: int) -> None:
    for turn in range(1, turns + 1):
        m = run_ours(folder / "best", "shakespeare-best", f"--seed={1336 + turn}")
        verdict = "reached" if m.val_loss <= GPU_RESULT else "missed"
        print(
            f"shakespeare-best, seed {1336 + turn}: val {m.val_loss:.4f} ({GPU_RESULT} {verdict}), training "
            f"{m.training_s / 60:.1f} min, "
            f"process {m.process_s / 60:.1f} min, {m.step_ms:.0f} ms/update",
            flush=True,
        )


def spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


# --- nanoGPT


def prepare_nanogpt(folder: Path, nanogpt: Path) -> Path:
    """A copy of its sources beside data made the way its prepare.py makes them: sorted characters, the first nine
    tenths to train on."""
    folder.mkdir(parents=True)
    for name in ("model.py", "train.py", "configurator.py"):
        shutil.copy(nanogpt / name, folder / name)
    shutil.copytree(nanogpt / "config", folder / "config")
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    train, val, characters = splits()
    train.astype(np.uint16).tofile(data / "train.bin")
    val.astype(np.uint16).tofile(data / "val.bin")
    itos = dict(enumerate(characters))
    (data / "meta.pkl").write_bytes(
        pickle.dumps({"vocab_size": len(itos), "itos": itos, "stoi": {c: i for i, c in itos.items()}})
    )
    return folder


def run_nanogpt(folder: Path) -> Measured:
    started_at_s, cpu_before_s = time.perf_counter(), children_cpu_s()
    done = subprocess.run(
        [sys.executable, "train.py", "config/train_shakespeare_char.py", *DEMO],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    process_s, used_s = time.perf_counter() - started_at_s, children_cpu_s() - cpu_before_s
    took = {int(at): float(ms) for at, ms in re.findall(r"iter (\d+): loss [\d.]+, time ([\d.]+)ms", done.stdout)}
    usual = statistics.median(took.values())
    training_ms = sum(usual if at % 250 == 0 else ms for at, ms in took.items())
    return Measured(training_ms / 1000, process_s, used_s, scored("nanogpt", folder)["loss"], usual)


def score_nanogpt(folder: Path) -> dict[str, float]:
    sys.path.insert(0, str(folder))
    import torch
    from model import GPT, GPTConfig  # type: ignore[import-not-found]  # nanoGPT's own

    checkpoint = torch.load(folder / "out-shakespeare-char" / "ckpt.pt", map_location="cpu", weights_only=True)
    model = GPT(GPTConfig(**checkpoint["model_args"]))
    model.load_state_dict(checkpoint["model"])
    return {"loss": whole_val_loss(lambda x, y: model(x, y)[1], model.eval(), checkpoint["model_args"]["block_size"])}


# --- ours


def run_ours(folder: Path, preset: str, *more: str) -> Measured:
    from nanolens.record.read import read_run

    shutil.rmtree(folder, ignore_errors=True)
    started_at_s, cpu_before_s = time.perf_counter(), children_cpu_s()
    subprocess.run(
        [sys.executable, "-m", "nanolens", "train", preset, f"--out_dir={folder}", *more],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    process_s, used_s = time.perf_counter() - started_at_s, children_cpu_s() - cpu_before_s
    run = read_run(folder)
    usual_ms = 1000 * float(np.median(run.steps.took_s))
    return Measured(run.time_parts["train"], process_s, used_s, scored("ours", folder)["loss"], usual_ms)


def score_ours(folder: Path) -> dict[str, float]:
    import nanolens
    from nanolens.model.loss import WithLoss

    model = nanolens.load(folder)
    with_loss = WithLoss(model.module).eval()
    return {"loss": whole_val_loss(lambda x, y: with_loss(x, y).plain, with_loss, model.config.block_size)}


# --- both


def children_cpu_s() -> float:
    """Processor time of all processes that were started from here and have ended."""
    used = os.times()
    return used.children_user + used.children_system


def scored(kind: str, folder: Path) -> dict[str, float]:
    """In a process of its own, so that neither model's imports are in the other's way."""
    done = subprocess.run(
        [sys.executable, __file__, "--score", kind, str(folder)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def whole_val_loss(loss: Callable, model: object, block_size: int) -> float:
    import torch

    _, val, _ = splits()
    tokens = torch.from_numpy(val.astype(np.int64))
    count = (len(tokens) - 1) // block_size
    x, y = (
        tokens[: count * block_size].view(count, block_size),
        tokens[1 : count * block_size + 1].view(count, block_size),
    )
    pieces = list(zip(x.split(64), y.split(64), strict=True))
    if count * block_size < len(tokens) - 1:
        pieces.append((tokens[count * block_size : -1][None], tokens[count * block_size + 1 :][None]))
    with torch.no_grad():
        return sum(loss(a, b).item() * b.numel() for a, b in pieces) / (len(tokens) - 1)


def splits() -> tuple[np.ndarray, np.ndarray, list[str]]:
    folder = os.environ.get("NANOLENS_DATA")
    if folder is None:
        raise SystemExit("NANOLENS_DATA must name the folder that holds tinyshakespeare.txt")
    text = Path(folder, "tinyshakespeare.txt").read_text(encoding="utf-8")
    characters = sorted(set(text))
    place = {character: number for number, character in enumerate(characters)}
    ids = np.array([place[character] for character in text])
    cut = int(0.9 * len(ids))
    return ids[:cut], ids[cut:], characters


if __name__ == "__main__":
    main()
