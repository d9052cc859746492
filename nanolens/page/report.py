"""A run as one file: the page's own scripts, its styles, Plotly and the data in a single HTML that opens from disk. Its
policy allows the scripts that were written into it, by their digests, and no request at all. And a run in a notebook's
cell: its figures, its curve as a picture and its findings in plain HTML without a script."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib import resources
from string import Template

import msgspec
import numpy as np

from nanolens.errors import require
from nanolens.facts.finding import Finding
from nanolens.message import msg
from nanolens.page.runs import Runs
from nanolens.page.series import Columns, SeriesQuery, chosen, curves_of, mean_of_last, places_of, series_of
from nanolens.page.view import row_of, words_of
from nanolens.record.run import RunRecord
from nanolens.show.answer import JsonObject
from nanolens.show.findings import SURENESS_WORDS
from nanolens.show.live import STATES
from nanolens.show.plots import BATCH, VAL
from nanolens.show.words import say, show

EXTRA = "page"
STYLED = b"<!-- styled -->"
GUARDED = re.compile(rb'document\.getElementById\("([0-9a-f]{32,})"\)')
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
REPORT_BUCKETS = 750  # up to 3,000 points of each curve
SMOOTHED = (10, 50, 200, 1000)  # windows that the report lets choose, as on the page
IMPORT = re.compile(r"^import .*? from \"\./([\w.]+)\";$", re.MULTILINE | re.DOTALL)
EXPORT = re.compile(r"^export (?=(?:async )?function|const|let|class)", re.MULTILINE)


def report_of(store: Runs, name: str, lang: str = "en") -> bytes:
    data = report_data(store, name, lang)
    assets = read_assets()
    plotly = read_plotly().decode("utf-8")
    script = joined(assets, "report.js")
    style = (assets["style.css"] + b"\n" + assets["plotly.css"]).decode()
    policy = (
        f"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"script-src {_digest(plotly)} {_digest(script)}; style-src {_digest(style)}"
    )
    title = escape(f"{store.columns(name).run.name} – nanolens")
    marks = styled_marks(plotly.encode()).decode()
    template = Template((resources.files("nanolens.page") / "report.html").read_text(encoding="utf-8"))
    head = {"lang": lang, "policy": policy, "title": title, "marks": marks, "style": style}
    return template.substitute(head, data=_inert(data), plotly=plotly, script=script).encode()


def report(run: RunRecord, lang: str) -> bytes:
    store = Runs()
    return report_of(store, store.hold(run), lang)


def report_data(store: Runs, name: str, lang: str) -> JsonObject:
    columns = store.columns(name)
    wanted = SeriesQuery(buckets=REPORT_BUCKETS)
    whole, curves = series_of(columns, wanted), curves_of(columns, wanted)
    for window in SMOOTHED:
        smooth = curves_of(columns, replace(wanted, smooth=window, names=("smoothed",)))
        curves |= {f"{key}_{window}": curve for key, curve in smooth.items()}
    return {
        "lang": lang,
        "words": words_of(lang),
        "run": store.view(name, lang),
        "findings": store.findings(name, lang),
        "forecast": store.forecast(name, lang),
        "series": {key: {"step": curve["step"], "y": curve["y"]} for key, curve in curves.items()},
        "places": {axis: places_of(columns, axis) for axis in columns.axes},
        "rest": {key: whole[key] for key in ("rows", "last", "not_finite", "evals")},
    }


def read_assets() -> dict[str, bytes]:
    folder = resources.files("nanolens.page") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.endswith(tuple(CONTENT_TYPES))}


def read_plotly() -> bytes:
    """Plotly's script from the installed package; there is no copy of it here."""
    require("plotly", EXTRA)
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()


def styled_marks(script: bytes) -> bytes:
    """Elements by whose ids Plotly's parts see that their styles are already there: they would write them into the
    page, which its policy refuses, and the page uses none of these parts (maps)."""
    return b"".join(b'<meta id="%s">' % found for found in sorted(set(GUARDED.findall(script))))


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
INK = "#83858b"


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
