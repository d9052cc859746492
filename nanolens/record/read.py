"""A run folder -> a Run. Live or finished, whole or torn: what stands there is read, and nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nanolens.record import events as e
from nanolens.record.cache import read_record
from nanolens.record.columns import Record
from nanolens.record.layout import EVENTS_FILE
from nanolens.record.probes import probe_facts
from nanolens.record.rank_facts import rank_facts
from nanolens.record.run import MARKS, Evals, Known, Mark, Reading, Run, Steps, Words, evals_from, steps_from
from nanolens.record.write import living_process, read_run_file


def read_run(folder: Path) -> Run:
    """The run as it stands now. Later attempts take the place of the steps that they repeated."""
    facts = read_run_file(folder)
    record = read_record(folder / EVENTS_FILE) if (folder / EVENTS_FILE).is_file() else Record()
    ended = [other.event for other in record.others if isinstance(other.event, e.RunEnded)]
    known = known_facts(facts)
    known["state"] = Known(state_of(folder, record), "recorded")
    known |= probe_facts(folder)
    known |= rank_facts(other.event for other in record.others)
    if ended:
        known["wall_s"] = Known(sum(event.wall_s for event in ended), "recorded", "time of all attempts")
    last = max((other.event.attempt for other in record.others), default=1)
    reading = Reading(
        lines=record.lines, understood=record.lines - record.not_understood, not_understood=record.not_understood, attempts=last
    )
    return Run(
        folder.name, _words(facts), _steps(record), _evals(record), known, tuple(_marks(record)), reading, _time_parts(ended),
    )  # fmt: skip


def follow(folder: Path, *, offset: int = 0, poll_s: float = 0.2, until_ended: bool = True) -> Iterator[e.Event]:
    """Events from a byte offset on, as they are written, until the run ends or its process is gone."""
    while True:
        is_alive = living_process(folder) is not None
        fresh, offset = events_since(folder, offset)
        yield from fresh
        if until_ended and not fresh and not is_alive:
            return
        if until_ended and fresh and isinstance(fresh[-1], e.RunEnded):
            return
        if not fresh:
            time.sleep(poll_s)


def events_since(folder: Path, offset: int) -> tuple[list[e.Event], int]:
    """Whole events behind a byte offset, and the offset behind the last of them. A torn or unknown line is passed over."""
    try:
        with open(folder / EVENTS_FILE, "rb") as file:
            file.seek(offset)
            whole, newline, _ = file.read().rpartition(b"\n")
    except FileNotFoundError:
        return [], offset
    found = []
    for line in whole.split(b"\n") if newline else ():
        try:
            found.append(_DECODER.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return found, offset + len(whole) + len(newline)


_DECODER = msgspec.json.Decoder(e.EVENTS)


def state_of(folder: Path, record: Record) -> str:
    """running, finished, stopped, failed, or gone: its process died without a word."""
    last = next((other.event for other in reversed(record.others) if isinstance(other.event, e.RunEnded | e.RunStarted)), None)
    if isinstance(last, e.RunEnded):
        return last.why
    return "running" if living_process(folder) is not None else "gone"


def known_facts(facts: Mapping[str, Any]) -> dict[str, Known]:
    """What `run.json` says, under the names of `Run.known`."""
    known: dict[str, Known] = {}
    came_from = _table(facts, "came_from")
    for name, value in _table(facts, "config").items():
        known[name] = Known(value, "recorded", str(came_from.get(name, "")))
    data = _table(facts, "data")
    told = {**_table(data, "facts"), **{name: value for name, value in data.items() if not isinstance(value, dict)}}
    renamed = {"train_tokens": "dataset_tokens", "fingerprint": "data_fingerprint", "name": "data_folder"}
    for name, value in told.items():
        known[renamed.get(name, name)] = Known(value, "recorded", "data")
    for part in ("machine", "sizes"):
        for name, value in _table(facts, part).items():
            if value is not None and not (name in known and name == "dtype" and value == "auto"):
                known[name] = Known(value, "recorded", part)
    versions = _table(facts, "versions")
    for key, name in (("torch", "torch"), ("nanolens", "trainer_version")):
        if key in versions:
            known[name] = Known(versions[key], "recorded", "versions")
    if code := _table(facts, "own_model").get("sha256"):
        known["model_code"] = Known(str(code)[:12], "recorded", "own_model")
    for name in ("preset", "parent", "created_at_s"):
        if facts.get(name):
            known[name] = Known(facts[name], "recorded")
    for name, fact in _table(facts, "known").items():  # of a run that `watch` recorded: facts with origins of their own
        if isinstance(fact, dict) and fact.get("origin") in ("recorded", "given", "printed", "inferred"):
            known[name] = Known(fact.get("value"), fact["origin"], str(fact.get("where", "")))
    return {name: fact for name, fact in known.items() if fact.value is not None}


def _table(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = facts.get(name)
    return value if isinstance(value, dict) else {}


def _words(facts: Mapping[str, Any]) -> Words:
    said = _table(facts, "words")
    if said.get("trainer"):
        return Words(**{field.name: said[field.name] for field in fields(Words) if field.name in said})
    return Words(trainer="nanolens", loss="mean", time="step_only", peak_flops=_table(facts, "machine").get("peak_flops"))


def _steps(record: Record) -> Steps:
    columns = {name: values for name, values in record.columns.items() if name != "rank"}
    logged = [(other, other.event) for other in record.others if isinstance(other.event, e.Logged) and _is_step(other.event)]
    chosen = np.flatnonzero(record.columns["rank"] == 0)
    columns = _rows_of(columns, chosen)
    columns["not_finite"] = np.where(np.isfinite(columns["loss"]), 0.0, 1.0) + np.where(np.isfinite(columns["grad_norm"]), 0.0, 2.0)
    if logged:
        columns = _with_logged(columns, logged)
    kept = _kept(columns["step"], columns["line"], _restarts(record))
    columns = _rows_of(columns, kept)
    columns["at_s"] = np.where(columns["at_s"] == 0, np.nan, columns["at_s"])
    columns["tokens"] = np.where(columns["tokens"] == 0, np.nan, columns["tokens"])
    columns.setdefault("printed", columns["step"])
    return steps_from(columns, len(kept))


def _rows_of(columns: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The chosen rows. All of them in their order, as nearly always, are not copied: of a long run that would take too long."""
    count = len(columns["step"])
    if len(rows) == count and (not count or (rows[0] == 0 and np.all(np.diff(rows) == 1))):
        return dict(columns)
    return {name: values[rows] for name, values in columns.items()}


