"""Do probes find the cause? Small runs whose limiting cause is known by construction are made, probed, and mended.

    python bench/probes.py make FOLDER [--only=PART]      the runs: causes x seeds
    python bench/probes.py ask FOLDER [--only=PART]       probes each at 60 % of its length
    python bench/probes.py really FOLDER [--only=PART]  makes the recommended change in earnest, for the rest of the run
    python bench/probes.py all FOLDER [--only=PART]       the three, run after run
    python bench/probes.py report FOLDER [--json]         what was found

Asked for: the true cause ranks first in at least 85 %; a run with nothing wrong is said to have nothing wrong; no
question costs more than 15 % of the run; and the gain of really making the change lies within the stated interval in at
least 75 % of the runs where it is made.

All is done once: what is in FOLDER already is not done again. The text is `pydocs`, which needs no download; a run
takes about ten seconds on one core, probing it somewhat longer."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pickle
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SEEDS = (1, 2, 3)
CHUNK = 256  # characters that stay together when the text is shuffled
TRAIN, VAL, LITTLE = 400_000, 60_000, 12_000
QUESTION_FRAC = 0.15

BASE: dict[str, Any] = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 48,
    "block_size": 32,
    "batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_iters": 1200,
    "lr_decay_iters": None,
    "eval_interval": 120,
    "eval_iters": 24,
    "learning_rate": 4e-3,
    "min_lr": 4e-4,
    "warmup_iters": 60,
    "beta2": 0.99,
    "device": "cpu",
    "dtype": "float32",
    "compile": False,
    "threads": 1,
    "sample_interval": 0,
    "checkpoint_interval": 240,
    "keep_checkpoints": 10,
}


@dataclass(frozen=True)
class Case:
    cause: str | None  # what a probe should name; None: nothing
    settings: dict[str, Any] = field(default_factory=dict)
    data: str = "plain"
    model: str = ""  # a fault to be built into the model
    seeds: tuple[int, ...] = SEEDS


CASES = {
    "sound": Case(None, seeds=(1, 2, 3, 7, 8, 9)),
    "sound-wsd": Case(
        None, {"schedule": "wsd", "decay_frac": 0.3}, seeds=(4, 5, 6)
    ),  # probed before its decay: that is still to come
    "lr-high": Case("lr_too_high", {"learning_rate": 6e-3, "decay_lr": False}),
    "lr-low": Case("lr_too_low", {"learning_rate": 2e-4, "min_lr": 2e-5}),
    "batch-small": Case(
        "batch_too_small",
        {
            "batch_size": 1,
            "learning_rate": 1e-3,
            "min_lr": 1e-4,
            "max_iters": 4800,
            "eval_interval": 480,
            "eval_iters": 192,
            "checkpoint_interval": 480,
        },
    ),
    # Long: in 1,200 updates a model twice as wide, which has a third of them for the same FLOPs, would be behind (2.91
    # against 2.86).
    "model-small": Case(
        "model_too_small",
        {
            "n_embd": 8,
            "learning_rate": 8e-3,
            "min_lr": 8e-4,
            "max_iters": 6000,
            "eval_interval": 600,
            "checkpoint_interval": 600,
        },
    ),
    "data-little": Case("data_too_little", {}, "little"),
    "dropout-high": Case("dropout_too_high", {"dropout": 0.5}),
    "val-shifted": Case("val_differs", {}, "shifted"),
    "layer-frozen": Case("frozen_parameters", {}, model="frozen", seeds=(1, 2)),
    "mask-leaks": Case("mask_leak", {}, model="leaking", seeds=(1, 2)),
}
MODEL = '''"""GPT-2 with a fault built in."""

from nanolens.model.gpt2 import GPT2


class Model(GPT2):
    def __init__(self, config, vocab_size):
        super().__init__(config, vocab_size)
        {fault}
'''
FAULTS = {
    "frozen": "self.blocks[1].requires_grad_(False)",
    "leaking": (
        "self.blocks[0].attention.forward = lambda norm, x, cache, own=self.blocks[0].attention: see_all(own, norm, x)"
    ),
}
SEE_ALL = '''

def see_all(attention, norm, x):
    """Attention without its mask."""
    import torch

    B, T, d = x.shape
    q, k, v = attention.qkv(norm(x)).view(B, T, 3, attention.n_head, -1).transpose(1, 3).unbind(2)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return attention.out(y.transpose(1, 2).reshape(B, T, d))
'''


def names(only: str) -> list[tuple[str, Case, int]]:
    every = [(f"{name}-{seed}", case, seed) for name, case in CASES.items() for seed in case.seeds]
    return [each for each in every if re.search(only, each[0])]


# --- data and runs


def data_folder(folder: Path, kind: str) -> Path:
    """Tokens in nanoGPT's form: chunks of the built-in corpus, shuffled, both splits alike; the shifted one is judged
    on code."""
    out = folder / "data" / kind
    if (out / "meta.pkl").is_file():
        return out
    from nanolens.data.store import open_dataset

    corpus = open_dataset("pydocs")
    tokenizer = corpus.tokenizer
    tokens = np.concatenate([corpus.train, corpus.val]).astype(np.uint16)
    count = len(tokens) // CHUNK
    order = np.random.default_rng(0).permutation(count)
    shuffled = tokens[: count * CHUNK].reshape(count, CHUNK)[order].ravel()
    train, val = shuffled[:TRAIN], shuffled[TRAIN : TRAIN + VAL]
    if kind == "little":
        train = train[:LITTLE]
    if kind == "shifted":
        val = np.array(
            tokenizer.encode(code_like(VAL, set(tokenizer.decode(list(range(corpus.vocab_size)))))), dtype=np.uint16
        )
    out.mkdir(parents=True, exist_ok=True)
    train.tofile(out / "train.bin")
    val.tofile(out / "val.bin")
    letters = [tokenizer.decode([token]) for token in range(corpus.vocab_size)]
    meta = {
        "vocab_size": corpus.vocab_size,
        "itos": dict(enumerate(letters)),
        "stoi": {c: i for i, c in enumerate(letters)},
    }
    (out / "meta.pkl").write_bytes(pickle.dumps(meta))
    return out


def code_like(characters: int, known: set[str]) -> str:
    """Program text of the standard library, without its indentation: that is easier than any other text."""
    library = Path(sysconfig.get_path("stdlib"))
    text = "".join((library / name).read_text() for name in ("argparse.py", "typing.py", "ast.py"))
    return re.sub(r"\s+", " ", "".join(letter for letter in text if letter in known))[:characters]


def config_of(folder: Path, case: Case, seed: int):
    from nanolens.config.fields import Config

    arch = {"arch": str(model_file(folder, case.model))} if case.model else {}
    data = {"dataset": str(data_folder(folder, case.data))}
    return Config(**{**BASE, **case.settings, **data, **arch, "seed": seed})


def model_file(folder: Path, fault: str) -> Path:
    path = folder / f"{fault}.py"
    if not path.is_file():
        path.write_text(MODEL.format(fault=FAULTS[fault]) + (SEE_ALL if fault == "leaking" else ""))
    return path


def run_of(folder: Path, name: str) -> Path:
    return folder / "runs" / name


def trained(config, out: Path) -> Path:
    """The run in `out`, trained if it is not there yet."""
    from nanolens.data.store import open_folder
    from nanolens.record.read import read_run
    from nanolens.record.write import Recorder
    from nanolens.training.loop import train

    if (out / "run.json").is_file():
        if read_run(out).get("state") == "finished":
            return out
        shutil.rmtree(out)
    recorder = Recorder(out)
    try:
        outcome = train(config, open_folder(Path(config.dataset)), out, recorder, may_refuse=False)
    finally:
        recorder.close()
    if outcome.why == "stopped":
        sys.exit(130)
    print(
        f"{out.name:<18} train {outcome.train_loss:.4f}  val {outcome.val_loss:.4f}  {outcome.wall_s:.0f} s", flush=True
    )
    return out


def make(folder: Path, only: str) -> None:
    for name, case, seed in names(only):
        trained(config_of(folder, case, seed), run_of(folder, name))


# --- probing


def probed_at(case: Case) -> int:
    """60 % of the run, where there is a checkpoint."""
    return round(0.6 * {**BASE, **case.settings}["max_iters"])


def ask(folder: Path, only: str) -> None:
    from nanolens.probing import probe

    for name, case, _ in names(only):
        run, step = run_of(folder, name), probed_at(case)
        if not (run / "run.json").is_file() or list((run / "probes").glob("answer-*.json")):
            continue
        answer = probe(f"{run}@{step}", budget_s=1e9, arch=str(model_file(folder, case.model)) if case.model else None)
        first = answer.first
        gain = (
            ""
            if first is None or first.expected is None
            else f"{first.expected:.3f} [{first.low:.3f} … {first.high:.3f}]"
        )
        print(
            f"{name:<18} {case.cause or 'nothing':<18} found {first.cause if first else 'nothing':<18} {gain}",
            flush=True,
        )


# --- making the change in earnest


def really(folder: Path, only: str) -> None:
    """Trains with the config that the probe wrote for the true cause (more data: from the start, on the whole
    corpus)."""
    from nanolens.config.load import load

    for name, case, seed in names(only):
        run, step = run_of(folder, name), probed_at(case)
        if case.cause is None or case.model or case.data == "shifted":
            continue
        out = folder / "really" / name
        if case.cause == "data_too_little":
            trained(config_of(folder, dataclasses.replace(case, data="plain"), seed), out)
            continue
        answer = json.loads((run / "probes" / f"answer-{step:06d}.json").read_text())
        change = next(
            (effect["next"] for effect in answer["effects"] if effect["cause"] == case.cause and effect["next"]), ""
        )
        path = change.rpartition(" ")[2]
        if path:
            trained(dataclasses.replace(load(path).config, out_dir=str(out), sample_interval=0), out)


def gain_of(folder: Path, name: str) -> tuple[float, float] | None:
    """Val loss at the end of the run less that of the mended one, on the same windows, and its standard error."""
    from nanolens.data.batches import eval_windows
    from nanolens.facts.statistics import paired_difference
    from nanolens.probing.branches import joined, look_at, open_subject

    run, mended = run_of(folder, name), folder / "really" / name
    kept = mended / "gain.json"
    if not (mended / "run.json").is_file():
        return None
    if not kept.is_file():
        losses = []
        for each in (run, mended):
            subject = open_subject(str(each))
            windows = joined(eval_windows(subject.dataset.val, 32, 1, 1500, 9))
            losses.append(look_at(subject).losses(*windows).mean(axis=1))
        kept.write_text(json.dumps(paired_difference(*losses)))
    gain, error = json.loads(kept.read_text())
    return gain, error


# --- report


def report(folder: Path, as_json: bool) -> int:
    rows = [row for name, case, _ in names("") if (row := row_of(folder, name, case)) is not None]
    sick, sound = [row for row in rows if row["true"]], [row for row in rows if not row["true"]]
    right = sum(row["found"] == row["true"] for row in sick)
    quiet = sum(row["found"] is None for row in sound)
    mended = [row for row in rows if row.get("really") is not None and row.get("low") is not None]
    within = sum(row["low"] <= row["really"] <= row["high"] for row in mended)
    dearest = max((row["dearest_question"] for row in rows), default=0.0)
    summary = {
        "runs": len(rows),
        "right": right,
        "sick": len(sick),
        "nothing_said_of_sound": quiet,
        "sound": len(sound),
        "within": within,
        "mended": len(mended),
        "dearest_question": dearest,
    }
    if as_json:
        print(json.dumps({"rows": rows, "summary": summary}, indent=1))
    else:
        for row in rows:
            print(line_of(row))
        print(f"cause ranks first in {right} of {len(sick)}; nothing said of {quiet} of {len(sound)} sound runs")
        print(
            f"dearest question {dearest:.1%} of its run; gain of really mending it within the interval in {within} "
            f"of {len(mended)}"
        )
    all_right = (right + quiet) / max(1, len(rows))
    return (
        0
        if all_right >= 0.85 and quiet == len(sound) and within >= 0.75 * len(mended) and dearest <= QUESTION_FRAC
        else 1
    )


def row_of(folder: Path, name: str, case: Case) -> dict[str, Any] | None:
    found = sorted((run_of(folder, name) / "probes").glob("answer-*.json"))
    if not found:
        return None
    answer = json.loads(found[-1].read_text())
    named = next((effect for effect in answer["effects"] if effect["cause"] == case.cause), None)
    made = gain_of(folder, name)
    return {
        "run": name,
        "true": case.cause,
        "found": answer["first"],
        "expected": named and named["expected"],
        "low": named and named["low"],
        "high": named and named["high"],
        "really": made and made[0],
        "cost": answer["cost"] / answer["run_cost"],
        "dearest_question": max(answer["costs"].values()) / answer["run_cost"],
        "took_s": answer["took_s"],
    }


def line_of(row: dict[str, Any]) -> str:
    mark = " " if row["found"] == row["true"] else "!"
    text = f"{mark} {row['run']:<18} {row['true'] or 'nothing':<18} {row['found'] or 'nothing':<18}"
    if row["expected"] is not None:
        text += f" {row['expected']:7.3f} [{row['low']:6.3f} … {row['high']:6.3f}]"
    if row["really"] is not None:
        is_within = row["low"] is not None and row["low"] <= row["really"] <= row["high"]
        text += f"  really {row['really']:6.3f}{'' if is_within else ' outside'}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "ask", "really", "all", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", metavar="PART", help="runs whose name matches this pattern")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.what == "report":
        return report(given.folder, given.json)
    steps = {"make": (make,), "ask": (ask,), "really": (really,), "all": (make, ask, really)}[given.what]
    for name, _, _ in sorted(names(given.only), key=lambda each: each[2]):  # the first seed of every cause first
        for step in steps:
            step(given.folder, f"^{name}$")
    return 0


if __name__ == "__main__":
    sys.exit(main())
