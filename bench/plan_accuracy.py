"""How near do plans come? Each config is planned on this machine (a measurement of a few seconds) and then really
trained for a while.

    python bench/plan_accuracy.py RESULTS.jsonl [--seconds=240] [--only=TEXT] [--again]
    python bench/plan_accuracy.py RESULTS.jsonl --table

Needs a quiet machine: both halves measure time. It may be run in parts: each finished config is a line of RESULTS.jsonl
and is not measured again, no config is begun when `--seconds` are over, and every part ends with the figures of all
lines so far. `--table` only prints them.

Asked for: update time within 10 % in the median and 25 % at worst over at least 24 configs of both architectures, 0.1 M
to 124 M parameters; peak memory within 8 % in the median and never more than 5 % too low; the whole time of three runs
within 10 %. The training is `nanolens train` in a process of its own; its update time is the median of its steps, its
memory the operating system's peak for that process. Beside each config is kept how much of the machine other programs
used meanwhile, and how far its speed (matrix products, before the plan, between the two and after the training) went
apart, as it does on a shared host: where the one was more than a twentieth or the other more than a tenth, the two
halves saw different machines, and the config is measured again in the next part."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SHAPES = (  # layers, heads, width, context, data, micro-batch, accumulation, updates to train
    (2, 2, 64, 64, "shakespeare_char", 8, 1, 60),
    (4, 4, 128, 64, "shakespeare_char", 12, 1, 40),
    (4, 4, 128, 256, "shakespeare_char", 4, 2, 24),
    (6, 6, 192, 128, "shakespeare_char", 16, 1, 14),
    (6, 6, 384, 256, "shakespeare_char", 2, 1, 14),
    (6, 6, 384, 256, "shakespeare_char", 8, 2, 5),
    (4, 4, 256, 512, "shakespeare_char", 4, 1, 10),
    (8, 8, 256, 1024, "shakespeare_char", 1, 2, 8),
    (4, 4, 128, 128, "shakespeare", 4, 1, 12),
    (6, 4, 256, 256, "shakespeare", 2, 1, 8),
    (6, 6, 384, 512, "shakespeare", 1, 1, 6),
    (12, 12, 384, 1024, "shakespeare", 1, 1, 5),
    (12, 12, 768, 1024, "shakespeare", 1, 1, 4),
)
QUIET, STEADY = 0.05, 0.10
BASE = "shakespeare-char-cpu"
WHOLE_RUNS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("quickstart", "quickstart", {}),
    ("cpu demo, 1,200 updates", BASE, {"max_iters": 1200, "lr_decay_iters": 1200}),
    (
        "6 x 192, 300 updates",
        BASE,
        {
            "n_layer": 6,
            "n_head": 6,
            "n_embd": 192,
            "block_size": 128,
            "batch_size": 16,
            "max_iters": 300,
            "lr_decay_iters": 300,
            "eval_interval": 100,
        },
    ),
)


def cases() -> Iterator[tuple[str, str, dict[str, object]]]:
    """(name, preset, settings) of each thing that is planned and trained; whole runs have names that begin with
    "whole"."""
    for shape in SHAPES:
        for arch in ("gpt2", "modern"):
            layers, _, width, context, data, size, accumulation, _ = shape
            vocabulary = "V65" if data.endswith("char") else "V50304"
            yield (
                f"{arch} {layers}x{width} T{context} {vocabulary} b{size}x{accumulation}",
                BASE,
                settings_of(arch, shape),
            )
    for name, source, settings in WHOLE_RUNS:
        yield f"whole: {name}", source, settings


def settings_of(arch: str, shape: tuple) -> dict[str, object]:
    """One checkpoint in the middle: its copy counts for the memory, and its writing slows one update and not the
    median."""
    layers, heads, width, context, data, size, accumulation, updates = shape
    return {
        "arch": arch,
        "optimizer": "muon" if arch == "modern" else "adamw",
        "n_layer": layers,
        "n_head": heads,
        "n_embd": width,
        "block_size": context,
        "dataset": data,
        "batch_size": size,
        "gradient_accumulation_steps": accumulation,
        "max_iters": updates,
        "lr_decay_iters": updates,
        "warmup_iters": 1,
        "eval_interval": updates,
        "eval_iters": 1,
        "checkpoint_interval": updates // 2 + 1,
        "sample_interval": 0,
        "compile": False,
        "device": "cpu",
        "learning_rate": 1e-3,
        "min_lr": 1e-4,
    }


def measured(name: str, source: str, settings: dict[str, object]) -> dict[str, object]:
    before, paces = used_by_others(), [pace()]
    plan = planned(source, settings)
    paces.append(pace())
    calibration = plan.machine.calibration
    assert calibration is not None, plan.machine.not_calibrated
    with tempfile.TemporaryDirectory() as folder:
        run, took_s, used = trained(source, settings, Path(folder) / "run")
    paces.append(pace())
    return {
        "name": name,
        "parameters": plan.value("parameters"),
        "planned_update_s": plan.value("update_s"),
        "update_s": statistics.median(run.steps.took_s[1:].tolist()),
        "planned_bytes": plan.value("memory_total"),
        "bytes": used,
        "planned_total_s": plan.value("total_s"),
        "total_s": took_s,
        "planning_s": calibration.took_s,
        "layers_timed": list(calibration.layers_timed),
        "others_frac": share_of_others(before, used_by_others()),
        "drift": max(paces) / min(paces) - 1,
    }


def pace() -> float:
    """Seconds of a matrix product, the median of a second of them."""
    a, took, began_s = np.ones((1024, 1024), np.float32), [], time.perf_counter()
    while time.perf_counter() - began_s < 1.0:
        before_s = time.perf_counter()
        a @ a
        took.append(time.perf_counter() - before_s)
    return statistics.median(took)


def used_by_others() -> tuple[float, float]:
    """(seconds that the machine's cores worked for other programs, seconds that they had) since it was started; Linux
    only."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return 0.0, 0.0
    own = sum(sum(resource.getrusage(whose)[:2]) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    idle = ticks[3] + ticks[4]
    second = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - idle) / second - own, sum(ticks) / second


def share_of_others(before: tuple[float, float], after: tuple[float, float]) -> float:
    had = after[1] - before[1]
    return max(0.0, after[0] - before[0]) / had if had else 0.0


def planned(source: str, settings: dict[str, object]):
    from nanolens.planning.question import Question, answer

    return answer(Question(source, [(key, str(value)) for key, value in settings.items()])).plan


def trained(source: str, settings: dict[str, object], folder: Path):
    """(the run, seconds of the whole process, its peak memory in bytes)."""
    from nanolens.record.read import read_run

    options = [f"--{key}={value}" for key, value in settings.items()]
    command = [sys.executable, "-m", "nanolens", "train", source, *options, f"--out_dir={folder}", "--view=lines"]
    began_s = time.perf_counter()
    with open(folder.parent / "output.txt", "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    took_s = time.perf_counter() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit((folder.parent / "output.txt").read_text()[-2000:])
    return read_run(folder), took_s, usage.ru_maxrss * 1024.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="a file of lines that parts are added to")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no config when they are over")
    parser.add_argument("--only", default="", help="only configs whose name holds this")
    parser.add_argument(
        "--again", action="store_true", help="also measure what is there already: the newest line counts"
    )
    parser.add_argument("--table", action="store_true", help="measure nothing")
    given = parser.parse_args()
    began_s = time.perf_counter()
    every = list(cases())
    random.Random(1).shuffle(every)  # whatever is there when it is stopped is a fair sample
    for name, source, settings in every:
        if given.table or time.perf_counter() - began_s > given.seconds:
            break
        if given.only not in name or (name in quiet_lines(given.results) and not given.again):
            continue
        line = measured(name, source, settings)
        with open(given.results, "a") as file:
            file.write(json.dumps(line) + "\n")
        print(words_of(line), flush=True)
    return report(list(quiet_lines(given.results).values()), print_lines=given.table)


def quiet_lines(path: Path) -> dict[str, dict]:
    """By name, the newest of each that was measured while nothing else was going on."""
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {line["name"]: line for line in lines if line["others_frac"] <= QUIET and line["drift"] <= STEADY}


def report(lines: list[dict], *, print_lines: bool) -> int:
    """Prints the figures; 1 where they are not what is asked for."""
    configs = [line for line in lines if not line["name"].startswith("whole")]
    wholes = [line for line in lines if line["name"].startswith("whole")]
    if print_lines:
        print("\n".join(map(words_of, configs + wholes)))
    facts: dict[str, float] = {"configs": len(configs), "whole_runs": len(wholes)}
    if configs:
        times = [abs(error(line, "update_s")) for line in configs]
        memories = [error(line, "bytes") for line in configs]
        facts |= {
            "time_median": statistics.median(times),
            "time_worst": max(times),
            "memory_median": statistics.median(map(abs, memories)),
            "memory_lowest": min(memories),
            "memory_highest": max(memories),
            "planning_s_median": statistics.median(line["planning_s"] for line in configs),
        }
    if wholes:
        facts["whole_runs_worst"] = max(abs(error(line, "total_s")) for line in wholes)
    print(json.dumps({name: round(value, 4) for name, value in facts.items()}))
    return 0 if is_enough(facts) else 1


def is_enough(facts: dict[str, float]) -> bool:
    if facts["configs"] < 24 or facts["whole_runs"] < 3:
        return False
    in_time = facts["time_median"] <= 0.10 and facts["time_worst"] <= 0.25 and facts["whole_runs_worst"] <= 0.10
    return in_time and facts["memory_median"] <= 0.08 and facts["memory_lowest"] >= -0.05


def error(line: dict, what: str) -> float:
    return line[f"planned_{what}"] / line[what] - 1


def words_of(line: dict) -> str:
    parts = [f"{line['name']:<34}{line['parameters'] / 1e6:7.2f}M"]
    parts.append(
        f"update {line['planned_update_s'] * 1e3:7.1f} {line['update_s'] * 1e3:7.1f} ms {error(line, 'update_s'):+6.1%}"
    )
    parts.append(f"peak {line['planned_bytes'] / 1e6:5.0f} {line['bytes'] / 1e6:5.0f} MB {error(line, 'bytes'):+6.1%}")
    if line["name"].startswith("whole"):
        parts.append(f"whole {line['planned_total_s']:5.1f} {line['total_s']:5.1f} s {error(line, 'total_s'):+6.1%}")
    return "  ".join(
        [*parts, f"planning {line['planning_s']:4.1f} s, others {line['others_frac']:.0%}, drift {line['drift']:.0%}"]
    )


if __name__ == "__main__":
    sys.exit(main())
