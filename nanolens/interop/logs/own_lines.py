"""What `nanolens train` prints where its output is no terminal: nanoGPT's lines, with our meanings, under a header that says so.

    # nanolens 0.1.0 run=runs/quickstart-1 loss=mean time=step_only updates_before_printed=1 mfu=unsmoothed peak_flops=210000000000
    step 0: train loss 4.1751, val loss 4.1762
    iter 0: loss 4.1790, time 55.12ms, mfu 60.10%

`iter k` leads from step k to k+1; its loss is the mean of the whole batch, its time that of the update alone, its MFU against the peak in
the header.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import fields, replace
from typing import Any

from nanolens.interop.logs import nanogpt
from nanolens.interop.logs.door import Door, Found
from nanolens.logs.text import Text, lines_with
from nanolens.record.run import Words

SIGN = "# nanolens "
WORDS = Words(trainer="nanolens", loss="mean", time="step_only", updates_before_printed=1)
_CONVENTIONS = frozenset(("loss", "time", "updates_before_printed", "mfu", "run"))
_NUMBER = re.compile(r"-?\d{1,30}(?:\.\d{1,30})?(?:e[-+]?\d{1,3})?\Z")


def find(source: Text) -> Found:
    found = nanogpt.find(source)
    for at, line in lines_with(source.text, SIGN):
        number = source.line_at(at)
        for key, value in header_facts(line).items():
            if key not in _CONVENTIONS:
                found.tell(key, value, number, source.offset + at)
        found.understood.append(number)
    return found


def header_facts(line: str) -> dict[str, Any]:
    """`key=value` pairs of a header line, numbers as numbers."""
    said = line.split(SIGN, 1)[-1]
    try:
        words = shlex.split(said)
    except ValueError:  # a quote that the line's end cut off
        words = said.split()
    pairs = (word.partition("=") for word in words if "=" in word)
    return {key: _value(value) for key, _, value in pairs if key.isidentifier()}


def words_in(text: str, words: Words) -> Words:
    """The conventions that the header names; a header that leaves one out follows the usual ones."""
    for _, line in lines_with(text, SIGN):
        said = header_facts(line)
        known = {field.name for field in fields(Words)}
        stated = {key: value for key, value in said.items() if key in known - {"trainer"} and _fits(key, value)}
        return replace(words, **stated)
    return words


def _fits(key: str, value: object) -> bool:
    allowed = {"loss": ("mean", "last_micro_batch", "smoothed"), "time": ("step_only", "with_eval", "average")}
    return value in allowed[key] if key in allowed else isinstance(value, (int, float))


def _value(text: str) -> object:
    if not _NUMBER.match(text):
        return text
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


DOOR = Door("nanolens", WORDS, signs=(SIGN,), find=find, words_in=words_in)
