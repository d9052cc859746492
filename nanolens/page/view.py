"""A run's page apart from its curves: what it is, what to hold its loss against, its findings, samples, settings and events, as JSON.

Sentences are in the reader's language. All of it is data: the page puts it on the screen as text and never as markup.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nanolens.config.fields import as_text, settings
from nanolens.forecasting import Forecast, Refusal
from nanolens.message import Message, msg
from nanolens.page.series import Columns
from nanolens.present.dashboard.series import spark
from nanolens.present.forecast import headline
from nanolens.present.text import SURENESS, evidence_words, setting_line
from nanolens.show.live import PART_NAMES
from nanolens.show.words import TIE, say, show

if TYPE_CHECKING:
    from nanolens.analysis.compare import Comparison
    from nanolens.analysis.plan_actual import Held
    from nanolens.config.preset import Preset
    from nanolens.diagnosis import Diagnosis
    from nanolens.facts.finding import Finding
    from nanolens.record.run import Run

RECENT = 50  # updates that "now" is made of
STRETCHES = 60  # bars of where the time went
MOST_SAMPLES = 200
MOST_MARKS = 400
SHOWN_MARKS = (
    "checkpoint", "compile", "resume", "attempt", "skip", "rollback", "out_of_memory", "error", "micro_batch_halved", "checkpoint_failed",
    "rank_drifted", "ended",
)  # fmt: skip
GROUPS = {
    "model": msg("Model"), "data": msg("Data"), "optimizer": msg("Optimizer"), "schedule": msg("Schedule"),
    "evaluation": msg("Evaluation"), "checkpoint": msg("Checkpoints"), "machine": msg("Machine"), "output": msg("Output"),
}  # fmt: skip
FACTS: tuple[tuple[str, Message, str], ...] = (
    ("parameters_total", msg("parameters"), "parameters"),
    ("dataset_tokens", msg("training tokens"), "tokens"),
    ("tokens_per_update", msg("tokens per update"), "tokens"),
    ("hardware", msg("machine"), "text"),
    ("peak_flops", msg("peak"), "flops_per_s"),
    ("torch", msg("torch"), "text"),
    ("preset", msg("preset"), "text"),
    ("wall_s", msg("took"), "seconds"),
)


def row_of(columns: Columns, state: str) -> dict[str, Any]:
    """One line of the list of runs."""
    run, case = columns.run, columns.case
    best = int(np.nanargmin(case.evals.val)) if np.isfinite(case.evals.val).any() else None
    took = case.steps.took_s[-RECENT:]
    update_s = float(np.nanmean(took)) if np.isfinite(took).any() else math.nan
    speed = columns.series.get("tokens_per_s")
    mfu = columns.series.get("mfu")
    return {
        "name": run.name,
        "trainer": run.words.trainer,
        "state": state,
        "step": case.last_step,
        "max_iters": case.whole("max_iters"),
        "loss": _last(run.steps.loss),
        "is_bad": bool(columns.not_finite) and columns.not_finite[-1][1] == int(run.steps.step[-1]),
        "val": float(case.vals[1][-1]) if len(case.vals[1]) else None,
        "best_val": None if best is None else float(case.evals.val[best]),
        "best_se": None if best is None else _finite(float(case.evals.val_se[best])),
        "best_step": None if best is None else int(case.evals.step[best]),
        "tokens_per_s": _recent(speed),
        "mfu": _recent(mfu),
        "left_s": _left_s(columns, update_s) if state in ("running", "silent") else None,
        "created_at_s": run.number("created_at_s"),
        "parameters": None if case.parameters is None else case.parameters.value,
        "dataset": case.text("dataset"),
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


def view_of(columns: Columns, state: str, preset: Preset | None, planned: Mapping[str, Any] | None, lang: str) -> dict[str, Any]:
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
        "notes": [say(note, lang) for note in run.reading.notes],
        "parts": {part: say(name, lang) for part, name in PART_NAMES.items()},
    }


def _facts(columns: Columns, lang: str) -> list[dict[str, str]]:
    found = []
    for key, title, kind in FACTS:
        value = columns.run.get(key)
        if value is not None and value != "":
            found.append({"what": say(title, lang), "value": show(value, kind, lang)})
    return found


def levels_of(columns: Columns, lang: str) -> list[dict[str, Any]]:
    """Losses that mean something on this corpus."""
    case = columns.case
    levels = (
        ("chance", case.ln_vocab, msg("ln V: knows nothing")),
        ("unigram", case.unigram_nats, msg("unigram: knows how frequent each token is")),
        ("bigram", case.bigram_nats, msg("bigram: looks at the token before")),
    )
    return [{"key": key, "y": value, "label": say(label, lang)} for key, value, label in levels if value is not None]


def _reference(columns: Columns) -> dict[str, Any] | None:
    """The known run of this corpus and model, where its updates have as many tokens as ours."""
    known, per_update = columns.case.reference, columns.case.tokens_per_update
    if known is None or per_update is None or known.tokens_per_update is None or abs(per_update.value / known.tokens_per_update - 1) > 0.1:
        return None
    points = dict(known.val_by_step)
    for step, loss in ((known.best_step, known.best_val), (known.end_step, known.end_val)):
        if step is not None and loss is not None:
            points.setdefault(step, loss)  # a recorded curve knows better than a single figure
    steps = sorted(points)
    return {"name": known.name, "source": known.source, "step": steps, "y": [points[step] for step in steps]} if steps else None


def _expected(columns: Columns, preset: Preset | None, planned: Mapping[str, Any] | None, lang: str) -> dict[str, Any] | None:
    """The curve that runs of these very settings took before, or the end that `plan` had expected."""
    if preset is not None and preset.curve:
        steps, means, spreads = zip(*preset.curve, strict=True)
        return {
            "label": say(msg("expected of preset {preset:code}: mean of its runs, ± 2 standard deviations", preset=preset.name), lang),
            "step": list(steps),
            "y": list(means),
            "low": [mean - 2 * spread for mean, spread in zip(means, spreads, strict=True)],
            "high": [mean + 2 * spread for mean, spread in zip(means, spreads, strict=True)],
        }
    end, loss = columns.case.whole("max_iters"), (planned or {}).get("final_loss")
    if end is None or loss is None or not isinstance(loss.get("value"), (int, float)):
        return None
    value = float(loss["value"])
    low, high = (float(loss[key]) if loss.get(key) is not None else value for key in ("low", "high"))
    return {"label": say(msg("expected at the end by the plan"), lang), "step": [end], "y": [value], "low": [low], "high": [high]}


def _marks(run: Run) -> list[dict[str, Any]]:
    shown = [mark for mark in run.marks if mark.kind in SHOWN_MARKS and mark.step is not None]
    kept = shown if len(shown) <= MOST_MARKS else [shown[i] for i in np.linspace(0, len(shown) - 1, MOST_MARKS).astype(int)]
    return [{"kind": m.kind, "step": m.step, "took_s": _finite(m.took_s), "text": m.text[:300]} for m in kept]


def _samples(run: Run) -> list[dict[str, Any]]:
    written = [mark for mark in run.marks if mark.kind == "sample"]
    kept = written if len(written) <= MOST_SAMPLES else [written[i] for i in np.linspace(0, len(written) - 1, MOST_SAMPLES).astype(int)]
    return [{"step": mark.step, "text": mark.text[:8000]} for mark in kept]


def config_of(run: Run, lang: str) -> list[dict[str, Any]]:
    """Settings by group, each with its meaning; then what else is known of the run."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for key, known in settings().items():
        fact = run.known.get(key)
        if fact is None:
            continue
        meaning = say(known.meaning, lang) + (f" ({known.unit})" if known.unit else "")
        row = {"key": key, "value": as_text(fact.value), "meaning": meaning, "where": fact.where, "usual": as_text(known.default)}
        groups.setdefault(known.group, []).append(row)
    shown = [{"group": say(GROUPS[name], lang), "rows": rows} for name, rows in groups.items()]
    named = {key for key, _, _ in FACTS}
    others = [
        {"key": key, "value": str(fact.value)[:400], "meaning": "", "where": fact.where or fact.origin, "usual": ""}
        for key, fact in sorted(run.known.items())
        if key not in settings() and key not in named and not isinstance(fact.value, (dict, list, tuple))
    ]
    return [*shown, {"group": say(msg("Other facts"), lang), "rows": others}] if others else shown


