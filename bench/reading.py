"""CPU time of reading: 10 MB of each format, a log of 5,000 lines, a run of a million steps. The whole command, from
its start to its end.

    python bench/reading.py [--only NAME] [--write docs/diagnosis.md]

Each figure is user and system time of a fresh process (`nanolens diagnose FILE --json`, `nanolens explain FILE`), the
least of three. The run of a million steps is read for the first time (its columns are not kept yet), and then once
more."""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent))

from nanolens.record import EVENTS_FILE
from nanolens.record import events as e
from nanolens.record.write import write_run_file
from tests.logs.test_speed import HOSTILE, LOGS, repeated, rows

GOALS = {"10 MB": 2.0, "5,000 lines": 1.0, "a million steps": 5.0}
TIMES = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument(
        "--write", type=Path, help="a Markdown file whose part between the marks is replaced by the table"
    )
    given = parser.parse_args()
    found: list[tuple[str, str, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        cpu_of("explain", Path("quickstart"), cache, keep=False)  # the first start compiles the modules
        for name, goal, path in cases(Path(folder), given.only):
            for command in ("diagnose", "explain"):
                cpu_s = min(cpu_of(command, path, cache, keep="again" in name) for _ in range(given.times))
                found.append((f"{name}, {command}", goal, cpu_s, GOALS[goal]))
                print(
                    f"{'ok  ' if cpu_s < GOALS[goal] else 'SLOW'} {name}, {command}: {cpu_s:.2f} s of CPU, goal "
                    f"{GOALS[goal]} s",
                    flush=True,
                )
            if path.is_file():
                path.unlink()
    if given.write:
        write_table(given.write, found)
    return 0 if all(cpu_s < goal for _, _, cpu_s, goal in found) else 1


def cases(folder: Path, only: str) -> Iterator[tuple[str, str, Path]]:
    for name, form in LOGS.items():
        if only in f"10 MB of {name}":
            yield f"10 MB of {name}", "10 MB", kept(folder, rows(form, 10_000_000))
    for text in HOSTILE:
        if only in f"10 MB of {text!r}":
            yield f"10 MB of {text!r}", "10 MB", kept(folder, repeated(text, 10_000_000))
    for name, form in LOGS.items():
        if only in f"5,000 lines of {name}":
            yield (
                f"5,000 lines of {name}",
                "5,000 lines",
                kept(folder, rows(form, 5_000 * len(form.format(k=10_000, x="2.1234")))),
            )
    if only in "a million steps, first read; again":
        run = million_steps(folder / "run")
        yield "a million steps, first read", "a million steps", run
        yield "a million steps, again", "a million steps", run


def kept(folder: Path, text: str) -> Path:
    path = folder / "train.log"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def million_steps(folder: Path, count: int = 1_000_000, every: int = 1000) -> Path:
    """A record as our own trainer writes it: a step a line, an evaluation of both splits at each thousandth."""
    config = {
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 128,
        "block_size": 64,
        "batch_size": 12,
        "learning_rate": 1e-3,
        "max_iters": count,
    }
    write_run_file(folder, {"config": config, "created_at_s": 1.7e9, "vocab_size": 65})
    encoder = msgspec.json.Encoder()
    with open(folder / EVENTS_FILE, "wb") as file:
        file.write(encoder.encode(e.RunStarted(step=0, at_s=1.7e9)) + b"\n")
        for step in range(1, count + 1):
            loss = 1.5 + 2.7 / (1 + step / 300) ** 0.5 + 0.02 * ((step * 7919) % 101 / 50 - 1)
            at_s = 1.7e9 + 0.03 * step
            taken = e.StepTaken(
                step=step, loss=loss, lr=1e-3, grad_norm=0.5 + (step % 17) / 50, tokens=768, took_s=0.03, at_s=at_s
            )
            file.write(encoder.encode(taken) + b"\n")
            if step % every == 0:
                for split, value in (("train", loss), ("val", loss + 0.05)):
                    told = e.Evaluated(
                        step=step,
                        split=split,
                        loss=value,
                        standard_error=0.01,
                        batch_losses=[value + 0.01 * i for i in range(20)],
                        batches="same",
                        tokens=15_360,
                        took_s=0.4,
                        at_s=at_s,
                    )
                    file.write(encoder.encode(told) + b"\n")
        file.write(
            encoder.encode(e.RunEnded(step=count, why="finished", parts={"train": 0.03 * count}, wall_s=0.03 * count))
            + b"\n"
        )
    return folder


def cpu_of(command: str, path: Path, cache: Path, *, keep: bool) -> float:
    """Of a fresh process; without `keep` also without what an earlier one may have kept for it."""
    if not keep:
        shutil.rmtree(cache, ignore_errors=True)
    call = [sys.executable, "-m", "nanolens", command, str(path), *(["--json"] if command == "diagnose" else [])]
    # As installed: modules are compiled once and not at each start.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= {"NANOLENS_CACHE": str(cache), "PYTHONPYCACHEPREFIX": str(cache.parent / "pycache")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_table(path: Path, found: list[tuple[str, str, float, float]]) -> None:
    """The slowest of each kind, between two marks."""
    table = ["| what | slowest of | CPU time | goal |", "|---|---|---|---|"]
    for goal, limit in GOALS.items():
        group = [row for row in found if row[1] == goal]
        if group:
            slowest = max(group, key=lambda row: row[2])
            table.append(
                f"| {goal} | {len(group)}: {slowest[0].replace('|', '&#124;')} | {slowest[2]:.2f} s | {limit:.0f} s |"
            )
    begin, end = "<!-- reading: begin -->", "<!-- reading: end -->"
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(begin)
    path.write_text(before + begin + "\n" + "\n".join(table) + "\n" + end + rest.partition(end)[2], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
