"""What probes found, or would do, in words and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from nanolens.message import Message, msg
from nanolens.probing import ProbePlan
from nanolens.probing.judge import QUESTIONS, Effect, ProbeAnswer
from nanolens.show.answer import Answer, JsonObject, typed
from nanolens.show.document import GAP, Part, Table, Text, TextBlock, bullet
from nanolens.show.words import show


def answer_of(found: ProbeAnswer) -> Answer[ProbeAnswer]:
    return Answer(found, lambda lang: list(probe_parts(found)), lambda lang: probe_data(found, lang))


def plan_answer(plan: ProbePlan) -> Answer[ProbePlan]:
    return Answer(plan, lambda lang: list(plan_parts(plan)), lambda lang: plan_data(plan, lang))


def probe_parts(found: ProbeAnswer) -> Iterator[Part]:
    yield TextBlock(msg("What limits {run:code} at step {step:count}", found.run, found.step), "title")
    yield from (GAP, *_headline(found.first), GAP)
    if found.effects:
        rows: list[list[Text]] = []
        for effect in found.effects:
            title = msg("{mark}{title}", "* " if effect.is_clear else "  ", effect.title)
            rows.append([title, _gain(effect), _expected(effect), show(effect.cost / found.run_cost, "share")])
        yield Table((msg("cause"), msg("gain in the branch"), msg("by the end"), msg("cost")), rows)
        yield from (TextBlock(_legend(found), "note"), GAP)
    for effect in found.effects:
        if effect.is_clear and effect.next:
            yield from (TextBlock(effect.title, "head"), TextBlock(effect.next, "command", indent=2), GAP)
    for question in dict.fromkeys(reading.question for reading in found.readings):
        yield TextBlock(QUESTIONS[question], "head")
        yield from (bullet(reading.words) for reading in found.readings if reading.question == question)
        yield GAP
    for question, because in found.not_asked:
        words = msg("not tested: {question:code}, because {because}", question, because)
        yield TextBlock(words, "note", mark="- ")
    share, took = found.cost / found.run_cost, found.took_s
    words = msg(
        "In total this cost {share:share} of the run's cost ({took:seconds}). The branches are runs:", share, took
    )
    yield TextBlock(words, "note")
    yield TextBlock(f"nanolens runs {found.run}", "command", indent=2)


def _headline(first: Effect | None) -> Iterator[Part]:
    if first is None:
        yield TextBlock(msg("These probes found nothing wrong."), "good")
        return
    yield TextBlock(msg("Limiting factor: {title}.", first.title), "certain" if first.is_fact else "likely")
    if first.is_fact:
        yield TextBlock(first.change, indent=2)
        return
    gain, expected = _gain(first), _expected(first)
    words = msg("{change}: {gain} nats in the branch; {expected} by the end.", first.change, gain, expected)
    yield TextBlock(words, indent=2)


def _gain(effect: Effect) -> str:
    return "-" if effect.gain is None else f"{show(effect.gain, 'nats')} ± {show(effect.se, 'nats')}"


def _expected(effect: Effect) -> str:
    if effect.expected is None or not math.isfinite(effect.expected) or effect.is_fact:
        return "-"
    value, low, high = (show(each, "rough_nats") for each in (effect.expected, effect.low, effect.high))
    return f"{value} [{low} … {high}]"


def _legend(found: ProbeAnswer) -> Message:
    if found.is_over:
        return msg(
            "* clear. Nats of val loss, same batches and same evaluation tokens as an unchanged branch; cost as a "
            'share of the run. The run is over: "by the end" means if it continued for {rest:count update|updates}.',
            found.rest,
        )
    return msg(
        "* clear. Nats of val loss, same batches and same evaluation tokens as an unchanged branch that also runs "
        'the rest of the schedule; cost as a share of the run. "By the end" means after the {rest:count} remaining '
        "updates.",
        found.rest,
    )


def plan_parts(plan: ProbePlan) -> Iterator[Part]:
    yield TextBlock(msg("What probing {run:code} at step {step:count} would do", plan.run, plan.step), "title")
    yield GAP
    for planned in plan.planned:
        yield TextBlock(QUESTIONS[planned.question], "head")
        if planned.not_asked is not None:
            yield TextBlock(msg("not tested: {because}", planned.not_asked), "note", indent=2)
            continue
        yield from (bullet(msg("{branch:code}: {words}", each.name, each.words)) for each in planned.branches)
        updates, share = round(planned.cost), planned.cost / plan.run_cost
        cost = msg("cost: {updates:count update|updates}, {share:share} of the run", updates, share)
        if (seconds := plan.seconds(planned)) is not None:
            cost = msg("{cost}, about {seconds:rough_seconds}", cost, seconds)
        yield TextBlock(cost, "note", indent=2)
    total = sum(planned.cost for planned in plan.planned)
    yield GAP
    share = total / plan.run_cost
    yield TextBlock(msg("{total:count update|updates} in total, {share:share} of the run", round(total), share))
    if plan.update_s is not None:
        seconds = sum(plan.seconds(planned) or 0.0 for planned in plan.planned)
        yield TextBlock(msg("about {seconds:rough_seconds} of a {budget:rough_seconds} budget", seconds, plan.budget_s))


# --- as JSON


class EffectData(msgspec.Struct):
    cause: str
    question: str
    title: str
    change: str
    gain: float | None
    se: float | None
    expected: float | None
    low: float | None
    high: float | None
    cost: float
    took_s: float
    next: str
    branch: str
    is_fact: bool
    is_clear: bool


class MeasurementData(msgspec.Struct):
    question: str
    words: str
    values: JsonObject


class NotAskedData(msgspec.Struct):
    question: str
    because: str


class ProbeData(msgspec.Struct):
    format: int
    run: str
    step: int
    rest: int
    is_over: bool
    first: str | None
    effects: list[EffectData]
    readings: list[MeasurementData]
    not_asked: list[NotAskedData]
    cost: float
    costs: dict[str, float]
    run_cost: float
    took_s: float


class BranchData(msgspec.Struct):
    name: str
    words: str
    updates: int
    cost: float


class PlannedQuestionData(msgspec.Struct):
    question: str
    branches: list[BranchData]
    cost: float
    seconds: float | None
    not_asked: str | None


class ProbePlanData(msgspec.Struct):
    run: str
    step: int
    questions: list[PlannedQuestionData]
    run_cost: float
    budget_s: float


def probe_data(found: ProbeAnswer, lang: str = "en") -> ProbeData:
    effects = []
    for effect in found.effects:
        values = {name: getattr(effect, name) for name in ("gain", "se", "expected", "low", "high")}
        unknown = {name: None for name, value in values.items() if value is None or not math.isfinite(value)}
        effects.append(typed(EffectData, effect, lang, **unknown))
    not_asked = [typed(NotAskedData, None, lang, question=key, because=why) for key, why in found.not_asked]
    first = found.first.cause if found.first else None
    return typed(ProbeData, found, lang, format=1, first=first, effects=effects, not_asked=not_asked)


def plan_data(plan: ProbePlan, lang: str = "en") -> ProbePlanData:
    questions = [typed(PlannedQuestionData, planned, lang, seconds=plan.seconds(planned)) for planned in plan.planned]
    return typed(ProbePlanData, plan, lang, questions=questions)