def _time(columns: Columns, lang: str) -> dict[str, Any] | None:
    bars = columns.bars(STRETCHES)
    if bars is None:
        return None
    totals = {part: float(seconds.sum()) for part, seconds in bars.seconds.items()}
    if any(columns.run.time_parts.values()):
        totals = {part: float(columns.run.time_parts.get(part, 0.0)) for part in totals}
    parts = [part for part, seconds in totals.items() if seconds > 0]
    whole = sum(totals.values()) or 1.0
    return {
        "start": max(0, int(columns.step[0]) - 1),
        "ends": bars.ends.tolist(),
        "parts": [
            {
                "key": part,
                "name": say(PART_NAMES[part], lang),
                "seconds": bars.seconds[part].tolist(),
                "total_s": totals[part],
                "share": totals[part] / whole,
            }
            for part in parts
        ],
    }


def findings_of(diagnosis: Diagnosis, held: Sequence[Held], is_fault: Any, lang: str) -> dict[str, Any]:
    return {
        "findings": [_finding(finding, is_fault(finding), lang) for finding in diagnosis.findings],
        "not_checked": [{"code": item.code, "because": say(item.because, lang)} for item in diagnosis.not_checked],
        "plan": [{"words": say(each.words, lang), "verdict": each.verdict} for each in held],
    }


