"""Where the time of a step goes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nanolens.diagnosis.rule import Answers, Seen, finding, rule
from nanolens.facts import locations
from nanolens.facts.case import Case
from nanolens.facts.finding import Finding, NotChecked, Sureness, known, see
from nanolens.facts.statistics import TREND_BLOCKS, block_medians, change_point, spread_of, trend
from nanolens.facts.timing import eval_seconds, eval_spacing, holds_eval, is_first, ordinary
from nanolens.message import Message, msg

DOMINATES = 0.15
WORTH_FIXING_S = 180.0


@rule("eval_dominates_time", only=("outlook",))
def planned_evaluations(case: Case) -> Answers:
    """A plan whose evaluations take much of its time."""
    plan = known(case.outlook)
    if plan.eval_frac > DOMINATES:
        yield _dominates(plan.eval_frac, plan.eval_s, case.whole("eval_interval"), msg("the plan"))


@rule(
    "eval_spike",
    "checkpoint_spike",
    "compile_warmup",
    "eval_dominates_time",
    "slow_steps_unexplained",
    only=("is_foreign_run",),
    needs=("took_s",),
)
def slow_lines(case: Case) -> Answers:
    """Why some iterations are slow: evaluations, checkpoints, compilation."""
    if case.step_time is None:
        yield _lone_eval_line(case)
        return
    yield from _evaluations(case, case.step_time.value)
    yield from _warm_up(case, case.step_time.value)
    yield from _unexplained(case, case.step_time.value)


def _lone_eval_line(case: Case) -> Finding | NotChecked:
    """Only lines that hold an evaluation are there: their time is known not to be a step's."""
    rows = np.flatnonzero(holds_eval(case) & np.isfinite(case.steps.took_s))
    if not len(rows) or case.run.conventions.time != "with_eval":
        return NotChecked("eval_spike", msg("there are no normal iterations with a time"))
    expected = msg("less, without the evaluation")
    line = Seen(case.steps.took_s[rows[-1]], expected, *locations.at_row(case, rows[-1]))
    return finding("eval_spike.lone_line", "likely", line)


def _evaluations(case: Case, step: float) -> Answers:
    rows, extra = eval_seconds(case)
    rows, extra = rows[extra > 0.5 * step], extra[extra > 0.5 * step]
    if not len(rows):
        return
    row, middle, mean = rows[-1], float(np.median(extra)), float(extra.mean())
    (where, at), how = locations.at_row(case, row), known(case.step_time).how
    evidence = [see(msg("time of the line"), case.steps.took_s[row], step, where, how, "seconds", at)]
    batches, spacing = case.whole("eval_iters"), eval_spacing(case)
    if batches:
        what, where = msg("time per evaluation batch"), msg("{count:count batch|batches} of each split", batches)
        how = msg("(line - normal step) / (2 x eval_iters); a forward pass is a third of a training step")
        evidence.append(see(what, middle / (2 * batches), _forward(case, step), where, how, "seconds"))
    if spacing is not None:
        share, every = mean / (mean + spacing * step), msg("every {spacing:count update|updates}", spacing)
        total = mean * max(len(extra), max(case.whole("max_iters") or 0, case.last_step) / spacing)
        dominates = _dominates(share, total, spacing, every)
        evidence += dominates.evidence
    yield finding("eval_spike", "certain" if len(case.evals) else "likely", *evidence, extra=middle)
    yield from _checkpoints(case, rows, extra)
    if spacing is None:
        yield NotChecked("eval_dominates_time", msg("the interval between evaluations is unknown"))
    elif share > DOMINATES:
        yield dominates


