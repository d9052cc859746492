"""Explains whatever a user points at: a run, a log, a config, a preset, a pipe that is still growing, or a word."""

from __future__ import annotations

import codecs
import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

from nanolens.errors import UserError

if TYPE_CHECKING:
    from nanolens.analysis.explanation import Explanation, Passage, Section
    from nanolens.analysis.glossary import Entry
    from nanolens.config.fields import Config
    from nanolens.facts.case import Case
    from nanolens.interop.logs import Given
    from nanolens.record.run import Known

    Part: TypeAlias = Section | tuple[Passage, ...] | Explanation

LONGEST_QUOTE = 200
QUIET_S = 0.5  # a pipe that says nothing for so long is read as far as it is
BETWEEN_S = 1.0  # readings of a pipe are at least so far apart,
SHARE = 0.1  # and take no more than this share of the time


@dataclass(frozen=True)
class Subject:
    """What is to be explained, as the command line gives it."""

    source: str | None = None  # a run, a log, a config file, a preset, or "-"
    config: str | None = None
    hardware: str | None = None
    overrides: list[tuple[str, str]] = field(default_factory=list)


def explained(subject: Subject) -> Explanation:
    if is_ahead(subject):
        return _ahead(subject)
    from nanolens.analysis.explain import explain

    case, quote = _case(subject)
    told = explain(case, quote, codes_of(case))
    planned = _plan_against_actual(case)
    return replace(told, story=(*told.story, planned)) if planned is not None else told


def _plan_against_actual(case: Case) -> Section | None:
    """What `nanolens plan` had expected of these very settings, where it was asked."""
    from nanolens.analysis.explanation import Remark, Section
    from nanolens.api.plans import planned_for
    from nanolens.message import msg

    held = planned_for(case.run)
    if not held:
        return None
    return Section("plan", msg("Plan against actual"), tuple(Remark(each.topic, each.words) for each in held))


def entry(word: str, subject: Subject) -> Entry:
    """A word of the glossary, in the numbers of the run where one is given."""
    from nanolens.analysis.glossary import look_up

    if subject.source is None:
        return look_up(word)
    look_up(word)  # an unknown word is told before anything is read
    case = _case_ahead(subject)[0] if is_ahead(subject) else _case(subject)[0]
    return look_up(word, case)


def codes_of(case: Case) -> frozenset[str]:
    """What the diagnosis is sure enough of to be acted on."""
    from nanolens.diagnosis import diagnose

    return frozenset(finding.code for finding in diagnose(case.run).findings if finding.sureness != "possible")


# --- before it is run


def is_ahead(subject: Subject) -> bool:
    """Whether the source is a config or a preset: something that has not been run. A run of the same name comes first, as everywhere."""
    from nanolens.api.sources import CONFIG_SUFFIXES
    from nanolens.config.preset import named_preset
    from nanolens.record.store import find_run

    source = subject.source
    if source is None or source == "-":
        return False
    path = Path(source)
    if path.suffix in CONFIG_SUFFIXES and not path.is_dir():
        return True
    if path.exists():
        return path.suffix == ".json" and path.is_file() and _is_config(path)
    try:
        find_run(source)
    except UserError:
        return named_preset(source) is not None
    return False


def _is_config(path: Path) -> bool:
    """A JSON file may be a config or a trainer's log: a log has a list of rows in it."""
    import json

    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and not any(isinstance(item, (list, dict)) for item in value.values())


def _ahead(subject: Subject) -> Explanation:
    from nanolens.analysis.explain.ahead import explain_ahead
    from nanolens.config.preset import named_preset

    case, came_from = _case_ahead(subject)
    source = subject.source or ""
    return explain_ahead(case, came_from, None if Path(source).is_file() else named_preset(source))


def _case_ahead(subject: Subject) -> tuple[Case, dict[str, str]]:
    from nanolens.analysis.explain.ahead import FACTS, case_of
    from nanolens.api.sources import facts_of_options
    from nanolens.config.load import load
    from nanolens.record.run import Known

    ours = [(key, value) for key, value in subject.overrides if key not in FACTS]
    others = facts_of_options([(key, value) for key, value in subject.overrides if key in FACTS])
    facts = {key: Known(value, "given", f"--{key}") for key, value in others.items()}
    if subject.hardware:
        facts["hardware"] = Known(subject.hardware, "given", "--hardware")
    loaded = load(subject.source, ours)
    facts = _facts_of_data(loaded.config) | _claims(subject.source) | facts
    return case_of(loaded.config, loaded.came_from, facts, subject.source or ""), dict(loaded.came_from)


