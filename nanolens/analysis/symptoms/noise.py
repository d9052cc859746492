"""Is a difference more than noise?

What it sees. How far one evaluation scatters, from its batches or from the scatter of the curve; how far the printed loss of a
single micro-batch does; and how far repeats of one config lie apart.

Why it matters. Half of all conclusions from training curves are drawn from noise: a "best" among many noisy evaluations, a bump, a
winner by 0.003.

When it is wrong. A fixed evaluation set has no sampling noise between two evaluations of one run, so smaller changes can be real
there.

What it looks like. An evaluation of 3.60, and beside it one micro-batch of 4.11:

    iter 10000: loss 4.1096, time 3900.00ms, mfu 12.00%

What to change. More eval_iters, a fixed evaluation set, several seeds; and never judge by the loss of one iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.statistics import running_median, trend
from nanolens.message import msg

CODES = ("eval_noise", "micro_batch_noise", "seed_noise")

FEW_BATCHES = 4


def look(case: Case) -> Iterator[Finding | NotChecked]:
    yield from _few_batches(case)
    yield from _flat_within_noise(case)
    yield from _micro_batch(case)
    yield from _seeds(case)


def _few_batches(case: Case) -> Iterator[Finding | NotChecked]:
    count = case.whole("eval_iters")
    if count is None or count > FEW_BATCHES or case.get("eval_whole") is True:
        return
    batch = case.batch_noise
    evidence = [Evidence(msg("batches in one evaluation"), count, (20, 200), case.where("eval_iters"), msg("eval_iters"), "count")]
    if batch is not None:
        evidence.append(
            Evidence(
                msg("scatter of one evaluation"),
                batch.value / math.sqrt(count),
                msg("below {least:nats}", least=0.01),
                case.where("eval_iters"),
                batch.how,
                "nats",
            )
        )
    yield Finding(
        "eval_noise",
        "likely",
        msg("an evaluation of {count:count} batches is a guess", count=count),
        tuple(evidence),
        Change(msg("evaluate more batches"), key="eval_iters", old=count, new=100),
        msg("a batch holds most of the val split"),
    )


def _flat_within_noise(case: Case) -> Iterator[Finding | NotChecked]:
    """The second half of the evaluations moves by no more than they scatter."""
    x, y = case.vals
    if len(y) < 8:
        return
    noise = case.eval_noise
    if noise is None:
        yield NotChecked(
            "eval_noise", msg("the scatter of the evaluations cannot be told: too few of them, and eval_iters or batch_size is not known")
        )
        return
    half = slice(len(y) // 2, None)
    slope = trend(x[half], y[half])
    spread = float(np.ptp(y[half]))
    if slope is None or slope.is_falling or slope.is_rising or spread > 5 * noise.value or noise.value < 0.01:
        return
    evidence = Evidence(
        msg("range of val over the second half"),
        spread,
        msg("above {limit:nats}", limit=5 * noise.value),
        places.steps(x[half][0], x[-1]),
        msg("scatter of one evaluation: {noise:nats} ({how})", noise=noise.value, how=noise.how),
        "nats",
        int(x[half][0]),
    )
    yield Finding(
        "eval_noise",
        "likely",
        msg("what the evaluations show since step {step:count} is within their noise", step=int(x[half][0])),
        (evidence,),
        Change(msg("evaluate more batches, or always the same ones"), key="eval_iters", old=case.whole("eval_iters"), new=_more(case)),
        msg("a larger evaluation shows the same ups and downs"),
    )


def _more(case: Case) -> int:
    return 4 * (case.whole("eval_iters") or 50)


def _micro_batch(case: Case) -> Iterator[Finding | NotChecked]:
    if case.run.words.loss != "last_micro_batch":
        return
    accumulation = case.whole("gradient_accumulation_steps")
    noise = case.batch_noise
    if noise is None or (accumulation is not None and accumulation < 2):
        return
    rows = _far_from_evals(case, noise.value)
    if rows is None:
        return
    row, level = rows
    seen = float(case.steps.loss[row])
    tokens = case.micro_batch_tokens
    how = (
        msg("the printed loss is that of one micro-batch of {tokens:tokens} tokens; scatter {noise:nats}", tokens=tokens, noise=noise.value)
        if tokens is not None
        else msg("the printed loss is that of one micro-batch; scatter {noise:nats}", noise=noise.value)
    )
    evidence = Evidence(msg("printed loss"), seen, level, places.row(case, row), how, "nats", int(case.steps.step[row]))
    yield Finding(
        "micro_batch_noise",
        "likely",
        msg("single losses scatter because each is one micro-batch, not the mean over the update"),
        (evidence,),
        Change(msg("judge by the evaluations, or by the mean of many lines")),
        msg("neighbouring lines rise and fall together"),
    )


def _far_from_evals(case: Case, noise: float) -> tuple[int, float] | None:
    """The row that lies furthest from its level, where one is far: the median of its neighbours, or the evaluations of train where there
    are too few rows for that."""
    rows = np.flatnonzero(np.isfinite(case.steps.loss))
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


def _seeds(case: Case) -> Iterator[Finding | NotChecked]:
    finals = case.get("final_val_losses")
    if not isinstance(finals, (tuple, list)) or len(finals) < 4:
        return
    values = np.array([value for value in finals if isinstance(value, (int, float))], float)
    values = values[np.isfinite(values)]
    if len(values) < 4:
        return
    spread = float(values.std(ddof=1))
    need = 2 * math.sqrt(2) * spread
    evidence = (
        Evidence(
            msg("standard deviation of {count:count} repeats", count=len(values)),
            spread,
            (0.001, 0.003),
            case.where("final_val_losses"),
            msg(
                "mean {mean:nats}, from {low:nats} to {high:nats}",
                mean=float(values.mean()),
                low=float(values.min()),
                high=float(values.max()),
            ),
            "nats",
        ),
        Evidence(
            msg("difference of two single runs that means something"),
            need,
            msg("above {need:nats}", need=need),
            case.where("final_val_losses"),
            msg("2 x sqrt(2) x standard deviation"),
            "nats",
        ),
    )
    yield Finding(
        "seed_noise",
        "certain",
        msg("repeats of one config differ by {spread:nats} (one standard deviation): smaller differences are noise", spread=spread),
        evidence,
        Change(
            msg("repeat each side with several seeds; with n runs a side the difference that shows is {need:nats} / sqrt(n)", need=need)
        ),
        msg("the runs were not repeats of one config"),
    )
