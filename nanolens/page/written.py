"""The page as text and pictures without a script: HTML for a report, Markdown for a pull request. Both are made of the
very JSON that the page's scripts get, so they say the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from nanolens.message import msg
from nanolens.show.answer import JsonObject
from nanolens.show.plots import BATCH, LEVEL, PLOT_COLOURS, TRAIN, VAL
from nanolens.show.words import say, show

CHART_WIDTH, CHART_HEIGHT = 960, 340
CHART_LEFT, CHART_BOTTOM, CHART_TOP = 52, 24, 10
FAINT, GRID_COLOUR = "#6a6c72", "#dedbd4"
DASHES = ("", "7 3", "2 3", "9 3 2 3")
MOST_SETTINGS_SHOWN = 200


@dataclass(frozen=True)
class Line:
    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: str
    width: float = 1.5
    opacity: float = 1.0
    dash: str = ""


def chart_svg(lines: Sequence[Line], levels: Sequence[tuple[str, float]] = (), title: str = "") -> str:
    """The lines over one another, with axes and their names: no style sheet is needed to read it."""
    points = [(x, y) for line in lines for x, y in zip(line.x, line.y, strict=True) if _is_number(y)]
    if len(points) < 2:
        return ""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(float(y or 0) for _, y in points), max(float(y or 0) for _, y in points)
    spare = 0.05 * (high - low) or 0.1
    low, high, right = low - spare, high + spare, right if right > left else left + 1
    across = (CHART_WIDTH - CHART_LEFT - 10) / (right - left)
    down = (CHART_HEIGHT - CHART_BOTTOM - CHART_TOP) / (high - low)

    def px(x: float) -> float:
        return CHART_LEFT + (x - left) * across

    def py(y: float) -> float:
        return CHART_TOP + (high - y) * down

    drawn = [*_axes(left, right, low, high, px, py)]
    for name, y in levels:
        if low <= y <= high:
            drawn.append(
                f'<line x1="{CHART_LEFT}" x2="{CHART_WIDTH - 10}" y1="{py(y):.1f}" y2="{py(y):.1f}" stroke="{LEVEL}" '
                f'stroke-dasharray="1.5 3"/><text x="{CHART_WIDTH - 10}" y="{py(y) - 3:.1f}" text-anchor="end" '
                f'fill="{LEVEL}">{escape(name)}</text>'
            )
    drawn += [_path(line, px, py) for line in lines]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="12" fill="{FAINT}">{"".join(drawn)}</svg>'
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _axes(left: float, right: float, low: float, high: float, px: object, py: object) -> Iterator[str]:
    assert callable(px) and callable(py)
    bottom = CHART_HEIGHT - CHART_BOTTOM
    for y in ticks(low, high, 6):
        yield (
            f'<line x1="{CHART_LEFT}" x2="{CHART_WIDTH - 10}" y1="{py(y):.1f}" y2="{py(y):.1f}" stroke="{GRID_COLOUR}" '
            f'stroke-width=".6"/><text x="{CHART_LEFT - 6}" y="{py(y) + 4:.1f}" text-anchor="end">{y:g}</text>'
        )
    for x in ticks(left, right, 7):
        yield f'<text x="{px(x):.1f}" y="{bottom + 16}" text-anchor="middle">{show(int(x), "count")}</text>'


def ticks(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next((each * size for each in (1, 2, 5, 10) if each * size >= rough * 0.999), 10 * size)
    return [round(i * step, 10) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _path(line: Line, px: object, py: object) -> str:
    assert callable(px) and callable(py)
    pieces, pen = [], "M"
    for x, y in zip(line.x, line.y, strict=True):
        if _is_number(y):
            pieces.append(f"{pen}{px(x):.1f} {py(y):.1f}")
            pen = "L"
        else:
            pen = "M"
    return (
        f'<path d="{"".join(pieces)}" fill="none" stroke="{line.colour}" stroke-width="{line.width}" '
        f'stroke-opacity="{line.opacity}" stroke-dasharray="{line.dash}" stroke-linejoin="round"/>'
    )


# --- one run


def run_html(run: JsonObject, words: dict[str, str], lang: str, *, is_alone: bool) -> str:
    view, row = run["view"], run["view"]["row"]
    found = run["findings"]["findings"]
    parts = [f"<h1>{escape(row['name'])}</h1>" if is_alone else f"<h2>{escape(row['name'])}</h2>"]
    parts.append(f'<p class="facts">{escape(words.get("state." + str(row["state"]), str(row["state"])))}</p>')
    if view.get("ending"):
        parts.append(f'<p class="ending">{escape(view["ending"]["words"])}</p>')
    if claim := _claim(found, row["state"]):
        parts.append(f'<p class="headline">{escape(claim)}</p>')
    parts += [_figures_html(row, words, lang), _picture_html(run, words), *_findings_html(found, words)]
    if is_alone:
        parts += [*_samples_html(view, words), *_settings_html(view, words)]
    return "".join(parts)


def _claim(found: Sequence[JsonObject], state: str) -> str:
    faults = [each for each in found if each["is_fault"]] or list(found)
    is_dead = state in ("gone", "failed", "stopped", "silent")
    return "" if not faults or (is_dead and faults[0]["code"] == "healthy") else faults[0]["claim"]


def _figure_texts(row: JsonObject, words: dict[str, str], lang: str) -> list[tuple[str, str]]:
    loss = "NaN" if row["is_bad"] else show(row["loss"], "nats", lang)
    end = f" / {show(row['max_iters'], 'count', lang)}" if row["max_iters"] else ""
    shown = [("figure.best_val", show(row["best_val"], "nats", lang)), ("figure.loss", loss)]
    shown.append(("figure.step", show(row["step"], "count", lang) + end))
    if row["tokens_per_s"]:
        shown.append(("figure.speed", show(row["tokens_per_s"], "tokens_per_s", lang)))
    if row["mfu"]:
        shown.append(("figure.mfu", show(row["mfu"], "share", lang)))
    return [(words[key], text) for key, text in shown if text]


def _figures_html(row: JsonObject, words: dict[str, str], lang: str) -> str:
    each = (
        f'<div class="figure"><span class="label">{escape(name)}</span><span class="number">{escape(text)}</span></div>'
        for name, text in _figure_texts(row, words, lang)
    )
    return f'<div class="figures">{"".join(each)}</div>'


def lines_of(run: JsonObject, words: dict[str, str]) -> list[Line]:
    series, evals = run["series"], run["rest"]["evals"]
    lines = []
    if loss := series.get("loss"):
        lines.append(Line(words["series.loss"], loss["step"], loss["y"], BATCH, 0.8, 0.4))
    smooth = next((series[key] for key in series if key.startswith("smoothed_")), None)
    if smooth:
        lines.append(Line("", smooth["step"], smooth["y"], BATCH, 1.8))
    for split, colour in (("train", TRAIN), ("val", VAL)):
        if any(_is_number(y) for y in evals[split]):
            lines.append(Line(words[f"series.{split}"], evals["step"], evals[split], colour, 1.8))
    return lines


def _picture_html(run: JsonObject, words: dict[str, str]) -> str:
    lines = lines_of(run, words)
    levels = [(level["label"], level["y"]) for level in run["view"]["lines"]]
    picture = chart_svg(lines, levels, words["panel.loss"])
    keys = "".join(_key_html(line) for line in lines if line.name)
    return f'<figure class="written">{picture}<figcaption class="keys">{keys}</figcaption></figure>' if picture else ""


def _key_html(line: Line) -> str:
    return (
        f'<span><svg width="22" height="8" aria-hidden="true"><path d="M0 4H22" stroke="{line.colour}" '
        f'stroke-width="2" stroke-dasharray="{line.dash}"/></svg> {escape(line.name)}</span> '
    )


def _findings_html(found: Sequence[JsonObject], words: dict[str, str]) -> Iterator[str]:
    yield f"<h2>{escape(words['findings.title'])}</h2>"
    for number, each in enumerate(found, 1):
        change = each["change"]
        yield f'<section class="finding {"fault" if each["is_fault"] else "aside"} {escape(each["sureness"])}">'
        yield f'<p class="sure">{number} {escape(each["how_sure"])}</p><p class="claim">{escape(each["claim"])}</p>'
        items = "".join(f"<li>{escape(item['words'])}</li>" for item in each["evidence"])
        yield f'<ul class="evidence">{items}</ul>'
        if change:
            typed = "".join(
                f"<p><code>{escape(change[key])}</code></p>" for key in ("setting", "command") if change[key]
            )
            yield f"<p><b>{escape(words['finding.change'])}</b> {escape(change['words'])}</p>{typed}"
        yield f'<p class="code">{escape(each["code"])}</p></section>'


def _samples_html(view: JsonObject, words: dict[str, str]) -> Iterator[str]:
    if view["samples"]:
        yield f"<h2>{escape(words['samples.title'])}</h2>"
        for sample in [view["samples"][0], view["samples"][-1]][-len(view["samples"]) :]:
            yield f'<p class="note">{escape(words["axis.step"])} {sample["step"]}</p>'
            yield f'<pre class="sample">{escape(sample["text"][:2000])}</pre>'


def _settings_html(view: JsonObject, words: dict[str, str]) -> Iterator[str]:
    rows = [row for group in view["config"] for row in group["rows"]][:MOST_SETTINGS_SHOWN]
    if rows:
        each = (f"<div class='row'><dt>{escape(row['key'])}</dt><dd>{escape(row['value'])}</dd></div>" for row in rows)
        yield f'<h2>{escape(words["settings.title"])}</h2><dl class="groups">{"".join(each)}</dl>'


# --- several runs


def comparison_html(data: JsonObject, words: dict[str, str]) -> str:
    comparison, runs = data["comparison"], list(data["runs"].values())
    lines = several_lines(runs)
    sentences = "".join(f'<p class="headline">{escape(each)}</p>' for each in comparison["headline"])
    head = "".join(f"<th>{escape(words[key])}</th>" for key in ("compare.rank", "runs.name", "compare.loss_at"))
    body = "".join(
        f"<tr><td>{place}</td><th>{_key_html(lines[each['side']])}</th><td>{show(each['loss'], 'nats')}</td></tr>"
        for place, each in enumerate(comparison["ranking"], 1)
    )
    return (
        f"<h1>{len(runs)} {escape(words['runs.title'])}</h1>{sentences}"
        f'<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p class="note">'
        f'{escape(comparison["how"])}</p><figure class="written">{chart_svg(lines, title=words["panel.loss"])}</figure>'
    )


def several_lines(runs: Sequence[JsonObject]) -> list[Line]:
    found = []
    for i, run in enumerate(runs):
        evals, loss = run["rest"]["evals"], run["series"].get("loss", {"step": [], "y": []})
        has_val = any(_is_number(y) for y in evals["val"])
        xy = (evals["step"], evals["val"]) if has_val else (loss["step"], loss["y"])
        colour, dash = PLOT_COLOURS[i % len(PLOT_COLOURS)], DASHES[i // len(PLOT_COLOURS) % len(DASHES)]
        found.append(Line(run["view"]["row"]["name"], *xy, colour, dash=dash))
    return found


def written_html(data: JsonObject, words: dict[str, str], lang: str) -> str:
    runs = list(data["runs"].values())
    if len(runs) == 1:
        return run_html(runs[0], words, lang, is_alone=True)
    return comparison_html(data, words) + "".join(run_html(run, words, lang, is_alone=False) for run in runs)


# --- Markdown


def written_md(data: JsonObject, words: dict[str, str], lang: str, signed: str) -> str:
    runs, lines = list(data["runs"].values()), []
    if len(runs) > 1:
        lines += [*_comparison_md(data, words), ""]
    for run in runs:
        lines += [*_run_md(run, words, lang), ""]
    return "\n".join([*lines, f"_{signed}_", ""])


def _comparison_md(data: JsonObject, words: dict[str, str]) -> Iterator[str]:
    names = [run["view"]["row"]["name"] for run in data["runs"].values()]
    comparison = data["comparison"]
    yield from (f"## {len(names)} {words['runs.title']}", "", *comparison["headline"], "")
    yield f"| {words['compare.rank']} | {words['runs.name']} | {words['compare.loss_at']} |"
    yield "|---|---|---|"
    for place, each in enumerate(comparison["ranking"], 1):
        yield f"| {place} | {_md(names[each['side']])} | {show(each['loss'], 'nats')} |"
    yield from ("", comparison["how"])


def _run_md(run: JsonObject, words: dict[str, str], lang: str) -> Iterator[str]:
    view, found = run["view"], run["findings"]["findings"]
    row = view["row"]
    yield f"## {_md(row['name'])}"
    if view.get("ending"):
        yield from ("", _md(view["ending"]["words"]))
    if claim := _claim(found, row["state"]):
        yield from ("", f"**{_md(claim)}**")
    figures = _figure_texts(row, words, lang)
    yield from ("", "| " + " | ".join(name for name, _ in figures) + " |", "|" + "---|" * len(figures))
    yield "| " + " | ".join(text for _, text in figures) + " |"
    yield from ("", f"### {words['findings.title']}", "")
    for number, each in enumerate(found, 1):
        yield f"{number}. **{_md(each['claim'])}** ({_md(each['how_sure'])}, `{each['code']}`)"
        yield from (f"   - {_md(item['words'])}" for item in each["evidence"])
        if each["change"]:
            yield f"   - {_md(words['finding.change'])} {_md(each['change']['words'])}"


def _md(text: str) -> str:
    """Text of a run or a log is never markup."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in text.replace("\n", " "))


def signed_words(date: str, version: str, lang: str) -> str:
    return say(msg("written by nanolens {version} on {date}", version, date), lang)