_LOGGED = ("loss", "rate", "grad_norm", "took_s", "tokens", "tokens_per_s", "mfu_frac", "loss_scale", "memory_bytes", "data_s", "clipped")
_NOT_FINITE = {"loss": 1.0, "grad_norm": 2.0}
_ALSO = {"lr": "rate", "learning_rate": "rate", "train_loss": "loss", "train/loss": "loss", "gnorm": "grad_norm"}


def _is_step(event: e.Logged) -> bool:
    return any(_ALSO.get(name, name) in _LOGGED for name in event.values)


def _with_logged(columns: dict[str, np.ndarray], logged: list) -> dict[str, np.ndarray]:
    """Rows that another loop told, behind those of ours."""
    count = len(logged)
    theirs = {name: np.full(count, np.nan) for name in (*_LOGGED, "step", "line", "at_s", "printed")}
    theirs["not_finite"] = np.zeros(count)  # only what was said can be no number
    for i, (other, event) in enumerate(logged):
        printed = _number(event.values.get("printed"))
        theirs["printed"][i] = event.step if printed is None else printed
        theirs["step"][i], theirs["line"][i], theirs["at_s"][i] = event.step, other.line, event.at_s
        for name, value in event.values.items():
            column = _ALSO.get(name, name)
            if column in theirs and (number := _number(value)) is not None:
                theirs[column][i] = number
                theirs["not_finite"][i] += _NOT_FINITE.get(column, 0.0) * (not np.isfinite(number))
    whole = {}
    for name in {*columns, *theirs}:
        ours = columns.get(name, columns["step"] if name == "printed" else np.full(len(columns["step"]), np.nan))
        whole[name] = np.concatenate([ours, theirs.get(name, np.full(count, np.nan))])
    return whole


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except ValueError:
        return None


def _restarts(record: Record) -> list[tuple[int, int]]:
    """(line, step) of each time that the run went back to a step: resumed or rolled back."""
    found = []
    for other in record.others:
        if isinstance(other.event, e.RunStarted):
            found.append((other.line, other.event.step))
        elif isinstance(other.event, e.RolledBack):
            found.append((other.line, other.event.to_step))
    return found


def _kept(step: np.ndarray, line: np.ndarray, restarts: list[tuple[int, int]]) -> np.ndarray:
    """Indices of the rows that count, in the order of their steps: what was undone by going back does not, and of one step the last."""
    alive = np.ones(len(step), bool)
    for before, back_to in restarts:
        alive &= ~((line < before) & (step > back_to))
    rows = np.flatnonzero(alive)
    if len(rows) and np.all(np.diff(step[rows]) > 0) and np.all(np.diff(line[rows]) > 0):
        return rows
    rows = rows[np.lexsort((line[rows], step[rows]))]
    is_last = np.append(np.diff(step[rows]) != 0, True) if len(rows) else np.zeros(0, bool)
    return rows[is_last]


