"""What a log says besides its rows: the sentences of `sentences.toml`, settings that a line states alone (`n_layer =
12`, `| num_layers L | 12 |`), and what a person wrote into it: headings of runs, notes, and losses quoted in them.

    # run B: float16
    # val loss by step: 0: 10.87, 2000: 4.03, 5000: 3.76
    final val_loss of identical runs: 3.2806, 3.2771, 3.2829

A series counts as evaluations when it names a val loss, and its steps rise. A plain list of val losses is a fact
(`final_val_losses`): the ends of several runs. Ranges and other prose are kept as notes and not turned into numbers."""

from __future__ import annotations

import itertools
import math
import re
import shlex
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanolens.config.fields import settings
from nanolens.config.names import SETTINGS, normalised, setting_of
from nanolens.logs.fields import NUMBER
from nanolens.logs.rows import COUNT_SCALES, Found, Rows, Sentence, Sign, joined, sentence_pattern, sentences_in
from nanolens.logs.text import LogText, lines_with

TABLE = Path(__file__).with_name("sentences.toml")
_SENTENCES = sentences_in(tomllib.loads(TABLE.read_text("utf-8")))
LONGEST_TEXT = 400
MOST_LINES = 2000  # with one sentence, and of settings: a text that repeats itself more often says nothing new
TRACEBACK = "Traceback (most recent call last)"
LONGEST_TRACEBACK, MOST_TRACEBACKS = 20_000, 32
_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_ERROR = re.compile(
    r"^[^\n]{0,60}?\b((?:[\w.]{1,80}\.)?\w{0,60}(?:Error|Exception|Interrupt|Exit)\b(?::[^\n]{0,400})?)[ \t\r]*$", re.M
)
_UNITS = {"peak_tflops": ("peak_flops", 1e12), "parameters_total_millions": ("parameters_total", 1e6)}


def read_facts(source: LogText, found: Found, own: Sequence[Sentence], header: str) -> None:
    # What each word leads to: first the facts, last what happened
    sentences = (*_SENTENCES, *own)
    facts = [(each.word, partial(_take, each)) for each in sentences if not each.mark]
    marks = [(each.word, partial(_take, each)) for each in sentences if each.mark]
    readers: list[tuple[str, _Reader]] = [*facts, *_BY_HAND, *marks]
    if header:
        readers.insert(0, (header, _header))
    for part in source.besides_rows:
        for word, take in readers:
            for start, line in itertools.islice(lines_with(part.text, word), MOST_LINES):
                take(_Line(line, start, part, found))
    _take_settings(source, found)
    _take_lists(source, found)


class _Line(NamedTuple):
    text: str
    start: int
    source: LogText
    found: Found

    def tell(self, name: str, value: object) -> None:
        if not isinstance(value, float) or math.isfinite(value):
            self.found.tell(name, value, *self.source.place(self.start))

    def sign(self, kind: str, text: str | None = None, step: int | None = None) -> None:
        said = (self.text if text is None else text).strip()[:LONGEST_TEXT]
        self.found.sign(Sign(kind, *self.source.place(self.start), said, step))


def _take(sentence: Sentence, line: _Line) -> None:
    match = sentence_pattern(sentence.pattern).search(line.text)
    said = match.groupdict() if match else {}
    if match and sentence.mark:
        line.sign(sentence.mark, said.get("text"), int(said["step"]) if said.get("step") else None)
        return
    for name, text in said.items():
        if f"{name}_scale" in said:
            fact, scale = _UNITS.get(name, (name, 1))
            line.tell(fact, _plain(float(text.replace(",", "")) * COUNT_SCALES[said[f"{name}_scale"]]) * scale)
        elif text and not name.endswith("_scale"):
            line.tell(name, literal(text) if text in ("True", "False") else text.strip())


def _plain(number: float) -> int | float:
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _header(line: _Line) -> None:
    for name, value in header_facts(line.text).items():
        if name not in ("loss", "time", "updates_before_printed", "mfu", "run"):
            line.tell(name, value)
    line.found.understood.append(line.source.place(line.start)[0])


