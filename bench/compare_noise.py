"""Does compare declare winners among runs that differ by their seed only, and does it tell apart runs that truly
differ?

    python bench/recorded.py seeds FOLDER
    python bench/compare_noise.py FOLDER [--json]

Every pair of seeds of one config is compared at the end and halfway. Asked for: a winner in at most 5 % of the pairs.
Then the val losses of one run of each pair (each batch's alike) are moved by 3.3 standard errors of the very
comparison. Asked for: told apart in at least 90 %. Groups of three against three other seeds are tried in the same way.
A comparison that claimed large errors would pass both: so the differences are also given in standard errors (their root
mean square should be near 1), and how often runs are told apart that differ by 3.3 times what the seeds themselves
scatter."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

MOVED_BY = 3.3  # standard errors


def groups_of(folder: Path) -> dict[str, list]:
    from nanolens.record import is_run
    from nanolens.record.read import read_run

    groups = defaultdict(list)
    for path in sorted(path for path in folder.iterdir() if is_run(path)):
        run = read_run(path)
        if run.get("state") == "finished":
            groups[path.name.rsplit("-seed-", 1)[0]].append(run)
    return groups


def verdict(ones: Iterable, others: Iterable):
    from nanolens.comparison import compare
    from nanolens.comparison.side import SeedGroup

    return compare([SeedGroup("a", tuple(ones)), SeedGroup("b", tuple(others))]).outcome("steps").verdicts[0]


def moved(run, by: float):
    """The run with all its val losses higher by so many nats."""
    evals = dataclasses.replace(
        run.evals, val=run.evals.val + by, val_batch_losses=tuple(losses + by for losses in run.evals.val_batch_losses)
    )
    return dataclasses.replace(run, evals=evals)


def halfway(run):
    from nanolens.record.run import until

    return until(run, int(run.evals.step[len(run.evals) // 2]))


def trials(runs: list, size: int) -> Iterable[tuple[tuple, tuple]]:
    if size == 1:
        yield from (((a,), (b,)) for a, b in itertools.combinations(runs, 2))
        return
    draw = np.random.default_rng(0)
    for _ in range(40):
        chosen = draw.permutation(len(runs))[: 2 * size]
        yield tuple(runs[i] for i in chosen[:size]), tuple(runs[i] for i in chosen[size:])


def measured(runs: list, size: int) -> dict[str, float]:
    winners, told, told_truly, tried, ratios = 0, 0, 0, 0, []
    truth = float(np.std([run.evals.val[-1] for run in runs], ddof=1)) * np.sqrt(
        2 / size
    )  # of a difference, by the seeds alone
    for ones, others in trials(runs, size):
        seen = verdict(ones, others)
        tried += 1
        winners += seen.result == "ahead"
        ratios.append(abs(seen.by) / seen.measured.se)
        # Whichever side is higher by chance, the difference is put on top of the other: half of the pairs then start
        # from behind.
        apart = verdict(ones, tuple(moved(run, MOVED_BY * seen.measured.se) for run in others))
        told += apart.result == "ahead" and apart.ahead == "a"
        truly = verdict(ones, tuple(moved(run, MOVED_BY * truth) for run in others))
        told_truly += truly.result == "ahead" and truly.ahead == "a"
    return {
        "pairs": tried,
        "winners": winners,
        "told_apart": told,
        "told_apart_by_scatter": told_truly,
        "rms_in_standard_errors": float(np.sqrt(np.mean(np.square(ratios)))),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = {}
    for name, runs in groups_of(given.folder).items():
        for when, some in (("end", runs), ("half", [halfway(run) for run in runs])):
            rows[f"{name}, {when}, single"] = measured(some, 1)
            if len(some) >= 6:
                rows[f"{name}, {when}, 3 against 3"] = measured(some, 3)
    single = [row for name, row in rows.items() if name.endswith("single")]
    pairs = sum(row["pairs"] for row in single)
    false, told = sum(row["winners"] for row in single) / pairs, sum(row["told_apart"] for row in single) / pairs
    if given.json:
        print(json.dumps({"rows": rows, "pairs": pairs, "winner_declared": false, "told_apart": told}, indent=1))
    else:
        for name, row in rows.items():
            winners, told_apart, by_scatter = (
                row[key] / row["pairs"] for key in ("winners", "told_apart", "told_apart_by_scatter")
            )
            rms = row["rms_in_standard_errors"]
            words = f"{winners:>8.1%} winners{told_apart:>8.1%} told apart{by_scatter:>8.1%} by scatter{rms:>7.2f} rms"
            print(f"{name:<34}{row['pairs']:>5} pairs{words}")
        scatter = sum(row["told_apart_by_scatter"] for row in single) / pairs
        print(
            f"single pairs together: {pairs}, a winner in {false:.1%}, {MOVED_BY} standard errors told apart in "
            f"{told:.1%}, ",
            end="",
        )
        print(f"{MOVED_BY} times the seeds' scatter in {scatter:.1%}")
    return 0 if false <= 0.05 and told >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
