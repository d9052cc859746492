"""Lines that a person wrote into a log: headings of runs, notes, and series of losses quoted in them.

    # run B: float16
    # val loss by step: 0: 10.87, 2000: 4.03, 5000: 3.76
    final val_loss of identical runs: 3.2806, 3.2771, 3.2829

A series counts as evaluations when it names a val loss, and its steps rise. A plain list of val losses is a fact (`final_val_losses`):
the ends of several runs. Ranges and other prose are kept as notes and not turned into numbers.
"""

from __future__ import annotations

import itertools
import re

import numpy as np

from nanolens.config.fields import settings
from nanolens.interop.logs.door import Found, Sign
from nanolens.interop.logs.facts import literal
from nanolens.interop.logs.names import setting_of
from nanolens.interop.logs.rows import NUMBER, Rows, joined
from nanolens.logs.text import Text

_NOTE = re.compile(r"^[> \t]{0,8}+(?:#|//)[^\n]{0,2000}", re.M)
_HEADING = re.compile(
    r"^[> \t]{0,8}+[#=*\-]{1,20} {0,3}[Rr](?:un|UN)[ :#_-]{1,3}([\w.\-]{1,60})((?: ?[:(,][^\n]{0,200})?)[ \t=*#-]{0,80}$", re.M
)
_VAL = re.compile(r"\b(?:val|validation|eval|test)[ _-]?loss\Z")
_QUOTED = re.compile(rf"loss(?:es)?[^:\n]{{0,60}}: {{0,3}}(?={NUMBER}[:,;])")
_SERIES = re.compile(rf"{NUMBER}: {{0,3}}{NUMBER}(?:[,;] {{0,3}}{NUMBER}: {{0,3}}{NUMBER}){{1,1000}}+")
_PAIR = re.compile(rf"({NUMBER}): {{0,3}}({NUMBER})")
_LIST = re.compile(rf"{NUMBER}(?:[,;] {{0,3}}{NUMBER}){{2,5000}}+(?= *$)", re.M)
_SPLIT = re.compile(r"[,;] {0,3}")
_SETTING = re.compile(rf"(?<![\w.])(?:--)?([A-Za-z_]\w{{0,40}})([= ])((?:{NUMBER}|True|False|\w{{1,40}}))(?![\w.])")
_ALL_SETTINGS = re.compile(r"(?:--)?\w{1,60}=[\w.\-+]{1,60}(?:[,;]? {0,3}(?:--)?\w{1,60}=[\w.\-+]{1,60}){0,40}")
MOST_NOTES = 200


def read_notes(source: Text, found: Found) -> None:
    text = source.text
    headings = _take_headings(source, found) if any(word in text for word in ("run", "Run", "RUN")) else set()
    if "#" in text or "//" in text:
        _take_notes(source, found, headings)
    quoted: list[Rows] = []
    for match in itertools.islice(_QUOTED.finditer(text), MOST_NOTES):
        if _VAL.search(text[max(0, match.start() - 12) : match.start() + 4]):
            _take_quoted(match.end(), source, found, quoted)
    if quoted:
        found.evals = joined((found.evals, *quoted))


def _take_headings(source: Text, found: Found) -> set[int]:
    """Lines that name a run; settings in them are that run's."""
    lines = set()
    for match in itertools.islice(_HEADING.finditer(source.text), MOST_NOTES):
        name = (match[1] + match[2]).strip().rstrip("=*-#: ")
        line, at = source.line_at(match.start()), source.offset + match.start()
        found.sign(Sign("run", at, line, name))
        _take_settings(match[2], line, at, found, spaced=True)
        lines.add(line)
    return lines


def _take_notes(source: Text, found: Found, headings: set[int]) -> None:
    matches = list(_NOTE.finditer(source.text))
    lines = source.lines_at(np.array([match.start() for match in matches], np.int64)).tolist()
    found.understood += lines
    for match, line in itertools.islice(zip(matches, lines, strict=True), MOST_NOTES):
        at = source.offset + match.start()
        if line not in headings:
            note = match[0].lstrip("#/> \t").rstrip()
            found.tell("notes", note, line, at)
            if note and _ALL_SETTINGS.fullmatch(note):
                _take_settings(note, line, at, found, spaced=False)


def _take_settings(note: str, line: int, at: int, found: Found, *, spaced: bool) -> None:
    """`n_embd=384`, `--compile=False`; in a heading also `n_embd 384` and the name of a precision."""
    for match in _SETTING.finditer(note):
        name = setting_of(match[1])
        if name in settings() and (match[2] == "=" or spaced):
            found.tell(name, literal(match[3]), line, at)
    if spaced and (precision := re.search(r"\b(bfloat16|float16|float32|bf16|fp16|fp32)\b", note)):
        found.tell("dtype", precision[1], line, at)


def _take_quoted(start: int, source: Text, found: Found, quoted: list[Rows]) -> None:
    """A series of `step: loss` becomes evaluations, a list of losses a fact."""
    line = source.line_at(start)
    if match := _SERIES.match(source.text, start):
        pairs = [(step.replace(",", ""), float(loss.replace(",", ""))) for step, loss in _PAIR.findall(match[0])]
        if not all(step.isdigit() and len(step) < 16 for step, _ in pairs):
            return
        steps = np.array([int(step) for step, _ in pairs], np.int64)
        if np.any(np.diff(steps) <= 0):
            return  # numbers that do not rise are no steps
        at = start + np.arange(len(steps)) + source.offset  # one place each, so that each is a row
        values = np.array([loss for _, loss in pairs])
        quoted.append(Rows(at, np.full(len(steps), line, np.int64), at, steps, {"val": values, "quoted": np.ones(len(steps))}))
        found.quoted += len(steps)
    elif match := _LIST.match(source.text, start):
        values = np.array([float(number.replace(",", "")) for number in _SPLIT.split(match[0])])
        found.tell("final_val_losses", tuple(values.tolist()), line, source.offset + start)
