"""Does the referee call luck a gain, does it find what is there, and are the gains that it states true?

    python bench/referee.py series [--count=2000] [--kept=chain|none]
    python bench/referee.py try [--count=300]
    python bench/referee.py runs FOLDER [--updates=600] [--variants=40] [--seeds=12] [--minutes=600]

`series`: simulated series of 20 to 200 tries, of which a tenth gain something, with noise from 0.2 to 3 times that gain
(log-uniform). `none`: every try changes the baseline; `chain`: whatever scored best so far was kept and built on. Asked
for: at most a tenth of what is called a gain is none, at least 80 % of the gains of three sigma or more are found, and
the stated gains are within a tenth of the true ones on average. Beside it: greedy, which keeps every best score.

`try`: pairs of runs with a known truth (nothing, harm, gains of 0.5 to 3 sigma), and a known spread that is off by up
to a factor of two. Wrong: kept without a gain, or discarded in spite of one worth having. Asked for: at most 7 % at the
stated 5 %.

`runs`: real trainings. Variants of a small base, `--seeds` runs of each for the truth, each of `--updates`; then series
of one run a variant are drawn from them. Runs that FOLDER already holds are not made again, so that it may be
stopped and started; what is there is judged as far as it goes."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

THREE_SIGMA = 3.0
WORTH = 0.01


class Tally:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.sums: defaultdict[str, float] = defaultdict(float)

    def add(self, held: set[int], truth: np.ndarray, noise: float, stated: dict[int, float], claimed: dict[int, float]):
        """`truth`: the gain of each try, in the unit of `noise`."""
        large = {i for i in range(len(truth)) if truth[i] >= THREE_SIGMA * noise}
        self.counts.update(held=len(held), false=sum(truth[i] <= 0 for i in held))
        self.counts.update(large=len(large), found=len(large & held))
        for i in held:
            self.sums["true"] += truth[i]
            self.sums["stated"] += stated[i]
            self.sums["claimed"] += claimed[i]

    def rows(self) -> dict[str, float]:
        counts, true = self.counts, max(self.sums["true"], 1e-12)
        return {
            "called a gain": counts["held"],
            "of them no gain": counts["false"] / max(1, counts["held"]),
            "gains of three sigma or more": counts["large"],
            "of them found": counts["found"] / max(1, counts["large"]),
            "stated gain over the true one": self.sums["stated"] / true,
            "claimed gain over the true one": self.sums["claimed"] / true,
        }


def judged(scores: list[float], truth: np.ndarray, noise: float, kept: str, ours: Tally, greedy: Tally) -> None:
    """`scores` begin with the baseline; `truth` has the gain of each try behind it."""
    from nanolens.refereeing import referee
    from nanolens.refereeing.series import Series, Try, related

    best, lucky = scores[0], set()
    for i, score in enumerate(scores[1:]):
        if score < best:
            best = score
            lucky.add(i)
    status = {i: "kept" if i in lucky else "discarded" for i in range(len(truth))} if kept == "chain" else {}
    rows = [Try("baseline", (scores[0],), "baseline", "baseline")]
    rows += [Try(str(i), (score,), status.get(i, "unknown"), f"change {i}") for i, score in enumerate(scores[1:])]
    found = referee(Series("simulated", "val_loss", True, related(rows))).verdicts[1:]
    held = {i for i, each in enumerate(found) if each.decision == "gain"}
    claimed = {i: each.claimed or 0.0 for i, each in enumerate(found)}
    ours.add(held, truth, noise, {i: found[i].gain or 0.0 for i in held}, claimed)
    greedy.add(lucky, truth, noise, claimed, claimed)


def series(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    draw, ours, greedy = np.random.default_rng(given.seed), Tally(), Tally()
    for _ in range(given.count):
        tries, noise = int(draw.integers(20, 201)), math.exp(draw.uniform(math.log(0.2), math.log(3.0)))
        truth = np.where(draw.random(tries) < 0.1, 1.0, 0.0)
        level = best = 10.0
        best += noise * draw.standard_normal()
        scores = [best]
        for gain in truth:
            scores.append(level - gain + noise * draw.standard_normal())
            if given.kept == "chain" and scores[-1] < best:
                best, level = scores[-1], level - gain
        judged(scores, truth, noise, given.kept, ours, greedy)
    return {"referee": ours.rows(), "greedy": greedy.rows()}


def tries(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    from nanolens.measure.trying import alternate

    draw, counts = np.random.default_rng(given.seed), Counter[str]()
    for _ in range(given.count):
        sd, truth = 0.02 * math.exp(draw.normal() / 3), float(draw.choice([0.0, 0.0, -1.0, 0.5, 1.0, 2.0, 3.0]))
        gain, known, left = truth * sd, sd * math.exp(draw.uniform(-math.log(2), math.log(2))), iter(range(12))

        def run(side: str, seed: int, gain: float = gain, sd: float = sd) -> float:
            return 2.0 - (gain if side == "candidate" else 0.0) + sd * draw.standard_normal()

        def has_time(left=left) -> bool:
            return next(left, None) is not None

        _, verdict = alternate(run, iter(range(100)), lambda known=known: known, has_time, WORTH)
        wrong = (verdict.result == "keep" and gain <= 0) or (verdict.result == "discard" and gain >= WORTH)
        counts.update([verdict.result, "wrong" if wrong else "right"])
    return {"try": {name: counts[name] / given.count for name in ("keep", "discard", "undecided", "wrong")}}


# --- real runs


def variants(count: int) -> list[dict[str, object]]:
    """Changes of one setting of the base: most do little, some help, some harm."""
    changes: list[dict[str, object]] = [{}]
    changes += [{"learning_rate": rate, "min_lr": rate / 10} for rate in (5e-4, 8e-4, 1.2e-3, 1.5e-3, 2e-3, 3e-3, 4e-3)]
    changes += [{"weight_decay": decay} for decay in (0.0, 0.02, 0.05, 0.2, 0.3, 0.5)]
    changes += [{"beta2": beta} for beta in (0.9, 0.95, 0.98, 0.995)] + [{"beta1": beta} for beta in (0.8, 0.85, 0.95)]
    changes += [{"grad_clip": clip} for clip in (0.3, 0.5, 2.0, 5.0)] + [{"dropout": share} for share in (0.05, 0.1)]
    changes += [{"warmup_iters": steps} for steps in (1, 5, 20, 40)] + [{"n_head": 2}, {"n_head": 8}, {"n_layer": 1}]
    changes += [{"n_layer": 3}, {"batch_size": 8}, {"batch_size": 24}, {"n_embd": 48}, {"n_embd": 96}, {"bias": True}]
    return changes[: count + 1]


def train_all(folder: Path, given: argparse.Namespace) -> dict[str, list[float]]:
    import nanolens

    found: dict[str, list[float]] = defaultdict(list)
    base = {"n_layer": 2, "n_head": 4, "n_embd": 64, "block_size": 64, "batch_size": 12, "eval_iters": 40}
    common = {"max_iters": given.updates, "eval_interval": given.updates, "learning_rate": 1e-3, "min_lr": 1e-4}
    fixed = {"gradient_accumulation_steps": 1, "device": "cpu", "compile": False, "threads": 1, "sample_interval": 0}
    until_s = time.monotonic() + given.minutes * 60
    for seed in range(1, given.seeds + 1):
        for number, change in enumerate(variants(given.variants)):
            path = folder / f"{number:02d}-seed-{seed}"
            if not (path / "result.json").is_file():
                if time.monotonic() > until_s:
                    continue
                named = {**base, **common, **fixed, "warmup_iters": 10, **change, "seed": seed}
                run = nanolens.train(given.preset, quiet=True, overwrite=True, out_dir=str(path / "run"), **named)
                (path / "result.json").write_text(json.dumps({"val": float(run.evals.val[-1]), **change}))
            found[f"{number:02d}"].append(json.loads((path / "result.json").read_text())["val"])
    return found


def runs(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    vals = {name: np.array(each) for name, each in train_all(Path(given.folder), given).items()}
    ready = {name: each for name, each in vals.items() if len(each) >= 2 and np.isfinite(each).all()}
    base, names = ready["00"], [name for name in ready if name != "00"]
    noise = math.sqrt(float(np.mean([each.var(ddof=1) for each in ready.values()])))
    error = noise * math.sqrt(1 / len(base) + 1 / min(len(each) for each in ready.values()))
    means = np.array([base.mean() - ready[name].mean() for name in names])
    truth = np.where(means > 2 * error, means, 0.0)  # what the seeds themselves do not show counts as no gain
    draw, ours, greedy = np.random.default_rng(given.seed), Tally(), Tally()
    for _ in range(given.count):
        order = draw.permutation(len(names))
        scores = [float(draw.choice(base)), *(float(draw.choice(ready[names[i]])) for i in order)]
        judged(scores, truth[order], noise, "none", ours, greedy)
    about = {"variants": len(names), "seeds": len(base), "noise": noise, "true gains": int((truth > 0).sum())}
    return {"runs": about, "referee": ours.rows(), "greedy": greedy.rows()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["series", "try", "runs"])
    parser.add_argument("folder", nargs="?", default="referee-runs")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", choices=["chain", "none"], default="none")
    parser.add_argument("--preset", default="quickstart")
    parser.add_argument("--updates", type=int, default=600, help="of each real run: about 20 s on one core")
    parser.add_argument("--variants", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=600.0, help="no new real run is begun after so long")
    given = parser.parse_args()
    given.count = given.count or {"series": 2000, "try": 300, "runs": 200}[given.what]
    for name, rows in {"series": series, "try": tries, "runs": runs}[given.what](given).items():
        print(name)
        for what, value in rows.items():
            print(f"  {what:<34}{value:>10.3f}" if isinstance(value, float) else f"  {what:<34}{value:>10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
