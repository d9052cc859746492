"""A line of a log as a person reads it: numbers, and beside each its name and its unit.

    iter 250: loss 2.0154, time 41.02ms          Epoch:[1/1](600/44160) loss:5.468 lr:0.00055
    [310 | 23899.61] loss=0.09 avg=0.36          {'loss': 3.2011, 'learning_rate': 4.58e-05, 'epoch': 0.25}

A line is split at its numbers. The texts between them are its form: lines of one form are one kind of row, whose
meaning is worked out once (`meaning_of`). A name is looked up, a unit is read beside its number; a number without
either may be a counter by its place. What a name alone does not say (is `time` a clock, is `loss` in bits) is left to
the columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from nanolens.config.names import UNITS_BESIDE, column_of, words_of

NUMBER = (
    # 1234.5, 1,234,567, 1.0E-4
    r"[-+]?(?:\d{1,30}+(?:(?<!\d{4}),\d{3}(?![\d.]*,\d{1,2}\b)(?!\d))*+(?:\.\d{0,30}+)?+(?:[eE][-+]?\d{1,4}+)?+"
    r"|\.\d{1,30}+(?:[eE][-+]?\d{1,4}+)?+|(?:nan|NaN|NAN|inf|Inf|INF|Infinity)(?![A-Za-z0-9_]))"
)
_CLOCK = r"\d{1,6}+:\d\d(?!\d)(?::\d\d(?!\d))?+(?:[.,]\d{1,9}+)?+(?!:)"
_DATE = (
    r"\d{1,4}+[-/]\d{1,2}(?!\d)[-/](?:\d{1,2}|\d{4})(?!\d)(?:T\d\d:\d\d:\d\d(?:[.,]\d{1,9}+)?+(?:Z|[-+]\d\d:?\d\d)?+)?+(?!\d)"
    r"|\d{1,4}+(?:\.\d{1,9}+){2,8}+"  # or an address, or a version
)
TOKEN = re.compile(rf"[ \t]*+(?<![\w.])(?<!\w-)((?:{_DATE})|{_CLOCK}|{NUMBER})")
_BAR = re.compile(r"\d{0,3}%\|[^|\r\n]{0,300}+\|")
_ARROW = re.compile(r"\[[=>.\-# ]{3,300}+\]|[━╸╺─█▏▎▍▌▋▊▉░▒]{3,300}+")
MOST_NUMBERS = 400  # of one line

_UNIT = re.compile(
    r"[)\"'`*]{0,4}(?P<scale>[KkMGBT](?![A-Za-z]))? {0,2}(?P<unit>"
    + "|".join(sorted(map(re.escape, UNITS_BESIDE), key=len, reverse=True))
    + r")(?![\w/])(?! {0,2}[:=：＝])",
    re.I,
)
_SCALE = re.compile(r"(?P<scale>[KkMGBT])(?![A-Za-z/])")
_UNIT_BEFORE = re.compile(r"[(\[](?P<unit>[A-Za-z/%]{1,16})[)\]]$")
_SPLIT = re.compile(r"[|,;\t{}<>()\[\]]| - |: |  +|(?<=\W)- |\\n|。|，|；|（|）|、")
_EDGES = " \t\"'`*~≈$-–—>#·•:=：＝_\\"
SCALES = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}


def split(line: str) -> list[str]:
    """Texts and numbers by turns, beginning and ending with a text."""
    if "%|" in line:
        line = _BAR.sub("%||", line)
    elif "[=" in line or "[>" in line or "[." in line or "━" in line or "█" in line or "─" in line:
        line = _ARROW.sub("[=]", line)
    return TOKEN.split(line, MOST_NUMBERS)


@dataclass(frozen=True)
class Field:
    place: int  # which number of the line
    column: str
    scale: float = 1.0
    name: str = ""  # as printed


@dataclass(frozen=True)
class Row:
    """What a kind of row says; a line may hold several rows."""

    fields: tuple[Field, ...]
    counter: Field | None = None
    total: int | None = None  # the number that the counter counts to
    epoch: int | None = None
    epochs: int | None = None
    is_eval: bool = False  # the words around its numbers speak of an evaluation
    is_bar: bool = False
    words: int = 0  # besides names: many make a sentence
    is_plain: bool = False  # all of these speak of an evaluation, or of its being the last

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(field.column for field in self.fields)


EVALUATION_WORDS = frozenset(
    """val valid validate validation validating eval evaluation evaluating evaluate test testing tested dev heldout
    sanity predicting 验证 评估 测试 検証 सत्यापन मूल्यांकन проверка""".split()
)
WORD = re.compile(r"(?:[^\W\d_]|[\u0900-\u0963]){2,}")
_MISSING = re.compile(r"[\w/ ]{0,30}[:=] {0,3}(?:n/?a|N/?A|none|None|null|-{1,3})(?![\w.])")
_COUNTERS = {"updates": 0, "step": 1, "iter": 2, "batch": 3, "": 4}
LONGEST_STEP = 12  # digits: a longer number is an identity or an instant


@dataclass(frozen=True)
class _Number:
    place: int
    kind: str  # whole, real or clock
    name: str
    unit: str
    scale: float  # of a letter behind it
    before: str
    after: str
    is_pair: bool = False  # the next number says of how many


def meaning_of(texts: Sequence[str], numbers: Sequence[str]) -> tuple[Row, ...]:
    """The rows of a line: the `texts` around its `numbers`."""
    rows: list[Row] = []
    group: list[tuple[_Number, str, float]] = []
    is_bar = any("%||" in text or "[=]" in text for text in texts)
    for number in _numbers(texts, numbers):
        column, scale = _column(number, is_bar)
        if column in ("step", "iter", "updates") and any(column == other for _, other, _ in group):
            rows.append(_row(group, texts, is_bar))  # rows glued together
            group = []
        group.append((number, column, scale))
    rows.append(_row(group, texts, is_bar))
    return tuple(row for row in rows if row.fields or row.counter is not None or row.epoch is not None)


def _numbers(texts: Sequence[str], numbers: Sequence[str]) -> list[_Number]:
    found: list[_Number] = []
    rest, is_total, of_counter = texts[0], False, ""
    for place, text in enumerate(numbers):
        kind = _kind(text)
        name, unit_before = _name(rest, place > 0)
        before = rest
        unit, scale, rest = _unit(texts[place + 1]) if not is_total else ("", 1.0, texts[place + 1])
        if not name and of_counter and before.strip() in (":", "=", "：", "is", "->", "|"):
            name = of_counter  # `val loss after step 150: 2.64`
        of_counter = of_counter if is_total else ""
        if (match := _AFTER.fullmatch(name)) and column_of(match[2])[0] in (
            "step",
            "iter",
            "updates",
            "epoch",
            "batch",
        ):
            of_counter, name = match[1], match[2]
        is_pair = (
            kind == "whole"
            and rest.strip() in ("/", "of", "out of")
            and place + 1 < len(numbers)
            and _kind(numbers[place + 1]) == "whole"
        )
        if is_pair and place + 2 < len(numbers) and texts[place + 2] == "" and _kind(numbers[place + 2]) == "clock":
            is_pair = is_total = True  # the 30th of October, and the time of day
        is_elapsed = kind == "clock" and number_is_plain(text) and column_of(name)[0] == "clock_s"
        if (kind != "clock" or is_elapsed) and not is_total:
            found.append(_Number(place, kind, name, unit or unit_before, scale, before, rest, is_pair))
        is_total = is_pair
    return found


def _kind(number: str) -> str:
    if ":" in number or number.count(".") > 1 or number.count("-") > 1 or number.count("/") > 1:
        return "clock"
    plain = number.replace(",", "")
    return "whole" if plain.isdigit() and len(plain) < LONGEST_STEP else "real"


def number_is_plain(clock: str) -> bool:
    """Whether it is a time as 0:12:34, and no date."""
    return clock.replace(":", "").replace(".", "").isdigit()


def _unit(text: str) -> tuple[str, float, str]:
    """(unit, scale, the rest) of what stands behind a number."""
    if match := _UNIT.match(text):
        return match["unit"].lower(), SCALES.get((match["scale"] or "").lower(), 1.0), text[match.end() :]
    if match := _SCALE.match(text):
        return "", SCALES[match["scale"].lower()], text[match.end() :]
    if match := _GLUED.match(text):  # `20.5msiter 21`
        return match["unit"], 1.0, text[match.end() :]
    return "", 1.0, text


_GLUED = re.compile(r"(?P<unit>ms|s|%)(?=(?:iter|step|Iter|Step|Epoch|epoch)\b)")
_WRAPPED = re.compile(r"(?:\b(?:torch\.)?tensor|\barray|\bnp\.float\d\d|\bfloat|\bDeviceArray|\bArray)\($")
_LEVELS = ("info", "debug", "warning", "warn", "error")  # of a logger
_AFTER = re.compile(r"(.{2,40}?) +(?:after|at|@|for|in|nach|après|tras) +(.{2,20})")
_LETTER = re.compile(r"[^\W\d_]")
_OF_KIND = re.compile(r"([A-Za-z]+)\(\w+\)$")  # `Iter(train) [ 510/2046]`


@lru_cache(maxsize=8192)
def _name(text: str, is_after_number: bool) -> tuple[str, str]:
    """(name, unit that stands before the number) in the text before a number; "" where there is no name."""
    text = _WRAPPED.sub("", text).rstrip(_EDGES + "([{")
    if text.endswith("|"):  # `| loss | 3.2 |`; what stands before the first line belongs to the number before
        cells = text.rstrip("| ").split("|")
        text = cells[-1] if not is_after_number or len(cells) > 1 else ""
    unit = ""
    match = _UNIT_BEFORE.search(text)
    if match and match["unit"].lower() in UNITS_BESIDE:
        unit, text = match["unit"].lower(), text[: match.start()].rstrip(_EDGES)
    if match := _OF_KIND.search(text):
        return match[1], unit
    name = _SPLIT.split(text)[-1].strip(_EDGES + "./")[-60:]
    is_name = (_LETTER.search(name) or name in ("#", "@")) and name.lower() not in _LEVELS
    return name if is_name else "", unit


def _column(number: _Number, is_bar: bool) -> tuple[str, float]:
    if number.name == "第":  # 第 120 步
        return {"步": "step", "轮": "epoch"}.get(number.after.lstrip()[:1], ""), 1.0
    if number.name or number.unit == "":
        column, scale = column_of(number.name, number.unit) if number.name else ("", 1.0)
        if column in _COUNTERS and number.kind != "whole":
            return "", 1.0
        if number.is_pair and column not in ("step", "iter", "updates", "batch", "epoch"):
            return "pair" if not column or column in ("train", "val", "loss") else "", 1.0
        if column or number.name:
            return column, scale * number.scale
    if number.unit == "%":
        return ("mfu_frac", 0.01) if "mfu" in number.after[:16].lower() else ("", 1.0)
    column, scale = UNITS_BESIDE.get(number.unit, ("", 1.0))
    if column == "took_s" and "/" not in number.unit:  # `44.57 ms`; beside a bar it is that of all
        return ("", 1.0) if is_bar else ("bare_s", scale)
    named = ("took_s", "it_per_s", "tokens_per_s", "device_tokens_per_s", "samples_per_s")
    return (column, scale * number.scale) if column in named else ("", 1.0)


def _row(group: Sequence[tuple[_Number, str, float]], texts: Sequence[str], is_bar: bool) -> Row:
    fields: list[Field] = []
    counters: list[tuple[_Number, Field]] = []
    epoch = epochs = None
    for index, (number, column, scale) in enumerate(group):
        field = Field(number.place, column, scale, number.name)
        if column == "epoch" and number.kind == "whole":
            if epoch is None:
                epoch, epochs = number.place, number.place + 1 if number.is_pair else None
        elif column in ("step", "iter", "updates", "batch"):
            counters.append((number, field))
        elif column == "pair":
            if number.before.rstrip().endswith(("[", "(")) or not number.name:
                counters.append((number, Field(number.place, "", 1.0, "")))
        elif (
            column == ""
            and number.kind == "whole"
            and number.name in ("", "#", "@")
            and not number.unit
            and number.scale == 1
        ):
            begins = index == 0 and not _LETTER.search("".join(texts[: number.place + 1]))
            begins &= not (
                number.place and number.before.rstrip().endswith("-") and number.after.startswith(" -")
            )  # a logger's
            if number.is_pair or begins or _is_bracketed(number):
                counters.append((number, field))
        elif column == "" and not number.name and number.unit == "":
            fields.extend(_beside(number, fields))
        elif column == "epoch":
            fields.append(Field(number.place, "epoch_real", scale, number.name))
        elif column and all(column != other.column for other in fields):
            fields.append(field)
        elif column == "took_s" and number.name:  # it says what the nameless one of a bar is, unsmoothed
            fields = [field if other.column == column and not other.name else other for other in fields]
        elif not column and number.name:
            fields.append(Field(number.place, f"?{number.name}", number.scale, number.name))
    counters.sort(key=lambda each: (_COUNTERS[each[1].column], not each[0].is_pair))
    counter, total = None, None
    if counters:
        number, counter = counters[0]
        total = number.place + 1 if number.is_pair else None
        iters = [field for _, field in counters if field.column == "iter"]
        if counter.column in ("step", "updates") and iters:
            fields.append(Field(iters[0].place, "micro_batches", 1.0, iters[0].name))
    first, last = (group[0][0].place, group[-1][0].place + 1) if group else (0, 0)
    known = {word for field in fields if field.column[0] != "?" for word in words_of(field.name)}
    counting = [field.name for _, field in counters] + [number.name for number, column, _ in group if column == "epoch"]
    known |= {word for name in counting for word in words_of(name)} - EVALUATION_WORDS
    around = [
        _MISSING.sub("", text) if ("n/a" in text or "one" in text or "N/A" in text) else text
        for text in texts[first : last + 1]
    ]
    words = [word.lower() for text in around for word in WORD.findall(text)]
    is_eval = any(word in EVALUATION_WORDS and word not in known for word in words)
    others = [word for word in words if word not in known]
    is_plain = all(word in EVALUATION_WORDS or word in ("final", "results", "result", "end") for word in others)
    return Row(tuple(fields), counter, total, epoch, epochs, is_eval, is_bar, len(others), is_plain)


def _is_bracketed(number: _Number) -> bool:
    """`[250] | loss …`"""
    return number.before.rstrip().endswith(("[", "(", "#")) and number.after.lstrip()[:1] in ("]", ")")


def _beside(number: _Number, fields: Sequence[Field]) -> list[Field]:
    """A number in brackets behind a loss is its mean so far; one behind a counter and a line is a clock."""
    text = number.before.strip(" >")
    if text == "(" and fields and fields[-1].place == number.place - 1 and fields[-1].column in ("loss", "val"):
        is_score = number.after[:1] == "z"  # of llm.c
        return [] if is_score else [Field(number.place, f"mean_{fields[-1].column}")]
    if number.place == 1 and text == "|" and number.after.startswith("]"):
        return [Field(number.place, "clock_s")]
    if number.place == 0 and text in ("", "tensor("):
        return [Field(number.place, "bare")]
    return []
