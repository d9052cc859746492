"""Explains whatever a user points at: a run, a log, a config, a preset, a pipe that is still growing, or a word."""

from __future__ import annotations

import codecs
import json
import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TypeAlias

from nanolens.config.load import load, named_preset, read_foreign
from nanolens.config.python_file import ConfigFile
from nanolens.diagnosis import diagnose
from nanolens.errors import UserError
from nanolens.explanation import explain, explain_arrived
from nanolens.explanation.glossary import Term, look_up
from nanolens.explanation.pick import Explanation, Passage, Section, remarks
from nanolens.explanation.sections import about, explain_ahead
from nanolens.facts.case import Case
from nanolens.logs import read_log
from nanolens.logs.documents import as_lines
from nanolens.logs.given import Given
from nanolens.logs.open import CONFIG_SUFFIXES, facts_of_options, open_run
from nanolens.logs.reader import LogReader, unpacked
from nanolens.logs.text import clean, decode
from nanolens.message import msg
from nanolens.planning.question import data_facts, planned_for
from nanolens.record.run import Known
from nanolens.record.store import find_run

Part: TypeAlias = Section | tuple[Passage, ...] | Explanation

LONGEST_QUOTE = 200
FACTS = frozenset(
    """dataset_tokens val_tokens bytes_per_token unigram_nats bigram_nats peak_flops devices hardware
    flops_per_token""".split()
)
"""What `--key=value` may say besides settings: of the data and the machine."""
QUIET_S = 0.5  # a pipe that says nothing for so long is read as far as it is
BETWEEN_S = 1.0  # readings of a pipe are at least so far apart,
SHARE = 0.1  # and take no more than this share of the time


@dataclass(frozen=True)
class ExplainTarget:
    source: str | None = None  # a run, a log, a config file, a preset, or "-"
    config: str | None = None
    hardware: str | None = None
    overrides: list[tuple[str, str]] = field(default_factory=list)


def explained(subject: ExplainTarget) -> Explanation:
    source, path = subject.source or "", Path(subject.source or "")
    if is_ahead(subject):
        case, came_from = _case_ahead(subject)
        return explain_ahead(case, came_from, None if path.is_file() else named_preset(source))
    case = _case(subject)
    explanation = explain(case, quoting(decode(unpacked(path.read_bytes())) if path.is_file() else ""), codes_of(case))
    # What `nanolens plan` had expected of these very settings, where it was asked.
    if planned := remarks((each.topic, each.words) for each in planned_for(case.run)):
        section = Section("plan", msg("Plan vs actual"), planned)
        return replace(explanation, story=(*explanation.story, section))
    return explanation


def term_of(word: str, subject: ExplainTarget) -> Term:
    """A word of the glossary, in the numbers of the run where one is given."""
    term = look_up(word)  # an unknown word is reported before anything is read
    if subject.source is None:
        return term
    return look_up(word, _case_ahead(subject)[0] if is_ahead(subject) else _case(subject))


def codes_of(case: Case) -> frozenset[str]:
    """What the diagnosis is sure enough of to be acted on."""
    return frozenset(finding.code for finding in diagnose(case.run).findings if finding.sureness != "possible")


# --- before it is run


def is_ahead(subject: ExplainTarget) -> bool:
    """Whether it is a config or a preset, which has not been run. A run of the same name comes first, as everywhere."""
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
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and not any(isinstance(item, (list, dict)) for item in value.values())


def _case_ahead(subject: ExplainTarget) -> tuple[Case, dict[str, str]]:
    source, said = subject.source or "", subject.overrides
    loaded = load(subject.source, [(key, value) for key, value in said if key not in FACTS])
    facts = {}
    data = data_facts(loaded.config)  # counted in the data that the config names, where it is on this machine
    if data.folder:
        counts = {"dataset_tokens": data.train_tokens, "vocab_size": data.vocab_size, "unigram_nats": data.unigram_nats}
        facts = {key: Known(value, "recorded", data.folder) for key, value in counts.items() if value is not None}
    if Path(source).is_file():  # what its names or comments claim as the model's size: settings alone do not hold it
        claims = open_run(source).known
        facts |= {key: claims[key] for key in ("claimed_parameters",) if key in claims}
    options = facts_of_options([(key, value) for key, value in said if key in FACTS])
    options |= {"hardware": subject.hardware} if subject.hardware else {}
    facts |= {key: Known(value, "given", f"--{key}") for key, value in options.items()}
    return Case.of_config(loaded.config, facts, came_from=loaded.came_from, name=source), dict(loaded.came_from)


# --- a run or a log


def _case(subject: ExplainTarget) -> Case:
    return Case(open_run(subject.source, subject.config, subject.hardware, subject.overrides))


def quoting(text: str) -> Callable[[int], str]:
    """The lines of a log by their numbers."""
    lines = clean(as_lines(text) or text).split("\n")

    def quote(number: int) -> str:
        """A line as it was seen last (a progress bar draws itself anew), and not longer than fits."""
        line = lines[number - 1] if 0 < number <= len(lines) else ""
        shown = next((part.strip() for part in reversed(line.split("\r")) if part.strip()), "")
        return shown if len(shown) <= LONGEST_QUOTE else shown[:LONGEST_QUOTE] + "…"

    return quote


# --- a pipe


def follow(subject: ExplainTarget, stream: IO[bytes], clock: Callable[[], float] = time.monotonic) -> Iterator[Part]:
    """Explains a pipe as it grows: what is trained, the lines that say something, at the end the story. One that ends
    before anybody could have read along is explained whole, like a file."""
    config = ConfigFile() if subject.config is None else read_foreign(Path(subject.config))
    facts = facts_of_options(subject.overrides)
    given = Given(config.values, config.where, config.comments, subject.hardware, facts)
    reader = LogReader(given, name="stdin")
    pieces: list[str] = []
    mentions: set[str] = set()
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
            yield explain_arrived(case, last_line, mentions, quoting("".join(pieces)))
            last_line = max([last_line, *case.steps.line[-1:].tolist(), *case.evals.line[-1:].tolist()])
        next_at = clock() + max(BETWEEN_S, (clock() - started_at) / SHARE)
    text = "".join(pieces)
    if not is_begun:
        case = Case(read_log(text.encode(), given, name="stdin"))
        yield explain(case, quoting(text), codes_of(case))
        return
    case = Case(reader.runs()[-1])
    yield explain_arrived(case, last_line, mentions, quoting(text))
    yield replace(explain(case, codes=codes_of(case)), about=None, lines=(), left_out=None)


def _pieces(stream: IO[bytes]) -> Iterator[str]:
    """What the pipe gives, and an empty piece whenever it pauses."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    descriptor = stream.fileno()
    while True:
        if not select.select([descriptor], [], [], QUIET_S)[0]:
            yield ""
        elif raw := os.read(descriptor, 1 << 16):
            yield decoder.decode(raw)
        else:
            return
