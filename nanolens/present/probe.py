"""What probes found, or would do, as text or JSON: a ranked table, what was measured on the way, and what to type next."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nanolens.message import Message, msg
from nanolens.present.blocks import GAP, Block
from nanolens.present.table import table
from nanolens.probing.judge import Answer, Effect
from nanolens.show.words import say, show, tied

if TYPE_CHECKING:
    from collections.abc import Sequence

QUESTION_TITLES: dict[str, Message] = {
    "numbers": msg("Numbers: are they sound?"),
    "where": msg("Where is the loss?"),
    "data": msg("Data: memory, or another kind of text?"),
    "regularisation": msg("Regularisation: off or on?"),
    "rate": msg("Rate: higher, lower, to zero?"),
    "batch": msg("Batch: larger or smaller?"),
    "size": msg("Size: would a larger model win?"),
}


def blocks_of(answer: Answer, lang: str = "en") -> list[Block]:
    blocks = [Block(tied(msg("What limits {run:code} at step {step:count}", run=answer.run, step=answer.step), lang), "title"), GAP]
    blocks += [*_headline(answer, lang), GAP]
    if answer.effects:
        blocks += [Block(line, "quote") for line in _table(answer.effects, answer.run_cost, lang)]
        blocks += [Block(tied(_legend(answer), lang), "note"), GAP]
    for effect in answer.effects:
        if effect.is_clear and effect.next:
            blocks += [Block(tied(effect.title, lang), "head"), Block(effect.next, "command", indent=2), GAP]
    for question in dict.fromkeys(reading.question for reading in answer.readings):
        blocks.append(Block(tied(QUESTION_TITLES[question], lang), "head"))
        blocks += [Block(tied(r.words, lang), indent=2, mark="- ") for r in answer.readings if r.question == question]
        blocks.append(GAP)
    for question, because in answer.not_asked:
        words = msg("not asked: {question:code}, because {because}", question=question, because=because)
        blocks.append(Block(tied(words, lang), "note", mark="- "))
    share = answer.cost / answer.run_cost if answer.run_cost else 0.0
    told = msg(
        "All of it cost {share:share} of what the run costs ({took:seconds}). The branches are runs:", share=share, took=answer.took_s
    )
    return [*blocks, Block(tied(told, lang), "note"), Block(f"nanolens runs {answer.run}", "command", indent=2)]


def _headline(answer: Answer, lang: str) -> list[Block]:
    first = answer.first
    if first is None:
        return [Block(tied(msg("Nothing is wrong that these probes can see."), lang), "good")]
    blocks = [Block(tied(msg("Limiting cause: {title}.", title=first.title), lang), "certain" if first.is_fact else "likely")]
    if first.is_fact or first.expected is None:
        return [*blocks, Block(tied(first.change, lang), indent=2)]
    words = msg(
        "{change}: {gain:nats} ± {error:nats} nats in the branch; {expected:rough_nats} [{low:rough_nats} … {high:rough_nats}] by the end.",
        change=first.change, gain=first.gain, error=first.se, expected=first.expected, low=first.low, high=first.high,
    )  # fmt: skip
    return [*blocks, Block(tied(words, lang), indent=2)]


def _table(effects: Sequence[Effect], run_cost: float, lang: str) -> list[str]:
    header = [say(word, lang) for word in (msg("cause"), msg("gain in the branch"), msg("by the end"), msg("cost"))]
    rows = []
    for effect in effects:
        gain = "-" if effect.gain is None else f"{show(effect.gain, 'nats')} ± {show(effect.se, 'nats')}"
        expected = "-"
        if effect.expected is not None and math.isfinite(effect.expected) and not effect.is_fact:
            low, high = show(effect.low, "rough_nats"), show(effect.high, "rough_nats")
            expected = f"{show(effect.expected, 'rough_nats')} [{low} … {high}]"
        mark = "* " if effect.is_clear else "  "
        rows.append([mark + say(effect.title, lang), gain, expected, show(effect.cost / run_cost if run_cost else 0.0, "share")])
    return table(header, rows, left=(0,))


def _legend(answer: Answer) -> Message:
    if answer.is_over:
        return msg(
            "* clear. Nats of val loss, same batches and same evaluation tokens as an unchanged branch; cost as a share of the run. The "
            "run is over: by the end means if it went on for {rest:count} updates.", rest=answer.rest,
        )  # fmt: skip
    return msg(
        "* clear. Nats of val loss, same batches and same evaluation tokens as an unchanged branch that plays the rest of the schedule "
        "too; cost as a share of the run. By the end means after the {rest:count} updates that are left.", rest=answer.rest,
    )  # fmt: skip


def plan_blocks(plan: Any, lang: str = "en") -> list[Block]:
    blocks = [Block(tied(msg("What probing {run:code} at step {step:count} would do", run=plan.run, step=plan.step), lang), "title"), GAP]
    for planned in plan.planned:
        blocks.append(Block(tied(QUESTION_TITLES[planned.question], lang), "head"))
        if planned.not_asked is not None:
            blocks.append(Block(tied(msg("not asked: {because}", because=planned.not_asked), lang), "note", indent=2))
            continue
        seconds = plan.seconds(planned)
        cost = msg(
            "cost: {updates:count} updates, {share:share} of the run", updates=round(planned.cost), share=planned.cost / plan.run_cost
        )
        if seconds is not None:
            cost = msg("{cost}, about {seconds:rough_seconds}", cost=cost, seconds=seconds)
        blocks += [
            Block(tied(msg("{branch:code}: {words}", branch=b.name, words=b.words), lang), indent=2, mark="- ") for b in planned.branches
        ]
        blocks.append(Block(tied(cost, lang), "note", indent=2))
    total = sum(planned.cost for planned in plan.planned)
    told = [msg("{total:count} updates in all, {share:share} of the run", total=round(total), share=total / plan.run_cost)]
    if plan.update_s is not None:
        told.append(
            msg("about {seconds:rough_seconds}, of a budget of {budget:rough_seconds}",
                seconds=sum(plan.seconds(planned) for planned in plan.planned), budget=plan.budget_s)
        )  # fmt: skip
    return [*blocks, GAP, *(Block(tied(each, lang)) for each in told)]


def plan_json(plan: Any) -> dict[str, Any]:
    return {
        "run": plan.run,
        "step": plan.step,
        "questions": [
            {
                "question": planned.question,
                "branches": [{"name": b.name, "words": say(b.words), "updates": b.updates, "cost": b.cost} for b in planned.branches],
                "cost": planned.cost,
                "seconds": plan.seconds(planned),
                "not_asked": None if planned.not_asked is None else say(planned.not_asked),
            }
            for planned in plan.planned
        ],
        "run_cost": plan.run_cost,
        "budget_s": plan.budget_s,
    }
