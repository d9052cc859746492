"""A run as one file: the page's own scripts, its styles, Plotly and the data in a single HTML that opens from disk and asks nobody for
anything. Its policy allows the scripts that were written into it, by their digests, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from nanolens.page.view import findings_of, forecast_of, view_of
from nanolens.present.dashboard.app import read_assets, read_plotly, styled_marks
from nanolens.present.dashboard.series import Wanted, series_of
from nanolens.present.dashboard.strings import words_of

if TYPE_CHECKING:
    from nanolens.present.dashboard.shelf import Shelf

BUCKETS = 750  # up to 3,000 points of each curve
SMOOTHED = (10, 50, 200, 1000)  # windows that the report lets choose, as on the page
IMPORT = re.compile(r"^import .*? from \"\./([\w.]+)\";$", re.MULTILINE | re.DOTALL)
EXPORT = re.compile(r"^export (?=(?:async )?function|const|let|class)", re.MULTILINE)


def report_of(shelf: Shelf, name: str, lang: str = "en") -> bytes:
    """The whole file."""
    data = report_data(shelf, name, lang)
    assets = read_assets()
    plotly = read_plotly().decode("utf-8")
    script = joined(assets, "report.js")
    style = (assets["style.css"] + b"\n" + assets["plotly.css"]).decode()
    policy = (
        f"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"script-src {_digest(plotly)} {_digest(script)}; style-src {_digest(style)}"
    )
    title = html.escape(f"{data['run']['row']['name']} – nanolens")
    parts = (
        f'<!doctype html>\n<html lang="{lang}">\n<head>\n<meta charset="utf-8">\n',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">\n',
        f"<title>{title}</title>\n{styled_marks(plotly.encode()).decode()}\n",
        f'<style id="plotly.js-style-global" class="no-inline-styles">{style}</style>\n</head>\n<body>\n<div id="app"></div>\n',
        '<div id="said" class="unseen" role="status" aria-live="polite"></div>\n',
        f'<script type="application/json" id="data">{_inert(data)}</script>\n',
        f'<script>{plotly}</script>\n<script type="module">{script}</script>\n</body>\n</html>\n',
    )
    return "".join(parts).encode()


def report_data(shelf: Shelf, name: str, lang: str) -> dict[str, Any]:
    columns = shelf.columns(name)
    wanted = Wanted(buckets=BUCKETS)
    whole = series_of(columns, wanted)
    series = {key: {"step": found["step"], "y": found["y"]} for key, found in whole["series"].items()}
    for window in SMOOTHED:
        smooth = series_of(columns, replace(wanted, smooth=window, names=("smoothed",)))["series"]
        if "smoothed" in smooth:
            series[f"smoothed_{window}"] = {"step": smooth["smoothed"]["step"], "y": smooth["smoothed"]["y"]}
    return {
        "lang": lang,
        "words": words_of(lang),
        "run": view_of(columns, shelf.state(name), shelf.preset(name), shelf.planned(name), lang),
        "findings": findings_of(shelf.diagnosis(name), shelf.held(name), shelf.is_fault, lang),
        "forecast": forecast_of(shelf.forecast(name), lang),
        "series": series,
        "places": {axis: series_of(columns, Wanted(axis=axis, names=("-",)))["places"] for axis in columns.axes},
        "rest": {key: whole[key] for key in ("rows", "last", "not_finite", "evals")},
    }


def joined(assets: dict[str, bytes], first: str) -> str:
    """The modules that `first` needs, one after the other in one script. It holds as long as no two of them use a name twice at their top,
    which is tested."""
    done: list[str] = []

    def take(name: str) -> None:
        if name in done:
            return
        text = assets[name].decode("utf-8")
        for needed in IMPORT.findall(text):
            take(needed)
        done.append(name)

    take(first)
    return "\n".join(EXPORT.sub("", IMPORT.sub("", assets[name].decode("utf-8"))).strip() + "\n" for name in done)


def _inert(data: Any) -> str:
    """JSON that no HTML parser can take for markup."""
    text = msgspec.json.encode(data).decode()
    return (
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
