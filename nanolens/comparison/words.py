"""A comparison in words with a table and curves, as a picture and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from nanolens.comparison import Comparison
from nanolens.comparison.side import AXES, COMPARISON_TABLES, FIGURES, JOULES_PER_KWH, Side
from nanolens.comparison.verdict import TimeToLoss
from nanolens.facts.case import Case
from nanolens.facts.reading import what_was_read
from nanolens.message import Message, msg
from nanolens.show.answer import Answer, Scalar, typed
from nanolens.show.curves import Series
from nanolens.show.document import GAP, Chart, Part, Role, Table, Text, TextBlock, bullet
from nanolens.show.plots import _UNITS, Panel
from nanolens.show.words import say, show

EFFECTS = {key: Message(about["title"]) for key, about in COMPARISON_TABLES["effects"].items()}
ROLES: dict[str, Role] = {"ahead": "good", "no_difference": "body", "cannot_say": "note"}


def answer_of(found: Comparison) -> Answer[Comparison]:
    return Answer(found, lambda lang: list(comparison_parts(found)), lambda lang: comparison_data(found, lang))


def comparison_parts(comparison: Comparison) -> Iterator[Part]:
    yield from (TextBlock(msg("Comparison of {names}", [_title(side) for side in comparison.sides]), "title"), GAP)
    for side in comparison.sides:
        for run in side.group.runs:
            yield TextBlock(msg("{name}: {read}", side.name, what_was_read(Case(run)).sentence), "note")
    yield GAP
    yield from (*_difference_parts(comparison), GAP, *verdict_parts(comparison), GAP)
    names = [side.name for side in comparison.sides]
    rows: list[list[Text]] = [[*cells, what] for what, cells in table_rows(comparison)]
    yield from (Table([*names, ""], rows, left=(len(names),), indent=2), GAP)
    if any(len(side.curve) >= 3 for side in comparison.sides):
        yield _chart(comparison)
    if comparison.remarks:
        yield from (TextBlock(msg("Notes"), "head"), *map(bullet, comparison.remarks))


def _named(side: Side) -> str:
    return side.title if side.name == side.title else f"{side.name} = {side.title}"


def _title(side: Side) -> Text:
    if side.count == 1:
        return _named(side)
    return msg("{name} ({runs})", _named(side), msg("{count:count run|runs}", side.count))


def verdict_parts(comparison: Comparison) -> Iterator[TextBlock]:
    yield TextBlock(msg("Verdict"), "head")
    for verdict in comparison.rescored:
        yield bullet(msg("rescored on the same text: {words}", verdict.words), ROLES[verdict.result])
    because, outcomes = comparison.grounds.not_comparable, comparison.outcomes
    if len({say(outcome.because) if outcome.because else "" for outcome in outcomes}) == 1:
        because = because or outcomes[0].because
    if because is not None:
        yield bullet(msg("unknown, because {because}", because), "likely")
        return
    # Axes on which the runs stand at the same evaluations say the same, and are said together.
    decided = (outcome for outcome in outcomes if outcome.verdicts)
    for _, group in groupby(decided, key=lambda outcome: [say(verdict.words) for verdict in outcome.verdicts]):
        alike = list(group)
        places = [msg("{axis} ({at})", AXES[each.axis].title, _amount(each.at, each.axis)) for each in alike]
        for verdict in alike[0].verdicts:
            yield bullet(msg("{places}: {words}", places, verdict.words), ROLES[verdict.result])
    for outcome in outcomes:
        if outcome.because is not None:
            axis = AXES[outcome.axis].title
            yield bullet(msg("{axis}: undecided, because {because}", axis, outcome.because), "note")
    yield from (bullet(_sooner(each)) for each in comparison.sooner)
    measured = (verdict.measured for outcome in outcomes for verdict in outcome.verdicts if verdict.measured)
    for how in next((each.how for each in measured), ()):
        yield TextBlock(msg("Noise: {how}", how), "note", indent=2)


def _amount(value: float | None, axis: str) -> Text:
    if axis == "energy" and value is not None:
        return msg("{energy:about} kWh", value / JOULES_PER_KWH)
    return show(value, AXES[axis].kind)


def _sooner(each: TimeToLoss) -> Message:
    parts = []
    for axis, (first, second) in each.needed.items():
        if axis == "steps":
            first, second = round(first), round(second)
        amounts = msg("{first} vs {second} {what}", _amount(first, axis), _amount(second, axis), AXES[axis].noun)
        if second >= first:
            parts.append(msg("{amounts} ({times:times} sooner)", amounts, second / first))
        else:
            parts.append(msg("{amounts} ({times:times} later)", amounts, first / second))
    return msg(
        "to the loss that both reached, {loss:nats}, {first} vs {second} needed {parts}",
        each.loss,
        each.first,
        each.second,
        parts,
    )


def table_rows(comparison: Comparison) -> list[tuple[Message, list[str]]]:
    """(what, one cell a side), for what at least one side knows."""
    unit = _UNITS[comparison.grounds.unit]
    losses = {"last_val": (msg("{unit}: last", unit), "nats"), "best_val": (msg("{unit}: best", unit), "nats")}
    rows = []
    for key, (what, kind) in {**losses, **FIGURES}.items():
        values = [getattr(side, key) for side in comparison.sides]
        if any(value is not None for value in values):
            rows.append((what, [show(value, kind) for value in values]))
    return rows


def _difference_parts(comparison: Comparison) -> Iterator[Part]:
    yield TextBlock(msg("What differed"), "head")
    if not comparison.differences:
        yield TextBlock(msg("no known difference"), indent=2)
    titles = [msg("What follows") if each.is_derived else EFFECTS[each.effect] for each in comparison.differences]
    for title, group in groupby(zip(titles, comparison.differences, strict=True), key=lambda pair: pair[0]):
        yield TextBlock(title, "note", indent=2)
        for _, each in group:
            values = [value if isinstance(value, Message) else show(value, each.kind) for value in each.values]
            yield bullet(msg("{what}: {values} ({because})", each.what, _between(values), each.because), indent=4)


def _between(values: Sequence[Text]) -> Text:
    if all(isinstance(value, str) for value in values):
        return " | ".join(map(str, values))
    first, *rest = values
    return msg("{first} | {rest}", first, _between(rest)) if rest else first


# --- curves


def _chart(comparison: Comparison) -> Chart:
    """Val loss over tokens (or steps) of all sides, from where the fast fall of the beginning is over."""
    axis = "tokens" if all(side.per_step["tokens"] for side in comparison.sides) else "steps"
    series = _series(comparison, axis)
    top = _top(series)
    firsts = [next((i for i, y in enumerate(each.ys) if y <= top), 0) if len(each.ys) >= 6 else 0 for each in series]
    series = [Series(each.name, each.xs[i:], each.ys[i:]) for each, i in zip(series, firsts, strict=True)]
    last = max((each.xs[-1] for each in series if len(each.xs)), default=0.0)
    unit = _UNITS[comparison.grounds.unit]
    title = msg("{unit} over {axis}, up to {last}", unit, AXES[axis].noun, show(last, AXES[axis].kind))
    return Chart(title, series, [_named(side) for side in comparison.sides])


def _series(comparison: Comparison, axis: str) -> list[Series]:
    return [
        Series(side.name, [step * (side.per_step[axis] or 1.0) for step in side.curve.step], list(side.curve.val))
        for side in comparison.sides
    ]


def _top(series: Sequence[Series]) -> float:
    """The loss above which a curve is only on its first fall, which would flatten everything that matters."""
    long = [each.ys for each in series if len(each.ys) >= 6]
    return max((min(ys) + 2.0 * (sorted(ys)[len(ys) // 2] - min(ys)) for ys in long), default=math.inf) + 1e-9


def panels_of(comparison: Comparison, lang: str = "en") -> list[Panel]:
    titles = {"steps": msg("steps"), "tokens": msg("tokens"), "time": msg("training time, s")}
    panels: list[Panel] = []
    for axis in ("tokens", "time"):
        if not all(side.per_step[axis] and len(side.curve) for side in comparison.sides):
            axis = "steps"
        series, unit = _series(comparison, axis), _UNITS[comparison.grounds.unit]
        top = _top(series)
        panel = Panel(say(titles[axis], lang), say(unit, lang), series, top=top if math.isfinite(top) else None)
        if panel not in panels:
            panels.append(panel)
    return panels


# --- as JSON


class SideData(msgspec.Struct):
    name: str
    title: str
    count: int
    last_val: float | str | None
    best_val: float | None
    best_step: int | None
    parameters: float | None
    updates: int | None
    tokens_per_update: float | None
    tokens: float | None
    epochs: float | None
    flops_per_token: float | None
    flops: float | None
    step_s: float | None
    micro_batch_s: float | None
    eval_s: float | None
    time_s: float | None
    tokens_per_s: float | None
    flops_per_s: float | None
    peak_flops: float | None
    mfu: float | None
    energy_j: float | None


class DifferenceData(msgspec.Struct):
    key: str
    values: list[Scalar]
    effect: str
    derived: bool
    because: str


class VerdictData(msgspec.Struct):
    result: str
    words: str
    ahead: str | None
    behind: str | None
    by: float | None
    half_width_95: float | None
    standard_error: float | None
    noise: list[str]


class OutcomeData(msgspec.Struct):
    axis: str
    at: float | None
    losses: list[float | None]
    because: str | None
    verdicts: list[VerdictData]


class EqualLossData(msgspec.Struct):
    loss: float
    first: str
    second: str
    needed: dict[str, list[float]]
    times: dict[str, float]


class ComparisonData(msgspec.Struct):
    runs: list[SideData]
    unit: str
    not_comparable: str | None
    differences: list[DifferenceData]
    outcomes: list[OutcomeData]
    equal_loss: list[EqualLossData]
    rescored: list[VerdictData]
    remarks: list[str]


def comparison_data(comparison: Comparison, lang: str = "en") -> ComparisonData:
    return typed(
        ComparisonData,
        comparison,
        lang,
        runs=comparison.sides,
        unit=comparison.grounds.unit,
        not_comparable=comparison.grounds.not_comparable,
        differences=[typed(DifferenceData, each, lang, derived=each.is_derived) for each in comparison.differences],
        equal_loss=comparison.sooner,
    )
