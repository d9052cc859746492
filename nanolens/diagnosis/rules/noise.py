"""Is a difference more than noise?"""

from __future__ import annotations

import math

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, Setting, finding, rule
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import known, see
from nanolens.facts.statistics import running_median, trend
from nanolens.message import msg

FEW_BATCHES = 4


@rule("eval_noise", only=("eval_iters",))
def few_eval_batches(case: Case) -> Answers:
    """An evaluation of too few batches."""
    count, batch, where = case.whole("eval_iters"), case.batch_noise, case.where("eval_iters")
    if count is None or count > FEW_BATCHES or case.get("eval_whole") is True:
        return
    scatter = []
    if batch is not None:
        what, expected = msg("scatter of one evaluation"), msg("below {least:nats}", 0.01)
        scatter = [see(what, batch.value / math.sqrt(count), expected, where, batch.how, "nats")]
    few, sets = Seen(count, (20, 200), where), ("eval_iters", count, 100)
    yield finding("eval_noise.few_batches", "likely", few, *scatter, sets=sets, count=count)


@rule("eval_noise", only=("vals>=8",), needs=("eval_noise",))
def flat_within_noise(case: Case) -> Answers:
    """The second half of the evaluations moves by no more than they scatter."""
    noise, half = known(case.eval_noise), slice(len(case.vals[0]) // 2, None)
    x, y = case.vals[0][half], case.vals[1][half]
    slope, spread = trend(x, y), float(np.ptp(y))
    if slope is None or slope.is_falling or slope.is_rising or spread > 5 * noise.value or noise.value < 0.01:
        return
    moved = Seen(spread, msg("above {limit:nats}", 5 * noise.value), locations.steps(x[0], x[-1]), x[0])
    sets = ("eval_iters", case.whole("eval_iters"), 4 * (case.whole("eval_iters") or 50))
    yield finding("eval_noise", "likely", moved, sets=sets, step=int(x[0]), noise=noise.value, how=noise.how)


@rule("micro_batch_noise", only=("batch_noise",))
def micro_batch_noise(case: Case) -> Answers:
    """The printed loss is that of one micro-batch, and scatters like one."""
    noise, tokens = known(case.batch_noise).value, case.micro_batch_tokens
    if case.run.conventions.loss != "last_micro_batch" or case.whole("gradient_accumulation_steps") == 1:
        return
    furthest = _far_from_evals(case, noise)
    if furthest is None:
        return
    row, level = furthest
    name = "micro_batch_noise" if tokens is None else "micro_batch_noise.of_tokens"
    loss = Seen(case.steps.loss[row], level, *locations.at_row(case, row))
    yield finding(name, "likely", loss, noise=noise, tokens=tokens)


def _far_from_evals(case: Case, noise: float) -> tuple[int, float] | None:
    """The row that lies furthest from its level, where one is far: the median of its neighbours, or the evaluations of
    train where there are too few rows for that."""
    rows = case.rows("loss")
    if len(rows) >= 12:
        return _far_from_neighbours(case, rows, noise)
    trains = np.flatnonzero(np.isfinite(case.evals.train))
    known = trains[case.evals.step[trains] > 0]
    if not len(rows) or len(trains) < 2 or not len(known):
        return None
    near = rows[case.steps.step[rows] >= case.evals.step[known[0]] * 0.5]
    if not len(near):
        return None
    steps, at = case.evals.step[known], case.steps.step[near]
    level = np.interp(at, steps, case.evals.train[known])
    around = np.clip(np.searchsorted(steps, at), 1, max(1, len(known) - 1))
    bend = np.abs(np.diff(case.evals.train[known]))[around - 1] if len(known) > 1 else np.zeros(len(near))
    off = np.abs(case.steps.loss[near] - level)
    off = np.where(off > bend, off, 0.0)  # where the evaluations themselves fall as much, it is no scatter
    worst = int(np.argmax(off))
    return (int(near[worst]), float(level[worst])) if off[worst] > max(0.1, 1.5 * noise) else None


def _far_from_neighbours(case: Case, rows: np.ndarray, noise: float) -> tuple[int, float] | None:
    if noise < 0.05:
        return None
    rows = rows[-40:]
    last = case.steps.loss[rows]
    middle = running_median(last, 5)  # of its neighbours: a steep fall is no scatter
    worst = 2 + int(np.argmax(np.abs(last - middle)[2:-2]))  # at the ends there are no neighbours on one side
    if abs(last[worst] - middle[worst]) < 1.5 * noise:
        return None
    return int(rows[worst]), float(middle[worst])


@rule("seed_noise", only=("final_val_losses",))
def seed_noise(case: Case) -> Answers:
    """How far apart repeats of one config end."""
    finals, where = case.get("final_val_losses"), case.where("final_val_losses")
    listed = finals if isinstance(finals, (tuple, list)) else ()
    values = np.array([value for value in listed if isinstance(value, (int, float))], float)
    values = values[np.isfinite(values)]
    if len(values) < 4:
        return
    spread = float(values.std(ddof=1))
    need = 2 * math.sqrt(2) * spread
    what, how = msg("smallest meaningful difference between two single runs"), msg("2 x sqrt(2) x standard deviation")
    yield finding(
        "seed_noise",
        "certain",
        Seen(spread, (0.001, 0.003), where),
        see(what, need, msg("above {need:nats}", need), where, how, "nats"),
        spread=spread,
        need=need,
        count=len(values),
        mean=float(values.mean()),
        low=float(values.min()),
        high=float(values.max()),
    )


@rule("eval_too_small", "val_set_too_small", only=("outlook", "eval_noise", "eval_iters", "micro_batch_tokens"))
def wanted_difference(case: Case) -> Answers:
    """Whether two runs that differ by what the user wants to see could be told apart."""
    wanted, error, count = known(case.outlook).difference, known(case.eval_noise), case.whole("eval_iters")
    visible = 2 * math.sqrt(2) * error.value
    if wanted is None or not count or visible <= wanted:
        return
    tokens, more, held_out = count * known(case.micro_batch_tokens), (visible / wanted) ** 2, case.number("val_tokens")
    what, expected = msg("smallest difference in val loss that is visible"), msg("up to {wanted:nats}", wanted)
    how = msg("2 x sqrt(2) x the error of one evaluation ({how})", error.how)
    item = see(what, visible, expected, case.where("eval_iters"), how, "nats")
    if held_out and tokens * more > held_out:
        sets: Setting = ("eval_whole", case.get("eval_whole"), True)
        visible *= math.sqrt(min(1.0, tokens / held_out))
        yield finding("val_set_too_small", "likely", item, sets=sets, tokens=held_out, visible=visible, wanted=wanted)
    else:
        sets = ("eval_iters", count, math.ceil(count * more))
        yield finding("eval_too_small", "likely", item, sets=sets, tokens=tokens, visible=visible, wanted=wanted)
