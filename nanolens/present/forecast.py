"""A forecast, or the refusal of one, as text, Markdown or JSON."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from nanolens.forecasting import Forecast, Refusal
from nanolens.message import Message, msg
from nanolens.present.blocks import GAP, Block, for_stream
from nanolens.present.curves import COLOURS, Series, overlaid, painted
from nanolens.show.words import say, tied

if TYPE_CHECKING:
    from nanolens.record.run import Run

SERIES = {"val": msg("val loss"), "batch": msg("loss of the updates")}


def headline(found: Forecast) -> Message:
    return msg(
        "{series} at step {at:count}: {loss:nats}, between {low:nats} and {high:nats} in 80 of 100 cases (now "
        "{now:nats} at step {step:count})",
        series=SERIES[found.series],
        at=found.at_step,
        loss=found.loss,
        low=found.low,
        high=found.high,
        now=found.now_loss,
        step=found.now_step,
    )


def text_of(found: Forecast | Refusal, run: Run, stream: IO[str], lang: str = "en") -> str:
    blocks = [Block(tied(msg("Forecast of {name:code}", name=run.name), lang), "title"), GAP]
    if isinstance(found, Refusal):
        return for_stream([*blocks, *_refusal_blocks(found, lang)], stream)
    blocks += [Block(tied(headline(found), lang), "good"), GAP]
    blocks.append(
        Block(tied(msg("From {points:count} points; learning rate: {schedule}.", points=found.points, schedule=found.schedule), lang))
    )
    blocks += [Block(tied(note, lang), "note", mark="- ") for note in found.notes]
    return for_stream(blocks, stream) + _drawing(found, run, stream, lang)


def _refusal_blocks(found: Refusal, lang: str) -> list[Block]:
    blocks = [Block(tied(msg("It cannot be said, because {because}.", because=found.because), lang), "likely")]
    if found.instead is not None:
        blocks.append(Block(tied(msg("To make it possible: {instead}.", instead=found.instead), lang)))
    return blocks


def _drawing(found: Forecast, run: Run, stream: IO[str], lang: str) -> str:
    steps, median, low, high = found.curve
    seen = [
        (int(step), float(val))
        for step, val in zip(run.evals.step, run.evals.val, strict=True)
        if val == val and step >= found.now_step / 4
    ]
    series = [
        Series("seen", [s for s, _ in seen], [v for _, v in seen]),
        Series("median", list(steps), list(median)),
        Series("low", list(steps), list(low)),
        Series("high", list(steps), list(high)),
    ]
    is_screen = stream.isatty()
    lines = overlaid(series, width=72, rows=12, plain=not is_screen)
    if not lines:
        return ""
    drawing = "\n".join("  " + line for line in lines)
    if not is_screen:
        legend = say(msg("A seen, B expected, C and D the ends of the interval; steps up to {last:count}", last=found.at_step), lang)
        return f"\n{drawing}\n  {legend}\n"
    names = (msg("seen"), msg("expected"), msg("low end of the interval"), msg("high end"))
    words = [f"[{colour}]{say(name, lang)}[/{colour}]" for name, colour in zip(names, COLOURS, strict=False)]
    upto = say(msg("steps up to {last:count}", last=found.at_step), lang)
    return painted(f"\n{drawing}\n  {'   '.join(words)}   {upto}\n")


def markdown_of(found: Forecast | Refusal, run: Run, lang: str = "en") -> str:
    from nanolens.present.markdown import said

    if isinstance(found, Refusal):
        return f"{said(msg('It cannot be said, because {because}.', because=found.because), lang)}\n"
    notes = "\n".join(f"- {said(note, lang)}" for note in found.notes)
    return f"**{said(headline(found), lang)}**\n\n{notes}\n"


def json_of(found: Forecast | Refusal, run: Run) -> dict[str, Any]:
    if isinstance(found, Refusal):
        return {
            "run": run.name,
            "forecast": None,
            "refused": {"code": found.code, "because": say(found.because), "instead": say(found.instead) if found.instead else None},
        }
    steps, median, low, high = (list(map(float, column)) for column in found.curve)
    return {
        "run": run.name,
        "forecast": {
            "at_step": found.at_step, "loss": found.loss, "low": found.low, "high": found.high, "coverage": 0.8, "series": found.series,
            "now_step": found.now_step, "now_loss": found.now_loss, "points": found.points, "schedule": say(found.schedule),
            "notes": [say(note) for note in found.notes], "curve": {"step": steps, "loss": median, "low": low, "high": high},
        },
        "refused": None,
    }  # fmt: skip


def panels_of(found: Forecast, run: Run, lang: str = "en") -> list[Any]:
    from nanolens.present.plots import Panel

    steps, median, low, high = found.curve
    kept = [(int(step), float(val)) for step, val in zip(run.evals.step, run.evals.val, strict=True) if val == val]
    seen = Series(say(msg("seen"), lang), [s for s, _ in kept], [v for _, v in kept])
    expected = Series(say(msg("expected"), lang), list(steps), list(median))
    band = (say(msg("80 of 100 cases"), lang), list(steps), list(low), list(high))
    return [Panel(say(msg("steps"), lang), say(SERIES[found.series], lang), [seen, expected], bands=[band])]
