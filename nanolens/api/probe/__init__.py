"""`nanolens.probe`: asks a run itself what limits it, by branches from one of its checkpoints. The run is never touched."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanolens.errors import fault
from nanolens.message import Message, msg
from nanolens.probing import experiments as probe_plan
from nanolens.probing.experiments import Frame, Planned
from nanolens.probing.judge import QUESTIONS, Answer, Effect, Reading, is_settled, ranked

if TYPE_CHECKING:
    from nanolens.api.probe.branches import Branches
    from nanolens.api.probe.subject import Subject

DEFAULT_BUDGET_S = 600.0
OVERHEAD_S = 1.0  # of a branch, besides its updates: reading, checking and saving the model


@dataclasses.dataclass(frozen=True)
class Plan:
    run: str
    step: int
    frame: Frame
    planned: tuple[Planned, ...]
    run_cost: float  # in updates
    update_s: float | None
    budget_s: float

    def seconds(self, planned: Planned) -> float | None:
        return None if self.update_s is None else planned.cost * self.update_s + OVERHEAD_S * len(planned.branches)


def plan(target: str, questions: Sequence[str] = QUESTIONS, budget_s: float = DEFAULT_BUDGET_S, arch: str | None = None) -> Plan:
    """What probing would do and cost. Nothing is run and nothing is written."""
    from nanolens.api.probe.subject import open_subject

    return _plan(open_subject(target, arch), questions, budget_s)


def probe(
    target: str, questions: Sequence[str] = QUESTIONS, budget_s: float = DEFAULT_BUDGET_S, arch: str | None = None,
    tell: Callable[[Message], None] = lambda message: None,
) -> Answer:  # fmt: skip
    """The causes, ranked. Asks the cheapest question first, and stops when a fault is certain or the budget is spent."""
    from nanolens.api.probe.branches import Branches
    from nanolens.api.probe.keep import keep
    from nanolens.api.probe.subject import open_subject

    subject = open_subject(target, arch)
    planned = _plan(subject, questions, budget_s)
    branches = Branches(subject, planned.frame, tell)
    started_at_s = time.monotonic()
    effects: list[Effect] = []
    readings: list[Reading] = []
    left_out: list[tuple[str, Message]] = []
    costs: dict[str, float] = {}
    for each in planned.planned:
        because = each.not_asked or _because(planned, each, effects, time.monotonic() - started_at_s)
        if because is not None:
            left_out.append((each.question, because))
            continue
        for found in _ask(each.question, dataclasses.replace(branches, frame=each.frame)):
            (effects if isinstance(found, Effect) else readings).append(found)  # type: ignore[arg-type]
        costs[each.question] = each.cost
    answer = Answer(
        run=str(subject.folder), step=subject.step, rest=planned.frame.rest.updates, is_over=planned.frame.own.is_over,
        effects=ranked(effects), readings=tuple(readings), not_asked=tuple(left_out), costs=costs, run_cost=planned.run_cost,
        took_s=time.monotonic() - started_at_s,
    )  # fmt: skip
    return keep(branches, answer)


def _plan(subject: Subject, questions: Sequence[str], budget_s: float) -> Plan:
    if subject.config.eval_only or subject.config.max_iters < 1:
        raise fault(
            msg("{run:code} was not trained: there is nothing to branch off from", run=subject.name),
            fix=msg("name a run that has done some updates"),
        )
    asked = tuple(question for question in QUESTIONS if question in questions)
    update_s = subject.update_s
    frame = probe_plan.frame_of(subject.config, subject.step, subject.vocab_size)
    if update_s:
        # All that is asked should fit; where it does not, branches get shorter.
        needed_s = update_s * sum(each.cost for each in probe_plan.plan(frame, asked))
        if needed_s > budget_s:
            frame = probe_plan.frame_of(subject.config, subject.step, subject.vocab_size, frame.allowed * budget_s / needed_s)
    planned = probe_plan.plan(frame, asked)
    run_cost = float(subject.config.max_iters)
    return Plan(str(subject.folder), subject.step, frame, planned, run_cost, update_s, budget_s)


def _because(planned: Plan, each: Planned, effects: Sequence[Effect], spent_s: float) -> Message | None:
    if is_settled(effects):
        return msg("a fault is certain, and with it the answer would mean nothing")
    expected_s = planned.seconds(each)
    if expected_s is not None and spent_s + expected_s > planned.budget_s and spent_s > 0.5 * planned.budget_s:
        return msg("the budget of {budget:seconds} is spent ({spent:seconds}), and this takes about {more:seconds}",
                   budget=planned.budget_s, spent=spent_s, more=expected_s)  # fmt: skip
    return None


def _ask(question: str, branches: Branches) -> Iterator[Effect | Reading]:
    from nanolens.api.probe import trained
    from nanolens.api.probe.data import data
    from nanolens.api.probe.numbers import numbers
    from nanolens.api.probe.where import where

    asks = {
        "numbers": numbers, "where": where, "data": data, "regularisation": trained.regularisation, "rate": trained.rate,
        "batch": trained.batch, "size": trained.size,
    }  # fmt: skip
    return asks[question](branches)


__all__ = ["DEFAULT_BUDGET_S", "Answer", "Path", "Plan", "plan", "probe"]
