"""How much is read of a log that nobody knows: line layouts invented at random, as people invent them in a loop.

    python bench/layouts.py [--count=40] [--seed=0] [--show]

A layout is drawn from the names people give (step, nll, gnorm, tok/s; a few in other languages, sometimes one that
nobody could know), the order, the separators and signs, units and number formats, prefixes of loggers, JSON, dicts,
tables and CSV, and lines of other kinds in between. Every layout is one that a careful person understands without
documentation. In a tenth the loss has an unknown name, and is plain only because it is the one column that falls.

Of each layout: the share of update rows read (number as printed, loss within the printed precision), of evaluations
(value and place), of other values (rate, gradient norm, seconds of a step, tokens per second, within 1%), and what was
made up: rows, evaluations, rates and norms that were read and never printed. A layout is fully right when all is read,
nothing is made up and the log is one run. `--show` adds the first row and the first evaluation as printed."""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from nanolens.logs import read_logs

Column = Callable[[float, float, float, int], str]

VALUES = {"lr": 0.8, "grad_norm": 0.6, "took_s": 0.5, "tokens_per_s": 0.4}  # with the share of loops that print it
NAMES = {
    "step": "step|step|step|iter|iteration|it|update|global step|train step|num updates|batch|epoch|steps|optim step",
    "loss": "loss|loss|loss|train loss|training loss|nll|cross entropy|xent|ce|ce loss|nll loss|objective|cost|lm loss"
    "|batch loss|trn loss|tloss|avg loss|mean nll|loss train",
    "val": "val loss|val loss|valid loss|validation loss|eval loss|dev loss|test loss|held-out loss|val nll|valid xent"
    "|vloss|val ce|loss val|eval nll|validation cross entropy",
    "lr": "lr|lr|lr|learning rate|learn rate|current lr|lrate|lr now",
    "grad_norm": "grad norm|grad norm|gnorm|gradient norm|norm|total norm|grad|global grad norm|grad l2|gn|g norm",
}
FOREIGN = (  # in the order of NAMES
    "步数|损失|验证损失|学习率|梯度范数",
    "迭代|训练损失|验证集损失|学习率|梯度",
    "चरण|हानि|सत्यापन हानि|सीखने की दर|ग्रेडिएंट मानक",
    "Schritt|Verlust|Validierungsverlust|Lernrate|Gradientennorm",
    "étape|perte|perte de validation|taux d'apprentissage|norme du gradient",
    "paso|pérdida|pérdida de validación|tasa de aprendizaje|norma del gradiente",
    "ステップ|損失|検証損失|学習率|勾配ノルム",
)
SPLITS = {"train", "training", "trn", "val", "valid", "validation", "eval", "dev", "test"}
PLACES = ("[{n}/{of}]", "[{n}/{of}]", "{S} [{n}/{of}]", "[{n}]")
UNKNOWN = ("foo", "kappa", "zz", "q7", "blorp", "m1", "theta_x", "wob")
# Seconds of a step: name, unit after the value, units in a second (or "rate": steps in a second).
TOOK: list[tuple[str, str, float | str]] = [
    ("step time", "ms", 1e3), ("step time", " ms", 1e3), ("step time", "s", 1), ("step time", "", 1),
    ("sec/step", "", 1), ("ms/step", "", 1e3), ("s/it", "", 1), ("step time ms", "", 1e3), ("ms per step", "", 1e3),
    ("time per step", "s", 1), ("time/iter", " ms", 1e3), ("step time(s)", "", 1), ("it/s", "", "rate"),
    ("steps/s", "", "rate"), ("steps per sec", "", "rate"), ("iter time", "s", 1), ("", "ms/step", 1e3),
    ("", " it/s", "rate"), ("", "s/it", 1), ("", "it/s", "rate"), ("", " ms/step", 1e3), ("speed", " it/s", "rate"),
]  # fmt: skip
TOOK_OF_ONE: list[tuple[str, str, float | str]] = [("dt", "ms", 1e3), ("time", "s", 1), ("", "ms", 1e3), ("dt", "", 1)]
RATES: list[tuple[str, str, float]] = [
    ("tok/s", "", 1), ("tokens/s", "", 1), ("tokens/sec", "", 1), ("tokens per sec", "", 1), ("toks/s", "", 1),
    ("tokens per second", "", 1), ("tps", "", 1), ("throughput", " tok/s", 1), ("", " tok/s", 1), ("tok/s", "k", 1e3),
    ("", "k tok/s", 1e3), ("", "K tokens/s", 1e3), ("ktok/s", "", 1e3), ("speed", " tokens/sec", 1), ("tok/sec", "", 1),
]  # fmt: skip
EVALS = (
    "{S} {n}: {V} {v}", "{V}{g}{v} at {S} {n}", "{V}{g}{v}{sep}{S}{g}{n}", "{S}{g}{n}{sep}{V}{g}{v}", "{V}{g}{v}",
    "{V} after {S} {n}: {v}", "{S} {n}: {T} {t}, {V} {v}", "{S}{g}{n}{sep}{T}{g}{t}{sep}{V}{g}{v}", "*** {V} = {v} ***",
)  # fmt: skip
EVALS_OF_LOSS = (
    "Validation | {S}{g}{n} | loss{g}{v}", "[eval] {S}{g}{n}{sep}loss{g}{v}", "=== eval @ {S} {n}: loss={v} ===",
    ">>> {S} {n} | train {t} | val {v}", "Evaluating at {S} {n}... loss {v}", "[{S} {n}] validation loss is {v}",
)  # fmt: skip
NOISE = (
    "Saving checkpoint to out/ckpt_{n}.pt", "saved model to runs/exp3/latest.safetensors", "",
    "/usr/lib/python3/site-packages/torch/optim/lr_scheduler.py:143: UserWarning: call optimizer.step() first",
    "Sample: Once upon a time there were 3 bears and 12 hats.", "> The king said: 'what loss is this?' and went.",
    "WARNING: dataloader worker 3 is slow", "New best model!", "-" * 60, "generating 2 samples ...",
)  # fmt: skip
HEADS = ("Number of parameters: 10.65M", "using device: cuda", "vocab size: {V}", "seed = 1337", "Starting training...",
         "config: n_layer=6, n_head=6, n_embd=384", "compiling the model (takes a minute)")  # fmt: skip
