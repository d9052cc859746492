"""How near do plans come? Each config is planned on this machine (a measurement of a few seconds) and then really trained for a while.

    python bench/plan_accuracy.py [--configs] [--runs] [--json] [--only=TEXT]

Needs a quiet machine: both halves measure time. Asked for: update time within 10 % in the median and 25 % at worst over at least 24 configs
of both architectures, 0.1 M to 124 M parameters; peak memory within 8 % in the median and never more than 5 % too low; the whole time of
three runs within 10 %. The training is `nanoscope train` in a process of its own; its update time is the median of its steps, its memory
the operating system's peak for that process. A config is planned again and trained again when the two halves saw different machines: the
load before and after is printed."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

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
WHOLE_RUNS = (
    ("quickstart", {}),
    ("shakespeare-char-cpu", {"max_iters": 1200, "lr_decay_iters": 1200}),
    (
        "shakespeare-char-cpu",
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


@dataclass(frozen=True)
class Result:
    name: str
    parameters: float
    planned_s: float
    took_s: float
    planned_bytes: float
    used_bytes: float
    load: tuple[float, float]

    @property
    def time_error(self) -> float:
        return self.planned_s / self.took_s - 1

    @property
    def memory_error(self) -> float:
        return self.planned_bytes / self.used_bytes - 1


def settings_of(arch: str, shape: tuple) -> dict[str, object]:
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
        "checkpoint_interval": max(1, updates // 2),
        "sample_interval": 0,
        "compile": False,
        "device": "cpu",
        "learning_rate": 1e-3,
        "min_lr": 1e-4,
    }


def planned(source: str, settings: dict[str, object]):
    from nanoscope.api.planning import Question, answer

    return answer(Question(source, [(key, str(value)) for key, value in settings.items()])).plan


def trained(source: str, settings: dict[str, object], folder: Path):
    """(the run, seconds of the whole process, its peak memory in bytes)."""
    from nanoscope.record.read import read_run

    command = [
        sys.executable,
        "-m",
        "nanoscope",
        "train",
        source,
        *(f"--{key}={value}" for key, value in settings.items()),
        f"--out_dir={folder}",
        "--view=lines",
    ]
    began_s = time.perf_counter()
    with open(folder.parent / "output.txt", "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    took_s = time.perf_counter() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit((folder.parent / "output.txt").read_text()[-2000:])
    return read_run(folder), took_s, usage.ru_maxrss * 1024.0


def one_config(arch: str, shape: tuple) -> Result:
    settings = settings_of(arch, shape)
    before = os.getloadavg()[0]
    plan = planned("shakespeare-char-cpu", settings)
    with tempfile.TemporaryDirectory() as folder:
        run, _, used = trained("shakespeare-char-cpu", settings, Path(folder) / "run")
    took = statistics.median(run.steps.took_s[1:].tolist())
    name = f"{arch} {shape[0]}x{shape[2]} T{shape[3]} V{plan.shape.vocab_size} b{shape[5]}x{shape[6]}"
    return Result(
        name, plan.value("parameters"), plan.value("update_s"), took, plan.value("memory_total"), used, (before, os.getloadavg()[0])
    )


def whole_run(source: str, settings: dict[str, object]) -> tuple[str, float, float, tuple[float, float]]:
    before = os.getloadavg()[0]
    plan = planned(source, settings)
    with tempfile.TemporaryDirectory() as folder:
        _, took_s, _ = trained(source, settings, Path(folder) / "run")
    return f"{source} {settings or ''}"[:40].strip(), plan.value("total_s"), took_s, (before, os.getloadavg()[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", action="store_true", help="only the configs")
    parser.add_argument("--runs", action="store_true", help="only the whole runs")
    parser.add_argument("--only", default="", help="only configs whose name holds this")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results, runs = [], []
    if not given.runs:
        for shape in SHAPES:
            for arch in ("gpt2", "modern"):
                if given.only and given.only not in f"{arch} {shape[0]}x{shape[2]} T{shape[3]}":
                    continue
                results.append(one_config(arch, shape))
                print_result(results[-1])
    if not given.configs:
        for source, settings in WHOLE_RUNS:
            runs.append(whole_run(source, settings))
            name, plan_s, took_s, load = runs[-1]
            print(
                f"{name:<40} planned {plan_s:8.1f} s  took {took_s:8.1f} s  {plan_s / took_s - 1:+7.1%}  load {load[0]:.1f} {load[1]:.1f}",
                flush=True,
            )
    times, memories = [abs(r.time_error) for r in results], [abs(r.memory_error) for r in results]
    facts: dict[str, object] = {"configs": len(results)}
    if results:
        facts |= {"time_median": statistics.median(times), "time_worst": max(times), "memory_median": statistics.median(memories),
                  "memory_lowest": min(r.memory_error for r in results)}  # fmt: skip
    if runs:
        facts["whole_runs_worst"] = max(abs(plan_s / took_s - 1) for _, plan_s, took_s, _ in runs)
    print(json.dumps(facts, indent=1 if given.json else None))
    return 0


def print_result(r: Result) -> None:
    time_part = f"planned {r.planned_s * 1e3:9.1f} ms  took {r.took_s * 1e3:9.1f} ms {r.time_error:+7.1%}"
    memory_part = f"planned {r.planned_bytes / 1e6:7.0f} MB  used {r.used_bytes / 1e6:7.0f} MB {r.memory_error:+7.1%}"
    print(f"{r.name:<40}{r.parameters / 1e6:7.2f}M  {time_part}   {memory_part}   load {r.load[0]:.1f} {r.load[1]:.1f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
