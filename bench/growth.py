"""How cost grows: tokens per second and memory over width, context and batch, with the machine's matmul peak drawn in.

    python bench/growth.py [--arch=gpt2|modern] [--threads=2] [--table=FILE.json] [--svg=docs/growth.svg]

One thing is varied at a time around a model of 4 layers, 256 wide, context 256, batch 8: n_embd 128 to 768 (heads of 64
channels), block_size 64 to 1024, batch_size 1 to 64. Each point is a process of its own that takes whole updates, by
the trainer's own function, for two seconds, after one to warm up; memory is the peak of that process. The peak is the
fastest square matrix product that `nanolens train` measures at its start. FLOPs are those of matrix products and
attention, forward and backward (nanolens/sizing/shape.py)."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

AROUND = {"n_layer": 4, "n_embd": 256, "block_size": 256, "batch_size": 8}
AXES = {
    "n_embd": (128, 192, 256, 384, 512, 768),
    "block_size": (64, 128, 256, 512, 1024),
    "batch_size": (1, 2, 4, 8, 16, 32, 64),
}
VOCABULARY = 65
MEASURED_S, UPDATES_AT_LEAST = 2.0, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="gpt2", choices=("gpt2", "modern"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", type=Path, help="write what was measured as JSON")
    parser.add_argument("--svg", type=Path, help="draw it")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point:
        print(json.dumps(measured(given.arch, given.threads, json.loads(given.point))))
        return
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    seen: dict[str, list[dict[str, Any]]] = {}
    print(f"arch={given.arch}, {AROUND['n_layer']} layers, float32, {given.threads} threads")
    print(f"{'':12}{'':>6}{'tokens/s':>10}{'GFLOP/s':>9}{'of peak':>9}{'memory':>10}")
    for axis, values in AXES.items():
        for value in values:
            found = in_own_process(given, {**AROUND, axis: value})
            seen.setdefault(axis, []).append({"at": value, **found})
            print(
                f"{axis:12}{value:6}{found['tokens_per_s']:10.0f}{found['flops_per_s'] / 1e9:9.1f}"
                f"{found['flops_per_s'] / found['peak_flops']:9.0%}{found['memory_bytes'] / 1e6:8.0f}MB",
                flush=True,
            )
    if given.table:
        given.table.write_text(json.dumps(seen, indent=1))
    if given.svg:
        given.svg.write_text(drawn(seen, given.arch))


def in_own_process(given: argparse.Namespace, point: dict[str, int]) -> dict[str, float]:
    words = [
        sys.executable,
        __file__,
        f"--arch={given.arch}",
        f"--threads={given.threads}",
        "--point",
        json.dumps(point),
    ]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def measured(arch: str, threads: int, point: dict[str, int]) -> dict[str, float]:
    from nanolens.config.fields import Config
    from nanolens.measure.timed import TimedModel, made_up, peak_bytes
    from nanolens.sizing.shape import flops_per_token, shape_of
    from nanolens.training.machine import repeated

    config = Config(
        arch=arch,
        n_head=point["n_embd"] // 64,
        gradient_accumulation_steps=1,
        threads=threads,
        compile=False,
        device="cpu",
        **point,
        optimizer="muon" if arch == "modern" else "adamw",
    )
    model = TimedModel(config, made_up(config, VOCABULARY))
    model.update_s(config)
    update_s = statistics.median(repeated(lambda: model.update_s(config), MEASURED_S, UPDATES_AT_LEAST, 10**6))
    flops = flops_per_token(shape_of(config, VOCABULARY)).training * config.tokens_per_update
    peak = model.machine.peak_flops
    assert peak is not None
    return {
        "tokens_per_s": config.tokens_per_update / update_s,
        "flops_per_s": flops / update_s,
        "peak_flops": peak,
        "memory_bytes": peak_bytes(model.machine),
    }


# --- the picture: three panels of speed above three of memory, plain SVG

PANEL_W, PANEL_H, LEFT, TOP, GAP_X, GAP_Y = 230, 150, 62, 40, 62, 62
INSET = 16  # room for the figures of the first and the last point
COLOURS = {"speed": "#1f6feb", "peak": "#d1242f", "memory": "#8250df"}


@dataclasses.dataclass(frozen=True)
class Panel:
    x: int
    y: int
    ticks: tuple[int, ...]
    top: float

    def place(self, index: int, value: float) -> tuple[float, float]:
        step = (PANEL_W - 2 * INSET) / max(1, len(self.ticks) - 1)
        return self.x + INSET + index * step, self.y + PANEL_H * (1 - value / self.top)


def drawn(seen: dict[str, list[dict[str, Any]]], arch: str) -> str:
    width, height = LEFT + 3 * PANEL_W + 2 * GAP_X + 20, TOP + 2 * PANEL_H + GAP_Y + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{LEFT}" y="18" font-size="13">arch={arch}: what an '
        f"update costs "
        f"(4 layers, 256 wide, context 256, batch 8, one of them varied)</text>",
    ]
    peak = max(row["peak_flops"] for rows in seen.values() for row in rows) / 1e9
    most = max(row["memory_bytes"] for rows in seen.values() for row in rows) / 1e6
    for column, (axis, rows) in enumerate(seen.items()):
        ticks = tuple(row["at"] for row in rows)
        x = LEFT + column * (PANEL_W + GAP_X)
        speed = Panel(x, TOP, ticks, 1.15 * peak)
        parts += frame(speed, "GFLOP/s" if column == 0 else "", axis="")
        parts += line(
            speed,
            [row["flops_per_s"] / 1e9 for row in rows],
            COLOURS["speed"],
            [f"{row['tokens_per_s']:,.0f}" for row in rows],
        )
        level = speed.place(0, peak)[1]
        parts.append(
            f'<line x1="{x}" x2="{x + PANEL_W}" y1="{level:.1f}" y2="{level:.1f}" stroke="{COLOURS["peak"]}" '
            f'stroke-dasharray="4 3"/>'
        )
        parts.append(
            f'<text x="{x + 4}" y="{level - 4:.1f}" fill="{COLOURS["peak"]}">matmul peak, {peak:.0f} GFLOP/s</text>'
        )
        memory = Panel(x, TOP + PANEL_H + GAP_Y, ticks, 1.1 * most)
        parts += frame(memory, "memory, MB" if column == 0 else "", axis=axis)
        parts += line(
            memory,
            [row["memory_bytes"] / 1e6 for row in rows],
            COLOURS["memory"],
            [f"{row['memory_bytes'] / 1e6:,.0f}" for row in rows],
        )
    parts.append(
        f'<text x="{LEFT}" y="{TOP + PANEL_H + 34}" fill="#57606a">small figures above: tokens per second</text></svg>'
    )
    return "\n".join(parts) + "\n"


def frame(panel: Panel, title: str, axis: str) -> list[str]:
    bottom = panel.y + PANEL_H
    parts = [f'<path d="M{panel.x} {panel.y}V{bottom}H{panel.x + PANEL_W}" fill="none" stroke="#57606a"/>']
    for i, tick in enumerate(panel.ticks):
        x, _ = panel.place(i, 0)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick}</text>')
    for share in (0.25, 0.5, 0.75, 1.0):
        value = panel.top * share
        parts.append(
            f'<text x="{panel.x - 5}" y="{panel.place(0, value)[1] + 4:.1f}" text-anchor="end" '
            f'fill="#57606a">{value:,.0f}</text>'
        )
    if title:
        parts.append(f'<text x="{panel.x - 50}" y="{panel.y - 8}">{title}</text>')
    if axis:
        parts.append(f'<text x="{panel.x + PANEL_W / 2}" y="{bottom + 32}" text-anchor="middle">{axis}</text>')
    return parts


def line(panel: Panel, values: list[float], colour: str, labels: list[str]) -> list[str]:
    places = [panel.place(i, value) for i, value in enumerate(values)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for (x, y), label in zip(places, labels, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{y + 15:.1f}" text-anchor="middle" font-size="8" fill="{colour}">{label}</text>'
        )
    return parts


if __name__ == "__main__":
    main()