def _claims(source: str | None) -> dict[str, Known]:
    """The size that a config's names or comments claim for its model: settings alone do not hold it."""
    from nanolens.api.sources import open_run

    if source is None or not Path(source).is_file():
        return {}
    known = open_run(source, None, None, []).known
    return {name: known[name] for name in ("claimed_parameters",) if name in known}


def _facts_of_data(config: Config) -> dict[str, Known]:
    """What is counted in the data that the config names, where it is on this machine."""
    from nanolens.api.planning import data_facts
    from nanolens.record.run import Known

    found = data_facts(config)
    if not found.folder:
        return {}
    told = {"dataset_tokens": found.train_tokens, "vocab_size": found.vocab_size, "unigram_nats": found.unigram_nats}
    return {name: Known(value, "recorded", found.folder) for name, value in told.items() if value is not None}


# --- a run or a log


def _case(subject: Subject) -> tuple[Case, Callable[[int], str]]:
    from nanolens.api.sources import open_run
    from nanolens.facts.case import Case

    run = open_run(subject.source, subject.config, subject.hardware, subject.overrides)
    return Case(run), quoting(subject.source or "")


def quoting(source: str) -> Callable[[int], str]:
    """The lines of a log by their numbers; nothing where the source has no lines of text."""
    path = Path(source)
    if not path.is_file():
        return lambda line: ""
    from nanolens.logs.text import decode

    return _quoting_text(decode(path.read_bytes()))


def _quoting_text(text: str) -> Callable[[int], str]:
    from nanolens.logs.text import clean

    lines = clean(text).split("\n")
    return lambda line: _quoted(lines[line - 1]) if 0 < line <= len(lines) else ""


def _quoted(line: str) -> str:
    """A line as it was seen last (a progress bar draws itself anew), and not longer than fits."""
    drawn = [part for part in line.split("\r") if part.strip()]
    shown = drawn[-1].strip() if drawn else ""
    return shown if len(shown) <= LONGEST_QUOTE else shown[:LONGEST_QUOTE] + "…"


# --- a pipe


def follow(subject: Subject, stream: IO[bytes], clock: Callable[[], float] = time.monotonic) -> Iterator[Part]:
    """Explains a pipe as it grows: what is trained once that is known, then the lines that say something, at the end the story.

    A pipe that ends before anybody could have read along is explained whole, like a file.
    """
    from nanolens.analysis.explain import explain, explain_arrived
    from nanolens.analysis.explain.about import about
    from nanolens.facts.case import Case
    from nanolens.interop.logs import LogReader, read_log

    given = _given(subject)
    reader = LogReader(given, name="stdin")
    pieces: list[str] = []
    told: set[str] = set()
    last_line, next_at, is_begun = 0, clock() + BETWEEN_S, False
    for piece in _pieces(stream):
        pieces.append(piece)
        reader.feed(piece)
        if clock() < next_at:
            continue
        started_at = clock()
        case = Case(reader.runs(whole=False)[-1])
        if len(case.steps) or len(case.evals):
            if not is_begun:
                yield about(case)
                is_begun = True
            yield explain_arrived(case, last_line, told, _quoting_text("".join(pieces)))
            last_line = max([last_line, *case.steps.line[-1:].tolist(), *case.evals.line[-1:].tolist()])
        next_at = clock() + max(BETWEEN_S, (clock() - started_at) / SHARE)
    text = "".join(pieces)
    if not is_begun:
        run = read_log(
            text.encode(), config=given.config, config_where=given.config_where, comments=given.comments, hardware=given.hardware,
            given=given.facts, name="stdin",
        )  # fmt: skip
        case = Case(run)
        yield explain(case, _quoting_text(text), codes_of(case))
        return
    case = Case(reader.runs()[-1])
    yield explain_arrived(case, last_line, told, _quoting_text(text))
    yield replace(explain(case, codes=codes_of(case)), about=None, lines=(), left_out=None)


def _given(subject: Subject) -> Given:
    from nanolens.api.sources import facts_of_options
    from nanolens.config.load import read_foreign
    from nanolens.interop.logs import Given

    facts = facts_of_options(subject.overrides)
    if subject.config is None:
        return Given(hardware=subject.hardware, facts=facts)
    config = read_foreign(Path(subject.config))
    return Given(config.values, config.where, config.comments, subject.hardware, facts)


def _pieces(stream: IO[bytes]) -> Iterator[str]:
    """What the pipe gives, and an empty piece whenever it pauses."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    descriptor = stream.fileno()
    while True:
        if select.select([descriptor], [], [], QUIET_S)[0]:
            raw = os.read(descriptor, 1 << 16)
            if not raw:
                return
            yield decoder.decode(raw)
        else:
            yield ""
