"""Messages become text here: the sentence in the reader's language, each value in the form of its kind.

The only place that knows how many digits a loss has.
"""

from __future__ import annotations

import math
import string
import tomllib
from functools import cache
from importlib import resources

from nanoscope.message import Message

LANGUAGES = ("en", "hi")


def say(message: Message, lang: str = "en") -> str:
    sentence = message.msgid if lang == "en" else catalogue(lang).get(message.msgid, message.msgid)
    return _Sentence(lang).vformat(sentence, (), message.args)


@cache
def catalogue(lang: str) -> dict[str, str]:
    """Translations by English sentence."""
    file = resources.files("nanoscope.present") / "locale" / f"{lang}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def show(value: object, kind: str = "text", lang: str = "en") -> str:
    """A value in the form of its kind (see message.KINDS)."""
    if isinstance(value, Message):
        return say(value, lang)
    if isinstance(value, (list, tuple)):
        return ", ".join(show(item, kind, lang) for item in value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if not math.isfinite(value):
        return str(float(value))
    return _FORMS.get(kind, str)(value)


class _Sentence(string.Formatter):
    def __init__(self, lang: str):
        self.lang = lang

    def format_field(self, value: object, format_spec: str) -> str:
        return show(value, format_spec or "text", self.lang)


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for size, unit in steps:
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}" if value / size < 1000 else f"{value / size:,.0f}{unit}"
    return f"{value:.3g}{steps[-1][1]}"


_SI = ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k"), (1, ""))
_FLOPS = ((1e18, " EFLOP"), (1e15, " PFLOP"), (1e12, " TFLOP"), (1e9, " GFLOP"), (1e6, " MFLOP"), (1e3, " kFLOP"), (1, " FLOP"))
_BYTES = ((1e12, " TB"), (1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1, " bytes"))


def _seconds(value: float) -> str:
    if abs(value) >= 3600 * 48:
        return f"{value / 86400:.1f} days"
    if abs(value) >= 3600:
        return f"{int(value // 3600)} h {int(value % 3600 // 60):02d} min"
    if abs(value) >= 120:
        return f"{int(value // 60)} min {int(value % 60):02d} s"
    if abs(value) >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms"


_FORMS = {
    "count": lambda v: f"{v:,.0f}" if v == int(v) else f"{v:,.1f}",
    "number": lambda v: f"{v:.4g}",
    "nats": lambda v: f"{v:.4f}",
    "rate": lambda v: f"{v:.3g}",
    "seconds": _seconds,
    "share": lambda v: f"{v * 100:.3g}%" if abs(v) < 1 else f"{v * 100:.1f}%",
    "bytes": lambda v: _scaled(v, _BYTES),
    "tokens": lambda v: _scaled(v, _SI),
    "parameters": lambda v: _scaled(v, _SI),
    "flops": lambda v: _scaled(v, _FLOPS),
    "flops_per_s": lambda v: _scaled(v, _FLOPS) + "/s",
    "tokens_per_s": lambda v: f"{v:,.0f} tokens/s" if v >= 10 else f"{v:.3g} tokens/s",
    "times": lambda v: f"{v:.3g}x",
}
