"""From a run to words: what it is, its lines one by one, and its story. Pure: the lines to be quoted are handed in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from nanolens.explanation.lines import LineContext, evaluation_remarks, update_remarks
from nanolens.explanation.pick import Explanation, Passage, PickedRow, arrived, picked, remarks
from nanolens.explanation.sections import about, lacking, story
from nanolens.facts.case import Case
from nanolens.facts.reading import what_was_read
from nanolens.message import msg

__all__ = ["explain", "explain_arrived"]


def explain(case: Case, quote: Callable[[int], str] = lambda line: "", codes: Collection[str] = ()) -> Explanation:
    """`quote` gives a line of the source by its number; `codes` are the diagnosis' certain and likely findings."""
    context = LineContext(case)
    rows = picked(case.run, context.is_slow, context.is_broken)
    shown, total, left_out = len(rows), len(case.steps) + len(case.evals), None
    if total > shown:
        left_out = msg(
            "{shown:count} of {total:count line|lines} with numbers are explained: the first and last, normal ones, "
            "slow ones, evaluations. The others are like them.",
            shown,
            total,
        )
    lines = _passages(context, rows, quote)
    told = (about(case), lines, left_out, story(case, codes), tuple(lacking(case)))
    return Explanation(case.run.name, *told, reading=what_was_read(case))


def explain_arrived(
    case: Case, after_line: int, mentions: set[str], quote: Callable[[int], str]
) -> tuple[Passage, ...]:
    """The telling ones among the rows below `after_line`, while the source is still growing."""
    context = LineContext(case, mentions)
    return _passages(context, arrived(case.run, context.is_slow, context.is_broken, after_line), quote)


def _passages(context: LineContext, rows: Sequence[PickedRow], quote: Callable[[int], str]) -> tuple[Passage, ...]:
    passages = []
    for kind, i in rows:
        columns = context.case.evals if kind == "evaluation" else context.case.steps
        step, line = int(columns.step[i]), int(columns.line[i])
        title, said = msg("update {step:count}", step), update_remarks
        if kind == "evaluation":
            title, said = msg("evaluation at step {step:count}", step), evaluation_remarks
        if about_it := remarks(said(context, i)):
            passages.append(Passage(kind, step, line, title, quote(line), about_it))
    return tuple(passages)
