"""Texts that only make sense as a whole, as lines that rows can be read from: JSON files (`trainer_state.json`, a list
of records, lists by name, pairs of step and value), and tables with a column for each of several runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from nanolens.config.names import column_of
from nanolens.logs.lines import OF_LOSS, OF_VAL
from nanolens.logs.tables import cells_of

DEEPEST = 4
_NOT_IN_NAMES = re.compile(r"[^\w.\-]+")
_STEP = ("step", "global_step", "iter", "iteration", "epoch")


def as_lines(text: str) -> str | None:
    """The same facts, a record a line; None where the text is no such document."""
    head = text[:1000].lstrip()
    if head[:1] in ("{", "["):
        return _of_json(text)
    first = text.lstrip("\ufeff\n").split("\n", 1)[0]
    return _by_run(text) if " - " in first and first.count(",") else None


def _of_json(text: str) -> str | None:
    value = decoded(text)
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return "\n".join(_lines(value))
    if not isinstance(value, dict):
        return None
    history = value.get("log_history")
    if isinstance(history, list):
        entries = [each for each in history if isinstance(each, dict)]
        facts = {key: each for key, each in value.items() if isinstance(each, (int, float, str))}
        return "\n".join(['"log_history"', *_settings(facts), *_lines(entries)])
    columns = {key: each for key, each in value.items() if isinstance(each, list) and each}
    if not any(column_of(key)[0] in OF_LOSS | OF_VAL for key in columns):
        return None
    facts = {key: each for key, each in value.items() if isinstance(each, (int, float, str))}
    return "\n".join([*_settings(facts), *_lines(_of_lists(columns))])


def _settings(facts: Mapping[str, object]) -> Iterator[str]:
    return (
        f"{key} = {value}"
        for key, value in facts.items()
        if key not in ("epoch", "global_step") and "\n" not in str(value)
    )


def _of_lists(columns: Mapping[str, Sequence[object]]) -> Iterator[Mapping[str, object]]:
    """Lists of one length are columns; a list of pairs has the step in each pair."""
    pairs = [
        (each[0], key if column_of(key)[0] != "train" else "loss", each[1])  # it has steps of its own: no evaluation's
        for key, values in columns.items()
        for each in values
        if isinstance(each, list) and len(each) == 2 and isinstance(each[0], (int, float))
    ]
    yield from ({"step": step, name: value} for step, name, value in sorted(pairs, key=lambda pair: pair[0]))
    plain = {key: values for key, values in columns.items() if not isinstance(values[0], (list, dict))}
    counts = {len(values) for values in plain.values()}
    for count in counts:
        alike = {key: values for key, values in plain.items() if len(values) == count}
        has_step = any(column_of(key)[0] in ("step", "iter", "updates", "epoch") for key in alike)
        for index in range(count):
            yield {**({} if has_step else {"step": index + 1}), **{key: values[index] for key, values in alike.items()}}


def _lines(records: Sequence[Mapping[str, object]] | Iterator[Mapping[str, object]]) -> Iterator[str]:
    for record in records:
        plain = flat(record)
        ordered = sorted(plain.items(), key=lambda item: item[0] not in _STEP)
        said = (f'"{key}": {_shown(value)}' for key, value in ordered if isinstance(value, (int, float, str)))
        yield "{" + ", ".join(said) + "}"


def _shown(value: object) -> str:
    return str(value) if not isinstance(value, str) else value.replace("\n", " ")


def flat(record: Mapping[str, object], before: str = "", deep: int = 0) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in record.items():
        if isinstance(value, dict) and deep < DEEPEST:
            found |= flat(value, f"{before}{name}/", deep + 1)
        else:
            found[f"{before}{name}"] = value
    return found


def decoded(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        try:
            return json.loads(text)  # slower, but knows NaN, which many loops write
        except (ValueError, RecursionError):
            return None


def _by_run(text: str) -> str | None:
    """An export of Weights & Biases, whose columns are named `run - metric`: a heading and a table for each run."""
    head, _, body = text.lstrip("\ufeff\n").partition("\n")
    names = cells_of(head, ",")
    runs = list(dict.fromkeys(name.rpartition(" - ")[0] for name in names if " - " in name))
    if len(runs) < 2 or not names or column_of(names[0])[0] not in ("step", "iter", "updates", "epoch"):
        return None
    rows = [cells_of(line, ",") for line in body.split("\n") if line.strip()]
    lines = []
    for run in runs:
        its = [index for index, name in enumerate(names) if name.rpartition(" - ")[0] == run]
        its = [index for index in its if not names[index].endswith(("__MIN", "__MAX"))]
        metrics = [names[index].rpartition(" - ")[2] for index in its]
        lines += ["# run " + _NOT_IN_NAMES.sub("-", run), ",".join([names[0], *metrics])]
        lines += [",".join([row[0], *(row[i] for i in its)]) for row in rows if len(row) == len(names)]
    return "\n".join(lines) + "\n"
