"""The steps become slower as the run goes on.

What it sees. The time of ordinary iterations, evaluations and first steps left out: whether the last part is slower than the first
by more than the scatter, and whether that is by design (an attention window or context that grows with the step:
step_time_schedule) or not (throttling_suspected).

Why it matters. A card that throttles loses a fifth of its speed without a word; a second program or a leak does the same.

When it is wrong. A schedule of sequence length, window or batch makes later steps cost more on purpose. Single slow lines are not a
drift.

What it looks like. 180 ms at the start, 220 ms an hour later.

What to change. Look at temperature and clocks (nvidia-smi -q -d PERFORMANCE), other programs, the laptop's power plan; memory that
grows from step to step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nanolens.analysis import places
from nanolens.facts.case import Case
from nanolens.facts.finding import Change, Evidence, Finding, NotChecked
from nanolens.facts.statistics import BLOCKS, MAD_TO_SD, Shift, block_medians, change_point, trend
from nanolens.facts.timing import ordinary
from nanolens.message import Message, msg

CODES = ("throttling_suspected", "step_time_schedule")

SLOWER = 1.12  # on a GPU; a CPU shares its cores with everything else
SLOWER_CPU = 1.30
GROWS = re.compile(r"grow|increas|schedul|warm|ramp|->|→|curriculum", re.IGNORECASE)
SHAPES_TIME = re.compile(r"window|seq|context|block|batch|length", re.IGNORECASE)


def look(case: Case) -> Iterator[Finding | NotChecked]:
    rows = np.flatnonzero(ordinary(case))
    took, at = case.steps.took_s[rows], case.steps.step[rows]
    if len(took) < 6:
        if np.isfinite(case.steps.took_s).any():
            yield NotChecked("throttling_suspected", msg("there are fewer than 6 ordinary iterations with a time"))
        return
    by_design = _grows_by_design(case)
    spread = at[-1] - at[0]
    first, last = took[at <= at[0] + spread / 4], took[at >= at[-1] - spread / 4]
    if len(first) < 3 or len(last) < 3:
        first, last = took[: max(3, len(took) // 4)], took[-max(3, len(took) // 4) :]
    ratio = float(np.median(last) / np.median(first))
    slope, shift = trend(at, took), change_point(took)
    drifts = slope is not None and slope.low > 0 and slope.p < 0.1
    jumps = shift is not None and shift.p < 0.01 and shift.after > shift.before
    if not drifts and not jumps:
        return
    if by_design is not None and ratio > 1.01:
        yield _by_design(case, rows, first, last, by_design)
        return
    limit = SLOWER_CPU if case.is_cpu or (case.hardware is None and case.text("device") == "cpu") else SLOWER
    scatter = MAD_TO_SD * float(np.median(np.abs(first - np.median(first))))
    if ratio < limit or np.median(last) < np.median(first) + 4 * scatter or np.quantile(last, 0.1) < np.quantile(first, 0.9):
        return
    evidence = Evidence(
        msg("time of a step at the end"),
        float(np.median(last)),
        float(np.median(first)),
        places.rows(case, int(rows[0]), int(rows[-1])),
        msg("medians of the last and the first quarter; a rising trend (Mann-Kendall)")
        if drifts
        else msg("medians of the last and the first quarter; the level changes near step {step:count} (Pettitt)", step=_step_of(at, shift)),
        "seconds",
    )
    yield Finding(
        "throttling_suspected",
        # A processor that is suddenly shared is nobody's fault: there the slowing down must be gradual.
        "likely" if not case.is_cpu or (drifts and _is_gradual(at, took)) else "possible",
        msg("steps have become {more:share} slower: heat, another program, or a leak", more=ratio - 1),
        (evidence,),
        Change(
            msg("look at temperature and clocks, other programs and the power plan"),
            command="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,CLOCK",
        ),
        msg("the work of a step grows with the step number by design"),
    )


def _is_gradual(at: np.ndarray, took: np.ndarray) -> bool:
    """Whether a straight line tells the times better than one change of their level does."""
    x, y = block_medians(at.astype(float), took, BLOCKS) if len(took) > BLOCKS else (at.astype(float), took)
    line = float(np.sum((y - np.polyval(np.polyfit(x - x.mean(), y, 1), x - x.mean())) ** 2))
    levels = [float(y[:i].var() * i + y[i:].var() * (len(y) - i)) for i in range(2, len(y) - 1)]
    return line < min(levels, default=np.inf)


def _step_of(at: np.ndarray, shift: Shift | None) -> int:
    return int(at[shift.at]) if shift is not None else int(at[0])


def _grows_by_design(case: Case) -> Message | None:
    """A setting that says so, or a trainer that is known for it."""
    for key, known in case.run.known.items():
        if isinstance(known.value, str) and SHAPES_TIME.search(key) and GROWS.search(known.value):
            return msg("{key:code} = {value:code}", key=key, value=known.value)
    if case.run.words.trainer == "modded-nanogpt":
        return msg("modded-nanogpt widens its attention window with the step number")
    return None


def _by_design(case: Case, rows: np.ndarray, first: np.ndarray, last: np.ndarray, where: Message) -> Finding:
    evidence = Evidence(
        msg("time of a step at the end"),
        float(np.median(last)),
        float(np.median(first)),
        where,
        msg("medians of the last and the first quarter of the run"),
        "seconds",
        int(case.steps.step[rows[0]]),
    )
    return Finding(
        "step_time_schedule",
        "likely",
        msg("later steps cost more by design: the work of a step grows with its number"),
        (evidence,),
        None,
        msg("the time still grows after the schedule has ended"),
    )
