"""A run's page apart from its curves, as JSON: what it is, what to hold its loss against, its findings, samples,
settings and events. All of it is data: the page puts it on the screen as text and never as markup."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TypeAlias

import numpy as np

from nanolens.comparison import Comparison
from nanolens.comparison.remarks import Difference
from nanolens.comparison.side import AXES
from nanolens.comparison.verdict import AxisOutcome, verdicts_at
from nanolens.comparison.words import EFFECTS, table_rows, verdict_parts
from nanolens.config.fields import TITLES, as_text, settings
from nanolens.config.load import Preset
from nanolens.diagnosis import Diagnosis, is_fault
from nanolens.facts.finding import Finding
from nanolens.facts.reading import what_was_said
from nanolens.forecasting import Forecast, Refusal
from nanolens.forecasting.words import headline
from nanolens.message import Message, msg
from nanolens.page.series import Columns, spark
from nanolens.planning.words import PlanCheck
from nanolens.record.events import PART_NAMES
from nanolens.record.run import Mark, RunRecord
from nanolens.show.answer import JsonObject, plain
from nanolens.show.document import said
from nanolens.show.findings import SURENESS_WORDS, evidence_words, setting_line
from nanolens.show.words import say, show, translated

PlanRows: TypeAlias = Mapping[str, Mapping[str, float | None]]  # what `planning.question.recall` gives

RECENT = 50  # updates that "now" is made of
TIME_STRETCHES = 60  # bars of where the time went
MOST_SAMPLES = 200
MOST_MARKS = 400
SHOWN_MARKS = frozenset(
    """checkpoint compile resume attempt skip rollback out_of_memory error micro_batch_halved checkpoint_failed
    rank_drifted ended""".split()
)
_FACTS: tuple[tuple[str, Message, str], ...] = (
    ("parameters_total", msg("parameters"), "parameters"),
    ("dataset_tokens", msg("training tokens"), "tokens"),
    ("tokens_per_update", msg("tokens per update"), "tokens"),
    ("hardware", msg("machine"), "text"),
    ("peak_flops", msg("peak"), "flops_per_s"),
    ("torch", msg("torch"), "text"),
    ("preset", msg("preset"), "text"),
    ("wall_s", msg("duration"), "seconds"),
)


@cache
def page_strings() -> dict[str, str]:
    """Every sentence that the page itself says, by the key under which its scripts ask for it."""
    text = (resources.files("nanolens.page") / "strings.toml").read_text(encoding="utf-8")
    return {f"{group}.{key}": said for group, words in tomllib.loads(text).items() for key, said in words.items()}


def words_of(lang: str) -> dict[str, str]:
    """By key, in the reader's language, the placeholders still open: the page fills them."""
    return {key: translated(sentence, lang) for key, sentence in page_strings().items()}


def row_of(columns: Columns, state: str) -> JsonObject:
    run, case = columns.run, columns.case
    best = int(np.nanargmin(case.evals.val)) if np.isfinite(case.evals.val).any() else None
    took = case.steps.took_s[-RECENT:]
    update_s = float(np.nanmean(took)) if np.isfinite(took).any() else math.nan
    return {
        "name": run.name,
        "trainer": run.conventions.trainer,
        "state": state,
        "step": case.last_step,
        "max_iters": case.whole("max_iters"),
        "loss": plain(float(run.steps.loss[-1])) if len(run.steps) else None,
        "is_bad": bool(columns.not_finite) and columns.not_finite[-1][1] == int(run.steps.step[-1]),
        "val": float(case.vals[1][-1]) if len(case.vals[1]) else None,
        "best_val": None if best is None else float(case.evals.val[best]),
        "best_se": None if best is None else float(case.evals.val_se[best]),
        "best_step": None if best is None else int(case.evals.step[best]),
        "tokens_per_s": _recent(columns, "tokens_per_s"),
        "mfu": _recent(columns, "mfu"),
        "left_s": _left_s(columns, update_s) if state in ("running", "silent") else None,
        "created_at_s": run.number("created_at_s"),
        "parameters": None if case.parameters is None else case.parameters.value,
        "dataset": case.text("dataset"),
        "settings": {key: value for key in settings() if isinstance(value := run.get(key), (int, float, str))},
        "spark": spark(columns),
    }


def _left_s(columns: Columns, update_s: float) -> float | None:
    """Updates still to do at the present speed, with the evaluations among them at the cost of the last one."""
    case = columns.case
    end, interval = case.whole("max_iters"), case.whole("eval_interval")
    if end is None or not math.isfinite(update_s):
        return None
    updates = max(0, end - case.last_step)
    evals = case.evals.took_s[np.isfinite(case.evals.took_s)]
    return updates * update_s + (updates / interval * float(evals[-1]) if interval and len(evals) else 0.0)


