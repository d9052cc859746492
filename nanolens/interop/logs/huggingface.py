"""Hugging Face's Trainer: the dictionaries that it prints, and `trainer_state.json`.

    {'loss': 3.2011, 'grad_norm': 1.2345, 'learning_rate': 4.58e-05, 'epoch': 0.25}
    {'eval_loss': 3.4012, 'eval_runtime': 12.3, 'eval_samples_per_second': 81.1, 'epoch': 1.0}

- The step (`global_step`) counts updates that are done: our step. The printed lines lack it: it is taken from the progress bar (`50/500
  [00:10<…`) between them; without a bar the rows are numbered, times `logging_steps` where that is known.
- The loss is the mean over all updates since the line before (`logging_steps` of them), over micro-batches and ranks. In versions 4.46
  and 4.47 it is multiplied by gradient_accumulation_steps for models that do not take `num_items_in_batch`.
- `loss 0.0` beside `grad_norm nan` is no loss: the Trainer leaves NaN losses out of the mean (`logging_nan_inf_filter`), and 0 is what
  remains. It is kept as printed; `Steps.not_finite` tells of the gradient norm beside it.
- The last line (`train_loss`, `train_runtime`) sums up the whole run and is not a row. No MFU; `samples_per_second` counts sequences.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nanolens.interop.logs import keyvalue
from nanolens.interop.logs.door import Door, Found
from nanolens.interop.logs.rows import NUMBER, Rows, find_rows, from_records, joined, num
from nanolens.logs.text import Text
from nanolens.record.run import Words

WORDS = Words(trainer="hf-trainer", loss="smoothed", time="unknown", updates_before_printed=0)

DICT = re.compile(r"\{'[\w/]{1,60}': [^{}\r\n]{1,2000}+\}")
BAR = re.compile(rf"(?<![\d.]){num('bar_step')}/{num('bar_total')} \[\d{{1,9}}(?::\d\d){{1,3}}<[^\]\r\n]{{0,80}}\]")
LOOKED_AT = 200  # dictionaries
_ITEM = re.compile(rf"'([\w/]{{1,60}})': '?({NUMBER})'?(?=[,}}])")
_COLUMNS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "rate",
    "eval_loss": "val",
    "eval_runtime": "eval_s",
    "step": "updates",
    "epoch": "epoch",
}
_STATE = {"max_steps": "max_iters", "logging_steps": "log_interval", "eval_steps": "eval_interval", "train_batch_size": "batch_size"}


def find(source: Text) -> Found:
    alike = [find_rows(pattern, source) for pattern in _learnt(source.text)]
    rest = _others(source, alike)
    found = from_dicts([dict(_ITEM.findall(match[0])) for match in rest], [match.start() for match in rest], source)
    found.steps = joined([found.steps, *(rows for rows in alike if "loss" in rows.columns)])
    found.evals = joined([found.evals, *(rows for rows in alike if "loss" not in rows.columns)])
    _number_by_bar(found, find_rows(BAR, source))
    return found


def _learnt(text: str) -> list[re.Pattern[str]]:
    """Patterns of the dictionaries that occur most: with their keys known, all others like them are found in one go."""
    sample = [match for match in itertools.islice(DICT.finditer(text), LOOKED_AT) if "train_runtime" not in match[0]]
    shapes = Counter(keyvalue.pattern_like(text, match.start(), match.end(), _meaning) for match in sample)
    rows = [shape for shape, count in shapes.most_common(keyvalue.MOST_PATTERNS) if count > 1 and ("<loss>" in shape or "<val>" in shape)]
    return [re.compile(shape) for shape in rows]


def _others(source: Text, alike: Sequence[Rows]) -> list[re.Match[str]]:
    """Dictionaries of another shape, where there are any."""
    if sum(map(len, alike)) == source.text.count("{'"):
        return []
    seen = {int(at) - source.offset for rows in alike for at in rows.at}
    return [match for match in DICT.finditer(source.text) if match.start() not in seen]


def _meaning(name: str, unit: str) -> str:
    return _COLUMNS.get(name, "")


def from_dicts(dicts: Sequence[Mapping[str, str | float]], starts: Sequence[int], source: Text) -> Found:
    """Updates and evaluations among the dictionaries that the Trainer logs."""
    found = Found()
    steps = [i for i, said in enumerate(dicts) if "loss" in said]
    evals = [i for i, said in enumerate(dicts) if "eval_loss" in said and "loss" not in said]
    found.steps = from_records([_ours(dicts[i]) for i in steps], [starts[i] for i in steps], source)
    found.evals = from_records([_ours(dicts[i]) for i in evals], [starts[i] for i in evals], source)
    for said, start in zip(dicts, starts, strict=True):
        if "train_runtime" in said:
            found.tell("wall_s", float(said["train_runtime"]), source.line_at(start), source.offset + start)
    return found


def place(found: Found) -> None:
    """Steps from the source where it has them, else from the bar, else by counting the rows."""
    for rows in (found.steps, found.evals):
        step = rows.column("updates")
        rows.columns["updates"] = np.where(np.isnan(step), rows.column("bar"), step)
    if len(found.steps) and np.isnan(found.steps.column("updates")).any():
        interval = found.facts["log_interval"][-1].value if "log_interval" in found.facts else 1
        found.steps.columns["updates"] = np.arange(1, len(found.steps) + 1) * float(interval if isinstance(interval, (int, float)) else 1)
        found.tell("steps_counted", len(found.steps), int(found.steps.line[0]), int(found.steps.at[0]))
        before = np.searchsorted(found.steps.at, found.evals.at) - 1
        found.evals.columns["updates"] = np.where(before >= 0, found.steps.columns["updates"][np.maximum(before, 0)], 0.0)
    for rows in (found.steps, found.evals):
        rows.printed = np.nan_to_num(rows.columns["updates"], nan=-1.0).astype(np.int64)


def read_state(text: str) -> Found | None:
    """`trainer_state.json`: the same dictionaries, with their steps. None where the text is no such file. Lines are numbers of entries."""
    if '"log_history"' not in text:
        return None
    try:
        state: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        return None
    entries = [entry if isinstance(entry, dict) else {} for entry in state["log_history"]]
    dicts = [{key: float(x) for key, x in entry.items() if isinstance(x, (int, float)) and not isinstance(x, bool)} for entry in entries]
    found = from_dicts(dicts, list(range(len(dicts))), Text("\n" * len(dicts)))
    for theirs, ours in _STATE.items():
        value = state.get(theirs)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            found.tell(ours, value, 1)
    return found


def _ours(said: Mapping[str, str | float]) -> dict[str, str | float]:
    return {_COLUMNS[name]: value for name, value in said.items() if name in _COLUMNS}


def _number_by_bar(found: Found, bars: Rows) -> None:
    """The progress bar drawn last before a row tells its step. Evaluations draw bars of their own: the training's has the most steps of
    all."""
    if not len(bars):
        return
    total = float(np.nanmax(bars.column("bar_total")))
    training = bars.take(np.flatnonzero(bars.column("bar_total") == total))
    for rows in (found.steps, found.evals):
        before = np.searchsorted(training.at, rows.at) - 1
        rows.columns["bar"] = np.where(before >= 0, training.column("bar_step")[np.maximum(before, 0)], np.nan)
    found.tell("max_iters", int(total), int(training.line[0]), int(training.at[0]))


DOOR = Door("hf-trainer", WORDS, signs=("{'loss'", "{'eval_loss'", "{'train_runtime'"), find=find, place=place)