def header_facts(line: str) -> dict[str, str | float]:
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that the line's end cut off
        words = line.split()
    pairs = (word.partition("=") for word in words if "=" in word)
    return {key: literal(value) for key, _, value in pairs if key.isidentifier()}


def _batch_parts(line: _Line) -> None:
    """Of llama2.c. nanoGPT's gradient_accumulation_steps counts all processes, so theirs is multiplied."""
    parts = re.search(
        r"(\d{1,9}) grad accum steps \* (\d{1,9}) processes \* (\d{1,9}) batch size \* (\d{1,9}) max seq len", line.text
    )
    if parts:
        accumulation, devices, batch, length = map(int, parts.groups())
        names = ("gradient_accumulation_steps", "devices", "batch_size", "block_size")
        for name, value in zip(names, (accumulation * devices, devices, batch, length), strict=True):
            line.tell(name, value)


def _command(line: _Line) -> None:
    """`python train.py config/x.py --batch_size=8`: what was typed is what was meant."""
    if not re.search(r"\b(?:python3?|torchrun|accelerate)\b", line.text):
        return
    if match := re.search(r"(\S{0,200}config/[\w.\-]{1,80}\.py)", line.text):
        line.tell("config_file", match[1])
    if match := re.search(r"--nproc[_-]per[_-]node[= ](\d{1,4})", line.text):
        line.tell("devices", int(match[1]))
    for key, value in re.findall(r"--([A-Za-z_]\w{1,40})=(\S{1,200})", line.text):
        if setting_of(key) in settings():
            line.tell(setting_of(key), literal(value))


def _out_of_memory(line: _Line) -> None:
    line.sign("out_of_memory")
    for fact, pattern in (
        ("device_memory_bytes", r"([\d.]{1,12}) (MiB|GiB) total capacity"),
        ("device_memory_bytes", r"total capacity of ([\d.]{1,12}) (MiB|GiB)"),
        ("allocation_bytes", r"Tried to allocate ([\d.]{1,12}) (KiB|MiB|GiB)"),
    ):
        if match := re.search(pattern, line.text):
            line.tell(fact, round(float(match[1]) * _BYTES[match[2]]))


def _traceback(line: _Line) -> None:
    if sum(sign.kind in ("error", "ended") for sign in line.found.signs[-MOST_TRACEBACKS:]) >= MOST_TRACEBACKS:
        return
    error = _ERROR.search(line.source.text[line.start : line.start + LONGEST_TRACEBACK])
    last = error[1] if error else "Traceback"
    line.sign("ended" if "KeyboardInterrupt" in last else "error", last)


def _wall(line: _Line) -> None:
    """What bash's `time` says at the end."""
    if match := re.match(r"real\s{1,8}(\d{1,6})m([\d.]{1,9})s\s*$", line.text):
        line.tell("wall_s", int(match[1]) * 60 + float(match[2]))


_Reader = Callable[[_Line], None]
_BY_HAND: tuple[tuple[str, _Reader], ...] = (
    ("breaks down as", _batch_parts),
    ("train.py", _command),
    ("real\t", _wall),
    ("out of memory", _out_of_memory),
    ("OutOfMemoryError", lambda line: None if "out of memory" in line.text else _out_of_memory(line)),
    (TRACEBACK, _traceback),
)

_SETTING = re.compile(
    r"^[> \t|]{0,12}+(?:Overriding: )?[\"']?([A-Za-z_][\w \-()]{0,40}?)[\"']?(?: (?:: ?(?:int|float|str|bool) ))? "
    r"{0,30}(?:[=:|]|\.{3,60}) {0,4}"
    rf"((?:[\"'][^\"'\n]{{0,200}}[\"']|\d{{1,9}}(?: ?\* ?\d{{1,9}}){{1,3}}|{NUMBER}|[\w./\-]{{1,80}}))"
    r"[ \t,|]{0,80}+((?:#[^\n]{0,400})?)$",
    re.M,
)
_PROGRAM = re.compile(r"^(?:def|class) \w{1,80}[(:]", re.M)
# Names that are settings wherever they stand. One letter is not: `t = 1` may be anything.
_KNOWN = {*settings(), *(name for name in SETTINGS if len(name) > 1), "flops_per_token", "peak_flops"}
_KNOWN -= {"device", "num_steps", "dim", "gpu", "wd"}
_TEXTS = frozenset("dataset init_from dtype device optimizer schedule arch hardware wandb_run_name".split())