def _evals(record: Record) -> Evals:
    """Both splits of one step in one row; what a later attempt evaluated again replaces the earlier."""
    rows: dict[int, dict[str, Any]] = {}
    order: list[tuple[int, e.Evaluated, int]] = []
    for other in record.others:
        event = other.event
        if isinstance(event, e.RunStarted):
            order = [row for row in order if row[0] <= event.step]
        elif isinstance(event, e.RolledBack):
            order = [row for row in order if row[0] <= event.to_step]
        elif isinstance(event, e.Evaluated) and event.rank == 0:
            order.append((event.step, event, other.line))
        elif isinstance(event, e.Logged):
            order += [(event.step, evaluated, other.line) for evaluated in _logged_evaluations(event)]
    for step, event, line in order:
        row = rows.setdefault(step, {})
        row |= {"line": line, "at_s": event.at_s, event.split: event}
    steps = sorted(rows)
    columns: dict[str, Any] = {"step": steps, "printed": steps}
    columns["line"] = [rows[step]["line"] for step in steps]
    columns["at_s"] = [rows[step]["at_s"] or np.nan for step in steps]
    for split in ("train", "val"):
        said = [rows[step].get(split) for step in steps]
        columns[split] = [np.nan if event is None else float(event.loss) for event in said]
        columns[f"{split}_se"] = [np.nan if event is None else float(event.standard_error) for event in said]
        columns[f"{split}_batch_losses"] = [np.array([] if event is None else [float(x) for x in event.batch_losses]) for event in said]
    columns["took_s"] = [_took(rows[step]) for step in steps]
    columns["val_bits_per_byte"] = [_bits(rows[step].get("bits") or rows[step].get("val")) for step in steps]
    columns["batches"] = ["" if (event := rows[step].get("val")) is None else event.batches for step in steps]
    columns["not_finite"] = [
        sum(code for split, code in (("train", 1.0), ("val", 2.0)) if _is_bad(rows[step].get(split))) for step in steps
    ]
    return evals_from(columns, len(steps))


_LOGGED_EVALS = {"train": "train", "val": "val", "val_loss": "val", "val/loss": "val", "eval_loss": "val", "eval/loss": "val"}


def _logged_evaluations(event: e.Logged) -> Iterator[e.Evaluated]:
    """Evaluations that another loop told, in the form of ours. Only what was said becomes a number."""
    unknown: dict[str, Any] = {
        "step": event.step,
        "at_s": event.at_s,
        "standard_error": "nan",
        "batch_losses": [],
        "batches": "",
        "tokens": 0,
    }
    for name, split in _LOGGED_EVALS.items():
        if (loss := _number(event.values.get(name))) is not None:
            yield e.Evaluated(split=split, loss=loss, **unknown)
    if (bits := _number(event.values.get("val_bits_per_byte"))) is not None:
        yield e.Evaluated(split="bits", loss="nan", bits_per_byte=bits, **unknown)


def _took(row: Mapping[str, Any]) -> float:
    took = sum(row[split].took_s for split in ("train", "val") if split in row)
    return took or float("nan")


def _bits(event: e.Evaluated | None) -> float:
    return float("nan") if event is None or event.bits_per_byte is None else float(event.bits_per_byte)


def _is_bad(event: e.Evaluated | None) -> bool:
    return event is not None and not np.isfinite(float(event.loss))


def _marks(record: Record) -> Iterator[Mark]:
    for other in record.others:
        event, line = other.event, other.line
        match event:
            case e.RunStarted() if event.attempt > 1:
                yield Mark("resume" if event.resumed_from else "attempt", event.step, line, event.resumed_from)
            case e.Compiled():
                yield Mark("compile", event.step, line, took_s=event.took_s)
            case e.CheckpointSaved():
                yield Mark("checkpoint", event.step, line, "best" if event.is_best else "", event.stall_s)
            case e.CheckpointFailed():
                yield Mark("checkpoint_failed", event.step, line, event.because)
            case e.CheckpointRefused():
                yield Mark("checkpoint_refused", None, line, f"{event.folder}: {event.because}")
            case e.StepSkipped():
                yield Mark("skip", event.step, line, f"{event.because} {event.layer}".strip())
            case e.RolledBack():
                yield Mark("rollback", event.to_step, line, event.because)
            case e.MicroBatchHalved():
                yield Mark("micro_batch_halved", event.step, line, f"{event.old} -> {event.new}")
            case e.SampleWritten():
                yield Mark("sample", event.step, line, event.text, event.took_s)
            case e.RankDrifted():
                yield Mark("rank_drifted", event.step, line, ", ".join(map(str, event.ranks)))
            case e.RanksLost():
                yield Mark("rank_lost", event.step, line, event.because, event.waited_s)
            case e.Chosen():
                yield Mark("chosen", None, line, f"{event.what} = {event.value}: {event.because}")
            case e.ConfigChanged():
                yield Mark("config_change", None, line, f"{event.key}: {event.old} -> {event.new}")
            case e.Warned():
                yield Mark("warned", event.step, line, f"{event.code}: {event.claim}")
            case e.Logged() if event.values.get("mark") in MARKS:
                yield Mark(str(event.values["mark"]), event.step, line, str(event.values.get("text", "")))
            case e.RunEnded():
                if event.events_lost:
                    yield Mark("lost", event.step, line, f"{event.events_lost}: {event.lost_because}")
                yield Mark("ended", event.step, line, f"{event.why} {event.because}".strip())
            case _:
                continue


def _time_parts(ended: list[e.RunEnded]) -> dict[str, float]:
    """Seconds by part, of all attempts that came to an end."""
    total: dict[str, float] = {}
    for event in ended:
        for part, seconds in event.parts.items():
            total[part] = total.get(part, 0.0) + seconds
    return total
