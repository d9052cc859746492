"""What the doctor learns from the zoo, and how well it does on a trainer and a corpus that it has not learned from.

`bench/zoo.py fit` and `report` call this. Each run is judged whole and by its last 2, 8, 20 and 60 lines, and at three
levels of knowledge: the log alone, with its config, and with the facts of its data too. What is seen of each is kept in
bench/zoo.json.gz, from which weights can be fitted again without the runs."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import minimize

from nanolens.diagnosis import diagnose, weighing
from nanolens.diagnosis.observables import OBSERVABLES, View
from nanolens.errors import UserError
from nanolens.facts import expectation
from nanolens.facts.case import Case
from nanolens.files import write_whole
from nanolens.logs import Given, read_log

KEPT = Path(__file__).with_name("zoo.json.gz")
FRAGMENTS = (0, 60, 20, 8, 2)  # last lines; 0: the whole log
LEVELS = ("log", "config", "facts")
LEARNED_FRAGMENTS = (0, 20, 8)
PLACES = {"end_off": 1.0, "middle_off": 0.5, "early_off": 0.1}
FALLS = {"fall_over_expected": ("early_off", 0.02), "late_fall_over_expected": ("middle_off", 0.01)}
EXPECTED = (*PLACES, "val_off", *FALLS, "end_off_either_way")
NOT_IN_THE_CURVE = ("eval_rare", "eval_often", "eval_little", "lines_repeated", "saving_slow")
SCHEDULES = ("warmup_long", "decay_long", "decay_short")
EXACT = (
    "eval_empty",
    "not_finite",
    "fp16_overflow",
    "scale_collapse",
    "too_short",
    "lr_zero",
    "vocab_wrong",
    *SCHEDULES,
)
"""Causes that rules find, of which the weights learn nothing."""
HARDLY, CLEARLY = 0.1, 0.4  # severities between which a run counts as partly sound
MODERATE = 0.5
RIDGE = 0.1
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 0.995)
CURVE_FRACS = tuple(np.geomspace(0.05, 1, 10))


# --- what is seen


def seen_of(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text("utf-8"))
    rows, curve = [], []
    for fragment, level, run in _read(record):
        case = Case(run)
        view = View(case)
        rows.append(
            {
                "lines": fragment,
                "level": level,
                "seen": {name: _short(value) for name, value in _seen(view)},
                "places": {name: place for name, place in _places(view) if place is not None},
                "rules": [(each.code, each.sureness) for each in diagnose(run, weighs=False).findings],
            }
        )
        if not record["causes"] and (fragment, level) == (0, "facts"):
            curve = [place for frac in CURVE_FRACS if (place := _place(view, _at(view, frac))) is not None]
    about = {key: record[key] for key in ("index", "trainer", "corpus", "causes", "false_codes")}
    return {**about, "rows": rows, "curve": curve}


def _read(record: Mapping[str, Any]) -> Iterator[tuple[int, str, Any]]:
    lines, measured = record["log"].splitlines(), record["measured"]
    facts = {key: measured[key] for key in ("unigram_nats", "bigram_nats", "vocab_size")}
    facts["dataset_tokens"] = measured["train_tokens"]
    for fragment, level in itertools.product(FRAGMENTS, LEVELS):
        if fragment >= len(lines):
            continue
        given = Given() if level == "log" else Given(config=record["config"], hardware=record["device"])
        if level == "facts":
            given = Given(config=record["config"], hardware=record["device"], facts=facts)
        try:
            yield fragment, level, read_log("\n".join(lines[-fragment:]) + "\n", given)
        except UserError:
            continue  # no loss in these lines


def _seen(view: View) -> Iterator[tuple[str, float]]:
    for name, each in OBSERVABLES.items():
        value = None if name in EXPECTED else each.measure(view)
        if value is not None and np.isfinite(value):
            yield name, float(value)


def _at(view: View, frac: float) -> tuple[float, float] | None:
    x = view.curve[0]
    if frac < 1:
        return view.level(frac)
    return None if view.end is None or not len(x) else (float(x[-1]), view.end)


def _places(view: View) -> Iterator[tuple[str, Any]]:
    for name, frac in PLACES.items():
        yield name, _place(view, _at(view, frac))
    steps, vals = view.case.vals
    if len(vals):
        yield "val_off", _place(view, (float(steps[-1]), float(np.median(vals[-2:]))))


def _place(view: View, place: tuple[float, float] | None) -> tuple[dict[str, float], float] | None:
    """Terms of the expectation there, and the loss."""
    terms = None if place is None else expectation.terms_at(view.case, place[0])
    return None if terms is None or place is None else ({key: _short(value) for key, value in terms.items()}, place[1])


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def keep(folder: Path) -> list[dict[str, Any]]:
    paths = sorted(folder.glob("[0-9]*.json"))
    with ProcessPoolExecutor(2) as pool:
        runs = list(pool.map(seen_of, paths, chunksize=8))
    write_whole(KEPT, gzip.compress(json.dumps(runs, separators=(",", ":")).encode(), mtime=0))
    return runs


def kept() -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(KEPT.read_bytes()))


# --- the fit


def moments_from(runs: Sequence[Mapping[str, Any]]) -> expectation.Moments:
    curves = [
        [
            (terms, loss / np.exp(terms["vocab"]))
            for terms, loss in run["curve"]
            if len(terms) == len(expectation.INPUTS)
        ]
        for run in runs
    ]
    return expectation.moments_of([curve for curve in curves if curve])


def completed(row: Mapping[str, Any], moments: expectation.Moments) -> dict[str, float]:
    """With the observables that depend on the expectation."""
    seen, at = dict(row["seen"]), {}
    for name, (terms, loss) in row["places"].items():
        at[name] = expected, loss = expectation.expected_from(terms, moments), loss
        seen[name] = (loss - expected.loss) / expected.spread
    for name, (begin, least) in FALLS.items():
        if begin in at and "end_off" in at:
            fall = at[begin][0].loss - at["end_off"][0].loss
            if fall >= least * at[begin][0].loss:
                seen[name] = (at[begin][1] - at["end_off"][1]) / fall
    if "end_off" in seen:
        seen["end_off_either_way"] = abs(seen["end_off"])
    return seen


def target_of(run: Mapping[str, Any], names: Sequence[str]) -> np.ndarray | None:
    """The share of each cause in what a run shows, a sound run first; None where it teaches nothing."""
    found = [(cause["name"], cause["severity"]) for cause in run["causes"]]
    if any(name in EXACT for name, _ in found):
        return None
    found = [(name, severity) for name, severity in found if name not in NOT_IN_THE_CURVE]
    shares = np.zeros(len(names) + 1)
    for name, severity in found:
        shares[names.index(name) + 1] += min(1.0, (severity - HARDLY) / (CLEARLY - HARDLY)) / len(found)
    shares[0] = 1 - shares.sum()
    return shares


def fitted(runs: Sequence[Mapping[str, Any]], moments: expectation.Moments) -> weighing.Weights:
    causes = weighing.causes()
    names = list(causes)
    seen, targets, shares = [], [], []
    for run in runs:
        target = target_of(run, names)
        rows = [row for row in run["rows"] if row["lines"] in LEARNED_FRAGMENTS]
        for row in rows if target is not None else ():
            seen.append(completed(row, moments))
            targets.append(target)
            shares.append(2.0 / len(rows))
    used = {name for cause in causes.values() for name in cause.observables}
    columns = {name: np.array([each.get(name, np.nan) for each in seen]) for name in used}
    edges = {name: _edges(column) for name, column in columns.items()}
    edges = {name: each for name, each in edges.items() if len(each) > 1}
    is_sound = np.array(targets)[:, 0] == 1
    edges = {name: each for name, each in edges.items() if np.isfinite(columns[name][is_sound]).any()}
    blocks = [_block(cause, columns, edges) for cause in causes.values()]
    solved = _solve(blocks, [_bounds(cause, edges) for cause in causes.values()], np.array(targets), np.array(shares))
    usual = {name: _range(columns[name][is_sound]) for name in edges}
    own = {
        name: weighing.CauseWeights(_short(values[0]), _split(causes[name], values[1:], edges))
        for name, values in zip(names, solved, strict=True)
    }
    return weighing.Weights({name: list(map(_short, each)) for name, each in edges.items()}, usual, own)


def _edges(column: np.ndarray) -> np.ndarray:
    known = column[np.isfinite(column)]
    return np.unique(np.quantile(known, QUANTILES)) if len(known) > 50 else np.zeros(0)


def _range(column: np.ndarray) -> tuple[float, float]:
    known = column[np.isfinite(column)]
    low, high = np.quantile(known, (0.05, 0.95))
    return _short(float(low)), _short(float(high))


def _block(cause: weighing.Cause, columns: Mapping[str, np.ndarray], edges: Mapping[str, np.ndarray]) -> np.ndarray:
    """Columns of one cause: for each observable whether it is known, then the pieces of its range."""
    parts = [np.ones((len(next(iter(columns.values()))), 1))]
    for name in cause.observables:
        if name in edges:
            known = np.isfinite(columns[name])
            passed = np.clip(
                (np.where(known, columns[name], 0)[:, None] - edges[name][:-1]) / np.diff(edges[name]), 0, 1
            )
            parts.append(known[:, None] * np.c_[np.ones(len(known)), 1 - passed if name in cause.less else passed])
    return np.hstack(parts)


def _split(cause: weighing.Cause, values: np.ndarray, edges: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    found, at = {}, 0
    for name in cause.observables:
        if name in edges:
            found[name] = list(map(_short, values[at : at + len(edges[name])]))
            at += len(edges[name])
    return found


def _bounds(cause: weighing.Cause, edges: Mapping[str, np.ndarray]) -> list[tuple[float, float]]:
    """Being known speaks against a cause, and each piece passed for it: signs that are given keep a few runs from
    teaching nonsense."""
    pieces = [len(edges[name]) - 1 for name in cause.observables if name in edges]
    return [(-9.0, 0.0), *itertools.chain(*([(-3.0, 0.0), *[(0.0, 6.0)] * count] for count in pieces))]


def _solve(
    blocks: Sequence[np.ndarray],
    bounds: Sequence[Sequence[tuple[float, float]]],
    targets: np.ndarray,
    shares: np.ndarray,
) -> list[np.ndarray]:
    """Softmax of the causes and a sound run."""
    ends = np.cumsum([block.shape[1] for block in blocks])
    parts = [slice(end - block.shape[1], end) for end, block in zip(ends, blocks, strict=True)]
    start = np.zeros(ends[-1])
    start[[part.start for part in parts]] = -3.0

    def cost(values: np.ndarray) -> tuple[float, np.ndarray]:
        odds = np.column_stack(
            [np.zeros(len(targets)), *(block @ values[part] for block, part in zip(blocks, parts, strict=True))]
        )
        odds -= odds.max(axis=1, keepdims=True)
        logs = odds - np.log(np.exp(odds).sum(axis=1, keepdims=True))
        loss = -float((shares[:, None] * targets * logs).sum()) + 0.5 * RIDGE * float((values**2).sum())
        left = shares[:, None] * (np.exp(logs) - targets)
        slope = np.concatenate([block.T @ left[:, place + 1] for place, block in enumerate(blocks)])
        return loss, slope + RIDGE * values

    found = minimize(
        cost, start, jac=True, method="L-BFGS-B", bounds=[*itertools.chain(*bounds)], options={"maxiter": 80}
    )
    return [found.x[part] for part in parts]


def fit(folder: Path | None) -> None:
    runs = keep(folder) if folder is not None else kept()
    moments = moments_from(runs)
    package = Path(weighing.__file__).parent
    write_whole(package.parent / "facts" / "expectation.json", msgspec.json.encode(moments))
    write_whole(package / "weights.json", msgspec.json.encode(fitted(runs, moments)))


# --- how well it does


def left_out(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], list]]:
    """(run, row, findings) of every run, by weights that saw neither its trainer nor its corpus."""
    pairs = sorted({(run["trainer"], run["corpus"]) for run in runs})
    with ProcessPoolExecutor(2) as pool:
        for found in pool.map(_judged, pairs, itertools.repeat(runs)):
            yield from found


def _judged(pair: tuple[str, str], runs: Sequence[Mapping[str, Any]]) -> list:
    others = [run for run in runs if run["trainer"] != pair[0] and run["corpus"] != pair[1]]
    moments = moments_from(others)
    weights = fitted(others, moments)
    return [
        (run, row, _findings(row, weighing.weigh(completed(row, moments), weights)))
        for run in runs
        if (run["trainer"], run["corpus"]) == pair
        for row in run["rows"]
    ]


def _findings(row: Mapping[str, Any], weighed: Sequence[weighing.Weighed]) -> list[tuple[str, str]]:
    """Codes in the order in which `diagnose` lists them."""
    found = dict(row["rules"])
    for each in weighed:
        for sureness, least in weighing.THRESHOLDS.items():
            if each.probability >= least:
                found.setdefault(each.code, sureness)
                break
    return sorted(found.items(), key=lambda each: ("certain", "likely", "possible").index(each[1]))


def report(runs: Sequence[Mapping[str, Any]], accusations: frozenset[str]) -> str:
    judged = list(left_out(runs))
    lines = ["| what | log alone | with config | with the facts of the data |", "|---|---:|---:|---:|"]
    for fragment in FRAGMENTS:
        cells = [_recall(judged, fragment, level, accusations) for level in LEVELS]
        lines.append(
            f"| true cause first, {'whole log' if not fragment else f'last {fragment} lines'} | {' | '.join(cells)} |"
        )
    alarms = [_false_alarms(judged, level) for level in LEVELS]
    lines.append(f"| false alarms, certain or likely, on sound runs | {' | '.join(alarms)} |")
    for sureness in ("certain", "likely", "possible"):
        cells = [_share_right(judged, level, sureness, accusations) for level in LEVELS]
        lines.append(f"| share right of what is {sureness} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_by_cause(judged, accusations)])


def _is_right(run: Mapping[str, Any], code: str) -> bool:
    return any(code in (*cause["codes"], *cause["follows"]) for cause in run["causes"])


def _first_is_right(run: Mapping[str, Any], findings: Sequence[tuple[str, str]], accusations: frozenset[str]) -> bool:
    names = {code for cause in run["causes"] for code in cause["codes"]}
    first = next((code for code, _ in findings if code in accusations or code in names), None)
    return first in names


def _moderate(run: Mapping[str, Any]) -> bool:
    return bool(run["causes"]) and max(cause["severity"] for cause in run["causes"]) >= MODERATE


def _recall(judged: list, fragment: int, level: str, accusations: frozenset[str]) -> str:
    rows = [(run, found) for run, row, found in judged if (row["lines"], row["level"]) == (fragment, level)]
    hits = [_first_is_right(run, found, accusations) for run, found in rows if _moderate(run)]
    return f"{np.mean(hits):.0%} of {len(hits)}" if hits else "-"


def _false_alarms(judged: list, level: str) -> str:
    found = [
        any(code in run["false_codes"] and sureness != "possible" for code, sureness in findings)
        for run, row, findings in judged
        if not run["causes"] and row["level"] == level
    ]
    return f"{sum(found)} of {len(found)} (95% below {_bound(sum(found), len(found)):.1%})"


def _bound(count: int, of: int) -> float:
    """Upper end of Wilson's interval."""
    z = 1.96
    rate = count / of
    return (rate + z * z / 2 / of + z * np.sqrt(rate * (1 - rate) / of + z * z / 4 / of**2)) / (1 + z * z / of)