def view_of(columns: Columns, state: str, preset: Preset | None, planned: PlanRows | None, lang: str) -> JsonObject:
    run = columns.run
    return {
        "row": row_of(columns, state),
        "axes": list(columns.axes),
        "facts": _facts(columns, lang),
        "lines": levels_of(columns, lang),
        "reference": _reference(columns),
        "expected": _expected(columns, preset, planned, lang),
        "marks": _marks(run),
        "samples": _samples(run),
        "config": config_of(run, lang),
        "time": _time(columns, lang),
        "reading": " ".join(say(sentence, lang) for sentence in what_was_said(columns.case)[:1]),
        "notes": [say(note, lang) for note in run.reading.notes],
        "parts": {part: say(name, lang) for part, name in PART_NAMES.items()},
    }


def _facts(columns: Columns, lang: str) -> list[dict[str, str]]:
    known = [(columns.run.get(key), title, kind) for key, title, kind in _FACTS]
    return [
        {"what": say(title, lang), "value": show(value, kind, lang)}
        for value, title, kind in known
        if value is not None and value != ""
    ]


def levels_of(columns: Columns, lang: str) -> list[JsonObject]:
    """Losses that mean something on this corpus."""
    case = columns.case
    levels = (
        ("chance", case.ln_vocab, msg("ln V: knows nothing")),
        ("unigram", case.unigram_nats, msg("unigram: knows token frequencies")),
        ("bigram", case.bigram_nats, msg("bigram: sees the previous token")),
    )
    return [{"key": key, "y": value, "label": say(label, lang)} for key, value, label in levels if value is not None]


def _reference(columns: Columns) -> JsonObject | None:
    """The known run of this corpus and model, where its updates have as many tokens as ours."""
    known, per_update = columns.case.reference, columns.case.tokens_per_update
    if known is None or per_update is None or known.tokens_per_update is None:
        return None
    if abs(per_update.value / known.tokens_per_update - 1) > 0.1:
        return None
    points = dict(known.val_by_step)
    for step, loss in ((known.best_step, known.best_val), (known.end_step, known.end_val)):
        if step is not None and loss is not None:
            points.setdefault(step, loss)  # a recorded curve knows better than a single figure
    steps = sorted(points)
    found = {"name": known.name, "source": known.source, "step": steps, "y": [points[step] for step in steps]}
    return found if steps else None


def _expected(columns: Columns, preset: Preset | None, planned: PlanRows | None, lang: str) -> JsonObject | None:
    """The curve that runs of these very settings took before, or the end that `plan` had expected."""
    if preset is not None and preset.curve:
        label = msg("expected for preset {preset:code}: mean of its runs, ± 2 standard deviations", preset.name)
        steps, means, spreads = map(np.array, zip(*preset.curve, strict=True))
        band = {"low": (means - 2 * spreads).tolist(), "high": (means + 2 * spreads).tolist()}
        return {"label": say(label, lang), "step": steps.tolist(), "y": means.tolist(), **band}
    end, loss = columns.case.whole("max_iters"), (planned or {}).get("final_loss", {})
    if end is None or not isinstance(value := loss.get("value"), (int, float)):
        return None
    low, high = (value if (edge := loss.get(key)) is None else edge for key in ("low", "high"))
    label = msg("expected at the end according to the plan")
    return {"label": say(label, lang), "step": [end], "y": [float(value)], "low": [float(low)], "high": [float(high)]}


def _marks(run: RunRecord) -> list[JsonObject]:
    shown = [mark for mark in run.marks if mark.kind in SHOWN_MARKS and mark.step is not None]
    return [
        {"kind": mark.kind, "step": mark.step, "took_s": mark.took_s, "text": mark.text[:300]}
        for mark in _spread(shown, MOST_MARKS)
    ]


def _samples(run: RunRecord) -> list[JsonObject]:
    written = [mark for mark in run.marks if mark.kind == "sample"]
    return [{"step": mark.step, "text": mark.text[:8000]} for mark in _spread(written, MOST_SAMPLES)]


def _spread(marks: list[Mark], most: int) -> list[Mark]:
    return marks if len(marks) <= most else [marks[i] for i in np.linspace(0, len(marks) - 1, most).astype(int)]


def config_of(run: RunRecord, lang: str) -> list[JsonObject]:
    """Settings by group, each with its meaning; then what else is known of the run."""
    groups: dict[str, list[dict[str, str]]] = {}
    for key, known in settings().items():
        fact = run.known.get(key)
        if fact is None:
            continue
        meaning = say(known.meaning, lang) + (f" ({known.unit})" if known.unit else "")
        row = {"key": key, "value": as_text(fact.value), "meaning": meaning, "where": fact.where}
        groups.setdefault(known.group, []).append({**row, "usual": as_text(known.default)})
    shown: list[JsonObject] = [{"group": say(TITLES[name], lang), "rows": rows} for name, rows in groups.items()]
    named = {key for key, _, _ in _FACTS}
    others = [
        {"key": key, "value": str(fact.value)[:400], "meaning": "", "where": fact.where or fact.origin, "usual": ""}
        for key, fact in sorted(run.known.items())
        if key not in settings() and key not in named and not isinstance(fact.value, (dict, list, tuple))
    ]
    if others:
        shown.append({"group": say(msg("Other details"), lang), "rows": others})
    return shown


