"""A comparison as text with a table and curves, as Markdown or as JSON."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

from nanolens.message import Message, msg
from nanolens.present.blocks import GAP, Block, for_stream
from nanolens.present.curves import COLOURS, MARKS, Series, overlaid, painted
from nanolens.present.table import table
from nanolens.show.words import say, show, tied

if TYPE_CHECKING:
    from nanolens.analysis.compare import Comparison
    from nanolens.analysis.compare_axes import Outcome, Sooner, Verdict
    from nanolens.comparison.side import Side

EFFECTS: dict[str, Message] = {
    "can": msg("can explain a difference in loss"), "within_spread": msg("by no more than a repeat of the run differs"),
    "measures": msg("changes the measuring, not the model"), "cannot": msg("cannot explain a difference in loss"),
}  # fmt: skip
UNITS = {"nats": msg("val loss, nats per token"), "bits": msg("val loss, bits per byte")}


def text_of(comparison: Comparison, stream: IO[str], lang: str = "en") -> str:
    """As the stream can show it."""
    out = io.StringIO()
    out.write(for_stream([*_heading(comparison, lang), *_difference_blocks(comparison, lang), *verdict_blocks(comparison, lang)], stream))
    out.write("\n".join(_table_lines(comparison, lang)) + "\n\n")
    out.write(_curves(comparison, stream, lang))
    out.write(for_stream(_remark_blocks(comparison, lang), stream))
    return out.getvalue()


def _heading(comparison: Comparison, lang: str) -> list[Block]:
    names = [side.title if side.name == side.title else f"{side.name} = {side.title}" for side in comparison.sides]
    counts = [f"{name} ({say(msg('{count:count} runs', count=side.runs), lang)})" if side.runs > 1 else name
              for name, side in zip(names, comparison.sides, strict=True)]  # fmt: skip
    return [Block(tied(msg("Comparison of {names}", names=counts), lang), "title"), GAP]


def verdict_blocks(comparison: Comparison, lang: str) -> list[Block]:
    from nanolens.analysis.compare_axes import TITLES

    blocks = [Block(tied(msg("Verdict"), lang), "head")]
    for verdict in comparison.rescored:
        blocks.append(
            Block(
                tied(msg("scored again on the same text: {words}", words=verdict.words), lang), _role(verdict.result), indent=2, mark="- "
            )
        )
    if comparison.grounds.not_comparable is not None:
        said = msg("cannot be said, because {because}", because=comparison.grounds.not_comparable)
        return [*blocks, Block(tied(said, lang), "likely", indent=2, mark="- "), GAP]
    reasons = {say(outcome.because) for outcome in comparison.outcomes if outcome.because is not None}
    if len(reasons) == 1 and all(outcome.because is not None for outcome in comparison.outcomes):
        said = msg("cannot be said, because {because}", because=comparison.outcomes[0].because)
        return [*blocks, Block(tied(said, lang), "likely", indent=2, mark="- "), GAP]
    for places, verdicts in _alike(comparison.outcomes, lang):
        for verdict in verdicts:
            said = msg("{places}: {words}", places=places, words=verdict.words)
            blocks.append(Block(tied(said, lang), _role(verdict.result), indent=2, mark="- "))
    for outcome in comparison.outcomes:
        if outcome.because is not None:
            said = msg("{axis}: cannot be said, because {because}", axis=TITLES[outcome.axis], because=outcome.because)
            blocks.append(Block(tied(said, lang), "note", indent=2, mark="- "))
    blocks += [Block(tied(_sooner(each, lang), lang), indent=2, mark="- ") for each in comparison.sooner]
    noise = _how(comparison)
    return [*blocks, *(Block(tied(msg("Noise: {how}", how=how), lang), "note", indent=2) for how in noise), GAP]


def _alike(outcomes: Sequence[Outcome], lang: str) -> list[tuple[list[Message], tuple[Verdict, ...]]]:
    """(axes with their places, verdicts): axes on which the runs stand at the same evaluations say the same, and are said together."""
    from nanolens.analysis.compare_axes import TITLES

    found: list[tuple[list[Message], tuple[Verdict, ...]]] = []
    for outcome in outcomes:
        if not outcome.verdicts:
            continue
        place = msg("{axis} ({at})", axis=TITLES[outcome.axis], at=_at(outcome, lang))
        if found and [say(each.words) for each in found[-1][1]] == [say(each.words) for each in outcome.verdicts]:
            found[-1][0].append(place)
        else:
            found.append(([place], outcome.verdicts))
    return found


def _role(result: str) -> Any:
    return {"ahead": "good", "no_difference": "body", "cannot_say": "note"}[result]


def _at(outcome: Outcome, lang: str) -> str:
    return _amount(outcome.at, outcome.axis, lang)


def _amount(value: float | None, axis: str, lang: str) -> str:
    from nanolens.analysis.compare_axes import JOULES_PER_KWH, KINDS

    if axis == "energy" and value is not None:
        return say(msg("{energy:about} kWh", energy=value / JOULES_PER_KWH), lang)
    return show(value, KINDS[axis], lang)


def _sooner(each: Sooner, lang: str) -> Message:
    parts = []
    for axis, (first, second) in each.needed.items():
        if axis == "steps":
            first, second = round(first), round(second)
        said = {"first": _amount(first, axis, lang), "second": _amount(second, axis, lang), "what": NOUNS[axis]}
        if second >= first:
            parts.append(msg("{first} against {second} {what} ({times:times} sooner)", times=second / first, **said))
        else:
            parts.append(msg("{first} against {second} {what} ({times:times} later)", times=first / second, **said))
    return msg(
        "to the loss that both reached, {loss:nats}, {first} against {second} needed {parts}",
        loss=each.loss,
        first=each.first,
        second=each.second,
        parts=parts,
    )


NOUNS = {
    "steps": msg("steps"),
    "tokens": msg("tokens"),
    "flops": msg("in all"),
    "time": msg("of training"),
    "energy": msg("at rated power"),
}


def _how(comparison: Comparison) -> list[Message]:
    for outcome in comparison.outcomes:
        for verdict in outcome.verdicts:
            if verdict.measured is not None:
                return list(verdict.measured.how)
    return []


def table_rows(comparison: Comparison, lang: str) -> list[tuple[Message, list[str]]]:
    """(what, one cell a side), for what at least one side knows."""
    unit = UNITS[comparison.grounds.unit]
    rows: list[tuple[Message, list[str]]] = []

    def add(what: Message, values: Sequence[object], kind: str) -> None:
        if any(value is not None for value in values):
            rows.append((what, [show(value, kind, lang) for value in values]))

    sides = comparison.sides
    add(msg("{unit}: last", unit=unit), [side.last_val for side in sides], "nats")
    add(msg("{unit}: best", unit=unit), [side.best[1] if side.best else None for side in sides], "nats")
    add(msg("parameters"), [_value(side.case.parameters) for side in sides], "parameters")
    add(msg("parameters as nanoGPT prints them"), [side.printed_parameters for side in sides], "parameters")
    add(msg("updates"), [side.last_step for side in sides], "count")
    add(msg("tokens per update"), [side.tokens_per_update for side in sides], "tokens")
    add(msg("tokens seen"), [side.total("tokens") for side in sides], "tokens")
    add(msg("epochs"), [side.epochs for side in sides], "about")
    add(msg("FLOPs per token"), [_value(side.case.flops_per_token) for side in sides], "flops")
    add(msg("FLOPs in all"), [side.total("flops") for side in sides], "flops")
    add(msg("time of an ordinary step"), [side.step_s for side in sides], "seconds")
    add(msg("time of a micro-batch"), [side.micro_batch_s for side in sides], "seconds")
    add(msg("time of one evaluation"), [side.eval_s for side in sides], "seconds")
    add(msg("training time"), [side.total("time") for side in sides], "seconds")
    add(msg("speed"), [side.tokens_per_s for side in sides], "tokens_per_s")
    add(msg("achieved"), [side.flops_per_s for side in sides], "flops_per_s")
    add(msg("rated or measured peak"), [_value(side.case.peak) for side in sides], "flops_per_s")
    add(msg("MFU against its own device"), [side.mfu for side in sides], "share")
    add(msg("energy at rated power, in kWh"), [_kwh(side) for side in sides], "about")
    return rows


def _kwh(side: Side) -> float | None:
    from nanolens.analysis.compare_axes import JOULES_PER_KWH

    joules = side.total("energy")
    return None if joules is None else joules / JOULES_PER_KWH


def _value(quantity: Any) -> float | None:
    return None if quantity is None else quantity.value


def _table_lines(comparison: Comparison, lang: str) -> list[str]:
    """Numbers first, words last: so that the columns line up whatever the script of the words."""
    names = [side.name for side in comparison.sides]
    rows = [[*cells, say(what, lang)] for what, cells in table_rows(comparison, lang)]
    return ["  " + line for line in table([*names, ""], rows, left=(len(names),))]


def _curves(comparison: Comparison, stream: IO[str], lang: str) -> str:
    """Val loss over tokens (or steps) of all sides."""
    if all(len(side.curve) < 3 for side in comparison.sides):
        return ""
    is_screen = stream.isatty()
    axis = "tokens" if all(side.per_step("tokens") for side in comparison.sides) else "steps"
    series = [
        Series(side.name, [step * (side.per_step(axis) or 1.0) for step in side.curve.step], list(side.curve.val))
        for side in comparison.sides
    ]
    from_here = _settled(series)
    series = [Series(each.name, each.xs[from_here[i] :], each.ys[from_here[i] :]) for i, each in enumerate(series)]
    lines = overlaid(series, width=72, rows=12, plain=not is_screen)
    if not lines:
        return ""
    last = max(each.xs[-1] for each in series if len(each.xs))
    title = msg(
        "{unit}, against {axis} up to {last}",
        unit=UNITS[comparison.grounds.unit],
        axis=NOUNS_OF[axis],
        last=show(last, KINDS_OF[axis], lang),
    )
    marks = [f"{mark} {side.title if side.name == mark else side.name}" for mark, side in zip(MARKS, comparison.sides, strict=False)]
    if is_screen:
        from rich.markup import escape

        names = [side.name if side.name == side.title else f"{side.name} = {side.title}" for side in comparison.sides]
        marks = [f"[{COLOURS[i % len(COLOURS)]}]{escape(name)}[/{COLOURS[i % len(COLOURS)]}]" for i, name in enumerate(names)]
    text = "\n".join([say(title, lang), *("  " + line for line in lines), "  " + "   ".join(marks)]) + "\n\n"
    return painted(text) if is_screen else text


NOUNS_OF = {"tokens": msg("tokens"), "steps": msg("steps")}
KINDS_OF = {"tokens": "tokens", "steps": "count"}


def _settled(series: Sequence[Series]) -> list[int]:
    """Where in each series the fast fall of the beginning is over, at the same loss in all."""
    limit = _top(series)
    if limit is None:
        return [0] * len(series)
    return [next((i for i, y in enumerate(each.ys) if y <= limit), 0) if len(each.ys) >= 6 else 0 for each in series]


def _top(series: Sequence[Series]) -> float | None:
    """The loss above which a curve is only on its first fall, which would flatten everything that matters."""
    limits = [min(each.ys) + 2.0 * (sorted(each.ys)[len(each.ys) // 2] - min(each.ys)) for each in series if len(each.ys) >= 6]
    return max(limits) + 1e-9 if limits else None


def _difference_blocks(comparison: Comparison, lang: str) -> list[Block]:
    blocks = [Block(tied(msg("What differed"), lang), "head")]
    if not comparison.differences:
        return [*blocks, Block(tied(msg("nothing that is known of the runs"), lang), indent=2), GAP]
    shown = ""
    for each in comparison.differences:
        effect = "derived" if each.is_derived else each.effect
        if effect != shown:
            title = msg("What follows from it") if effect == "derived" else EFFECTS[effect]
            blocks.append(Block(tied(title, lang), "note", indent=2))
            shown = effect
        values = [show(value, each.kind, lang) if value is not None else "-" for value in each.values]
        said = msg("{what}: {values} ({because})", what=each.what, values=" | ".join(values), because=each.because)
        blocks.append(Block(tied(said, lang), indent=4, mark="- "))
    return [*blocks, GAP]


def _remark_blocks(comparison: Comparison, lang: str) -> list[Block]:
    if not comparison.remarks:
        return []
    return [Block(tied(msg("To be known"), lang), "head"), *(Block(tied(each, lang), indent=2, mark="- ") for each in comparison.remarks)]


def markdown_of(comparison: Comparison, lang: str = "en") -> str:
    from nanolens.analysis.compare_axes import TITLES
    from nanolens.present.markdown import said

    names = [side.name for side in comparison.sides]
    parts = [f"## {said(msg('Comparison of {names}', names=[side.title for side in comparison.sides]), lang)}"]
    lines = [f"- {said(msg('scored again on the same text: {words}', words=each.words), lang)}" for each in comparison.rescored]
    if comparison.grounds.not_comparable is not None:
        lines.append(f"- **{said(msg('cannot be said, because {because}', because=comparison.grounds.not_comparable), lang)}**")
    else:
        for places, verdicts in _alike(comparison.outcomes, lang):
            lines += [f"- {', '.join(said(place, lang) for place in places)}: **{said(each.words, lang)}**" for each in verdicts]
        for outcome in comparison.outcomes:
            if outcome.because is not None:
                because = msg("{axis}: cannot be said, because {because}", axis=TITLES[outcome.axis], because=outcome.because)
                lines.append(f"- {said(because, lang)}")
        lines += [f"- {said(_sooner(each, lang), lang)}" for each in comparison.sooner]
    parts.append("\n".join(lines))
    rows = [f"| {said(what, lang)} | {' | '.join(cells)} |" for what, cells in table_rows(comparison, lang)]
    parts.append(f"| | {' | '.join(names)} |\n|---|{'---:|' * len(names)}\n" + "\n".join(rows))
    if comparison.differences:
        rows = []
        for each in comparison.differences:
            cells = " | ".join(show(value, each.kind, lang) if value is not None else "-" for value in each.values)
            rows.append(f"| {said(each.what, lang)} | {cells} | {said(EFFECTS[each.effect], lang)}: {said(each.because, lang)} |")
        parts.append(
            f"### {said(msg('What differed'), lang)}\n\n| | {' | '.join(names)} | |\n|---|{'---:|' * len(names)}---|\n" + "\n".join(rows)
        )
    if comparison.remarks:
        parts.append("\n".join(f"- {said(each, lang)}" for each in comparison.remarks))
    return "\n\n".join(parts) + "\n"


def json_of(comparison: Comparison) -> dict[str, Any]:
    sides = comparison.sides
    return {
        "runs": [
            {
                "name": side.name,
                "title": side.title,
                "count": side.runs,
                "last_val": side.last_val,
                "best_val": side.best[1] if side.best else None,
                "best_step": side.best[0] if side.best else None,
                "parameters": _value(side.case.parameters),
                "updates": side.last_step,
                "tokens_per_update": side.tokens_per_update,
                "tokens": side.total("tokens"),
                "epochs": side.epochs,
                "flops_per_token": _value(side.case.flops_per_token),
                "flops": side.total("flops"),
                "step_s": side.step_s,
                "micro_batch_s": side.micro_batch_s,
                "eval_s": side.eval_s,
                "time_s": side.total("time"),
                "tokens_per_s": side.tokens_per_s,
                "flops_per_s": side.flops_per_s,
                "peak_flops": _value(side.case.peak),
                "mfu": side.mfu,
                "energy_j": side.total("energy"),
            }
            for side in sides
        ],
        "unit": comparison.grounds.unit,
        "not_comparable": say(comparison.grounds.not_comparable) if comparison.grounds.not_comparable is not None else None,
        "differences": [
            {
                "key": each.key,
                "values": [_plain(value) for value in each.values],
                "effect": each.effect,
                "derived": each.is_derived,
                "because": say(each.because),
            }
            for each in comparison.differences
        ],
        "outcomes": [
            {
                "axis": outcome.axis,
                "at": outcome.at,
                "losses": list(outcome.losses),
                "because": say(outcome.because) if outcome.because is not None else None,
                "verdicts": [_verdict_json(each) for each in outcome.verdicts],
            }
            for outcome in comparison.outcomes
        ],
        "equal_loss": [
            {
                "loss": each.loss,
                "first": each.first,
                "second": each.second,
                "needed": {axis: list(both) for axis, both in each.needed.items()},
                "times": {axis: each.times(axis) for axis in each.needed},
            }
            for each in comparison.sooner
        ],
        "rescored": [_verdict_json(each) for each in comparison.rescored],
        "remarks": [say(each) for each in comparison.remarks],
    }


def _plain(value: object) -> object:
    return say(value) if isinstance(value, Message) else value


def _verdict_json(verdict: Any) -> dict[str, Any]:
    seen = verdict.measured
    return {
        "result": verdict.result,
        "words": say(verdict.words),
        "ahead": verdict.ahead or None,
        "behind": verdict.behind or None,
        "by": verdict.by,
        "half_width_95": verdict.half_width,
        "standard_error": seen.se if seen is not None else None,
        "noise": [say(how) for how in seen.how] if seen is not None else [],
    }


def panels_of(comparison: Comparison, lang: str = "en") -> list[Any]:
    """Val loss over tokens and over time, for a picture."""
    from nanolens.present.plots import Panel

    titles = {"steps": msg("steps"), "tokens": msg("tokens"), "time": msg("training time, s")}
    panels = []
    for axis in ("tokens", "time"):
        if not all(side.per_step(axis) and len(side.curve) for side in comparison.sides):
            axis = "steps"
        series = [
            Series(side.name, [step * (side.per_step(axis) or 1.0) for step in side.curve.step], list(side.curve.val))
            for side in comparison.sides
        ]
        panel = Panel(say(titles[axis], lang), say(UNITS[comparison.grounds.unit], lang), series, top=_top(series))
        if panel not in panels:
            panels.append(panel)
    return panels
