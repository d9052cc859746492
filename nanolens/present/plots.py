"""Pictures: PNG, SVG or PDF, by the ending of the file's name. matplotlib draws them and is only asked for here."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from nanolens.errors import fault, require
from nanolens.message import msg
from nanolens.present.curves import Series

ENDINGS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    bands: Sequence[tuple[str, Sequence[float], Sequence[float], Sequence[float]]] = ()  # (name, xs, lows, highs)
    top: float | None = None  # the largest y that is shown


def require_picture_name(name: str) -> str:
    """The format that a file's name asks for."""
    ending = name[name.rfind(".") :].lower() if "." in name else ""
    if ending not in ENDINGS:
        raise fault(
            msg("{path:code} is not a picture's name", path=name),
            where=msg("{option:code}", option="-o"),
            fix=msg("give it one of the endings {endings:code}", endings=ENDINGS),
        )
    return ending[1:]


def picture(panels: Sequence[Panel], form: str, title: str = "") -> bytes:
    """The panels side by side, as a file's contents."""
    require("matplotlib", "plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0 * len(panels), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for i, panel in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), i)
        for each in panel.series:
            axes.plot(each.xs, each.ys, label=each.name, linewidth=1.4, marker="." if len(each.xs) < 40 else None)
        for name, xs, lows, highs in panel.bands:
            axes.fill_between(xs, lows, highs, alpha=0.25, label=name)
        if panel.log_x:
            axes.set_xscale("log")
        if panel.top is not None:
            axes.set_ylim(top=panel.top)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
        axes.grid(alpha=0.3)
        axes.legend()
    if title:
        figure.suptitle(title)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=150)
    return buffer.getvalue()
