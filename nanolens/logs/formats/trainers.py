"""The trainers of `trainers.toml`, and what a pattern does not say of them."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from nanolens.logs.facts import header_facts
from nanolens.logs.formats import keyvalue
from nanolens.logs.rows import Found, LogFormat, Rows, joined, sentences_in
from nanolens.logs.text import lines_with
from nanolens.record.run import Conventions

TABLE = Path(__file__).with_name("trainers.toml")


_MORE = re.compile(r"[,;|] {0,4}[A-Za-z]")
_LINE = re.compile(r"[^\r\n]{0,300}+")
ITERS_LOOKED_AT = 12  # rows


def with_more_fields(pattern: re.Pattern[str], text: str) -> re.Pattern[str]:
    """Forks add fields behind the usual ones (`, lr 1e-3`): what a few rows show, all rows are searched for."""
    for match in itertools.islice(pattern.finditer(text), ITERS_LOOKED_AT):
        if _MORE.match(text, match.end()):
            behind = _LINE.match(text, match.end())
            assert behind is not None, "the pattern matches nothing as well"
            more = keyvalue.pattern_like(text, match.end(), behind.end())
            taken = {name for name in pattern.groupindex if match[name] is not None}
            named = re.findall(r"\(\?P<(\w+)>", more)
            if more and not taken & set(named):
                # A name may stand in a pattern once: the groups of these names become nameless.
                usual = re.sub(rf"\(\?P<(?:{'|'.join(named)})>", "(?:", pattern.pattern)
                return re.compile(f"{usual}(?:{more})?")
    return pattern


def own_conventions(text: str, log_format: LogFormat) -> Conventions:
    """The conventions that the header names; a header that leaves one out follows the usual ones."""
    allowed = {"loss": ("mean", "last_micro_batch", "smoothed"), "time": ("step_only", "with_eval", "average")}
    numbers = {field.name for field in fields(Conventions)} - {"trainer", *allowed}
    header = next((line for _, line in lines_with(text, log_format.header)), "")
    said = header_facts(header).items()
    words = {key: value for key, value in said if value in allowed.get(key, ())}
    finite = {key: value for key, value in said if not isinstance(value, str) and math.isfinite(value)}
    stated = words | {key: value for key, value in finite.items() if key in numbers}
    return replace(log_format.conventions, **stated)  # type: ignore[arg-type]


def nanochat_conventions(text: str, log_format: LogFormat) -> Conventions:
    """Only the form of 2025 divides by a fixed peak."""
    has_table = "bf16_mfu:" in text or "Peak FLOPS (BF16)" in text
    return replace(log_format.conventions, peak_flops=None) if has_table else log_format.conventions


def llmc_conventions(text: str, log_format: LogFormat) -> Conventions:
    peak_flops = 312e12 if "A100 fp16 MFU" in text else None
    counts_from_zero = ("trl:" in text or "(took " in text) and " tok/s" not in text
    return replace(log_format.conventions, peak_flops=peak_flops, updates_before_printed=int(counts_from_zero))


def modded_step_times(steps: Rows, evals: Rows) -> Rows:
    """Step times from the clock. An evaluation's row tells the time of a step that has no row of its own."""
    alone = evals.take(np.flatnonzero(~np.isin(evals.printed, steps.printed)))
    alone.columns = {name: alone.column(name) for name in ("clock_ms", "average_ms", "total", "step")}
    alone.not_finite = {}
    rows = joined((steps, alone))
    rows = rows.take(np.argsort(rows.printed, kind="stable"))
    rows.columns["took_s"] = _times(rows)
    return rows.take(np.flatnonzero(rows.printed > 0))


def _times(rows: Rows) -> np.ndarray:
    """The clock's difference to the row before, an update; the average where the clock has just started."""
    clock, average = rows.column("clock_ms") / 1e3, rows.column("average_ms") / 1e3
    updates, passed = np.diff(rows.printed, prepend=0), np.diff(clock, prepend=np.nan)
    has_started = np.isnan(np.append(np.nan, average[:-1])) & np.isfinite(average)
    took = np.where((updates > 0) & (passed >= 0), passed / np.maximum(updates, 1), np.nan)
    took = np.where(has_started, average, took)
    if len(rows) and rows.printed[0] <= 0:
        took[0] = np.nan
    return took


def place_litgpt(found: Found) -> None:
    """Evaluations are numbered by micro-batch; rows tell how many of them make an update. Of the micro-batches of one
    update that are printed the last one stays: no other belongs to an update that is done."""
    rows = found.steps
    if len(rows) > 1:
        goes_on = (np.diff(rows.printed) == 0) & (np.diff(rows.column("micro_batches")) > 0)
        found.understood += rows.line[:-1][goes_on].tolist()
        found.steps = rows.take(np.flatnonzero(~np.append(goes_on, False)))
    per_update, printed = _micro_batches_per_update(found.steps), found.evals.printed
    found.evals.printed = np.where(printed >= 0, np.round(printed / per_update).astype(np.int64), -1)


def litgpt_step_times(steps: Rows, evals: Rows) -> Rows:
    if _micro_batches_per_update(steps) == 1.0:
        steps.columns["took_s"] = steps.column("micro_ms") / 1e3
    return steps


def _micro_batches_per_update(steps: Rows) -> float:
    done = steps.printed > 0
    if not done.any():
        return 1.0
    return max(1.0, float(np.max(steps.column("micro_batches")[done]) / np.max(steps.printed[done])))


def fairseq_in_nats(found: Found) -> None:
    """Bits become nats, before anything is made of the rows."""
    for rows, name in ((found.steps, "loss"), (found.evals, "val")):
        if name in rows.columns or not len(rows):
            continue
        bits, smoothed = rows.column("bits"), rows.column("smoothed")
        rows.columns[name] = math.log(2) * (smoothed if np.isnan(bits).all() else bits)
        if "bits" in rows.not_finite:
            rows.not_finite[name] = rows.not_finite["bits"]


_IN_PYTHON: Mapping[str, Mapping[str, object]] = {
    "nanolens": {"widen": with_more_fields, "conventions_in": own_conventions},
    "nanogpt": {"widen": with_more_fields},
    "nanochat": {"conventions_in": nanochat_conventions},
    "llm.c": {"conventions_in": llmc_conventions},
    "modded-nanogpt": {"finish": modded_step_times},
    "litgpt": {"place": place_litgpt, "finish": litgpt_step_times},
    "fairseq": {"place": fairseq_in_nats},
}


def _trainer(name: str, tables: Mapping[str, Any]) -> LogFormat:
    table = tables[name]
    like = tables.get(table.get("like"), {})
    rows = ("steps", "steps_from_zero", "evals", "passed_over")
    parts = {part: table.get(part, like.get(part, ())) for part in rows} | {"header": table.get("header", "")}
    parts.update(_IN_PYTHON.get(name, {}))
    return LogFormat(name, Conventions(**table["conventions"]), table["words"], sentences=sentences_in(table), **parts)


_TABLES = tomllib.loads(TABLE.read_text("utf-8"))
TRAINERS = tuple(_trainer(name, _TABLES) for name in _TABLES)