def _forward(case: Case, step: float) -> object:
    accumulation = case.whole("gradient_accumulation_steps")
    if accumulation is None:
        return msg("a third of a micro-batch's time")
    return step / max(1, accumulation // (case.devices or 1)) / 3


def _checkpoints(case: Case, rows: np.ndarray, extra: np.ndarray) -> Iterator[Finding]:
    """Evaluations with a save take longer than those without."""
    saved = {mark.step for mark in case.marks("checkpoint") if mark.step is not None}
    at = case.steps.step[rows] - case.run.conventions.updates_before_printed
    with_save = np.isin(at, list(saved)) if saved else _improved(case, at)
    if with_save.all() and saved:
        last = Seen(extra[-1], 0.0, *locations.at_row(case, rows[-1]))
        yield finding("checkpoint_spike.inseparable", "likely", last)
    if with_save.sum() < 2 or (~with_save).sum() < 2:
        return
    more, less = float(np.median(extra[with_save])), float(np.median(extra[~with_save]))
    if more < 1.3 * less or extra[with_save].min() < 1.1 * less:
        return
    slow = Seen(more, less, *locations.at_row(case, rows[np.flatnonzero(with_save)[0]]))
    yield finding("checkpoint_spike", "certain" if saved else "likely", slow, took=more - less)


def _improved(case: Case, at: np.ndarray) -> np.ndarray:
    """nanoGPT saves where val is the lowest so far; at step 0 it does not."""
    if not case.is_nanogpt:
        return np.zeros(len(at), bool)
    steps, val = case.evals.step[case.val_rows], case.evals.val[case.val_rows]
    lowest_before = np.minimum.accumulate(np.r_[np.inf, val])[: len(val)]
    return np.isin(at, steps[val < lowest_before])


def _dominates(share: float, total: float, spacing: int | None, where: Message) -> Finding:
    sets = ("eval_interval", spacing, int(spacing * share / 0.05) if spacing else None)
    sureness: Sureness = "likely" if total > WORTH_FIXING_S or share > 0.5 else "possible"
    spent = Seen(share, (0.01, 0.1), where)
    return finding("eval_dominates_time", sureness, spent, sets=sets, share=share, total=total)


def _warm_up(case: Case, step: float) -> Iterator[Finding]:
    rows = np.flatnonzero(is_first(case) & np.isfinite(case.steps.took_s))
    if not len(rows):
        return
    row = rows[0]
    took, inside = float(case.steps.took_s[row]), _first_eval(case, row, step)
    if took - step - inside < max(step, 0.15 * took, 0.05) or took < 2 * step:
        return
    name = "compile_warmup.with_unknown_evaluation" if holds_eval(case)[row] else "compile_warmup"
    name = "compile_warmup.with_evaluation" if inside > 0 else name
    yield finding(name, "likely", Seen(took, step, *locations.at_row(case, row)), inside=inside)


def _first_eval(case: Case, row: int, step: float) -> float:
    """How much of the first line is an evaluation: as long as the others take, or as its batches should."""
    if case.run.conventions.time != "with_eval" and not holds_eval(case)[row]:
        return 0.0
    extra, batches = eval_seconds(case)[1], case.whole("eval_iters")
    if len(extra):
        return float(np.min(extra))
    accumulation, tokens = case.whole("gradient_accumulation_steps"), case.tokens_from_mfu
    if tokens is not None and case.micro_batch_tokens is not None:
        accumulation = max(1, round(tokens.value / case.micro_batch_tokens))
    return 0.0 if batches is None else 2 * batches * step / (accumulation or 1) / 3


def _unexplained(case: Case, step: float) -> Iterator[Finding]:
    """Slow lines that hold neither an evaluation nor a first step."""
    plain, took = np.flatnonzero(ordinary(case)), case.steps.took_s
    if len(plain) < 20:
        return
    slow = plain[took[plain] > 3 * step]
    saved = {mark.step for mark in case.marks("checkpoint", "sample") if mark.step is not None}
    slow = slow[~np.isin(case.steps.step[slow], list(saved | {at + 1 for at in saved}))]
    if len(slow) < 2:
        return
    lost = float((took[slow] - step).sum() / took[plain].sum())
    row = slow[np.argmax(took[slow])]
    slowest = Seen(took[row], step, *locations.at_row(case, row))
    yield finding("slow_steps_unexplained", "possible", slowest, count=len(slow), share=lost)


@rule("eval_dominates_time", "compile_warmup", only=("run.time_parts",))
def own_parts(case: Case) -> Answers:
    """Our own runs know where each second went."""
    parts = case.run.time_parts
    # Without starting up, which does not recur.
    total = sum(seconds for part, seconds in parts.items() if part not in ("compile", "other"))
    if total <= 0:
        return
    evals, compiled, where = parts.get("eval", 0.0), parts.get("compile", 0.0), msg("the whole run")
    if evals / total > DOMINATES:
        yield _dominates(evals / total, evals, case.whole("eval_interval"), where)
    if compiled > 0.02 * total and compiled > 1:
        yield finding("compile_warmup.own_parts", "certain", Seen(compiled, 0.0, where), took=compiled)


SLOWER_STEPS = 1.12  # on a GPU; a CPU shares its cores with everything else
SLOWER_CPU = 1.30
GROWS = re.compile(r"grow|increas|schedul|warm|ramp|->|→|curriculum", re.IGNORECASE)
SHAPES_TIME = re.compile(r"window|seq|context|block|batch|length", re.IGNORECASE)


@rule("throttling_suspected", "step_time_schedule", only=("took_s",))
def drift(case: Case) -> Answers:
    """The steps get slower as the run goes on."""
    rows = np.flatnonzero(ordinary(case))
    took, at = case.steps.took_s[rows], case.steps.step[rows]
    if len(took) < 6:
        yield NotChecked("throttling_suspected", msg("there are fewer than 6 normal iterations with a time"))
        return
    first, last = _quarters(at, took)
    was, now = float(np.median(first)), float(np.median(last))
    slope, shift = trend(at, took), change_point(took)
    drifts = slope is not None and slope.low > 0 and slope.p < 0.1
    if not drifts and not (shift is not None and shift.p < 0.01 and shift.after > shift.before):
        return
    by_design = _grows_by_design(case)
    if by_design is not None and now / was > 1.01:
        yield finding("step_time_schedule", "likely", Seen(now, was, by_design, at[0]))
        return
    is_clear = now >= was + 4 * spread_of(first) and np.quantile(last, 0.1) >= np.quantile(first, 0.9)
    if now / was < (SLOWER_CPU if case.is_cpu else SLOWER_STEPS) or not is_clear:
        return
    # A processor that is suddenly shared is nobody's fault: there the slowing down must be gradual.
    is_sure = not case.is_cpu or (drifts and _is_gradual(at, took))
    name, step = "throttling_suspected", 0
    if not drifts:
        name, step = "throttling_suspected.at_once", int(at[known(shift).at])
    slower = Seen(now, was, locations.rows(case, rows[0], rows[-1]))
    yield finding(name, "likely" if is_sure else "possible", slower, more=now / was - 1, step=step)


def _quarters(at: np.ndarray, took: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last: of the run, or of the lines where a run has too few of them there."""
    spread = at[-1] - at[0]
    first, last = took[at <= at[0] + spread / 4], took[at >= at[-1] - spread / 4]
    if len(first) < 3 or len(last) < 3:
        count = max(3, len(took) // 4)
        first, last = took[:count], took[-count:]
    return first, last


def _is_gradual(at: np.ndarray, took: np.ndarray) -> bool:
    """Whether a straight line describes the times better than one change of their level does."""
    x, y = block_medians(at.astype(float), took, TREND_BLOCKS) if len(took) > TREND_BLOCKS else (at.astype(float), took)
    line = float(np.sum((y - np.polyval(np.polyfit(x - x.mean(), y, 1), x - x.mean())) ** 2))
    levels = [float(y[:i].var() * i + y[i:].var() * (len(y) - i)) for i in range(2, len(y) - 1)]
    return line < min(levels, default=np.inf)


def _grows_by_design(case: Case) -> Message | None:
    """A setting that says so, or a trainer that is known for it."""
    for key, fact in case.run.known.items():
        if isinstance(fact.value, str) and SHAPES_TIME.search(key) and GROWS.search(fact.value):
            return msg("{key:code} = {value:code}", key, fact.value)
    if case.run.conventions.trainer == "modded-nanogpt":
        return msg("modded-nanogpt widens its attention window with the step number")
    return None


@rule("input_bound", only=("data_s",))
def input_bound(case: Case) -> Answers:
    """The device waits for data."""
    rows = np.intersect1d(case.rows("data_s"), case.rows("took_s"))
    waited, took = case.steps.data_s[rows], case.steps.took_s[rows]
    if len(rows) >= 20 and (share := float(waited.sum() / took.sum())) > 0.2:
        where = msg("{rows:count step|steps}", len(waited))
        yield finding("input_bound", "likely", Seen(share, (0.0, 0.05), where))


@rule("clipping_saturated", only=("clipped",))
def clipping(case: Case) -> Answers:
    """The gradients are always clipped."""
    rows, warm = case.rows("clipped"), case.whole("warmup_iters") or 0
    clipped = case.steps.clipped[rows][case.steps.step[rows] > 2 * warm + 50]
    if len(clipped) >= 100 and float(clipped.mean()) > 0.9:
        share = Seen(clipped.mean(), (0.0, 0.3), msg("after the warm-up"))
        yield finding("clipping_saturated", "possible", share, sets=("grad_clip", case.number("grad_clip"), None))
