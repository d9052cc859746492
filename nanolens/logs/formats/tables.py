"""Numbers that already have names: JSON objects, tables, and the dictionaries of Hugging Face's Trainer.

One JSON object a line, as many loops and trackers write; nested objects are read with a slash. Tables with a line of
names: any CSV, Lightning's metrics.csv, a table pasted from a page, an export of Weights & Biases, whose columns are
named `run - metric` (each run becomes a run). Names are read as `names.py` has them; what the numbers mean is not known.

Hugging Face's Trainer: the dictionaries that it prints, and `trainer_state.json`.

    {'loss': 3.2011, 'grad_norm': 1.2345, 'learning_rate': 4.58e-05, 'epoch': 0.25}
    {'eval_loss': 3.4012, 'eval_runtime': 12.3, 'eval_samples_per_second': 81.1, 'epoch': 1.0}

- The step (`global_step`) counts updates that are done: our step. The printed lines lack it: it is taken from the
  progress bar between them; without a bar the rows are numbered, times `logging_steps` where that is known.
- The loss is the mean over all updates since the line before (`logging_steps` of them), over micro-batches and ranks.
  In versions 4.46 and 4.47 it is multiplied by gradient_accumulation_steps for models that do not take
  `num_items_in_batch`.
- `loss 0.0` beside `grad_norm nan` is no loss: the Trainer leaves NaN losses out of the mean
  (`logging_nan_inf_filter`), and 0 is what remains. It is kept as printed.
- The last line (`train_loss`, `train_runtime`) sums up the whole run and is not a row."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec
import numpy as np

from nanolens.config.names import column_of, normalised
from nanolens.logs.formats import keyvalue
from nanolens.logs.rows import NUMBER, UNITS, Found, LogFormat, Rows, find_rows, from_records, joined, split_table
from nanolens.logs.text import LogText
from nanolens.record.run import Conventions, number_of

LINE = re.compile(r"^[> \t]{0,8}+(\{\"[^\n]{1,20000}\})[ \t\r]*+$", re.M)
_OF_ALL = re.compile(r"(\d{1,15})/\d{1,15}")
DEEPEST = 4


def find_json_lines(source: LogText) -> Found:
    records, ends = [], []
    for match in LINE.finditer(source.text):
        record = as_record(decoded(match[1]))
        if "step" in record and len(record) > 1:
            records.append((match.start(), int(record.pop("step")), record))
            ends.append(match.end())
    source.note_rows(np.array([start for start, _, _ in records], np.int64), np.array(ends, np.int64))
    return split_table(from_records(records, source))


def decoded(text: str) -> dict[str, object]:
    """The JSON object that a text is; empty where it is none."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        try:
            value = json.loads(text)  # slower, but knows NaN, which many loops write
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def as_record(said: Mapping[str, object]) -> dict[str, float]:
    said = flat(said) if dict in map(type, said.values()) else said
    record: dict[str, float] = {}
    for name, column, scale in _plan(tuple(said)):
        value = said[name]
        number = value if type(value) is float else as_number(value)
        if number is not None and column not in record:
            record[column] = number * scale
        elif column == "step" and isinstance(value, str) and (of_all := _OF_ALL.fullmatch(value)):
            record["step"] = float(of_all[1])
    if "step" in record and not 0 <= record["step"] < 1e15:
        del record["step"]
    return record


@lru_cache(maxsize=1024)
def _plan(names: tuple[str, ...]) -> tuple[tuple[str, str, float], ...]:
    """(name, column, scale) of the names that mean something to us: objects of one loop have the same names."""
    meant = ((name, *_meaning(name)) for name in names)
    return tuple((name, column, scale) for name, column, scale in meant if column)


@lru_cache(maxsize=4096)
def _meaning(name: str) -> tuple[str, float]:
    """Our column, and what to multiply with. Without a unit a time or an amount of memory means nothing."""
    column = "step" if name == "global_step/max_steps" else column_of(name)  # "601/2161"
    return ("", 1.0) if column in ("took", "memory") else UNITS.get(column, (column, 1.0))