def _share_right(judged: list, level: str, sureness: str, accusations: frozenset[str]) -> str:
    found = [
        _is_right(run, code)
        for run, row, findings in judged
        if row["level"] == level
        for code, said in findings
        if said == sureness and code in accusations
    ]
    return f"{np.mean(found):.1%} of {len(found)}" if found else "-"


def _by_cause(judged: list, accusations: frozenset[str]) -> Iterator[str]:
    yield from ("| cause | true cause first, severity below 0.5 | 0.5 and above | instead |", "|---|---:|---:|---|")
    hits: dict[str, dict[bool, list[bool]]] = defaultdict(lambda: {True: [], False: []})
    instead: dict[str, Counter[str]] = defaultdict(Counter)
    for run, row, findings in judged:
        if (row["lines"], row["level"]) != (0, "config") or len(run["causes"]) != 1:
            continue
        name, is_right = run["causes"][0]["name"], _first_is_right(run, findings, accusations)
        hits[name][_moderate(run)].append(is_right)
        if not is_right and _moderate(run):
            instead[name][next((code for code, _ in findings if code in accusations), "nothing")] += 1
    for name, by_severity in sorted(hits.items()):
        cells = [f"{sum(found)} of {len(found)}" for found in (by_severity[False], by_severity[True])]
        others = ", ".join(f"`{code}` {count}" for code, count in instead[name].most_common(3))
        yield f"| {name} | {cells[0]} | {cells[1]} | {others} |"
