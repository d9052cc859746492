"""A run held against the plan that was made for it: what was expected, what came, and whether that is within the plan's range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nanolens.facts.case import Case
from nanolens.message import Message, msg
from nanolens.record.run import Run

EXACT = 0.1  # a planned value without a range is kept when the run comes this near

WHAT: dict[str, tuple[Message, str]] = {
    "parameters": (msg("parameters"), "parameters"),
    "memory_total": (msg("memory at the peak"), "bytes"),
    "update_s": (msg("time of one update"), "seconds"),
    "tokens_per_s": (msg("speed"), "tokens_per_s"),
    "eval_s": (msg("time for evaluations"), "seconds"),
    "total_s": (msg("time of the whole run"), "seconds"),
    "final_loss": (msg("val loss at the end"), "nats"),
}


TOPICS = {
    "parameters": "parameters", "memory_total": "memory", "update_s": "tokens_per_s", "tokens_per_s": "tokens_per_s",
    "eval_s": "eval_interval", "total_s": "tokens_per_s", "final_loss": "val_loss",
}  # fmt: skip


def _sentences(**values: object) -> dict[tuple[str, str], Message]:
    """By the kind of the values and the verdict."""
    return {
        ("parameters", "as_planned"): msg("{what}: {actual:parameters}, as planned", **values),
        ("parameters", "above"): msg("{what}: {actual:parameters}, more than the planned {planned:parameters}", **values),
        ("parameters", "below"): msg("{what}: {actual:parameters}, less than the planned {planned:parameters}", **values),
        ("bytes", "as_planned"): msg("{what}: {actual:bytes}, as planned ({planned:bytes})", **values),
        ("bytes", "above"): msg("{what}: {actual:bytes}, more than the planned {planned:bytes}", **values),
        ("bytes", "below"): msg("{what}: {actual:bytes}, less than the planned {planned:bytes}", **values),
        ("seconds", "as_planned"): msg("{what}: {actual:seconds}, as planned ({planned:seconds})", **values),
        ("seconds", "above"): msg("{what}: {actual:seconds}, longer than the planned {planned:seconds}", **values),
        ("seconds", "below"): msg("{what}: {actual:seconds}, shorter than the planned {planned:seconds}", **values),
        ("tokens_per_s", "as_planned"): msg("{what}: {actual:tokens_per_s}, as planned ({planned:tokens_per_s})", **values),
        ("tokens_per_s", "above"): msg("{what}: {actual:tokens_per_s}, faster than the planned {planned:tokens_per_s}", **values),
        ("tokens_per_s", "below"): msg("{what}: {actual:tokens_per_s}, slower than the planned {planned:tokens_per_s}", **values),
        ("nats", "as_planned"): msg("{what}: {actual:nats}, as planned ({planned:nats})", **values),
        ("nats", "above"): msg("{what}: {actual:nats}, higher than the planned {planned:nats}", **values),
        ("nats", "below"): msg("{what}: {actual:nats}, lower than the planned {planned:nats}", **values),
    }


@dataclass(frozen=True)
class Held:
    key: str
    what: Message
    kind: str  # of the values, one of message.KINDS
    planned: float
    low: float
    high: float
    actual: float
    verdict: Literal["as_planned", "above", "below"]

    @property
    def topic(self) -> str:
        """The term of the glossary that it belongs to."""
        return TOPICS[self.key]

    @property
    def words(self) -> Message:
        return _sentences(what=self.what, planned=self.planned, actual=self.actual)[self.kind, self.verdict]


def plan_against_actual(run: Run, planned: Mapping[str, Mapping[str, Any]]) -> tuple[Held, ...]:
    """`planned`: for each key of WHAT its value, low and high, as `api.plans.recall` gives them. What the run does not tell is left out."""
    found = []
    for key, actual in actuals(run):
        row = planned.get(key)
        if row is None or not isinstance(row.get("value"), (int, float)):
            continue
        value = float(row["value"])
        low = float(row["low"]) if row.get("low") is not None else value * (1 - EXACT)
        high = float(row["high"]) if row.get("high") is not None else value * (1 + EXACT)
        if key == "memory_total":
            low = 0.0  # recorded between updates, so below the peak that was planned for
        verdict = "above" if actual > high else "below" if actual < low else "as_planned"
        what, kind = WHAT[key]
        found.append(Held(key, what, kind, value, low, high, actual, verdict))  # type: ignore[arg-type]
    return tuple(found)


def actuals(run: Run) -> Iterator[tuple[str, float]]:
    case = Case(run)
    if case.parameters is not None:
        yield "parameters", case.parameters.value
    memory = run.steps.memory_bytes[np.isfinite(run.steps.memory_bytes)]
    if len(memory):
        yield "memory_total", float(memory.max())
    if case.step_time is not None:
        yield "update_s", case.step_time.value
        if case.tokens_per_update is not None and case.tokens_per_update.value > 0:
            yield "tokens_per_s", case.tokens_per_update.value / case.step_time.value
    is_whole = run.get("state") == "finished" and run.reading.attempts == 1
    if is_whole and run.time_parts.get("eval"):
        yield "eval_s", run.time_parts["eval"]
    wall = run.number("wall_s")
    if is_whole and wall:
        yield "total_s", wall
    steps, vals = case.vals
    if run.get("state") == "finished" and len(vals) and steps[-1] >= 0.99 * (case.whole("max_iters") or steps[-1]):
        yield "final_loss", float(vals[-1])
