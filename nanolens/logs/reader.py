"""Finds a log (a text, a file, a tracker's folder), recognises its format, and reads it whole or as it comes."""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from nanolens.errors import fault, require
from nanolens.logs import documents, tracker_files
from nanolens.logs.assemble import assemble, ranks_in
from nanolens.logs.facts import LONGEST_TRACEBACK, TRACEBACK, read_facts, read_notes
from nanolens.logs.given import Given
from nanolens.logs.lines import read_lines
from nanolens.logs.rows import Found, Rows
from nanolens.logs.tables import read_tables
from nanolens.logs.text import LogText, clean, decode
from nanolens.logs.trainers import FORMAT_NAMES, UNKNOWN, Trainer, recognise, trainer_named
from nanolens.message import msg
from nanolens.record.run import Conventions, Reading, RunRecord

EXAMPLES, LONGEST_EXAMPLE = 5, 120
SETTLED_ROWS, SETTLED_CHARACTERS = 20, 100_000
_STAMP = re.compile(
    r"^(?:[>#]{0,3} {0,4}\[[^\]\n]{1,20}\]:? ?){0,3}[^\n\d]{0,4}"
    r"(\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)",
    re.M,
)

_FENCE = re.compile(r"^[> \t]{0,8}```", re.M)
_PER_CHARACTER = re.compile(r"\b(?:BPC|bpc)\b|bits.per.char")


class LogReader:
    """`feed` it text, ask it for `runs`. What was understood once is not read again."""

    def __init__(
        self, given: Given | None = None, *, format: str | None = None, name: str = "log", first_line: int = 1
    ):
        self.given = given or Given()
        self.name = name
        self._first_line = first_line
        self._trainer: Trainer = trainer_named(format) if format else UNKNOWN
        self._is_asked_for = format is not None
        self._is_settled = False  # enough was read to be sure of the trainer
        self._unsettled = ""  # until then what was read is kept, to be read again as another's if need be
        self._waiting: list[str] = []  # text that is not read yet
        self._forget()

    def _forget(self) -> None:
        self._found, self._reading = Found(), Reading()
        self._ranks: dict[int, int] = {}
        self._lines_read, self._characters_read = self._first_line - 1, 0
        self._conventions: Conventions | None = None

    def feed(self, text: str) -> None:
        if text:
            self._waiting.append(text)

    def runs(self, *, whole: bool = True) -> list[RunRecord]:
        """The runs so far. With `whole=False` a last line (or redraw) without its end is left for the next time."""
        text = "".join(self._waiting)
        end = len(text) if whole else _end_of_rows(text)
        text, rest = text[:end], text[end:]
        if text:
            self._waiting = [rest] if rest else []
            self._read(clean(text))
        return assemble(
            self._found.copy(), self._trainer, self.given, self._reading, self.name, self._ranks, self._conventions
        )

    def _read(self, text: str) -> None:
        if not self._is_settled:
            text = self._unsettled = self._unsettled + text
            self._forget()
        if not self._is_asked_for and (self._trainer is UNKNOWN or not self._is_settled):
            self._trainer = recognise(text)
        self._read_on(text)
        rows = sum(len(rows) for kind, rows in self._found.tables.items() if kind in ("steps", "loose_steps"))
        if rows >= SETTLED_ROWS or len(self._unsettled) >= SETTLED_CHARACTERS:
            self._is_settled, self._unsettled = True, ""

    def _read_on(self, text: str) -> None:
        source = LogText(text, self._lines_read + 1, self._characters_read)
        in_tables, their_rows = read_tables(source)
        found = read_lines(source, self._trainer, in_tables)
        found.add(their_rows)
        if "```" in text:
            fences = [match.start() for match in _FENCE.finditer(text)]
            found.fences = [source.offset + start for start in fences]
            found.understood += source.lines_at(np.array(fences, np.int64)).tolist()
        found.bits_unit = "bits_per_char" if _PER_CHARACTER.search(text) else ""
        if self._conventions is None and found:
            self._conventions = self._trainer.conventions_in(text)
        read_facts(source, found, self._trainer.sentences, self._trainer.header)
        for part in source.besides_rows:
            read_notes(part, found)
        for rows in found.tables.values():
            _take_stamps(source, rows)
        if found:  # ranks are asked of rows only
            self._ranks |= ranks_in(source)
        self._reading = _count(source, found, self._reading)
        self._found.add(found)
        self._lines_read += text.count("\n")
        self._characters_read += len(text)