def as_number(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if isinstance(value, float) or abs(value) < 1e300 else None
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return float(value)
    return None


def flat(said: Mapping[str, object], before: str = "", deep: int = 0) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in said.items():
        if isinstance(value, dict) and deep < DEEPEST:
            found |= flat(value, f"{before}{name}/", deep + 1)
        else:
            found[f"{before}{name}"] = value
    return found


JSON_LINES = LogFormat("jsonl", Conventions(trainer="unknown"), ('{"',), find=find_json_lines, is_general=True)


# --- tables

LONGEST_HEAD = 20_000  # characters in which a table's line of names stands
HEAD = re.compile(r"(?i)(?:step|iter|update|epoch|(?<![a-z])it(?![a-z]))(?![^a-z0-9,;\t|\n]*[0-9])")
"""Without a name of a step with no number behind it in its cell a text is no table."""
DELIMITERS = (",", "\t", ";", "|", "  ", " ")
_LOOSE = ("|", "  ", " ")  # lines of prose are split by these too: only plain words are names then
_PLAIN = re.compile(r"[A-Za-z][A-Za-z_ /()\-]{0,60}")
_WIDE = re.compile(r"\t| {2,40}")


def read_csv(text: str) -> dict[str, Found] | None:
    """What a table says, by run ("" where it names none); None where the text is no table of a training."""
    head = _head(text)
    if head is None:
        return None
    line, delimiter, names, is_by_epoch = head
    body = [*text.split("\n", line), ""][line]
    numbered = ((number, _cells(row, delimiter)) for number, row in enumerate(body.split("\n"), line))
    kept = [(number, row) for number, row in numbered if len(row) == len(names)]
    source = LogText(text)
    starts = source.line_starts[np.array([number for number, _ in kept], np.int64)]
    cells = [(*_column(name), [row[index] for _, row in kept]) for index, name in enumerate(names)]
    columns = [(run, column, _numbers(texts) * scale) for run, column, scale, texts in cells if column]
    runs = dict.fromkeys(run for run, column, _ in columns if column != "step")
    found = {run: _found(columns, run, starts, source) for run in runs}
    for each in found.values() if is_by_epoch else ():
        each.tell("steps_are_epochs", True, line, 0)
    return found if any(found.values()) else None


def _head(text: str) -> tuple[int, str, list[str], bool] | None:
    """(lines up to the first row, delimiter, names, whether a step is an epoch) of a table with a step and a loss."""
    for number, line in enumerate(text[:LONGEST_HEAD].split("\n")[:5], 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        for delimiter in DELIMITERS:
            names, is_by_epoch = _with_step(_cells(line, delimiter))
            ours = {_column(name)[1] for name in names}
            is_training = "step" in ours and bool(ours & {"loss", "val", "val_bits_per_byte"})
            is_plain = delimiter not in _LOOSE or all(_PLAIN.fullmatch(name) for name in names)
            if is_training and is_plain and not any(_is_number(name) for name in names):
                return number, delimiter, names, is_by_epoch
    return None


def _with_step(names: list[str]) -> tuple[list[str], bool]:
    """The names, with the epoch for a step where there is no other, and whether it is."""
    epochs = [name for name in names if normalised(name) == "epoch"]
    if not epochs or any(_column(name)[1] == "step" for name in names):
        return names, False
    return ["step" if name == epochs[0] else name for name in names], True


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == "|":  # Markdown
        return [cell.strip() for cell in line.strip().strip("|").split("|")]
    if delimiter == " ":
        return line.split()
    if delimiter == "  ":  # columns whose names are of several words
        return _WIDE.split(line.strip())
    if '"' not in line:
        return line.strip("\r").split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _column(name: str) -> tuple[str, str, float]:
    """(run, our column, what to multiply with) of a column's name."""
    if name.endswith(("__MIN", "__MAX")):
        return "", "", 1.0
    run, dash, metric = name.rpartition(" - ")
    return run, *_meaning(metric if dash else name)


def _found(columns: Sequence[tuple[str, str, np.ndarray]], run: str, starts: np.ndarray, source: LogText) -> Found:
    rows = Rows(starts, source.lines_at(starts), starts)
    for its_run, column, values in columns:
        if its_run == run or column == "step":
            rows.fill(column, values)
    step = rows.columns.pop("step")
    told = np.isfinite(step) & (step >= 0) & (step < 1e15)
    rows.printed = np.where(told, np.nan_to_num(step), -1).astype(np.int64)
    return split_table(rows.take(np.flatnonzero(told)))


def _numbers(texts: list[str]) -> np.ndarray:
    """An empty cell says nothing; a word in a column of numbers says nothing either."""
    try:
        return np.array([text or "nan" for text in texts], np.float64)
    except ValueError:
        return np.array([float(text) if _is_number(text) else np.nan for text in texts], np.float64)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


CSV = LogFormat("csv", Conventions(trainer="unknown"), is_general=True)


# --- Hugging Face's Trainer

DICT = re.compile(r"\{'[\w/]{1,60}': [^{}\r\n]{1,2000}+\}")
BAR = re.compile(
    rf"(?<![\d.])(?P<bar_step>{NUMBER})/(?P<bar_total>{NUMBER}) \[\d{{1,9}}(?::\d\d){{1,3}}<[^\]\r\n]{{0,80}}\]"
)
DICTS_LOOKED_AT = 200  # dictionaries
_ITEM = re.compile(rf"'([\w/]{{1,60}})': '?({NUMBER})'?(?=[,}}])")
_COLUMNS = {"learning_rate": "lr", "eval_loss": "val", "eval_runtime": "eval_s", "step": "updates"}
_COLUMNS |= {name: name for name in ("loss", "grad_norm", "epoch")}
_STATE = {"max_steps": "max_iters", "logging_steps": "log_interval"}
_STATE |= {"eval_steps": "eval_interval", "train_batch_size": "batch_size"}


def find_dicts(source: LogText) -> Found:
    alike = [find_rows(pattern, source) for pattern in keyvalue.patterns_of(_shapes(source.text))]
    # Dictionaries of another shape, where there are any
    seen = {*(joined(alike).at - source.offset).tolist()}
    dicts = DICT.finditer(source.text) if len(seen) != source.text.count("{'") else ()
    others = [(match.start(), dict(_ITEM.findall(match[0]))) for match in dicts if match.start() not in seen]
    found = from_dicts(others, source)
    found.steps = joined([found.steps, *(rows for rows in alike if "loss" in rows.columns)])
    found.evals = joined([found.evals, *(rows for rows in alike if "loss" not in rows.columns)])
    _number_by_bar(found, find_rows(BAR, source))
    return found


def _shapes(text: str) -> Iterator[str]:
    """Patterns of dictionaries that are rows: with the keys known, all others like them are found in one go."""
    for match in itertools.islice(DICT.finditer(text), DICTS_LOOKED_AT):
        shape = keyvalue.pattern_like(text, match.start(), match.end(), lambda name, unit: _COLUMNS.get(name, ""))
        if "train_runtime" not in match[0] and ("<loss>" in shape or "<val>" in shape):
            yield shape


def from_dicts(dicts: Sequence[tuple[int, Mapping[str, str | float]]], source: LogText) -> Found:
    """Updates and evaluations among the dictionaries that the Trainer logs, each with its place."""
    ours = [
        (start, -1, {_COLUMNS[name]: value for name, value in said.items() if name in _COLUMNS})
        for start, said in dicts
    ]
    steps = [record for record in ours if "loss" in record[2]]
    evals = [record for record in ours if "val" in record[2] and "loss" not in record[2]]
    found = Found(from_records(steps, source), from_records(evals, source))
    for start, said in dicts:
        if "train_runtime" in said:
            found.tell("wall_s", float(said["train_runtime"]), *source.place(start))
    return found


def _number_by_bar(found: Found, bars: Rows) -> None:
    """The bar drawn last before a row tells its step. Evaluations have bars too: the training's has the most steps."""
    if not len(bars):
        return
    total = float(np.nanmax(bars.column("bar_total")))
    training = bars.take(np.flatnonzero(bars.column("bar_total") == total))
    for rows in (found.steps, found.evals):
        rows.columns["bar"] = _last_before(rows.at, training.at, training.column("bar_step"), np.nan)
    found.tell("max_iters", int(total), int(training.line[0]), int(training.at[0]))


def _last_before(at: np.ndarray, places: np.ndarray, values: np.ndarray, otherwise: float) -> np.ndarray:
    before = np.searchsorted(places, at) - 1
    return np.where(before >= 0, values[np.maximum(before, 0)], otherwise)


def place_dicts(found: Found) -> None:
    """Steps from the source where it has them, else from the bar, else by counting the rows."""
    steps, evals = found.steps, found.evals
    for rows in (steps, evals):
        rows.fill("updates", rows.column("bar"))
    if len(steps) and np.isnan(steps.column("updates")).any():
        interval = found.facts["log_interval"][-1].value if "log_interval" in found.facts else 1
        every = float(interval) if isinstance(interval, (int, float)) else 1.0
        steps.columns["updates"] = np.arange(1, len(steps) + 1) * every
        found.tell("steps_counted", len(steps), int(steps.line[0]), int(steps.at[0]))
        evals.columns["updates"] = _last_before(evals.at, steps.at, steps.columns["updates"], 0.0)
    for rows in (steps, evals):
        rows.printed = np.nan_to_num(rows.columns["updates"], nan=-1.0).astype(np.int64)


def read_state(text: str) -> Found | None:
    """`trainer_state.json`: the same dictionaries, each a line. None where the text is no such file."""
    state = decoded(text) if '"log_history"' in text else {}
    history = state.get("log_history")
    if not isinstance(history, list):
        return None
    entries = [each if isinstance(each, dict) else {} for each in history]
    numbers = [{key: number for key, x in each.items() if (number := number_of(x)) is not None} for each in entries]
    found = from_dicts(list(enumerate(numbers)), LogText("\n" * len(numbers)))
    for theirs, ours in _STATE.items():
        value = state.get(theirs)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            found.tell(ours, value, 1, 0)
    return found


_WORDS = ("{'loss'", "{'eval_loss'", "{'train_runtime'")
_SMOOTHED = Conventions("hf-trainer", loss="smoothed")
HUGGINGFACE = LogFormat("hf-trainer", _SMOOTHED, _WORDS, find=find_dicts, place=place_dicts)
