"""A run in a notebook's cell: its figures, its curve as a picture and its findings, in a few kilobytes of plain HTML without a script."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nanolens.message import Message, msg
from nanolens.page.series import Columns
from nanolens.page.view import row_of
from nanolens.present.dashboard.decimate import chosen, mean_of_last
from nanolens.present.text import SURENESS
from nanolens.show.live import STATES
from nanolens.show.words import say, show

if TYPE_CHECKING:
    from nanolens.facts.finding import Finding
    from nanolens.record.run import Run

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 220, 44, 20
BATCH, VAL, INK = "#2c7fb8", "#d1660f", "#83858b"


def notebook_html(run: Run, findings: Sequence[Finding] = (), lang: str = "en") -> str:
    columns = Columns(run)
    row = row_of(columns, str(run.get("state") or ""))
    state = say(STATES[row["state"]][0], lang) if row["state"] in STATES else row["state"]
    figures = [(msg("step"), row["step"], "count"), (msg("best val"), row["best_val"], "nats"), (msg("batch loss"), row["loss"], "nats"),
               (msg("speed"), row["tokens_per_s"], "tokens_per_s"), (msg("true MFU"), row["mfu"], "share")]  # fmt: skip
    shown = [_figure(what, value, kind, lang) for what, value, kind in figures if value is not None]
    lines = [
        f"<li><b>{_text(say(SURENESS[f.sureness], lang))}</b>: {_text(say(f.claim, lang))} <code>{_text(f.code)}</code></li>"
        for f in findings
    ]
    return (
        f'<div style="font:14px/1.5 system-ui,sans-serif;max-width:{WIDTH}px"><div style="font-size:18px"><b>{_text(run.name)}</b> '
        f'<span style="color:{INK};font-size:13px">{_text(state)}</span></div>'
        f'<div style="display:flex;gap:26px;margin:6px 0;flex-wrap:wrap">{"".join(shown)}</div>{_picture(columns)}'
        + (f'<ul style="margin:6px 0;padding-left:18px">{"".join(lines)}</ul>' if lines else "")
        + "</div>"
    )


def _figure(what: Message, value: object, kind: str, lang: str) -> str:
    said = _text(show(value, kind, lang))
    return f'<div><div style="color:{INK};font-size:11px">{_text(say(what, lang))}</div><div style="font-size:17px">{said}</div></div>'


def _picture(columns: Columns) -> str:
    """The batch losses, smoothed over them, and the evaluations. An image, since notebooks differ in which markup they let through."""
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
    labels = ((0, 16, "start", show(high, "rough_nats")), (0, HEIGHT - BOTTOM - 6, "start", show(low, "rough_nats")),
              (LEFT, HEIGHT - 4, "start", "0"), (WIDTH - 8, HEIGHT - 4, "end", show(int(last), "count")))  # fmt: skip
    texts = "".join(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in labels)
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">'
        f'<g fill="none" stroke-linejoin="round">{"".join(drawn)}</g>'
        f'<g font-family="sans-serif" font-size="11" fill="{INK}">{texts}</g></svg>'
    )
    return f'<img alt="" style="max-width:100%" src="data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}">'


def _text(text: str) -> str:
    return html.escape(text, quote=True)
