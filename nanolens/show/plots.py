"""Pictures: PNG, SVG or PDF, by the ending of the file's name. matplotlib draws them and is only asked for here."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nanolens.errors import fault, require
from nanolens.message import msg
from nanolens.page.series import Columns, chosen, mean_of_last
from nanolens.show.curves import Series
from nanolens.show.words import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nanolens.record.run import RunRecord

_UNITS = {"nats": msg("val loss, nats per token"), "bits": msg("val loss, bits per byte")}
ENDINGS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Panel:
    x: str
    y: str
    series: Sequence[Series]
    bands: Sequence[tuple[str, Sequence[float], Sequence[float], Sequence[float]]] = ()  # (name, xs, lows, highs)
    top: float | None = None  # the largest y that is shown


def require_picture_name(name: str | None) -> str:
    """The format that a file's name asks for; nothing where there is to be no file."""
    ending = Path(name or "").suffix.lower()
    if name and ending not in ENDINGS:
        fix = msg("use one of the extensions {endings:code}", ENDINGS)
        raise fault(msg("{path:code} is not an image file name", name), where="-o", fix=fix)
    return ending[1:]


def picture(panels: Sequence[Panel], form: str, title: str = "") -> bytes:
    """The panels side by side, as a file's contents."""
    figure = _figure(6.0 * len(panels), 4.2)
    for i, panel in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), i)
        for each in panel.series:
            axes.plot(each.xs, each.ys, label=each.name, linewidth=1.4, marker="." if len(each.xs) < 40 else None)
        for name, xs, lows, highs in panel.bands:
            axes.fill_between(xs, lows, highs, alpha=0.25, label=name)
        if panel.top is not None:
            axes.set_ylim(top=panel.top)
        axes.set(xlabel=panel.x, ylabel=panel.y)
        axes.grid(alpha=0.3)
        axes.legend()
    if title:
        figure.suptitle(title)
    return _contents(figure, form, dpi=150)


def _figure(width: float, height: float) -> Figure:
    require("matplotlib", "plot")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _contents(figure: Figure, form: str, dpi: int) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=dpi)
    return buffer.getvalue()


PLOT_COLOURS = "#1f77b4 #d1660f #2f8f5b #a23b72 #b08900 #4aa3c7 #6a51a3 #8c564b #5b6b7b #97a321".split()
BATCH, VAL, TRAIN, LEVEL = "#2c7fb8", "#d1660f", "#41926b", "#8a7a5c"
X_AXES = {"step": msg("step"), "tokens": msg("tokens"), "flops": msg("FLOPs"), "time": msg("training time, s")}
PLOT_BUCKETS = 700


def loss_picture(
    runs: Sequence[RunRecord], form: str, *, x: str, log_x: bool, log_y: bool, smooth: int | None, title: str, lang: str
) -> bytes:
    """The loss for print: batch losses faint, their mean strong, evaluations with their error, and known levels."""
    every = [Columns(run) for run in runs]
    for columns in every:
        if x not in columns.axes:
            what = msg("{run:code} has too little data to plot over {axis}", columns.run.name, X_AXES[x])
            raise fault(what, where=f"--x={x}", fix=msg("use {option:code}", "--x=step"))
    figure = _figure(7.2, 4.3)
    axes = figure.add_subplot()
    for columns, colour in zip(every, cycle(PLOT_COLOURS), strict=False):
        named = (_literal(columns.run.name), colour) if len(every) > 1 else None
        _draw(axes, columns, x, smooth, named, log_x, lang)
    if len(every) == 1:
        _levels(axes, every[0], lang)
    loss = _UNITS["nats"] if len(every) > 1 else msg("loss, nats per token")
    axes.set(xlabel=say(X_AXES[x], lang), ylabel=say(loss, lang))
    axes.set(xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:  # a log with one loss has no curve
        axes.legend(frameon=False, fontsize=9)
    if title:
        axes.set_title(_literal(title), loc="left", fontsize=12)
    return _contents(figure, form, dpi=160)


def _draw(
    axes: Axes, columns: Columns, axis: str, smooth: int | None, named: tuple[str, str] | None, log_x: bool, lang: str
) -> None:
    """One run: alone with each of its curves named, or `named` among others, all in its colour."""
    x, loss = columns.axes[axis], columns.series.get("loss")
    evals = columns.case.evals
    name, batch, val = (named[0], named[1], named[1]) if named else (None, BATCH, VAL)
    has_val = bool(np.isfinite(evals.val).any())
    if loss is not None:
        kept = chosen(x, loss, float(x[0]), float(x[-1]), PLOT_BUCKETS, log_x)
        window = max(1, len(loss) // 50) if smooth is None else max(1, smooth)
        mean = mean_of_last(loss, window)[kept]
        label = say(msg("batch loss, mean of {window:count}", window), lang)
        if named:
            label = "" if has_val else named[0]
        axes.plot(x[kept], loss[kept], color=batch, alpha=0.2 if named else 0.3, linewidth=0.6)
        axes.plot(x[kept], mean, color=batch, linewidth=1.0 if named else 1.5, label=label or None)
    at = columns.place(evals.step.astype(float), axis)
    if has_val:
        error = np.where(np.isfinite(evals.val_se), evals.val_se, 0.0)
        label = name or say(msg("val loss, ± 2 standard errors"), lang)
        axes.fill_between(at, evals.val - 2 * error, evals.val + 2 * error, color=val, alpha=0.2, linewidth=0)
        axes.plot(at, evals.val, color=val, linewidth=1.6, marker="o", markersize=3, label=label)
    if named is None and np.isfinite(evals.train).any():
        axes.plot(at, evals.train, color=TRAIN, linewidth=1.2, label=say(msg("train loss"), lang))


def _levels(axes: Axes, columns: Columns, lang: str) -> None:
    low, high = axes.get_ylim()
    for level, name in ((columns.case.ln_vocab, "ln V"), (columns.case.bigram_nats, say(msg("bigram entropy"), lang))):
        if level is not None and low <= level <= high:
            axes.axhline(level, color=LEVEL, linewidth=0.8, linestyle=":")
            place = ("axes fraction", "data")
            axes.annotate(name, (1.0, level), xycoords=place, ha="right", va="bottom", fontsize=8, color=LEVEL)


def _literal(text: str) -> str:
    """matplotlib reads dollar signs as mathematics."""
    return text.replace("$", r"\$")