def _count(source: LogText, found: Found, reading: Reading) -> Reading:
    """Adds the lines with something on them, and those of them that nothing was read from."""
    starts = source.line_starts[source.line_starts < len(source.text)]
    is_said = np.maximum.reduceat(source.codes, starts) > 32 if len(starts) else np.zeros(0, bool)
    lines = reading.lines + int(is_said.sum())
    lines_of_rows = [rows.line for kind, rows in found.tables.items() if kind != "unknown"]
    seen = np.concatenate([*lines_of_rows, np.array(found.understood, np.int64)]) - source.first_line
    is_said[seen[seen < len(is_said)]] = False
    others = [int(at) for at in starts[is_said][: EXAMPLES - len(reading.examples)]]
    examples = (source.text[at : at + LONGEST_EXAMPLE].split("\n", 1)[0].strip() for at in others)
    wrong = reading.not_understood + int(is_said.sum())
    return Reading(lines, lines - wrong, wrong, (*reading.examples, *examples))


def _end_of_rows(text: str) -> int:
    """Behind the last whole line; before a traceback without its error."""
    return _start_of_open_traceback(text, max(text.rfind("\n"), text.rfind("\r")) + 1)


def _start_of_open_traceback(text: str, end: int) -> int:
    """Where the last traceback starts, if up to `end` its lines are all indented: the error is not printed yet."""
    head = text.rfind(TRACEBACK, max(0, end - LONGEST_TRACEBACK), end)
    if head < 0:
        return end
    start = text.rfind("\n", 0, head) + 1
    indented = text[start:head] + " "  # a rank's name may stand before each line
    return start if all(line.startswith(indented) for line in text[head:end].splitlines()[1:]) else end


def read_text(text: str, given: Given, *, format: str | None, name: str) -> list[RunRecord]:
    """The runs of a whole text. UserError where nothing in it is understood."""
    document = documents.as_lines(text) if format is None else None
    if document is not None:
        text = document
    reader = LogReader(given, format=format, name=name)
    reader.feed(text)
    runs = reader.runs()
    if len(runs) > 1 and format is None:
        runs = _each_by_its_trainer(text, runs, given)
    return _with_losses(runs, name, text.strip().split("\n", 1)[0]) if text.strip() else runs


def _each_by_its_trainer(text: str, runs: list[RunRecord], given: Given) -> list[RunRecord]:
    """Runs of two trainers, each read again by the conventions of its own."""
    lines = text.split("\n")
    spans = [tuple(map(int, run.reading.span.split("-"))) for run in runs if run.reading.span]
    if len(spans) < len(runs) or any(one[1] >= other[0] for one, other in pairwise(spans)):
        return runs
    trainers = [recognise("\n".join(lines[first - 1 : last])) for first, last in spans]
    if len({trainer.name for trainer in trainers} - {UNKNOWN.name}) < 2:
        return runs
    starts = [0, *(last for _, last in spans[:-1])]
    ends = [*starts[1:], len(lines)]
    own = []
    for run, trainer, start, end in zip(runs, trainers, starts, ends, strict=True):
        reader = LogReader(given, format=trainer.name, name=run.name, first_line=start + 1)
        reader.feed("\n".join(lines[start:end]))
        read = max(reader.runs(), key=lambda each: len(each.steps) + len(each.evals))
        kept = ("runs", "span", "notes", "lines", "understood", "not_understood", "examples")
        own.append(replace(read, reading=replace(read.reading, **{name: getattr(run.reading, name) for name in kept})))
    return own


def _with_losses(runs: list[RunRecord], name: str, first_line: str) -> list[RunRecord]:
    """The runs; UserError where nothing in them can be judged."""
    if any(_has_something(run) for run in runs):
        return runs
    example = next(iter(runs[0].reading.examples), first_line[:LONGEST_EXAMPLE])
    raise fault(
        msg(
            "no training rows found in {name:code}, {lines:count line|lines}: no loss could be read; it begins with "
            "{example:code}",
            name,
            runs[0].reading.lines,
            example,
        ),
        fix=msg(
            "give the text that the training printed, with a number and a loss in its lines; if it has some, name "
            "its trainer with {option:code} (one of {names:code})",
            "--log_format=NAME",
            list(FORMAT_NAMES),
        ),
    )


def _has_something(run: RunRecord) -> bool:
    """A row, or losses in a note; sizes of a model, an error or a lack of memory are worth a diagnosis without any."""
    has_losses = len(run.steps) or len(run.evals) or run.get("final_val_losses") is not None
    sizes = ("parameters", "parameters_total", "parameters_trainable")
    has_sizes = any(name in run.known and run.known[name].origin == "printed" for name in sizes)
    return bool(has_losses) or has_sizes or any(mark.kind in ("error", "out_of_memory", "skip") for mark in run.marks)