def _take_settings(source: LogText, found: Found) -> None:
    # Most lines of most logs are rows, and no row states a setting.
    rows = [rows.line for kind, rows in found.tables.items() if kind in ("steps", "evals", "loose_evals")]
    parts = source.without(np.concatenate([np.zeros(0, np.int64), *rows]) - source.first_line)
    if any(_PROGRAM.search(part.text) for part in source.besides_rows):
        # Some trainers print their own source first: which of its assignments hold, only running it would tell.
        parts = parts[1:]
    matches = ((part, match) for part in parts if not part.text.isspace() for match in _SETTING.finditer(part.text))
    stated = ((part, match) for part, match in matches if normalised(match[1]) in _KNOWN)
    for part, match in itertools.islice(stated, MOST_LINES):
        name, value = setting_of(match[1]), literal(match[2])
        if (isinstance(value, str) and name not in _TEXTS) or (isinstance(value, float) and not math.isfinite(value)):
            continue
        place = part.place(match.start())
        found.tell(name, value, *place)
        if match[3]:
            found.tell("comments", match[3].lstrip("# ").strip(), *place)


_PAIRS = re.compile(r"(?:^|[\s,;(])(?:--)?([A-Za-z_]\w{1,40})=([^\s,;()]{1,200})")
FEWEST_PAIRS = 5  # `key=value` in one line that make it a list of settings


def _take_lists(source: LogText, found: Found) -> None:
    """Lines of many settings: `seed=1337 train_batch_tokens=524288 vocab_size=8192 …`."""
    for part in source.besides_rows:
        for start, line in itertools.islice(lines_with(part.text, "=", LONGEST_LIST), MOST_LINES):
            pairs = _PAIRS.findall(line) if line.count("=") >= FEWEST_PAIRS else ()
            for name, text in pairs if len(pairs) >= FEWEST_PAIRS else ():
                value = literal(text)
                if normalised(name) in _KNOWN and not isinstance(value, str):
                    found.tell(setting_of(name), value, *part.place(start))


LONGEST_LIST = 8000


