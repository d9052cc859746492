"""Messages become text here: the sentence in the reader's language, each value in the form of its kind, which is the
same in all languages. No other place knows how many digits a loss has."""

from __future__ import annotations

import inspect
import json
import math
import re
import string
from collections.abc import Callable
from datetime import datetime
from functools import cache
from importlib import resources

from nanolens.message import Message, counted

LANGUAGES = ("en", "hi")
TIE = "\u00a0"  # between a number and its unit, for the code that breaks lines


def say(message: Message, lang: str = "en") -> str:
    return non_breaking(message, lang).replace(TIE, " ")


def non_breaking(message: Message, lang: str = "en", code: Callable[[str], str] = str) -> str:
    """The sentence with TIE where no line may break; `code` dresses what is to be typed or read literally."""
    return _Sentence(lang, code).vformat(translated(message.msgid, lang), (), message.args)


def translated(sentence: str, lang: str) -> str:
    """The sentence in the reader's language, its placeholders still open; a test sees to it that none is missing."""
    return sentence if lang == "en" else catalogue(lang).get(sentence, sentence)


def paragraphs(docstring: str, lang: str = "en") -> list[str]:
    """A text's paragraphs in the reader's language; indented ones (log lines, commands) stay as they are."""
    blocks = [block for block in inspect.cleandoc(docstring).split("\n\n") if block.strip()]
    return [block if is_literal(block) else translated(_joined(block), lang) for block in blocks]


def _joined(block: str) -> str:
    """One line; a word that was broken at its hyphen (micro-batch) keeps it."""
    return " ".join(re.sub(r"(?<=\w)-\n\s*(?=\w)", "-", block).split())


def is_literal(block: str) -> bool:
    return all(line.startswith("    ") for line in block.splitlines())


@cache
def catalogue(lang: str) -> dict[str, str]:
    """Translations by English sentence. JSON, not TOML: 2,000 sentences take tomllib 55 ms of each command, json 5."""
    file = resources.files("nanolens.show") / "locale" / f"{lang}.json"
    return json.loads(file.read_text(encoding="utf-8"))


def show(value: object, kind: str = "text", lang: str = "en") -> str:
    """A value in the form of its kind (see message.KINDS)."""
    return _form(value, kind, lang, str).replace(TIE, " ")


class _Sentence(string.Formatter):
    def __init__(self, lang: str, code: Callable[[str], str]):
        self.lang, self.code = lang, code

    def format_field(self, value: object, format_spec: str) -> str:
        kind, _, forms = format_spec.partition(" ")
        return counted(_form(value, kind or "text", self.lang, self.code), value, forms)


def _form(value: object, kind: str, lang: str, code: Callable[[str], str]) -> str:
    if isinstance(value, Message):
        return non_breaking(value, lang, code)
    if isinstance(value, (list, tuple)):
        if kind in _RANGES:
            return _RANGES[kind](*value)
        return ", ".join(_form(item, kind, lang, code) for item in value)
    if kind == "code":
        return code(str(value))
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if not math.isfinite(value):
        return str(float(value))
    return _FORMS.get(kind, str)(value)


def _digits(value: float, digits: int = 3, keep_zeros: bool = False) -> str:
    """Significant digits without an exponent for 0.001 to a million: 81.6, 1,250, 2.65e-4."""
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e15:
        mantissa, exponent = f"{value:#.{digits - 1}e}".split("e")  # with #, there is always a point
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    shown = f"{value:#.{digits}g}"
    if "e" in shown:
        return f"{float(shown):,.0f}"
    shown = (shown if keep_zeros else shown.rstrip("0")).rstrip(".")
    whole, dot, rest = shown.partition(".")
    return f"{int(whole):,}{dot}{rest}" if abs(value) >= 1000 else shown


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int = 3, keep_zeros: bool = True) -> str:
    size, unit = next(((size, unit) for size, unit in steps if abs(value) >= size), steps[-1])
    return _digits(value / size, digits, keep_zeros) + unit


_SI = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
_FLOPS = tuple(
    (size, f"{TIE}{unit}FLOP")
    for size, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
)
_BYTES = ((1e12, f"{TIE}TB"), (1e9, f"{TIE}GB"), (1e6, f"{TIE}MB"), (1e3, f"{TIE}kB"), (1, f"{TIE}bytes"))


def _tokens(value: float, digits: int = 3) -> str:
    """Whole below a million, since 16,384 says more than 16.4k."""
    if abs(value) < 1e6:
        return f"{value:,.0f}"
    return _scaled(value, _SI, digits, keep_zeros=False)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else _digits(value, 4)


def _seconds(value: float, digits: int = 3) -> str:
    if abs(value) >= 3600 * 48:
        return f"{value / 86400:.1f}{TIE}days"
    if abs(value) >= 3600:
        hours, minutes = divmod(round(value / 60), 60)
        return f"{hours}{TIE}h{TIE}{minutes:02d}{TIE}min"
    if abs(value) >= 120:
        minutes, seconds = divmod(round(value), 60)
        return f"{minutes}{TIE}min{TIE}{seconds:02d}{TIE}s"
    number, unit = _small_seconds(value, digits)
    return f"{number}{TIE}{unit}"


def _small_seconds(value: float, digits: int) -> tuple[str, str]:
    if abs(value) >= 1 or value == 0:
        return _digits(value, digits, keep_zeros=digits > 2), "s"
    if abs(value) >= 1e-3:
        return _digits(value * 1e3, digits, keep_zeros=digits > 2), "ms"
    return _digits(value * 1e6, digits), "µs"


def _seconds_range(low: float, high: float) -> str:
    if max(abs(low), abs(high)) < 120:
        (a, unit), (b, other) = _small_seconds(low, 3), _small_seconds(high, 3)
        if unit == other:
            return f"{_range(a, b)}{TIE}{unit}"
    return _range(_seconds(low), _seconds(high))


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"


def _share(value: float) -> str:
    percent = value * 100
    if abs(percent - round(percent)) < 1e-9 * max(1.0, abs(percent)):
        return f"{round(percent):,}%"
    if abs(percent) >= 0.95:
        return f"{percent:,.1f}%"
    return f"{_digits(percent, 2)}%"


_RANGES: dict[str, Callable[..., str]] = {
    "seconds_range": _seconds_range,
    "nats_range": lambda low, high: _range(f"{low:.2f}", f"{high:.2f}"),
}
_FORMS: dict[str, Callable[[float], str]] = {
    "count": _count,
    "number": _number,
    "about": _digits,
    "nats": lambda v: f"{v:.4f}",
    "rough_nats": lambda v: f"{v:.2f}",
    "rate": _digits,  # from 0.001 as it is typed in a config; less with an exponent
    "rough_rate": lambda v: _digits(v, 2),
    "seconds": _seconds,
    "rough_seconds": lambda v: _seconds(v, 2),
    "ms": lambda v: f"{v * 1e3:.2f}{TIE}ms",
    "share": _share,
    "percent": lambda v: f"{v * 100:.2f}%",
    "bytes": lambda v: _scaled(v, _BYTES),
    "tokens": _tokens,
    "parameters": lambda v: _tokens(v, 4),
    "flops": lambda v: _scaled(v, _FLOPS),
    "flops_per_s": lambda v: _scaled(v, _FLOPS) + "/s",
    "tokens_per_s": lambda v: f"{_digits(v) if v < 1000 else format(v, ',.0f')}{TIE}tokens/s",
    "times": lambda v: f"{_digits(v)}x",
    "date": lambda v: datetime.fromtimestamp(v).strftime("%Y-%m-%d %H:%M"),
}
