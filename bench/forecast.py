"""How good are forecasts? Recorded runs are cut, the rest is hidden, and the end is forecast from what is left.

    python bench/recorded.py forecast FOLDER
    python bench/forecast.py FOLDER [--json]

The fit sees the rows up to the cut and the schedule, which is known when a run starts. Asked for: median absolute error
at most 0.02 nats; the 80 % interval covers 72 to 88 %; every refusal with its reason. "last value" is what one gets by
taking the loss at the cut for the end."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CUTS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Case:
    run: str
    schedule: str
    cut: float
    error: float
    last_value_error: float
    width: float
    covered: bool


def cases_of(folder: Path) -> tuple[list[Case], list[tuple[str, float, str]]]:
    from nanolens.forecasting import Refusal, forecast
    from nanolens.record import is_run
    from nanolens.record.read import read_run
    from nanolens.record.run import until

    found, refused = [], []
    for path in sorted(path for path in folder.iterdir() if is_run(path)):
        run = read_run(path)
        if run.get("state") != "finished":
            continue
        end, truth = int(run.evals.step[-1]), float(run.evals.val[-1])
        for cut in CUTS:
            seen = until(run, int(cut * end))
            answer = forecast(seen)
            if isinstance(answer, Refusal):
                refused.append((path.name, cut, answer.code))
                continue
            last = float(seen.evals.val[np.isfinite(seen.evals.val)][-1])
            found.append(
                Case(
                    path.name,
                    path.name.rsplit("-", 1)[1],
                    cut,
                    answer.loss - truth,
                    last - truth,
                    answer.high - answer.low,
                    answer.low <= truth <= answer.high,
                )
            )
    return found, refused


def summary(cases: list[Case]) -> dict[str, float]:
    error = np.abs([case.error for case in cases])
    return {
        "cuts": len(cases),
        "median_error": float(np.median(error)),
        "mean_error": float(error.mean()),
        "worst_error": float(error.max()),
        "bias": float(np.mean([case.error for case in cases])),
        "coverage": float(np.mean([case.covered for case in cases])),
        "median_width": float(np.median([case.width for case in cases])),
        "last_value_median_error": float(np.median(np.abs([case.last_value_error for case in cases]))),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    cases, refused = cases_of(given.folder)
    whole = summary(cases)
    parts = {f"cut {cut:.0%}": [case for case in cases if case.cut == cut] for cut in CUTS}
    parts |= {
        name: [case for case in cases if case.schedule == name] for name in sorted({case.schedule for case in cases})
    }
    if given.json:
        print(
            json.dumps(
                {
                    "whole": whole,
                    "parts": {name: summary(some) for name, some in parts.items() if some},
                    "refused": refused,
                },
                indent=1,
            )
        )
    else:
        print(f"{'':<12}{'cuts':>6}{'median':>9}{'mean':>9}{'bias':>9}{'covered':>9}{'width':>8}{'last value':>12}")
        for name, some in {"all": cases, **parts}.items():
            if some:
                s = summary(some)
                print(
                    f"{name:<12}{s['cuts']:>6}{s['median_error']:>9.4f}{s['mean_error']:>9.4f}{s['bias']:>+9.4f}{s['coverage']:>9.0%}{s['median_width']:>8.3f}"
                    f"{s['last_value_median_error']:>12.4f}"
                )
        print("refused:", dict(Counter(code for _, _, code in refused)) or "none")
        for name, cut, code in refused:
            print(f"  {name} at {cut:.0%}: {code}")
    return 0 if whole["cuts"] >= 100 and whole["median_error"] <= 0.02 and 0.72 <= whole["coverage"] <= 0.88 else 1


if __name__ == "__main__":
    sys.exit(main())
