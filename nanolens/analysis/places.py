"""Names for places of a run, as its owner would look them up: the line of the log and the number printed there, or the step of our own
record.
"""

from __future__ import annotations

from nanolens.facts.case import Case
from nanolens.message import Message, msg


def row(case: Case, index: int) -> Message:
    index = int(index)
    if case.run.words.trainer == "nanolens":
        return msg("step {step:count}", step=int(case.steps.step[index]))
    return msg("iteration {printed:count}, line {line:count}", printed=int(case.steps.printed[index]), line=int(case.steps.line[index]))


def rows(case: Case, first: int, last: int) -> Message:
    return msg("iterations {first:count} to {last:count}", first=int(case.steps.printed[first]), last=int(case.steps.printed[last]))


def evaluation(case: Case, index: int) -> Message:
    index = int(index)
    if case.run.words.trainer == "nanolens":
        return msg("evaluation at step {step:count}", step=int(case.evals.step[index]))
    return msg(
        "evaluation at step {printed:count}, line {line:count}", printed=int(case.evals.printed[index]), line=int(case.evals.line[index])
    )


def evaluations(case: Case, first: int, last: int) -> Message:
    return msg(
        "evaluations at steps {first:count} to {last:count}", first=int(case.evals.printed[first]), last=int(case.evals.printed[last])
    )


def steps(first: float, last: float) -> Message:
    return msg("steps {first:count} to {last:count}", first=int(first), last=int(last))
