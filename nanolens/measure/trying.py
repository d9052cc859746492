"""`nanolens try`: a candidate against its base, in pairs of runs with the same seed, until it is decided or the budget
is over. Which of the two runs first alternates, so that a machine that grows slower favours neither."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nanolens.comparison.side import SeedGroup, Side
from nanolens.comparison.verdict import SMALLEST_DIFFERENCE, usual_spread
from nanolens.config.fields import Config, faults_in
from nanolens.config.load import load
from nanolens.data.store import Dataset, open_dataset
from nanolens.errors import fault, raise_if_any
from nanolens.facts.references import SEED_SPREAD
from nanolens.measure.sweep import TIMED_UPDATES
from nanolens.measure.timed import short_run, update_times
from nanolens.message import Message, msg
from nanolens.record.read import read_run
from nanolens.record.store import free_folder, run_folder
from nanolens.refereeing.deciding import PairVerdict, TryResult, decide, pairs_needed
from nanolens.refereeing.series import CONFOUNDERS, NOT_A_GAIN, confounder_of
from nanolens.session.job import plan_job, settings_of_run
from nanolens.show.answer import Answer, typed
from nanolens.show.document import GAP, Part, Role, Table, Text, TextBlock
from nanolens.show.words import show

Runner = Callable[[str, int], float]  # ("base" or "candidate", seed) -> val loss; infinite where it diverged


@dataclass(frozen=True)
class TriedPair:
    seed: int
    base: float
    candidate: float

    @property
    def gain(self) -> float:
        return -math.inf if self.candidate == math.inf else self.base - self.candidate


@dataclass(frozen=True)
class TryOutcome:
    changes: tuple[str, ...]  # key=value
    pairs: tuple[TriedPair, ...]
    verdict: PairVerdict
    worth: float
    more_pairs: int | None  # that would decide, as it stands
    pair_s: float
    took_s: float
    budget_s: float
    folder: Path


def alternate(
    run: Runner,
    seeds: Iterator[int],
    spread: Callable[[], float],
    has_time: Callable[[], bool],
    worth: float = SMALLEST_DIFFERENCE,
    tell: Callable[[TriedPair, PairVerdict], None] = lambda pair, verdict: None,
) -> tuple[tuple[TriedPair, ...], PairVerdict]:
    """Pairs until the candidate is decided or there is no time for another."""
    pairs: list[TriedPair] = []
    verdict = decide([], spread() if pairs else SEED_SPREAD, worth)
    while verdict.result == "undecided" and has_time():
        seed = next(seeds)
        order = ("base", "candidate") if len(pairs) % 2 == 0 else ("candidate", "base")
        vals = {side: run(side, seed) for side in order}
        if vals["base"] == math.inf:
            raise fault(
                msg("the base itself diverged with seed {seed:count}", seed),
                fix=msg("try a change of a base that trains"),
            )
        pairs.append(TriedPair(seed, vals["base"], vals["candidate"]))
        verdict = decide([pair.gain for pair in pairs], spread(), worth)
        tell(pairs[-1], verdict)
    return tuple(pairs), verdict


def try_change(
    source: str,
    overrides: Sequence[tuple[str, str]],
    budget_s: float,
    worth: float = SMALLEST_DIFFERENCE,
    tell: Callable[[Message], None] = lambda message: None,
) -> TryOutcome:
    started_at_s = time.monotonic()
    base, candidate = _configs(source, overrides)
    changes = tuple(f"{key}={value}" for key, value in overrides if key not in ("out_dir", "device", "threads"))
    dataset = open_dataset(base.dataset)
    folder = free_folder(f"try-{Path(source).stem}") if base.out_dir == "auto" else Path(base.out_dir)
    expected_s = sum(_expected_s(config, dataset, folder / "timing") for config in (base, candidate))
    left_s = budget_s - (time.monotonic() - started_at_s)
    if expected_s > left_s:
        what = msg(
            "a pair of runs takes about {pair:seconds}, more than the budget of {budget:seconds}", expected_s, budget_s
        )
        raise fault(what, fix=msg("give a larger {option:code}, or a base with fewer updates", "--budget"))
    folder.mkdir(parents=True, exist_ok=True)
    tell(msg("a pair of runs takes about {pair:seconds}", expected_s))
    sides, done_s = {"base": base, "candidate": candidate}, [expected_s]
    first = [math.nan]

    def run(side: str, seed: int) -> float:
        began_s, path = time.monotonic(), folder / f"seed-{seed}-{side}"
        config = dataclasses.replace(sides[side], seed=seed, out_dir=str(path))
        _, outcome = short_run(config, dataset, path)
        if outcome.why == "stopped":
            raise KeyboardInterrupt
        done_s.append(2 * (time.monotonic() - began_s))
        if math.isnan(first[0]) and side == "base":
            ours = Side(SeedGroup(side, (read_run(path),)), side)
            first[0] = usual_spread(ours, float(ours.curve.step[-1])) if len(ours.curve) else SEED_SPREAD
        return outcome.val_loss if outcome.why == "finished" and math.isfinite(outcome.val_loss) else math.inf

    def has_time() -> bool:
        return time.monotonic() - started_at_s + max(done_s[-2:]) <= budget_s

    def told(pair: TriedPair, verdict: PairVerdict) -> None:
        said = {"seed": pair.seed, "base": pair.base, "candidate": pair.candidate, "odds": verdict.odds}
        tell(msg("seed {seed}: base {base:nats}, candidate {candidate:nats}; better with {odds:share}", **said))

    seeds = iter(range(base.seed, base.seed + 100_000))
    pairs, verdict = alternate(run, seeds, lambda: first[0], has_time, worth, told)
    took_s = time.monotonic() - started_at_s
    needed = pairs_needed(verdict, worth) if verdict.result == "undecided" else None
    pair_s = sum(done_s[1:]) / max(1, len(done_s) - 1)
    more = None if needed is None else needed - len(pairs)
    return TryOutcome(changes, pairs, verdict, worth, more, pair_s, took_s, budget_s, folder)


def _configs(source: str, overrides: Sequence[tuple[str, str]]) -> tuple[Config, Config]:
    """Base and candidate; UserError where a lower loss would say nothing of the change."""
    common = [(key, value) for key, value in overrides if key in ("out_dir", "device", "threads")]
    changed = [(key, value) for key, value in overrides if (key, value) not in common]
    if not changed:
        raise fault(msg("nothing to try"), fix=msg("give a change: {example:code}", "--learning_rate=2e-3"))
    folder = run_folder(source)

    def config_with(given: Sequence[tuple[str, str]]) -> Config:
        if folder is not None:
            return settings_of_run(folder, given).config
        plan_job(source, given)
        return load(source, given).config

    base, candidate = config_with(common), config_with([*common, *changed])
    for key, value in changed:
        if (name := confounder_of(key)) in NOT_A_GAIN:
            what = msg("{key:code} cannot be tried: {because}", key, CONFOUNDERS[name])
            raise fault(what, where=f"--{key}={value}", fix=msg("change it in the base, for both sides"))
    raise_if_any(faults_in(candidate, {key: f"--{key}" for key, _ in changed}))
    if base == candidate:
        raise fault(
            msg("the candidate is its base: {changes:code} is what it has already", [f"{k}={v}" for k, v in changed]),
            fix=msg("give another value"),
        )
    return _whole(base), _whole(candidate)


def _whole(config: Config) -> Config:
    return dataclasses.replace(
        config,
        sample_interval=0,
        keep_checkpoints=1,
        checkpoint_interval=config.max_iters + 1,
        init_from="scratch",
        overwrite=False,
    )


def _expected_s(config: Config, dataset: Dataset, folder: Path) -> float:
    updates = min(TIMED_UPDATES, config.max_iters)
    short = dataclasses.replace(
        config,
        max_iters=updates,
        eval_iters=1,
        lr_decay_iters=None,
        warmup_iters=min(config.warmup_iters, updates - 1),
        out_dir=str(folder),
    )
    began_s = time.monotonic()
    events, _ = short_run(short, dataset)
    setup_s, times = time.monotonic() - began_s, update_times(events)
    return config.max_iters * sum(times) / max(1, len(times)) + setup_s


# --- in words and as JSON

_RESULTS: dict[TryResult, tuple[Message, Role]] = {
    "keep": (msg("keep"), "good"),
    "discard": (msg("discard"), "bad"),
    "undecided": (msg("undecided"), "likely"),
}


def try_answer(found: TryOutcome) -> Answer[TryOutcome]:
    return Answer(found, lambda lang: list(_try_parts(found)), lambda lang: try_data(found, lang))


def _try_parts(found: TryOutcome) -> Iterator[Part]:
    verdict = found.verdict
    word, role = _RESULTS[verdict.result]
    said = {"word": word, "changes": found.changes, "odds": verdict.odds, "pairs": len(found.pairs)}
    yield TextBlock(
        msg("{word}: {changes:code} is better with {odds:share}, after {pairs:count pair|pairs} of runs", **said), role
    )
    if math.isfinite(verdict.gain):
        yield TextBlock(
            msg(
                "gain {gain:nats}, between {low:nats} and {high:nats} (95%, however often one looks)",
                verdict.gain,
                verdict.low,
                verdict.high,
            ),
            indent=2,
        )
    if verdict.result == "discard":
        yield TextBlock(msg("it gains less than {worth:nats}, or does harm", found.worth), "note", indent=2)
    if verdict.result == "undecided" and found.more_pairs is not None:
        more = msg(
            "as it stands, {count:count more pair|more pairs} would decide, about {seconds:rough_seconds}",
            found.more_pairs,
            found.more_pairs * found.pair_s,
        )
        yield TextBlock(more, "note", indent=2)
    yield GAP
    rows: list[list[Text]] = [
        [str(p.seed), show(p.base, "nats"), show(p.candidate, "nats"), show(p.gain, "nats")] for p in found.pairs
    ]
    yield from (Table([msg("seed"), msg("base"), msg("candidate"), msg("gain")], rows, left=()), GAP)
    yield TextBlock(
        msg(
            "The runs are in {folder:code}; {command:code} reads them.",
            str(found.folder),
            f"nanolens referee {found.folder}",
        ),
        "note",
    )


class TriedPairData(msgspec.Struct):
    seed: int
    base: float | str
    candidate: float | str
    gain: float | str


class TryData(msgspec.Struct):
    result: str
    changes: list[str]
    odds: float
    gain: float | str
    low: float | str
    high: float | str
    worth: float
    pairs: list[TriedPairData]
    more_pairs: int | None
    took_s: float
    folder: str


def try_data(found: TryOutcome, lang: str = "en") -> TryData:
    verdict = found.verdict
    return typed(
        TryData,
        found,
        lang,
        result=verdict.result,
        odds=verdict.odds,
        gain=verdict.gain,
        low=verdict.low,
        high=verdict.high,
    )