def literal(text: str) -> str | float:
    """A value as a person or a Python program writes it."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"\d{1,9}(?: ?\* ?\d{1,9}){1,3}", text):
        return math.prod(int(part) for part in text.split("*"))
    number = re.sub(r"(?<=\d)_(?=\d)", "", text)
    return _plain(float(number.replace(",", ""))) if re.fullmatch(NUMBER, number) else text.strip("\"'")


_NOTE = re.compile(r"^[> \t]{0,8}+(?:#|//)[^\n]{0,2000}", re.M)
_HEADING = re.compile(
    r"^[> \t]{0,8}+[#=*\-]{1,20} {0,3}[Rr](?:un|UN)[ :#_-]{1,3}([\w.\-]{1,60})((?: ?[:(,][^\n]{0,200})?)[ "
    r"\t=*#-]{0,80}$",
    re.M,
)
_VAL = re.compile(r"\b(?:val|validation|eval|test)[ _-]?loss\Z")
_QUOTED = re.compile(rf"loss(?:es)?[^:\n]{{0,60}}: {{0,3}}(?={NUMBER}[:,;])")
_SERIES = re.compile(rf"{NUMBER}: {{0,3}}{NUMBER}(?:[,;] {{0,3}}{NUMBER}: {{0,3}}{NUMBER}){{1,1000}}+")
_PAIR = re.compile(rf"({NUMBER}): {{0,3}}({NUMBER})")
_LIST = re.compile(rf"{NUMBER}(?:[,;] {{0,3}}{NUMBER}){{2,5000}}+(?= *$)", re.M)
_SPLIT = re.compile(r"[,;] {0,3}")
_NOTED_SETTING = re.compile(
    rf"(?<![\w.])(?:--)?([A-Za-z_]\w{{0,40}})([= ])((?:{NUMBER}|True|False|\w{{1,40}}))(?![\w.])"
)
_ALL_SETTINGS = re.compile(r"(?:--)?\w{1,60}=[\w.\-+]{1,60}(?:[,;]? {0,3}(?:--)?\w{1,60}=[\w.\-+]{1,60}){0,40}")
MOST_NOTES = 200


def read_notes(source: LogText, found: Found) -> None:
    text = source.text
    headings = _take_headings(source, found) if any(word in text for word in ("run", "Run", "RUN")) else set()
    if "#" in text or "//" in text:
        _take_notes(source, found, headings)
    series = itertools.islice(_QUOTED.finditer(text), MOST_NOTES)
    of_val = [each.end() for each in series if _VAL.search(text[max(0, each.start() - 12) : each.start() + 4])]
    found.evals = joined((found.evals, *(_take_quoted(start, source, found) for start in of_val)))


def _take_headings(source: LogText, found: Found) -> set[int]:
    """Lines that name a run; settings in them are that run's."""
    lines = set()
    for match in itertools.islice(_HEADING.finditer(source.text), MOST_NOTES):
        place = source.place(match.start())
        found.sign(Sign("run", *place, (match[1] + match[2]).strip().rstrip("=*-#: ")))
        _take_noted_settings(match[2], place, found, spaced=True)
        lines.add(place[0])
    return lines


def _take_notes(source: LogText, found: Found, headings: set[int]) -> None:
    matches = list(_NOTE.finditer(source.text))
    lines = source.lines_at(np.array([match.start() for match in matches], np.int64)).tolist()
    found.understood += lines
    for match, line in itertools.islice(zip(matches, lines, strict=True), MOST_NOTES):
        if line not in headings:
            note, place = match[0].lstrip("#/> \t").rstrip(), (line, source.offset + match.start())
            found.tell("notes", note, *place)
            if note and _ALL_SETTINGS.fullmatch(note):
                _take_noted_settings(note, place, found, spaced=False)


def _take_noted_settings(note: str, place: tuple[int, int], found: Found, *, spaced: bool) -> None:
    """`n_embd=384`, `--compile=False`; in a heading also `n_embd 384` and the name of a precision."""
    for match in _NOTED_SETTING.finditer(note):
        name = setting_of(match[1])
        if name in settings() and (match[2] == "=" or spaced):
            found.tell(name, literal(match[3]), *place)
    if spaced and (precision := re.search(r"\b(bfloat16|float16|float32|bf16|fp16|fp32)\b", note)):
        found.tell("dtype", precision[1], *place)


def _take_quoted(start: int, source: LogText, found: Found) -> Rows:
    """A series of `step: loss` gives evaluations, a list of losses a fact."""
    line, at_first = source.place(start)
    if match := _SERIES.match(source.text, start):
        pairs = [(step.replace(",", ""), float(loss.replace(",", ""))) for step, loss in _PAIR.findall(match[0])]
        if not all(step.isdigit() and len(step) < 16 for step, _ in pairs):
            return Rows()
        steps = np.array([int(step) for step, _ in pairs], np.int64)
        if np.any(np.diff(steps) <= 0):
            return Rows()  # numbers that do not rise are no steps
        at = at_first + np.arange(len(steps))  # one place each, so that each is a row
        columns = {"val": np.array([loss for _, loss in pairs]), "quoted": np.ones(len(steps))}
        found.quoted += len(steps)
        return Rows(at, np.full(len(steps), line), at, steps, columns)
    if match := _LIST.match(source.text, start):
        losses = tuple(float(number.replace(",", "")) for number in _SPLIT.split(match[0]))
        found.tell("final_val_losses", losses, line, at_first)
    return Rows()