def _time(columns: Columns, lang: str) -> JsonObject | None:
    bars = columns.time_bars(TIME_STRETCHES)
    if bars is None:
        return None
    ends, seconds = bars
    totals = {part: float(each.sum()) for part, each in seconds.items()}
    if any(columns.run.time_parts.values()):
        totals = {part: float(columns.run.time_parts.get(part, 0.0)) for part in totals}
    whole, parts = sum(totals.values()) or 1.0, []
    for part, total_s in totals.items():
        if total_s > 0:
            row = {"key": part, "name": say(PART_NAMES[part], lang), "seconds": seconds[part].tolist()}
            parts.append({**row, "total_s": total_s, "share": total_s / whole})
    return {"start": max(0, int(columns.step[0]) - 1), "ends": ends.tolist(), "parts": parts}


def findings_of(diagnosis: Diagnosis, held: Sequence[PlanCheck], lang: str, last_step: int | None = None) -> JsonObject:
    return {
        "headline": say(diagnosis.headline, lang),
        "findings": [_finding(finding, is_fault(finding), last_step, lang) for finding in diagnosis.findings],
        "not_checked": [{"code": item.code, "because": say(item.because, lang)} for item in diagnosis.not_checked],
        "plan": [{"words": say(each.words, lang), "verdict": each.verdict} for each in held],
    }


GOES_ON = frozenset("overfitting nan_divergence loss_divergence bigram_plateau".split())
"""Findings that hold from where they begin to the end of the run."""


def _finding(finding: Finding, is_fault: bool, last_step: int | None, lang: str) -> JsonObject:
    advice, change = None, finding.change
    if change is not None:
        setting = setting_line(change) if change.key else ""
        advice = {"words": say(change.words, lang), "setting": setting, "command": change.command}
    at = [item.at_step for item in finding.evidence if item.at_step is not None]
    ends = last_step if finding.code in GOES_ON and last_step is not None else None
    return {
        "code": finding.code,
        "sureness": finding.sureness,
        "how_sure": say(SURENESS_WORDS[finding.sureness], lang),
        "is_fault": is_fault,
        "claim": say(finding.claim, lang),
        "evidence": [{"words": say(evidence_words(item), lang), "at_step": item.at_step} for item in finding.evidence],
        "from_step": min(at) if at else None,
        "to_step": max(*at, ends or 0) if at else None,
        "change": advice,
        "wrong_if": say(finding.wrong_if, lang),
    }


def forecast_of(found: Forecast | Refusal, lang: str) -> JsonObject:
    if isinstance(found, Refusal):
        instead = None if found.instead is None else say(found.instead, lang)
        return {"because": say(found.because, lang), "instead": instead}
    names = ("step", "y", "low", "high")
    curve = {name: np.asarray(column).tolist() for name, column in zip(names, found.curve, strict=True)}
    return {"words": say(headline(found), lang), **curve, "notes": [say(note, lang) for note in found.notes]}


def ending_of(state: str, step: int, changed_at_s: float, out_dir: str, lang: str) -> JsonObject | None:
    """How a run that did not reach its end stands, and the command that goes on with it."""
    words = {
        "gone": msg("The process died; its last sign came at {at:date}, at step {step:count}.", changed_at_s, step),
        "silent": msg("Nothing new since {at:date}, step {step:count}; the process may be stuck.", changed_at_s, step),
        "failed": msg("The run failed at step {step:count}, at {at:date}.", step, changed_at_s),
        "stopped": msg("The run was stopped at step {step:count}, at {at:date}.", step, changed_at_s),
    }.get(state)
    if words is None:
        return None
    resume = "" if state == "silent" or not out_dir else f"nanolens train --init_from=resume --out_dir={out_dir}"
    return {"words": say(words, lang), "command": resume}


def comparison_of(comparison: Comparison, lang: str) -> JsonObject:
    outcome, ranking, brackets = _ranked(comparison)
    verdicts = [block for block in verdict_parts(comparison) if block.text and block.role != "head"]
    return {
        "sides": [{"name": side.name, "title": side.title} for side in comparison.sides],
        "headline": [say(each, lang) for each in _headline(comparison, outcome, ranking, brackets)],
        "how": say(_how(outcome), lang),
        "ranking": [{"side": side, "loss": loss} for side, loss in ranking],
        "brackets": brackets,
        "verdicts": [{"words": said(block.text, lang), "role": block.role} for block in verdicts],
        "remarks": [say(remark, lang) for remark in comparison.remarks],
        "table": [{"what": say(what, lang), "cells": cells} for what, cells in table_rows(comparison)],
        "differences": [_difference(each, lang) for each in comparison.differences],
    }


