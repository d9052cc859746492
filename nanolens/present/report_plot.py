"""The loss as a picture for print: batch losses faint, their mean strong, evaluations with their error, levels that mean something."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nanolens.errors import fault, require
from nanolens.message import msg
from nanolens.page.series import Columns
from nanolens.present.compare import UNITS
from nanolens.present.dashboard.decimate import chosen, mean_of_last
from nanolens.show.words import say

if TYPE_CHECKING:
    from nanolens.record.run import Run

COLOURS = ("#1f77b4", "#d1660f", "#2f8f5b", "#a23b72", "#b08900", "#4aa3c7", "#6a51a3", "#8c564b", "#5b6b7b", "#97a321")
BATCH, VAL, TRAIN, LEVEL = "#2c7fb8", "#d1660f", "#41926b", "#8a7a5c"
AXES = {"step": msg("step"), "tokens": msg("tokens"), "flops": msg("FLOPs"), "time": msg("training time, s")}
BUCKETS = 700


def loss_picture(
    runs: Sequence[Run], form: str, *, axis: str = "step", log_x: bool = False, log_y: bool = False, smooth: int | None = None,
    title: str = "", lang: str = "en",
) -> bytes:  # fmt: skip
    """PNG, SVG or PDF."""
    require("matplotlib", "plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = [Columns(run) for run in runs]
    for columns in drawn:
        if axis not in columns.axes:
            raise fault(
                msg("{run:code} does not tell enough to be drawn against {axis}", run=columns.run.name, axis=AXES[axis]),
                where=msg("{option:code}", option=f"--x={axis}"),
                fix=msg("use {option:code}", option="--x=step"),
            )
    figure = Figure(figsize=(7.2, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for i, columns in enumerate(drawn):
        _draw(axes, columns, axis, smooth, None if len(drawn) == 1 else (columns.run.name, COLOURS[i % len(COLOURS)]), log_x, lang)
    if len(drawn) == 1:
        _levels(axes, drawn[0], lang)
    axes.set_xlabel(say(AXES[axis], lang))
    axes.set_ylabel(say(UNITS["nats"], lang) if len(drawn) > 1 else say(msg("loss, nats per token"), lang))
    axes.set_xscale("log" if log_x else "linear")
    axes.set_yscale("log" if log_y else "linear")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9)
    if title:
        axes.set_title(_literal(title), loc="left", fontsize=12)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=160)
    return buffer.getvalue()


def _draw(axes: Any, columns: Columns, axis: str, smooth: int | None, named: tuple[str, str] | None, log_x: bool, lang: str) -> None:
    x, loss = columns.axes[axis], columns.series.get("loss")
    evals = columns.case.evals
    batch, val = (named[1], named[1]) if named else (BATCH, VAL)
    has_val = bool(np.isfinite(evals.val).any())
    if loss is not None:
        kept = chosen(x, loss, float(x[0]), float(x[-1]), BUCKETS, log_x)
        window = max(1, len(loss) // 50) if smooth is None else max(1, smooth)
        label = say(msg("batch loss, mean of {window:count}", window=window), lang)
        axes.plot(x[kept], loss[kept], color=batch, alpha=0.2 if named else 0.3, linewidth=0.6)
        axes.plot(x[kept], mean_of_last(loss, window)[kept], color=batch, linewidth=1.0 if named else 1.5,
                  label=label if not named else None if has_val else _literal(named[0]))  # fmt: skip
    at = columns.place(evals.step.astype(float), axis)
    if has_val:
        error = np.where(np.isfinite(evals.val_se), evals.val_se, 0.0)
        axes.fill_between(at, evals.val - 2 * error, evals.val + 2 * error, color=val, alpha=0.2, linewidth=0)
        label = _literal(named[0]) if named else say(msg("val loss, ± 2 standard errors"), lang)
        axes.plot(at, evals.val, color=val, linewidth=1.6, marker="o", markersize=3, label=label)
    if named is None and np.isfinite(evals.train).any():
        axes.plot(at, evals.train, color=TRAIN, linewidth=1.2, label=say(msg("train loss"), lang))


def _levels(axes: Any, columns: Columns, lang: str) -> None:
    low, high = axes.get_ylim()
    for level, name in ((columns.case.ln_vocab, "ln V"), (columns.case.bigram_nats, say(msg("bigram entropy"), lang))):
        if level is not None and low <= level <= high:
            axes.axhline(level, color=LEVEL, linewidth=0.8, linestyle=":")
            axes.annotate(name, (1.0, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8, color=LEVEL)


def _literal(text: str) -> str:
    """matplotlib reads dollar signs as mathematics."""
    return text.replace("$", r"\$")