def _take_stamps(source: LogText, rows: Rows) -> None:
    """The instant of each row whose line begins with one; taken as UTC, since only differences are used."""
    places = (rows.piece - source.offset).tolist()
    if any(_STAMP.match(source.text, at) for at in places[:: max(1, len(rows) // 8)]):
        stamps = [_STAMP.match(source.text, at) for at in places]
        plain = ["NaT" if stamp is None else stamp[1].replace(",", ".").replace("/", "-") for stamp in stamps]
        rows.fill("at_s", _seconds(plain))


def _seconds(stamps: list[str]) -> np.ndarray:
    try:
        instants = np.array(stamps, "datetime64[us]")
    except ValueError:  # one of them is the 31st of February
        half = len(stamps) // 2
        return np.concatenate([_seconds(stamps[:half]), _seconds(stamps[half:])]) if half else np.array([np.nan])
    return np.where(np.isnat(instants), np.nan, instants.astype(np.int64) / 1e6)


INSIDE = ("trainer_state.json", "output.log", "main.log", "metrics.csv", "log.txt", "train.log")
"""Files that hold the numbers in folders of other trainers, in the order in which they are looked for."""


def read_source(source: str | bytes | Path, given: Given, *, format: str | None, name: str | None) -> list[RunRecord]:
    if isinstance(source, bytes):
        return _read_bytes(source, given, format, name or "log")
    if isinstance(source, str):
        path = _as_path(source)
        if path is None:
            return _per_run(source, given, format, name or "log")
        source = path
    if source.is_dir():
        return _read_folder(source, given, format, name or source.name)
    try:
        raw = source.read_bytes()
    except OSError as error:
        raise fault(
            msg("{path:code} cannot be read: {problem}", str(source), (error.strerror or str(error)).lower()),
            fix=msg("give the path of a log, or {dash:code} for standard input", "-"),
        ) from None
    return _read_bytes(raw, given, format, name or source.stem)


def _as_path(text: str) -> Path | None:
    """A text of one short line may be a path; it is one when something is there."""
    if "\n" in text or not text.strip() or len(text) > 1000:
        return None
    try:
        return Path(text) if Path(text).exists() else None
    except (OSError, ValueError):
        return None


def unpacked(raw: bytes) -> bytes:
    """The text of a .gz or .zst file; anything else as it is."""
    if raw.startswith(b"\x1f\x8b"):
        with contextlib.suppress(OSError, EOFError, zlib.error):
            return gzip.decompress(raw)
    if raw.startswith(b"\x28\xb5\x2f\xfd"):
        zstandard = require("zstandard", "data")
        with contextlib.suppress(zstandard.ZstdError):
            return bytes(zstandard.ZstdDecompressor().stream_reader(raw).read())
    return raw


def _read_bytes(raw: bytes, given: Given, format: str | None, name: str) -> list[RunRecord]:
    raw = unpacked(raw)
    if tracker_files.EVENT_FILE_MARK in raw[12:64]:  # the first record of every event file of TensorBoard
        return _with_losses(tracker_files.read_events([raw], given, name), name, "")
    if raw.startswith(tracker_files.WANDB_MAGIC):
        return _with_losses(tracker_files.read_wandb_database(raw, given, name), name, "")
    return _per_run(decode(raw), given, format, name)


def _read_folder(folder: Path, given: Given, format: str | None, name: str) -> list[RunRecord]:
    events = sorted(folder.glob(tracker_files.FILES), key=lambda path: path.name)
    if (of_wandb := tracker_files.read_wandb_folder(folder, given)) is not None:
        text, about = of_wandb
        return _per_run(text, about, format, name)
    if databases := sorted(folder.glob("*.wandb")):
        return _read_bytes(databases[-1].read_bytes(), given, format, name)
    for inside in INSIDE:
        if (folder / inside).is_file():
            return _read_bytes((folder / inside).read_bytes(), given, format, name)
    if events:
        return tracker_files.read_events([path.read_bytes() for path in events], given, name)
    names = [*INSIDE, tracker_files.FILES]
    raise fault(
        msg("{folder:code} contains neither a run nor a recognised log", str(folder)),
        fix=msg("give the log file itself; in a folder nanolens looks for: {names:code}", names),
    )


def _per_run(text: str, given: Given, format: str | None, name: str) -> list[RunRecord]:
    """Tables in the config that are named like a run speak for that run only; so does hardware said as `A: …; B: …`."""
    runs = read_text(text, given, format=format, name=name)
    labels = [re.match(r"[\w.\-]*", run.name)[0] for run in runs]  # type: ignore[index]
    tables = {key: value for key, value in given.config.items() if isinstance(value, dict)}
    machines = dict(re.findall(r"(?:^|;) {0,3}([\w.\-]{1,40}): ([^;]{1,200})", given.hardware or ""))
    if len(runs) < 2 or not any(label in tables or label in machines for label in labels):
        return runs
    plain = {key: value for key, value in given.config.items() if key not in tables}
    own = [
        replace(given, config={**plain, **tables.get(label, {})}, hardware=machines.get(label, given.hardware))
        for label in labels
    ]
    return [read_text(text, each, format=format, name=name)[index] for index, each in enumerate(own)]
