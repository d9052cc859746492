"""`nanolens.probe`: asks a run what limits it, by branches from one of its checkpoints. The run is never touched."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nanolens.errors import fault
from nanolens.message import Message, msg
from nanolens.probing import experiments
from nanolens.probing.experiments import Frame, QuestionPlan, frame_of
from nanolens.probing.judge import QUESTIONS, Effect, Measurement, ProbeAnswer, is_settled, ranked

if TYPE_CHECKING:
    from nanolens.probing.branches import ProbeSubject

__all__ = ["DEFAULT_BUDGET_S", "ProbeAnswer", "ProbePlan", "plan", "probe"]

DEFAULT_BUDGET_S = 600.0
OVERHEAD_S = 1.0  # of a branch, besides its updates: reading, checking and saving the model


@dataclasses.dataclass(frozen=True)
class ProbePlan:
    run: str
    step: int
    frame: Frame
    planned: tuple[QuestionPlan, ...]
    run_cost: float  # in updates
    update_s: float | None
    budget_s: float

    def seconds(self, planned: QuestionPlan) -> float | None:
        return None if self.update_s is None else planned.cost * self.update_s + OVERHEAD_S * len(planned.branches)


def plan(
    target: str,
    questions: Sequence[str] = tuple(QUESTIONS),
    budget_s: float = DEFAULT_BUDGET_S,
    arch: str | None = None,
) -> ProbePlan:
    """What probing would do and cost. Nothing is run and nothing is written."""
    from nanolens.probing.branches import open_subject

    return _plan(open_subject(target, arch), questions, budget_s)


def probe(
    target: str,
    questions: Sequence[str] = tuple(QUESTIONS),
    budget_s: float = DEFAULT_BUDGET_S,
    arch: str | None = None,
    tell: Callable[[Message], None] = lambda message: None,
) -> ProbeAnswer:
    """The causes, ranked. Asks the cheapest question first, until a fault is certain or the budget is spent."""
    from nanolens.probing.branches import Branches, keep, open_subject
    from nanolens.probing.questions import ASK

    subject = open_subject(target, arch)
    planned = _plan(subject, questions, budget_s)
    branches = Branches(subject, planned.frame, tell)
    started_at_s = time.monotonic()
    effects: list[Effect] = []
    readings: list[Measurement] = []
    not_asked: list[tuple[str, Message]] = []
    costs: dict[str, float] = {}
    for each in planned.planned:
        because = each.not_asked or _because(planned, each, effects, time.monotonic() - started_at_s)
        if because is not None:
            not_asked.append((each.question, because))
            continue
        found = list(ASK[each.question](dataclasses.replace(branches, frame=each.frame)))
        effects += [one for one in found if isinstance(one, Effect)]
        readings += [one for one in found if isinstance(one, Measurement)]
        costs[each.question] = each.cost
    answer = ProbeAnswer(
        run=planned.run,
        step=subject.step,
        rest=planned.frame.rest.updates,
        is_over=planned.frame.own.is_over,
        effects=ranked(effects),
        readings=tuple(readings),
        not_asked=tuple(not_asked),
        costs=costs,
        run_cost=planned.run_cost,
        took_s=time.monotonic() - started_at_s,
    )
    return keep(branches, answer)


def _plan(subject: ProbeSubject, questions: Sequence[str], budget_s: float) -> ProbePlan:
    config, step, update_s = subject.config, subject.step, subject.update_s
    if config.eval_only or config.max_iters < 1:
        raise fault(
            msg("{run:code} was not trained: there is nothing to branch from", subject.name),
            fix=msg("name a run that has made some updates"),
        )
    asked = [question for question in QUESTIONS if question in questions]
    frame = frame_of(config, step, subject.vocab_size)
    planned = experiments.plan(frame, asked)
    needed_s = (update_s or 0.0) * sum(each.cost for each in planned)
    if needed_s > budget_s:  # all that is asked should fit; where it does not, branches get shorter
        frame = frame_of(config, step, subject.vocab_size, frame.allowed * budget_s / needed_s)
        planned = experiments.plan(frame, asked)
    return ProbePlan(str(subject.folder), step, frame, planned, float(config.max_iters), update_s, budget_s)


def _because(planned: ProbePlan, each: QuestionPlan, effects: Sequence[Effect], spent_s: float) -> Message | None:
    if is_settled(effects):
        return msg("a fault is certain, and it would make the answer meaningless")
    expected_s = planned.seconds(each)
    if expected_s is not None and spent_s + expected_s > planned.budget_s and spent_s > 0.5 * planned.budget_s:
        return msg(
            "the budget of {budget:seconds} is used up ({spent:seconds}), and this takes about {more:seconds}",
            planned.budget_s,
            spent_s,
            expected_s,
        )
    return None
