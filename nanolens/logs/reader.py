"""Finds a log (a text, a file, a tracker's folder), recognises its format, and reads it whole or as it comes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanolens.errors import fault
from nanolens.logs.assemble import assemble, ranks_in
from nanolens.logs.facts import LONGEST_TRACEBACK, TRACEBACK, read_facts, read_notes
from nanolens.logs.formats import keyvalue, tables, tracker_files, trainers
from nanolens.logs.given import Given
from nanolens.logs.rows import Found, LogFormat
from nanolens.logs.text import LogText, clean, decode
from nanolens.message import msg
from nanolens.record.run import Conventions, Reading, RunRecord

FORMATS: tuple[LogFormat, ...] = (
    *trainers.TRAINERS,
    tables.HUGGINGFACE,
    keyvalue.PROGRESS_BAR,
    tables.JSON_LINES,
    keyvalue.KEY_VALUE,
    keyvalue.EPOCHS,
)
"""In the order in which they are believed when they find the same: ours before nanoGPT's, the general ones last."""

FORMAT_NAMES = tuple(log_format.name for log_format in FORMATS)
UNKNOWN = LogFormat("unknown", keyvalue.KEY_VALUE.conventions, is_general=True)  # a text without rows
SAMPLE = 200_000  # characters from the head, the middle and the end that are looked at first


def recognise(text: str) -> LogFormat:
    """The format that finds most rows in this text, or UNKNOWN. UserError where two trainers speak.

    Where a long text's sample has no row, the whole of it is searched for those of known trainers only: names and
    numbers of others are frequent in any text."""
    sample = _sample(text)
    known, general = ([each for each in FORMATS if each.is_general is kind] for kind in (False, True))
    best = _best_of(known, sample) or _best_of(general, sample)
    return best or (_best_of(known, text) if sample is not text else None) or UNKNOWN


