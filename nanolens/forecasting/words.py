"""A forecast, or the refusal of one, in words, as a picture and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from nanolens.facts.case import Case
from nanolens.facts.reading import what_was_said
from nanolens.forecasting import COVERAGE, Forecast, Refusal
from nanolens.message import Message, msg
from nanolens.record.run import RunRecord
from nanolens.show.answer import Answer, typed
from nanolens.show.curves import Series
from nanolens.show.document import GAP, Chart, Part, TextBlock
from nanolens.show.plots import Panel
from nanolens.show.words import say

SERIES = {"val": msg("val loss"), "batch": msg("batch loss")}


def answer_of(found: Forecast | Refusal, run: RunRecord) -> Answer[Forecast | Refusal]:
    return Answer(found, lambda lang: list(forecast_parts(found, run)), lambda lang: forecast_data(found, run, lang))


def headline(found: Forecast) -> Message:
    return msg(
        "{series} at step {at:count}: {loss:nats}, 80% interval {low:nats} to {high:nats} (now {now:nats} at step "
        "{step:count})",
        SERIES[found.series],
        found.at_step,
        found.loss,
        found.low,
        found.high,
        found.now_loss,
        found.now_step,
    )


def forecast_parts(found: Forecast | Refusal, run: RunRecord) -> Iterator[Part]:
    yield from (TextBlock(msg("Forecast of {name:code}", run.name), "title"), GAP)
    yield from (*(TextBlock(said, "note") for said in what_was_said(Case(run))), GAP)
    if isinstance(found, Refusal):
        yield TextBlock(msg("No forecast, because {because}.", found.because), "likely")
        if found.instead is not None:
            yield TextBlock(msg("To get one: {instead}.", found.instead))
        return
    yield from (TextBlock(headline(found), "good"), GAP)
    yield TextBlock(msg("Points used: {points:count}; learning rate: {schedule}.", found.points, found.schedule))
    yield from (TextBlock(note, "note", mark="- ") for note in found.notes)
    yield from (GAP, _chart(found, run))


def _chart(found: Forecast, run: RunRecord) -> Chart:
    steps = list(found.curve[0])
    bands = [Series(name, steps, list(ys)) for name, ys in zip(("median", "low", "high"), found.curve[1:], strict=True)]
    letters = msg("A observed, B expected, C and D the ends of the interval; steps up to {last:count}", found.at_step)
    names = (msg("observed"), msg("expected"), msg("lower end of the interval"), msg("upper end"))
    after = msg("steps up to {last:count}", found.at_step)
    return Chart(None, [_observed(run, found.now_step / 4), *bands], names, letters, after)


def panels_of(found: Forecast, run: RunRecord, lang: str = "en") -> list[Panel]:
    steps, median, low, high = map(list, found.curve)
    expected = Series(say(msg("expected"), lang), steps, median)
    band = (say(msg("80% interval"), lang), steps, low, high)
    seen = _observed(run, 0, say(msg("observed"), lang))
    return [Panel(say(msg("steps"), lang), say(SERIES[found.series], lang), [seen, expected], bands=[band])]


def _observed(run: RunRecord, first: float, name: str = "observed") -> Series:
    shown = ~np.isnan(run.evals.val) & (run.evals.step >= first)
    return Series(name, run.evals.step[shown].tolist(), run.evals.val[shown].tolist())


class CurveData(msgspec.Struct):
    step: list[float]
    loss: list[float]
    low: list[float]
    high: list[float]


class PredictionData(msgspec.Struct):
    at_step: int
    loss: float
    low: float
    high: float
    coverage: float
    series: str
    now_step: int
    now_loss: float
    points: int
    schedule: str
    notes: list[str]
    curve: CurveData


class RefusalData(msgspec.Struct):
    code: str
    because: str
    instead: str | None


class ForecastData(msgspec.Struct):
    run: str
    forecast: PredictionData | None
    refused: RefusalData | None


def forecast_data(found: Forecast | Refusal, run: RunRecord, lang: str = "en") -> ForecastData:
    if isinstance(found, Refusal):
        return ForecastData(run.name, None, typed(RefusalData, found, lang))
    curve = CurveData(*([float(value) for value in column] for column in found.curve))
    return ForecastData(run.name, typed(PredictionData, found, lang, coverage=COVERAGE, curve=curve), None)