def _finding(finding: Finding, is_fault: bool, lang: str) -> dict[str, Any]:
    change = finding.change
    at = [item.at_step for item in finding.evidence if item.at_step is not None]
    return {
        "code": finding.code,
        "sureness": finding.sureness,
        "how_sure": say(SURENESS[finding.sureness], lang),
        "is_fault": is_fault,
        "claim": say(finding.claim, lang),
        "evidence": [{"words": say(evidence_words(item, lang), lang), "at_step": item.at_step} for item in finding.evidence],
        "at_step": at[0] if at else None,
        "change": None
        if change is None
        else {"words": say(change.words, lang), "setting": setting_line(change) if change.key else "", "command": change.command},
        "wrong_if": say(finding.wrong_if, lang),
    }


def forecast_of(found: Forecast | Refusal, lang: str) -> dict[str, Any]:
    if isinstance(found, Refusal):
        instead = None if found.instead is None else say(found.instead, lang)
        return {"because": say(found.because, lang), "instead": instead}
    steps, median, low, high = (np.asarray(column).tolist() for column in found.curve)
    return {
        "words": say(headline(found), lang), "step": steps, "y": median, "low": low, "high": high,
        "notes": [say(note, lang) for note in found.notes],
    }  # fmt: skip


def comparison_of(comparison: Comparison, lang: str) -> dict[str, Any]:
    from nanolens.present.compare import EFFECTS, table_rows, verdict_blocks

    return {
        "sides": [{"name": side.name, "title": side.title} for side in comparison.sides],
        "verdicts": [
            {"words": block.text.replace(TIE, " "), "role": block.role}
            for block in verdict_blocks(comparison, lang)
            if block.text and block.role != "head"
        ],
        "remarks": [say(remark, lang) for remark in comparison.remarks],
        "table": [{"what": say(what, lang), "cells": cells} for what, cells in table_rows(comparison, lang)],
        "differences": [
            {
                "what": say(each.what, lang),
                "key": each.key,
                "values": [show(value, each.kind, lang) if value is not None else "-" for value in each.values],
                "effect": each.effect,
                "effect_words": say(EFFECTS[each.effect], lang),
                "because": say(each.because, lang),
                "is_derived": each.is_derived,
            }
            for each in comparison.differences
        ],
    }


def _recent(column: np.ndarray | None) -> float | None:
    """The median of the last updates that tell it."""
    told = column[-RECENT:] if column is not None else np.zeros(0)
    told = told[np.isfinite(told)]
    return float(np.median(told)) if len(told) else None


def _last(column: np.ndarray) -> float | str | None:
    """The last value, with NaN and infinity by their names."""
    if not len(column):
        return None
    value = float(column[-1])
    return value if math.isfinite(value) else str(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