def _best_of(formats: Sequence[LogFormat], text: str) -> LogFormat | None:
    """The one with most rows; among general ones the first in the list that has at least half as many."""
    read = ((each, each.rows_in(LogText(text))) for each in formats if any(word in text for word in each.words))
    # Rows of updates count double: several trainers print their evaluations alike.
    found = [(each, rows, 2 * len(rows.steps) + len(rows.evals)) for each, rows in read if rows]
    most = max((count for _, _, count in found), default=0)
    if not found or found[0][0].is_general:
        return next((each for each, _, count in found if 2 * count >= most), None)
    lines = {each.name: {*its.steps.line.tolist(), *its.evals.line.tolist()} for each, its, _ in found}
    best = next(each for each, _, count in found if count == most)
    rows = len(lines[best.name])
    for other, its_lines in lines.items():
        apart = len(its_lines - lines[best.name])
        if apart >= max(3, rows // 5):
            names = {"one": best.name, "other": other}
            options = {key: f"--log_format={name}" for key, name in names.items()}
            what = msg(
                "this log has rows of two trainers: {rows:count} in the format of {one:code}, {other_rows:count} in "
                "the format of {other:code}",
                **{"rows": rows, "other_rows": apart, **names},
            )
            raise fault(what, fix=msg("choose which to read with {one:code} or {other:code}", **options))
    return best


def format_named(name: str) -> LogFormat:
    if name in FORMAT_NAMES:
        return FORMATS[FORMAT_NAMES.index(name)]
    raise fault(
        msg("there is no log format named {name:code}", name),
        where=f"--log_format={name}",
        fix=msg("use one of {names:code}", list(FORMAT_NAMES)),
    )


def _sample(text: str) -> str:
    """Three stretches of a long text, in whole lines: it may begin with a program's source, and end with samples."""
    if len(text) <= 3 * SAMPLE:
        return text
    middle = (len(text) - SAMPLE) // 2
    return "\n".join(_whole_lines(text[at : at + SAMPLE]) for at in (0, middle, len(text) - SAMPLE))


def _whole_lines(part: str) -> str:
    starts = [at for at in (part.find("\n"), part.find("\r")) if at >= 0]
    return part[min(starts, default=-1) + 1 : max(part.rfind("\n"), part.rfind("\r")) + 1 or len(part)]


EXAMPLES, LONGEST_EXAMPLE = 5, 120
SETTLED_ROWS, SETTLED_CHARACTERS = 20, 100_000
_STAMP = re.compile(r"^(?:\[[^\]\n]{1,20}\]:? ?)?[^\n\d]{0,4}(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)", re.M)
_VAL_LOSS = re.compile(r"[Vv]al(?:idation)?[_ ][Ll]oss")


class LogReader:
    """`feed` it text, ask it for `runs`. What was understood once is not read again."""

    def __init__(self, given: Given | None = None, *, format: str | None = None, name: str = "log"):
        self.given = given or Given()
        self.name = name
        self._format = format_named(format) if format else UNKNOWN
        self._is_asked_for = format is not None
        self._is_settled = False  # enough was read to be sure of the format
        self._unsettled = ""  # until then what was read is kept, to be read again by another format if need be
        self._waiting: list[str] = []  # text that is not read yet
        self._forget()

    def _forget(self) -> None:
        self._found, self._reading = Found(), Reading()
        self._ranks: dict[int, int] = {}
        self._lines_read, self._characters_read = 0, 0
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
        log_format = replace(self._format, conventions=self._conventions or self._format.conventions)
        return assemble(self._found.copy(), log_format, self.given, self._reading, self.name, self._ranks)

    def _read(self, text: str) -> None:
        if not self._is_settled:
            text = self._unsettled = self._unsettled + text
            self._forget()
        if not self._is_asked_for and (self._format is UNKNOWN or not self._is_settled):
            self._format = recognise(text)
        self._read_on(text)
        if len(self._found.steps) >= SETTLED_ROWS or len(self._unsettled) >= SETTLED_CHARACTERS:
            self._is_settled, self._unsettled = True, ""

    def _read_on(self, text: str) -> None:
        source = LogText(text, self._lines_read + 1, self._characters_read)
        found = self._format.rows_in(source)
        if self._conventions is None and found:
            stated = self._format.conventions_in
            self._conventions = stated(text, self._format) if stated else self._format.conventions
        if not self._format.is_general and len(found.steps) and not len(found.evals) and _VAL_LOSS.search(text):
            # A trainer without evaluations in the usual form may have been given some in its owner's words.
            others = keyvalue.find_key_value(source).evals
            found.evals = others.take(np.flatnonzero(~np.isin(others.line, found.steps.line)))
        read_facts(source, found, self._format)
        for part in source.besides_rows:
            read_notes(part, found)
        _take_stamps(source, found)
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
    seen = (
        np.concatenate([found.steps.line, found.evals.line, np.array(found.understood, np.int64)]) - source.first_line
    )
    is_said[seen[seen < len(is_said)]] = False
    others = [int(at) for at in starts[is_said][: EXAMPLES - len(reading.examples)]]
    examples = (source.text[at : at + LONGEST_EXAMPLE].split("\n", 1)[0].strip() for at in others)
    wrong = reading.not_understood + int(is_said.sum())
    return Reading(lines, lines - wrong, wrong, (*reading.examples, *examples))


def _end_of_rows(text: str) -> int:
    """Behind the last whole line; before a traceback without its error, and before a row with names below it, one a
    line, as long as more may come."""
    end = _start_of_open_traceback(text, max(text.rfind("\n"), text.rfind("\r")) + 1)
    head = max(text.rfind("[step=", 0, end), text.rfind("[batch=", 0, end))
    if head < 0 or not keyvalue.OPEN_BLOCK.fullmatch(text, head, end):
        return end
    return text.rfind("\n", 0, head) + 1


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
    document = _document(text, given, format, name)
    if document is not None:
        return document
    reader = LogReader(given, format=format, name=name)
    reader.feed(text)
    runs = reader.runs()
    printed = {name for run in runs for name, known in run.known.items() if known.origin == "printed"}
    has_rows = any(len(run.steps) or len(run.evals) or run.marks for run in runs)
    if text.strip() and not has_rows and not printed - {"notes", "comments"}:
        lines, example = runs[0].reading.lines, (*runs[0].reading.examples, "")[0]
        raise fault(
            msg(
                "no training rows found in {name:code}, {lines:count line|lines}; it begins with {example:code}",
                name,
                lines,
                example,
            ),
            fix=msg(
                "give the text that the training printed, or state its format with {option:code} (one of {names:code})",
                "--log_format=NAME",
                list(FORMAT_NAMES),
            ),
        )
    return runs


def _document(text: str, given: Given, format: str | None, name: str) -> list[RunRecord] | None:
    """Texts that only make sense as a whole: a JSON file, a table."""
    if format not in (None, "hf-trainer", "csv"):
        return None
    count = text.count("\n") + 1
    reading = Reading(lines=count, understood=count)
    if text[:1000].lstrip().startswith("{") and (state := tables.read_state(text)) is not None:
        return assemble(state, tables.HUGGINGFACE, given, reading, name)
    runs = tables.read_csv(clean(text)) if tables.HEAD.search(clean(text[: tables.LONGEST_HEAD])) else None
    if runs is None:
        return None
    return [run for title, found in runs.items() for run in assemble(found, tables.CSV, given, reading, title or name)]


def _take_stamps(source: LogText, found: Found) -> None:
    """The instant of each row whose line begins with one; taken as UTC, since only differences are used."""
    for rows in (found.steps, found.evals):
        places = (rows.piece - source.offset).tolist()
        if not any(_STAMP.match(source.text, at) for at in places[:: max(1, len(rows) // 8)]):
            continue
        stamps = [_STAMP.match(source.text, at) for at in places]
        seconds = _seconds(["NaT" if stamp is None else stamp[1].replace(",", ".") for stamp in stamps])
        rows.fill("at_s", seconds)


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


def _read_bytes(raw: bytes, given: Given, format: str | None, name: str) -> list[RunRecord]:
    if tracker_files.EVENT_FILE_MARK in raw[12:64]:  # the first record of every event file of TensorBoard
        return tracker_files.read_events([raw], given, name)
    if raw.startswith(tracker_files.WANDB_MAGIC):
        raise fault(
            msg("{name:code} is a Weights & Biases database, which nanolens does not read", name),
            fix=msg(
                "give the run's folder or its {file:code}, or a table exported from the page", tracker_files.OUTPUT
            ),
        )
    return _per_run(decode(raw), given, format, name)


def _read_folder(folder: Path, given: Given, format: str | None, name: str) -> list[RunRecord]:
    events = sorted(folder.glob(tracker_files.FILES), key=lambda path: path.name)
    if (of_wandb := tracker_files.read_wandb_folder(folder, given)) is not None:
        text, about = of_wandb
        return _per_run(text, about, format, name)
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