STAMPS = (
    "%Y-%m-%d %H:%M:%S,123 ", "[%Y-%m-%d %H:%M:%S] ", "%Y-%m-%dT%H:%M:%SZ ", "%H:%M:%S ", "[%H:%M:%S] INFO ",
    "%Y-%m-%d %H:%M:%S - trainer - INFO - ", "I%m%d %H:%M:%S.120934 4711 train.py:88] ", "[INFO] ", "INFO:train:",
    "May %d %H:%M:%S node7 python[123]: ", "[rank0]: ", "[rank 0] ", "0: ", "[train] ", "INFO | my_gpt.loop:fit:120 - ",
)  # fmt: skip
START_S = 1714564800.0


class Loop:
    """One invented training loop: what it prints, how, and the log it leaves with the truth about it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.shown: list[str] = []
        self.rows: list[dict[str, float]] = []  # printed, updates, loss, near, and those of VALUES
        self.evals: list[dict[str, float]] = []  # printed (NaN: none), updates, val, near
        self.style = rng.choice(["plain"] * 12 + ["json", "json", "dict", "markdown", "csv", "tsv", "aligned", "block"])
        self.table, self.object = self.style in ("markdown", "csv", "tsv", "aligned"), self.style in ("json", "dict")
        self.unknown = rng.random() < 0.1
        self.foreign = not self.unknown and rng.random() < 0.08
        self.join = joiner(rng)
        self.draw_run()
        self.draw_columns()
        self.draw_look()
        self.write()

    def draw_run(self) -> None:
        """Names and sizes: how often a row is printed, from which number, in how many epochs."""
        rng = self.rng
        self.names = {key: self.join(rng.choice(NAMES[key].split("|"))) for key in NAMES}
        if self.foreign:
            self.names = dict(zip(NAMES, rng.choice(FOREIGN).split("|"), strict=True))
        if self.unknown:
            self.names["loss"] = rng.choice(UNKNOWN)
            self.names["val"] = self.join("val " + self.names["loss"])
        self.vocab, self.count = rng.choice((65, 256, 4096, 32000, 50257, 128256)), rng.randint(30, 120)
        name = self.names["step"].lower()
        self.of_epochs = name == "epoch"
        self.every = 1 if self.of_epochs else rng.choice((1, 1, 10, 10, 50, 100))
        self.first = rng.choice((0, 1) if self.every == 1 else (0, 0, 1, self.every))
        restarts = name == "batch" and self.style == "plain" and rng.random() < 0.6
        self.per_epoch = self.count // rng.choice((2, 3)) if restarts else 0
        last = self.first + self.every * (self.per_epoch or self.count)
        self.total = last if self.per_epoch or rng.random() < 0.3 else 10 ** len(str(last))

    def draw_columns(self) -> None:
        rng, named = self.rng, self.style != "plain"
        self.keys = [key for key, share in VALUES.items() if rng.random() < share]
        if self.of_epochs:
            self.keys = [key for key in self.keys if key in ("lr", "grad_norm")]
        if self.unknown:  # so that the loss is the only column that falls
            self.keys = [key for key in self.keys if key != "lr"]
        self.keys = self.keys or ["grad_norm"]
        times = TOOK + (TOOK_OF_ONE if self.every == 1 else [])
        self.took = rng.choice([each for each in times if not named or (each[0] and not each[1])])
        self.rate = rng.choice([each for each in RATES if not named or (each[0] and not each[1])])
        self.extras = extra_columns(rng, self.unknown, named)
        self.order = ["loss", *self.keys, *self.extras]
        rng.shuffle(self.order)
        if rng.random() < 0.6:
            self.order = ["loss", *[key for key in self.order if key != "loss"]]
        self.order.insert(0 if rng.random() < 0.85 else rng.randint(1, len(self.order)), "step")
        if self.style == "block":
            self.order = ["step", *[key for key in self.order if key != "step"]]
        others = {"took_s": self.took[0], "tokens_per_s": self.rate[0], **{key: key for key in self.extras}}
        self.names |= {key: self.join(name) for key, name in others.items()}
        if self.style == "aligned":
            self.names = {key: name.replace(" ", "_") for key, name in self.names.items()}
        alone = self.style == "block" or rng.random() < 0.8
        self.inside = self.style in ("csv", "tsv", "markdown") or not alone

    def draw_look(self) -> None:
        rng = self.rng
        self.loss_form = rng.choice((".2f", ".3f", ".4f", ".4f", ".5f", ".6f", ".4e"))
        self.lr_form = rng.choice((".2e", ".3e", ".6f", ".8f", ".4e"))
        self.norm_form = rng.choice((".2f", ".3f", ".4f", ".3e"))
        self.comma = "," if self.style == "plain" and rng.random() < 0.25 else ""
        self.sign = rng.choice((": ", ": ", ":", "=", "=", " = ", " ", " ", "：", *("：" * 5 if self.foreign else "")))
        between = [", ", " | ", "; ", " - ", "\t", "  ", " || "] + ([" ", " "] if self.sign in ("=", ":") else [])
        self.between = rng.choice(between)
        self.after = rng.choice((self.between, self.between, ": ", " ")) if self.order[0] == "step" else self.between
        self.place = rng.choice((*["{S}{g}{n}"] * 3, *["{S}{g}{n}/{of}"] * 2, "{S} {n} of {of}", *PLACES))
        self.width, self.fill = len(str(self.total)) if rng.random() < 0.4 else 1, "0" if rng.random() < 0.3 else " "
        stamped = (self.object or self.style == "plain") and rng.random() < 0.5
        self.stamp = rng.choice(STAMPS) if stamped else ""
        self.template = rng.choice(EVALS if self.unknown or self.foreign else EVALS + EVALS_OF_LOSS)
        self.object_eval = "val" if self.unknown or self.foreign else rng.choice(("val", "both", "event"))
        self.before = rng.random() < 0.3
        self.noisy = self.style not in ("csv", "tsv") and rng.random() < 0.6
        self.quoted = self.style == "dict" and rng.random() < 0.3
        self.empty = rng.choice(("-", "nan")) if self.style == "aligned" else ""

    def write(self) -> None:
        rng, count, now = self.rng, self.count, START_S
        self.header = [self.names[key] for key in self.order] + ([self.names["val"]] if self.inside else [])
        if self.noisy:
            self.lines += [head.format(V=self.vocab) for head in rng.sample(HEADS, rng.randint(0, 4))]
        if self.table:
            self.lines += self.table_lines(self.header)
            self.shown += self.table_lines(self.header)
            if self.style == "markdown":
                self.lines.append("|" + "---|" * len(self.header))
        ceiling, peak = math.log(self.vocab), rng.choice((1e-4, 3e-4, 6e-4, 1e-3, 3e-3))
        floor, bend = ceiling * rng.uniform(0.3, 0.5), count * rng.uniform(0.05, 0.2)
        base_s, tokens = rng.choice((0.04, 0.12, 0.35, 1.4)), rng.choice((8192, 65536, 491520))
        eval_at = set(rng.sample(range(count // 6, count), rng.randint(2, 8)))
        for index in range(count):
            updates = self.first + self.every * index
            epoch, place = divmod(index, self.per_epoch or count)
            took_s = base_s * rng.uniform(0.96, 1.06)
            now += took_s * self.every
            mean = floor + (ceiling - floor) / (1 + index / bend) ** 0.8
            loss = mean * (1 + rng.gauss(0, 0.012))
            lr = peak * min(1.0, (index + 1) / (count * 0.08)) * (0.55 + 0.45 * math.cos(math.pi * index / count))
            norm = (0.8 if self.unknown else 0.5 + 1.5 / (1 + index / bend)) * math.exp(rng.gauss(0, 0.2))
            number = 1 / took_s if self.took[2] == "rate" else took_s * float(self.took[2])
            speed = tokens / took_s / self.rate[2]
            cells = {
                "step": f"{self.first + self.every * place:{self.comma}}",
                "loss": f"{loss:{self.loss_form}}",
                "lr": f"{lr:{self.lr_form}}",
                "grad_norm": f"{norm:{self.norm_form}}",
                "took_s": f"{number:.{max(1, 3 - math.floor(math.log10(number)))}f}",
                "tokens_per_s": f"{speed:.1f}" if self.rate[2] > 1 else f"{speed:{self.comma}.0f}",
            }
            elapsed_s = now - START_S
            cells |= {key: of(index / count, loss, elapsed_s, tokens * updates) for key, of in self.extras.items()}
            printed = {"printed": self.first + self.every * place, "updates": updates}
            values = {key: float(cells[key].replace(",", "")) for key in ("loss", *self.keys)}
            if "took_s" in values:
                in_s = values["took_s"]
                values["took_s"] = 1 / in_s if self.took[2] == "rate" else in_s / float(self.took[2])
            if "tokens_per_s" in values:
                values["tokens_per_s"] *= self.rate[2]
            self.rows.append({**printed, "near": half_digit(cells["loss"]), **values})
            val, train = (f"{mean * by + rng.gauss(0, 0.01):{self.loss_form}}" for by in (1.02, 1.0))
            told = index in eval_at
            if told:
                self.evals.append({**printed, "val": float(val), "near": half_digit(val)})
            prefix = time.strftime(self.stamp, time.gmtime(now))
            row = self.row_lines(prefix, cells, epoch + 1, val if told and self.inside else None)
            line = self.eval_lines(prefix, cells["step"], epoch + 1, val, train) if told and not self.inside else []
            self.lines += line + row if self.before and "{n}" in self.template else row + line
            if index == 3:
                self.shown.append(" ⏎ ".join(row))
            if told and len(self.evals) == 1:
                self.shown += line or row
            if self.noisy and rng.random() < 0.07:
                self.lines.append(rng.choice(NOISE).format(n=updates))

    def row_lines(self, prefix: str, cells: dict[str, str], epoch: int, val: str | None) -> list[str]:
        name = self.names
        if self.table:
            return self.table_lines([cells[key] for key in self.order] + ([val or self.empty] if self.inside else []))
        pairs = {name[key]: cells[key] for key in self.order} | ({name["val"]: val} if val else {})
        if self.object:
            return [prefix + self.object_line(pairs)]
        units = {"took_s": self.took[1], "tokens_per_s": self.rate[1]}
        texts = [(name[key] and name[key] + self.sign) + cells[key] + units.get(key, "") for key in self.order]
        if self.style == "block":
            return [f"{name['step']} {cells['step']}", *[f"    {text}" for text in texts[1:]]]
        number = cells["step"].rjust(self.width, " " if self.comma else self.fill)
        step = self.place.format(S=name["step"], g=self.sign, n=number, of=f"{self.total:{self.comma}}")
        if self.per_epoch:
            step = f"Epoch [{epoch}]{step}" if step.startswith("[") else f"epoch {epoch} {step}"
        texts[self.order.index("step")] = step
        texts += [name["val"] + self.sign + val] if val else []
        return [prefix + self.between.join([self.after.join(texts[:2]), *texts[2:]])]

    def eval_lines(self, prefix: str, number: str, epoch: int, val: str, train: str) -> list[str]:
        name, trained = self.names, "train" if self.unknown or self.foreign else self.join("train loss")
        if self.object:
            told = {"event": '"eval"', "loss": val} if self.object_eval == "event" else {name["val"]: val}
            told |= {trained: train} if self.object_eval == "both" else {}
            return [prefix + self.object_line({name["step"]: number, **told})]
        if "{n}" not in self.template:
            self.evals[-1]["printed"] = math.nan
        step, number = ("epoch", f"{epoch} {name['step']} {number}") if self.per_epoch else (name["step"], number)
        parts = {"S": step, "n": number, "V": name["val"], "v": val, "T": trained, "t": train}
        return [prefix + self.template.format(g=self.sign, sep=self.between, **parts)]

    def table_lines(self, cells: list[str]) -> list[str]:
        if self.style == "markdown":
            return ["| " + " | ".join(cells) + " |"]
        if self.style == "aligned":
            widths = [max(10, len(name)) for name in self.header]
            return ["  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))]
        return [("," if self.style == "csv" else "\t").join(cells)]

    def object_line(self, pairs: dict[str, str]) -> str:
        mark = '"' if self.style == "json" else "'"
        texts = [f"'{text}'" if self.quoted and '"' not in text else text.replace('"', mark) for text in pairs.values()]
        return "{" + ", ".join(f"{mark}{name}{mark}: {text}" for name, text in zip(pairs, texts, strict=True)) + "}"


def joiner(rng: random.Random) -> Callable[[str], str]:
    """The case in which this loop writes its names."""
    how = rng.choice(("snake", "snake", "space", "space", "camel", "title", "upper", "kebab", "slash"))

    def joined(name: str) -> str:
        words = name.split(" ")
        if how == "slash" and len(words) == 2 and SPLITS & set(words):
            return "/".join(words)
        if "/" in name or "(" in name or how == "space":
            return name
        if how == "camel":
            return words[0] + "".join(word.title() for word in words[1:])
        if how in ("title", "upper"):
            return " ".join(word.upper() if how == "upper" or word in ("lr", "ce") else word.title() for word in words)
        return ("-" if how == "kebab" else "_").join(words)

    return joined


def half_digit(text: str) -> float:
    """Half a unit of the last printed digit, and a little."""
    mantissa, _, power = text.partition("e")
    return 0.51 * 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))


def extra_columns(rng: random.Random, unknown: bool, named: bool) -> dict[str, Column]:
    """Columns that are none of ours: those people print as well, and sometimes one that nobody could know."""
    percent, giga, unit = ("", "", "") if named else ("%", "GB", "s")
    level = rng.choice((3.1, 0.4, 17.0))
    columns: dict[str, Column] = {
        "mfu": lambda along, loss, at_s, tokens: f"{34 + rng.gauss(0, 0.5):.2f}{percent}",
        "mem": lambda along, loss, at_s, tokens: f"{21.4 + 0.1 * rng.randint(0, 1):.1f}{giga}",
        "wd": lambda along, loss, at_s, tokens: "0.1",
    }
    if not unknown:
        columns |= {
            "ppl": lambda along, loss, at_s, tokens: f"{math.exp(loss):.2f}",
            "acc": lambda along, loss, at_s, tokens: f"{0.6 / (1 + loss):.3f}",
            "tokens seen": lambda along, loss, at_s, tokens: str(tokens),
            "elapsed": lambda along, loss, at_s, tokens: f"{at_s:.1f}{unit}",
            "progress": lambda along, loss, at_s, tokens: f"{100 * along:.1f}{percent}",
            "aux loss": lambda along, loss, at_s, tokens: f"{0.01 + rng.uniform(0, 0.002):.4f}",
        }
    chosen = {key: columns[key] for key in rng.sample(sorted(columns), rng.choice((0, 0, 1, 2)))}
    if not unknown and rng.random() < 0.25:
        chosen[rng.choice(UNKNOWN)] = lambda along, loss, at_s, tokens: f"{level * (1 + rng.gauss(0, 0.05)):.2f}"
    return chosen


def score(made: Loop) -> dict[str, Any]:
    """What was read of the rows, evaluations and values that were printed, and how much was made up."""
    try:
        runs = read_logs("\n".join(made.lines) + "\n")
    except Exception as error:
        print(f"     {type(error).__name__}: {error}")
        runs = []
    left = [row for run in runs for row in records(run.steps, ("printed", "loss", *VALUES))]
    told = [each for run in runs for each in records(run.evals, ("printed", "step", "val"))]
    told = [each for each in told if math.isfinite(each["val"])]
    result: Counter[str] = Counter(rows_all=len(made.rows), evals_all=len(made.evals), runs=len(runs))
    for row in made.rows:
        at = [r for r in left if r["printed"] in (row["printed"], row["updates"])]
        off = [abs(r["loss"] - row["loss"]) for r in at]
        best = min(zip(off, at, strict=True), key=lambda pair: (pair[0] != pair[0], pair[0]), default=(0, None))[1]
        result["rows"] += best is not None and abs(best["loss"] - row["loss"]) <= row["near"]
        for key in VALUES:
            if key in row:
                result[f"{key}_all"] += 1
                result[key] += best is not None and abs(best[key] - row[key]) <= max(0.01 * abs(row[key]), 1e-12)
            elif best is not None and key in ("lr", "grad_norm"):
                result["made up"] += math.isfinite(best[key])
        if best is not None:
            left.remove(best)
    for each in made.evals:
        near = made.every + 1
        for found in told:
            placed = each["printed"] == found["printed"] or abs(found["step"] - each["updates"]) <= near
            if abs(found["val"] - each["val"]) <= each["near"] and placed:
                told.remove(found)
                result["evals"] += 1
                break
    result["made up"] += sum(math.isfinite(r["loss"]) for r in left) + len(told)
    return dict(result)


def records(columns: Any, keys: tuple[str, ...]) -> list[dict[str, float]]:
    lists = [[float(value) for value in getattr(columns, key)] for key in keys]
    return [dict(zip(keys, values, strict=True)) for values in zip(*lists, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="layouts to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="the first lines of each layout as well")
    given = parser.parse_args()
    totals: Counter[str] = Counter()
    titles = " ".join(f"{key:>12}" for key in VALUES)
    print(f"         {'layout':<9}{'rows':>7} {'evals':>6} {titles}  made up  runs")
    for number in range(given.count):
        made = Loop(random.Random(f"{given.seed}/{number}"))
        got = score(made)
        kinds = ("rows", "evals", *VALUES)
        full = got["runs"] == 1 and not got["made up"] and all(got.get(k, 0) == got.get(f"{k}_all", 0) for k in kinds)
        texts = [f"{got.get(k, 0)}/{got[f'{k}_all']}" if f"{k}_all" in got else "" for k in kinds]
        print(
            f"{'ok  ' if full else 'PART'} {number:>3} {made.style:<9}{texts[0]:>7} {texts[1]:>6} "
            + " ".join(f"{text:>12}" for text in texts[2:]) + f" {got['made up']:>8} {got['runs']:>5}"
        )  # fmt: skip
        if given.show:
            print("".join(f"         {line.replace(chr(9), '⇥')}\n" for line in made.shown), end="")
        totals.update({**got, "full": int(full)})
    others, others_all = sum(totals[k] for k in VALUES), sum(totals[f"{k}_all"] for k in VALUES)
    print(
        f"\nrows {100 * totals['rows'] / totals['rows_all']:.1f}%, evaluations "
        f"{100 * totals['evals'] / totals['evals_all']:.1f}%, other values {100 * others / max(1, others_all):.1f}%, "
        f"made up {totals['made up']}; fully right {totals['full']} of {given.count} layouts"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
