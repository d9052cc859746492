"""Runs as one file: text and pictures that need no script, then the page's own scripts, styles and the data, which make
them answer to the pointer. Its policy allows the scripts that were written into it, by their digests, and no request at
all. And a run in a notebook's cell: its figures, its curve as a picture and its findings in plain HTML."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from html import escape
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from string import Template

import msgspec
import numpy as np

from nanolens.facts.finding import Finding
from nanolens.message import msg
from nanolens.page.runs import Runs
from nanolens.page.series import Columns, SeriesQuery, chosen, curves_of, mean_of_last, places_of, series_of
from nanolens.page.view import row_of, words_of
from nanolens.page.written import signed_words, written_html, written_md
from nanolens.record.run import RunRecord
from nanolens.show.answer import JsonObject
from nanolens.show.findings import SURENESS_WORDS
from nanolens.show.live import STATES
from nanolens.show.plots import BATCH, VAL
from nanolens.show.words import say, show

EXTRA = "page"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
REPORT_POINTS = 1600  # of the loss, at most; other curves have a quarter of it, and several runs share it
FEWEST_DRAWN = 160
REPORT_DIGITS = 5
REPORT_SMOOTHED = (10, 50, 200, 1000)  # windows that the report lets choose, as on the page
IMPORT = re.compile(r"^import .*? from \"\./([\w.]+)\";$", re.MULTILINE | re.DOTALL)
EXPORT = re.compile(r"^export (?=(?:async )?function|const|let|class)", re.MULTILINE)
REPORT_FORMS = ("html", "md")


def report_of(store: Runs, names: Sequence[str], lang: str = "en", form: str = "html") -> bytes:
    data, words = report_data(store, names, lang), words_of(lang)
    signed = signed_words(datetime.now().strftime("%Y-%m-%d %H:%M"), version("nanolens"), lang)
    if form == "md":
        return written_md(data, words, lang, signed).encode()
    assets = read_assets()
    script, style = joined(assets, "report.js"), assets["style.css"].decode()
    policy = (
        f"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"script-src {_digest(script)}; style-src {_digest(style)}"
    )
    title = escape(", ".join(store.columns(name).run.name for name in names) + " – nanolens")
    template = Template((resources.files("nanolens.page") / "report.html").read_text(encoding="utf-8"))
    head = {"lang": lang, "policy": policy, "title": title, "style": style, "signed": escape(signed)}
    written = written_html(data, words, lang)
    return template.substitute(head, written=written, data=_inert(data), script=script).encode()


def report(runs: Sequence[RunRecord], lang: str, form: str = "html") -> bytes:
    store = Runs(in_memory=True)
    return report_of(store, [store.hold(run) for run in runs], lang, form)


def report_data(store: Runs, names: Sequence[str], lang: str) -> JsonObject:
    points = max(FEWEST_DRAWN, REPORT_POINTS // len(names))
    runs = {name: _run_data(store, name, lang, points) for name in names}
    comparison = store.compare(list(names), lang) if len(names) > 1 else None
    return {"lang": lang, "words": words_of(lang), "runs": runs, "comparison": comparison}


def _run_data(store: Runs, name: str, lang: str, points: int) -> JsonObject:
    columns = store.columns(name)
    wanted = SeriesQuery(buckets=points // 4)
    whole = series_of(columns, replace(wanted, names=("none",)))
    curves = curves_of(columns, replace(wanted, names=("loss",)))
    few = replace(wanted, buckets=max(10, points // 16))
    others = tuple(key for key in columns.series if key != "loss")
    curves |= curves_of(columns, replace(few, names=others)) if others else {}
    for window in REPORT_SMOOTHED:
        if window < len(columns):
            smooth = curves_of(columns, replace(few, smooth=window, names=("smoothed",)))
            curves |= {f"{key}_{window}": curve for key, curve in smooth.items()}
    view = store.view(name, lang)
    ending = view["ending"]
    return {
        "view": {**view, "config": _without_paths(view["config"]), "ending": ending and {**ending, "command": ""}},
        "findings": store.findings(name, lang),
        "forecast": store.forecast(name, lang),
        "series": {key: {"step": curve["step"], "y": _rounded(curve["y"])} for key, curve in curves.items()},
        "places": {axis: places_of(columns, axis) for axis in columns.axes},
        "rest": {key: whole[key] for key in ("rows", "last", "not_finite", "evals")},
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{REPORT_DIGITS}g}") for value in values]


def _without_paths(groups: Sequence[JsonObject]) -> list[JsonObject]:
    """What somebody else gets does not tell where on this machine things are."""
    kept = [
        {**group, "rows": [{**row, "where": ""} for row in group["rows"] if not Path(row["value"]).is_absolute()]}
        for group in groups
    ]
    return [group for group in kept if group["rows"]]


def read_assets() -> dict[str, bytes]:
    folder = resources.files("nanolens.page") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.endswith(tuple(CONTENT_TYPES))}


def joined(assets: dict[str, bytes], first: str) -> str:
    """The modules that `first` needs in one script: no two have a name at their top in common, which is tested."""
    done: dict[str, str] = {}

    def take(name: str) -> None:
        text = assets[name].decode("utf-8")
        for needed in IMPORT.findall(text):
            if needed not in done:
                take(needed)
        done[name] = EXPORT.sub("", IMPORT.sub("", text)).strip() + "\n"

    take(first)
    return "\n".join(done.values())


def _inert(data: JsonObject) -> str:
    """JSON that no HTML parser can take for markup."""
    return msgspec.json.encode(data).decode().translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


WIDTH, HEIGHT, LEFT, BOTTOM = 640, 220, 44, 20
INK = "#6a6c72"


def notebook_html(run: RunRecord, findings: Sequence[Finding] = (), lang: str = "en") -> str:
    columns = Columns(run)
    state = str(run.get("state") or "")
    row = row_of(columns, state)
    state = say(STATES[state][0], lang) if state in STATES else state
    figures = [
        (msg("step"), row["step"], "count"),
        (msg("best val"), row["best_val"], "nats"),
        (msg("batch loss"), row["loss"], "nats"),
        (msg("speed"), row["tokens_per_s"], "tokens_per_s"),
        (msg("true MFU"), row["mfu"], "share"),
    ]
    shown = [
        f'<div><div style="color:{INK};font-size:11px">{escape(say(what, lang))}</div>'
        f'<div style="font-size:17px">{escape(show(value, kind, lang))}</div></div>'
        for what, value, kind in figures
        if value is not None
    ]
    lines = [
        f"<li><b>{escape(say(SURENESS_WORDS[f.sureness], lang))}</b>: {escape(say(f.claim, lang))} "
        f"<code>{escape(f.code)}</code></li>"
        for f in findings
    ]
    return (
        f'<div style="font:14px/1.5 system-ui,sans-serif;max-width:{WIDTH}px"><div '
        f'style="font-size:18px"><b>{escape(run.name)}</b> '
        f'<span style="color:{INK};font-size:13px">{escape(state)}</span></div>'
        f'<div style="display:flex;gap:26px;margin:6px 0;flex-wrap:wrap">{"".join(shown)}</div>{_picture(columns)}'
        + (f'<ul style="margin:6px 0;padding-left:18px">{"".join(lines)}</ul>' if lines else "")
        + "</div>"
    )


def _picture(columns: Columns) -> str:
    """Batch losses, their mean, and evaluations. An image, since notebooks differ in which markup they let through."""
    steps, losses = columns.case.losses
    evals, vals = columns.case.vals
    if len(steps) + len(evals) < 2:
        return ""
    every = np.concatenate([losses, vals])
    low, high = float(every.min()), float(every.max())
    last = float(max([*steps[-1:], *evals[-1:]]))

    def points(x: np.ndarray, y: np.ndarray) -> str:
        px = LEFT + x / max(last, 1.0) * (WIDTH - LEFT - 8)
        py = 8 + (high - y) / max(high - low, 1e-9) * (HEIGHT - BOTTOM - 16)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(px, py, strict=True))

    drawn = []
    if len(steps) > 1:
        raw = chosen(steps, losses, float(steps[0]), last, 160)
        smooth = mean_of_last(losses, max(1, len(losses) // 40))
        drawn.append(f'<polyline points="{points(steps[raw], losses[raw])}" stroke="{BATCH}" stroke-opacity=".35"/>')
        drawn.append(f'<polyline points="{points(steps[raw], smooth[raw])}" stroke="{BATCH}" stroke-width="1.8"/>')
    if len(evals):
        drawn.append(f'<polyline points="{points(evals, vals)}" stroke="{VAL}" stroke-width="1.8"/>')
    labels = (
        (0, 16, "start", show(high, "rough_nats")),
        (0, HEIGHT - BOTTOM - 6, "start", show(low, "rough_nats")),
        (LEFT, HEIGHT - 4, "start", "0"),
        (WIDTH - 8, HEIGHT - 4, "end", show(int(last), "count")),
    )
    texts = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in labels)
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">'
        f'<g fill="none" stroke-linejoin="round">{"".join(drawn)}</g>'
        f'<g font-family="sans-serif" font-size="11" fill="{INK}">{texts}</g></svg>'
    )
    source = f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"
    return f'<img alt="" style="max-width:100%" src="{source}">'
