"""From a run to words: what it is, its lines one by one, and its story. Pure: the lines to be quoted are handed in."""

# ruff: noqa: E501  (sentences stay whole, so that they can be searched for)

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from nanolens.analysis.explain.about import about
from nanolens.analysis.explain.context import Context, context_of
from nanolens.analysis.explain.evaluations import evaluation_remarks
from nanolens.analysis.explain.pick import Row, arrived, picked
from nanolens.analysis.explain.updates import update_remarks
from nanolens.analysis.explanation import Explanation, Passage
from nanolens.analysis.story import story
from nanolens.facts.case import Case
from nanolens.message import Message, msg

__all__ = ["explain", "explain_arrived", "lacking"]


def explain(case: Case, quote: Callable[[int], str] = lambda line: "", codes: Collection[str] = ()) -> Explanation:
    """`quote` gives the text of a line of the source, where it has lines; `codes` are the findings of the diagnosis, certain and likely ones."""
    context = context_of(case)
    rows = picked(case.run, context.is_slow, context.is_broken)
    return Explanation(
        name=case.run.name, about=about(case), lines=_passages(context, rows, quote),
        left_out=_left_out(case, len(rows)), story=story(case, codes), lacking=lacking(case),
    )  # fmt: skip


def explain_arrived(case: Case, after_line: int, told: set[str], quote: Callable[[int], str]) -> tuple[Passage, ...]:
    """The telling ones among the rows below `after_line`, while the source is still growing."""
    context = context_of(case, told)
    return _passages(context, arrived(case.run, context.is_slow, context.is_broken, after_line), quote)


def _passages(context: Context, rows: Sequence[Row], quote: Callable[[int], str]) -> tuple[Passage, ...]:
    made = (_passage(context, row, quote) for row in rows)
    return tuple(passage for passage in made if passage.remarks)


def _passage(context: Context, row: Row, quote: Callable[[int], str]) -> Passage:
    case = context.case
    if row.kind == "evaluation":
        step = int(case.evals.step[row.index])
        title = msg("evaluation at step {step:count}", step=step)
        remarks = tuple(evaluation_remarks(context, row.index))
    else:
        step = int(case.steps.step[row.index])
        title = msg("update {step:count}", step=step)
        remarks = tuple(update_remarks(context, row.index))
    return Passage(row.kind, step, row.line, title, quote(row.line), remarks)


def _left_out(case: Case, shown: int) -> Message | None:
    total = len(case.steps) + len(case.evals)
    if total <= shown:
        return None
    return msg(
        "{shown:count} of {total:count} lines with numbers are explained: the first and the last, ordinary ones, slow ones, evaluations. "
        "The others are like them.",
        shown=shown, total=total,
    )  # fmt: skip


def lacking(case: Case) -> tuple[Message, ...]:
    """What would sharpen the explanation, and how to give it."""
    found = []
    if case.shape is None:
        found.append(msg("The shape of the model, for its parameters and its FLOP: {options:code}, or {config:code}.",
                         options="--n_layer=N --n_head=N --n_embd=N --block_size=N --vocab_size=N", config="--config=FILE"))  # fmt: skip
    elif case.vocab_size is None:
        found.append(msg("The size of the vocabulary, for the loss of guessing: {option:code}.", option="--vocab_size=N"))
    if case.tokens_per_update is None:
        found.append(msg("The tokens of one update, for speed, tokens seen and MFU: {options:code}.",
                         options="--batch_size=N --block_size=N --gradient_accumulation_steps=N"))  # fmt: skip
    if case.dataset_tokens is None:
        found.append(msg("The number of training tokens, for epochs: {option:code}. A nanoGPT train.bin holds two bytes a token.",
                         option="--dataset_tokens=N"))  # fmt: skip
    if case.peak is None and (np.isfinite(case.steps.took_s).any() or np.isfinite(case.steps.mfu_frac).any()):
        found.append(msg("The device, for a true MFU: {option:code}.", option='--hardware="RTX 4070"'))
    return tuple(found)
