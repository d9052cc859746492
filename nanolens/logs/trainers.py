"""What is known of trainers beyond the names in their rows: `trainers.toml`, one table each."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from nanolens.config.names import normalised
from nanolens.errors import fault
from nanolens.logs.facts import header_facts
from nanolens.logs.rows import Sentence, sentences_in
from nanolens.logs.text import lines_with
from nanolens.message import msg
from nanolens.record.run import Conventions

_TABLE = Path(__file__).with_name("trainers.toml")
SAMPLE = 200_000  # characters from the head, the middle and the end that are looked at
MOST_LOOKED_AT = 200  # lines with one word


@dataclass(frozen=True)
class Trainer:
    """How a trainer counts, averages and times."""

    name: str  # what `--log_format` calls it
    conventions: Conventions
    signs: Sequence[tuple[str, re.Pattern[str]]] = ()  # (a word of the line, its pattern): lines that only it prints
    columns: Mapping[str, str] = field(default_factory=dict)  # its names that mean something else than usual
    loss_unit: str = ""
    time_is_of: str = ""  # "micro_batch" or "clock", where its time is not that of an update
    speed_may_be_of_micro_batch: bool = False
    sentences: Sequence[Sentence] = ()
    header: str = ""
    needs: str = ""  # a text without it is not of this trainer, whatever its lines look like
    defaults: Mapping[str, object] = field(default_factory=dict)  # its own, where neither text nor user says otherwise
    variants: Sequence[tuple[str, Mapping[str, Any]]] = ()  # (a word of the text, conventions that then hold)

    def columns_of(self, names: Iterable[str]) -> Iterable[tuple[str, str]]:
        return ((name, self.columns[plain]) for name in names if (plain := normalised(name)) in self.columns)

    def conventions_in(self, text: str) -> Conventions:
        """The conventions, with those that this very text states."""
        conventions = self.conventions
        for word, stated in self.variants:
            if word in text:
                conventions = replace(conventions, **stated)
        return _stated_by_header(text, self.header, conventions) if self.header else conventions


def _stated_by_header(text: str, header: str, conventions: Conventions) -> Conventions:
    allowed = {"loss": ("mean", "last_micro_batch", "smoothed"), "time": ("step_only", "with_eval", "average")}
    numbers = {each.name for each in fields(Conventions)} - {"trainer", *allowed}
    stated = header_facts(next((line for _, line in lines_with(text, header)), "")).items()
    words = {key: value for key, value in stated if value in allowed.get(key, ())}
    finite = {key: value for key, value in stated if not isinstance(value, str) and math.isfinite(value)}
    known = words | {key: value for key, value in finite.items() if key in numbers}
    return replace(conventions, **known)  # type: ignore[arg-type]


def recognise(text: str) -> Trainer:
    """The trainer whose signs most lines of a sample bear, the first of equals; UNKNOWN where none does."""
    sample = _sample(text)
    best, most = UNKNOWN, 0
    for trainer in TRAINERS:
        if trainer.needs not in text:
            continue
        seen: set[int] = set()
        for word, pattern in trainer.signs:
            for start, line in itertools.islice(lines_with(sample, word), MOST_LOOKED_AT):
                if pattern.search(line):
                    seen.add(start)
        if len(seen) > most:
            best, most = trainer, len(seen)
    return best


def trainer_named(name: str) -> Trainer:
    for trainer in (*TRAINERS, UNKNOWN):
        if trainer.name == name:
            return trainer
    raise fault(
        msg("there is no log format named {name:code}", name),
        where=f"--log_format={name}",
        fix=msg("use one of {names:code}", list(FORMAT_NAMES)),
    )


def _sample(text: str) -> str:
    """Three stretches of a long text: it may begin with a program's source, and end with samples."""
    if len(text) <= 3 * SAMPLE:
        return text
    middle = (len(text) - SAMPLE) // 2
    return "\n".join(text[at : at + SAMPLE] for at in (0, middle, len(text) - SAMPLE))


def _trainer(name: str, table: Mapping[str, Any]) -> Trainer:
    signs = tuple((word, re.compile(pattern or re.escape(word))) for word, pattern in table["signs"])
    names = ("columns", "loss_unit", "time_is_of", "speed_may_be_of_micro_batch", "header", "needs", "defaults")
    more = {key: table[key] for key in names if key in table}
    variants = tuple(
        (word, {key: None if value == math.inf else value for key, value in stated.items()})
        for word, stated in table.get("variants", ())
    )
    conventions = Conventions(**{"trainer": name, **table.get("conventions", {})})
    return Trainer(name, conventions, signs, sentences=sentences_in(table), variants=variants, **more)


_TABLES = tomllib.loads(_TABLE.read_text("utf-8"))
TRAINERS = tuple(_trainer(name, table) for name, table in _TABLES.items())
UNKNOWN = Trainer("unknown", Conventions(trainer="unknown"))
FORMAT_NAMES = (*(trainer.name for trainer in TRAINERS), UNKNOWN.name)