def _difference(each: Difference, lang: str) -> JsonObject:
    return {
        "what": say(each.what, lang),
        "key": each.key,
        "values": [show(value, each.kind, lang) if value is not None else "-" for value in each.values],
        "numbers": [float(x) if isinstance(x, (int, float)) and not isinstance(x, bool) else None for x in each.values],
        "effect": each.effect,
        "effect_words": say(EFFECTS[each.effect], lang),
        "because": say(each.because, lang),
        "is_derived": each.is_derived,
    }


Ranking: TypeAlias = list[tuple[int, float | None]]  # (side, its loss at the place of comparison), best first


def _ranked(comparison: Comparison) -> tuple[AxisOutcome, Ranking, list[list[int]]]:
    """At equal tokens, or steps where those are not known; and the stretches of the ranking within which no two sides
    can be told apart."""
    known = {outcome.axis: outcome for outcome in comparison.outcomes if outcome.verdicts}
    outcome = known.get("tokens") or known.get("steps") or next(iter(known.values()), comparison.outcomes[0])
    losses = outcome.losses
    if not outcome.verdicts:
        losses = tuple(side.best_val for side in comparison.sides)
    finite = [math.inf if loss is None else loss for loss in losses]
    ranking: Ranking = [(i, losses[i]) for i in sorted(range(len(losses)), key=finite.__getitem__)]
    return outcome, ranking, _brackets(comparison, outcome, ranking) if outcome.verdicts else []


def _brackets(comparison: Comparison, outcome: AxisOutcome, ranking: Ranking) -> list[list[int]]:
    placed = [side for side, loss in ranking if loss is not None]
    found: list[list[int]] = []
    for i in range(len(placed) - 1):
        last = i
        while last + 1 < len(placed) and not _is_apart(comparison, outcome, placed[i], placed[last + 1]):
            last += 1
        if last > i and not (found and found[-1][1] >= last):
            found.append([i, last])
    return found


def _is_apart(comparison: Comparison, outcome: AxisOutcome, one: int, other: int) -> bool:
    sides, at = [comparison.sides[one], comparison.sides[other]], outcome.at
    scales = [side.per_step[outcome.axis] for side in sides]
    if at is None or not all(scales):
        return False
    (verdict,) = verdicts_at(sides, [at / (scale or 1.0) for scale in scales])
    return verdict.result == "ahead"


def _how(outcome: AxisOutcome) -> Message:
    if not outcome.verdicts or outcome.at is None:
        return msg("Ranked by the best val loss of each run.")
    axis = AXES[outcome.axis]
    return msg(
        "Ranked by val loss at {amount} {what}; runs joined by one bracket cannot be told apart (95%).",
        show(outcome.at, axis.kind),
        axis.noun,
    )


def _headline(
    comparison: Comparison, outcome: AxisOutcome, ranking: Ranking, brackets: list[list[int]]
) -> Iterator[Message]:
    """The verdict in at most three sentences."""
    names = [comparison.sides[side].title for side, _ in ranking]
    because = comparison.grounds.not_comparable
    if because is not None:
        yield msg("The losses cannot be compared: {because}.", because)
        return
    if not outcome.verdicts:
        return
    together = brackets[0][1] + 1 if brackets and brackets[0][0] == 0 else 1
    if together == 1:
        by = float(ranking[1][1] or 0) - float(ranking[0][1] or 0)
        yield msg("{run:code} is best, {by:nats} ahead of {next:code}.", names[0], by, names[1])
    elif together == len(names):
        yield msg("No difference is shown between any of the {count:count run|runs}.", together)
    else:
        yield msg("{runs:code} lead and cannot be told apart.", names[:together])
    if len(names) > 2 and together < len(names):
        last = float(ranking[-1][1] or math.nan) - float(ranking[0][1] or math.nan)
        if math.isfinite(last):
            yield msg("{run:code} is last, {by:nats} behind the best.", names[-1], last)
    able = [each.what for each in comparison.differences if each.effect == "can" and not each.is_derived]
    if able:
        yield msg("They differ in what can change the loss: {what}.", able[:4])


def _recent(columns: Columns, name: str) -> float | None:
    """The median of the last updates that tell it."""
    recent = columns.series.get(name, np.zeros(0))[-RECENT:]
    finite = recent[np.isfinite(recent)]
    return float(np.median(finite)) if len(finite) else None
