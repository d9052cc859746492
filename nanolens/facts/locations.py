"""Names for places of a run, as its owner would look them up: the line of the log and the number printed there, or the
step of our own record."""

from __future__ import annotations

from nanolens.facts.case import Case
from nanolens.message import Message, msg


def row(case: Case, index: int) -> Message:
    rows = case.steps
    if case.run.conventions.trainer == "nanolens":
        return msg("step {step:count}", int(rows.step[index]))
    return msg("iteration {printed:count}, line {line:count}", int(rows.printed[index]), int(rows.line[index]))


def at_row(case: Case, index: int) -> tuple[Message, int]:
    """The place, and its step on the curve."""
    return row(case, index), int(case.steps.step[index])


def rows(case: Case, first: int, last: int) -> Message:
    printed = case.steps.printed
    return msg("iterations {first:count} to {last:count}", int(printed[first]), int(printed[last]))


def evaluation(case: Case, index: int) -> Message:
    evals = case.evals
    if case.run.conventions.trainer == "nanolens":
        return msg("evaluation at step {step:count}", int(evals.step[index]))
    at, line = int(evals.printed[index]), int(evals.line[index])
    return msg("evaluation at step {printed:count}, line {line:count}", at, line)


def evaluations(case: Case, first: int, last: int) -> Message:
    printed = case.evals.printed
    return msg("evaluations at steps {first:count} to {last:count}", int(printed[first]), int(printed[last]))


def steps(first: float, last: float) -> Message:
    return msg("steps {first:count} to {last:count}", int(first), int(last))


def onwards(step: float) -> Message:
    return msg("from step {step:count} on", int(step))
