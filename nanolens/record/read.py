"""A run folder -> a Run. Live or finished, whole or torn: what stands there is read, and nothing is changed."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path

import msgspec
import numpy as np

from nanolens import files
from nanolens.record import EVENTS_FILE, PROBES, answer_files
from nanolens.record import events as e
from nanolens.record.columns import Record, read_record
from nanolens.record.run import (
    MARKS,
    Conventions,
    Evals,
    Known,
    Mark,
    Reading,
    RunRecord,
    Steps,
    evals_from,
    steps_from,
)
from nanolens.record.store import state_of
from nanolens.record.write import bare_evaluation, read_run_file

TAIL_BYTES = 256 << 10
_IS_BEST, _WARNED = b'"is_best":true', b'"event":"warned"'


def read_run(folder: Path) -> RunRecord:
    """The run as it stands now. Later attempts take the place of the steps that they repeated."""
    facts = read_run_file(folder)
    record = read_record(folder / EVENTS_FILE) if (folder / EVENTS_FILE).is_file() else Record()
    events = [other.event for other in record.others]
    ended = [event for event in events if isinstance(event, e.RunEnded)]
    known = {**known_facts(facts), "state": Known(state_of(folder, events), "recorded")}
    known |= probe_facts(folder) | rank_facts(events)
    if ended:
        known["wall_s"] = Known(sum(event.wall_s for event in ended), "recorded", "time of all attempts")
    lines, bad, attempts = record.lines, record.not_understood, max((event.attempt for event in events), default=1)
    reading = Reading(lines, lines - bad, bad, attempts=attempts)
    parts: Counter[str] = Counter()  # of all attempts that came to an end
    for event in ended:
        parts.update(event.parts)
    steps, evals, marks = _steps(record), _evals(record), tuple(_marks(record))
    return RunRecord(folder.name, _conventions(facts), steps, evals, known, marks, reading, dict(parts))


# --- single events, without the columns

_DECODER = msgspec.json.Decoder(e.EVENTS)


def events_since(folder: Path, offset: int) -> tuple[list[e.Event], int]:
    """Whole events behind a byte offset, and the offset behind them. A torn or unknown line is passed over."""
    try:
        with open(folder / EVENTS_FILE, "rb") as file:
            file.seek(offset)
            whole, newline, _ = file.read().rpartition(b"\n")
    except FileNotFoundError:
        return [], offset
    return list(_events_in(whole)), offset + len(whole) + len(newline)


def last_events(folder: Path) -> tuple[list[e.Event], float]:
    """The events within the last bytes of the record, and when it was last written to."""
    try:
        about = (folder / EVENTS_FILE).stat()
        # The first line may begin in its middle: then it is passed over as a torn one.
        return events_since(folder, max(0, about.st_size - TAIL_BYTES))[0], about.st_mtime
    except OSError:
        return [], math.nan


def best_and_warnings(folder: Path) -> tuple[float, int]:
    """The lowest val loss and the number of warnings. Both are rare: their lines are looked for, no other is read."""
    best, warnings = math.nan, 0
    try:
        with open(folder / EVENTS_FILE, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            for event in _events_in(b"\n".join([*_lines_with(_IS_BEST, whole), *_lines_with(_WARNED, whole)])):
                if isinstance(event, e.Evaluated) and event.split == "val":
                    best = float(event.loss)  # each best one is lower than the one before
                warnings += isinstance(event, e.Warned)
    except (OSError, ValueError):  # not there, or empty
        pass
    return best, warnings


def _lines_with(sign: bytes, whole: mmap.mmap) -> Iterator[bytes]:
    at = whole.find(sign)
    while at >= 0:
        end = whole.find(b"\n", at)
        end = len(whole) if end < 0 else end
        yield whole[whole.rfind(b"\n", 0, at) + 1 : end]
        at = whole.find(sign, end)


def _events_in(lines: bytes) -> Iterator[e.Event]:
    for line in lines.split(b"\n"):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            yield _DECODER.decode(line)


# --- facts


def known_facts(facts: Mapping[str, object]) -> dict[str, Known]:
    """What `run.json` says, under the names of `Run.known`."""
    config, came_from, data, versions = (_table(facts, name) for name in ("config", "came_from", "data", "versions"))
    known = {name: Known(value, "recorded", str(came_from.get(name, ""))) for name, value in config.items()}
    plain = {name: value for name, value in data.items() if not isinstance(value, dict)}
    renamed = {"train_tokens": "dataset_tokens", "fingerprint": "data_fingerprint", "name": "data_folder"}
    for name, value in {**_table(data, "facts"), **plain}.items():
        known[renamed.get(name, name)] = Known(value, "recorded", "data")
    for part in ("machine", "sizes"):
        for name, value in _table(facts, part).items():
            if value is not None and not (name in known and name == "dtype" and value == "auto"):
                known[name] = Known(value, "recorded", part)
    for key, name in (("torch", "torch"), ("nanolens", "trainer_version")):
        if key in versions:
            known[name] = Known(versions[key], "recorded", "versions")
    if code := _table(facts, "own_model").get("sha256"):
        known["model_code"] = Known(str(code)[:12], "recorded", "own_model")
    known |= {name: Known(facts[name], "recorded") for name in ("preset", "parent", "created_at_s") if facts.get(name)}
    for name, fact in _table(facts, "known").items():  # of a run that `watch` recorded: facts with origins of their own
        if isinstance(fact, dict) and fact.get("origin") in ("recorded", "given", "printed", "inferred"):
            known[name] = Known(fact.get("value"), fact["origin"], str(fact.get("where", "")))
    return {name: fact for name, fact in known.items() if fact.value is not None}


def probe_facts(folder: Path) -> dict[str, Known]:
    """The answer of the newest step that was probed, as the fact `probes`; nothing where none can be read."""
    for path in reversed(answer_files(folder)):
        answer = files.read_json(path) or {}  # one that was cut off is passed over for an older one
        if isinstance(answer.get("effects"), list):
            return {"probes": Known(answer, "recorded", f"{PROBES}/{path.name}")}
    return {}


def rank_facts(events: Iterable[e.Event]) -> dict[str, Known]:
    """The pace of the ranks. Of several attempts with other numbers of ranks, the last one's."""
    paces = [event for event in events if isinstance(event, e.RanksPaced) and event.rank_busy_s]
    if not paces:
        return {}
    size = len(paces[-1].rank_busy_s)
    paces = [pace for pace in paces if len(pace.rank_busy_s) == size and pace.attempt == paces[-1].attempt]
    weights = np.array([pace.updates for pace in paces], dtype=float)
    busy = np.average([pace.rank_busy_s for pace in paces], axis=0, weights=weights)
    comm = np.average([pace.rank_comm_s for pace in paces], axis=0, weights=weights)
    slowest = np.sum([pace.rank_slowest or [0] * size for pace in paces], axis=0)
    facts = {
        "rank_busy_s": tuple(busy.tolist()),
        "rank_comm_s": tuple(comm.tolist()),
        "rank_took_s": float(np.average([pace.took_s for pace in paces], weights=weights)),
        "rank_slowest": tuple(slowest.tolist()),
        "rank_updates": int(weights.sum()),
        "rank_hosts": tuple(paces[-1].hosts),
    }
    return {name: Known(value, "recorded", "events.jsonl: ranks_paced") for name, value in facts.items()}


def _table(facts: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = facts.get(name)
    return value if isinstance(value, dict) else {}


def _conventions(facts: Mapping[str, object]) -> Conventions:
    said = _table(facts, "words")
    if said.get("trainer"):
        return Conventions(**{field.name: said[field.name] for field in fields(Conventions) if field.name in said})  # type: ignore[arg-type]
    peak = _table(facts, "machine").get("peak_flops")
    peak_flops = float(peak) if isinstance(peak, int | float) else None
    return Conventions(trainer="nanolens", loss="mean", time="step_only", peak_flops=peak_flops)


# --- rows


def _steps(record: Record) -> Steps:
    ours = np.flatnonzero(record.columns["rank"] == 0)
    columns = _rows_of({name: values for name, values in record.columns.items() if name != "rank"}, ours)
    columns["printed"] = columns["step"]
    columns["not_finite"] = ~np.isfinite(columns["loss"]) + 2.0 * ~np.isfinite(columns["grad_norm"])
    theirs = [(other.line, event) for other in record.others if isinstance(event := other.event, e.Logged)]
    logged = [(line, event) for line, event in theirs if {_ALSO.get(name, name) for name in event.values} & _COLUMNS]
    columns = _with_logged(columns, logged) if logged else columns
    columns = _rows_of(columns, _kept(columns["step"], columns["line"], record))
    for name in ("at_s", "tokens"):
        columns[name] = np.where(columns[name] == 0, np.nan, columns[name])
    return steps_from(columns, len(columns["step"]))


def _rows_of(columns: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The chosen rows. All of them, as nearly always, are not copied: of a long run that would take too long."""
    count = len(columns["step"])
    if len(rows) == count and (not count or (rows[0] == 0 and np.all(np.diff(rows) == 1))):
        return dict(columns)
    return {name: values[rows] for name, values in columns.items()}


_COLUMNS = {*"loss lr grad_norm took_s tokens tokens_per_s mfu_frac loss_scale memory_bytes data_s clipped".split()}
_ALSO = {"learning_rate": "lr", "train_loss": "loss", "train/loss": "loss", "gnorm": "grad_norm"}
_ALSO |= dict.fromkeys(("val_loss", "val/loss", "eval_loss", "eval/loss"), "val")
_NOT_FINITE = {"loss": 1.0, "grad_norm": 2.0}


def logged_numbers(event: e.Logged) -> dict[str, float]:
    """What a loop that is not ours said, under our names. Only what was said becomes a number."""
    said = {}
    for name, value in event.values.items():
        with contextlib.suppress(ValueError):
            said[_ALSO.get(name, name)] = float(value)
    return said


def _with_logged(columns: dict[str, np.ndarray], logged: list[tuple[int, e.Logged]]) -> dict[str, np.ndarray]:
    count = len(logged)
    theirs = {name: np.full(count, np.nan) for name in (*_COLUMNS, "step", "line", "at_s", "printed")}
    theirs["not_finite"] = np.zeros(count)  # only what was said can be no number
    for i, (line, event) in enumerate(logged):
        said = {"printed": float(event.step), **logged_numbers(event), "step": event.step, "line": line}
        for name, number in (said | {"at_s": event.at_s}).items():
            if name in theirs:
                theirs[name][i] = number
                theirs["not_finite"][i] += _NOT_FINITE.get(name, 0.0) * (not np.isfinite(number))
    gap, rest = np.full(len(columns["step"]), np.nan), np.full(count, np.nan)
    return {name: np.concatenate([columns.get(name, gap), theirs.get(name, rest)]) for name in {*columns, *theirs}}


def _kept(step: np.ndarray, line: np.ndarray, record: Record) -> np.ndarray:
    """Rows that count, in the order of their steps: not what was undone by going back, and of one step the last."""
    alive = np.ones(len(step), bool)
    for other in record.others:
        match other.event:
            case e.RunStarted(step=back_to) | e.RolledBack(to_step=back_to):
                alive &= ~((line < other.line) & (step > back_to))
    rows = np.flatnonzero(alive)
    if len(rows) and np.all(np.diff(step[rows]) > 0) and np.all(np.diff(line[rows]) > 0):
        return rows
    latest = rows[np.argsort(line[rows], kind="stable")][::-1]
    return latest[np.unique(step[latest], return_index=True)[1]]


def _evals(record: Record) -> Evals:
    """Both splits of one step in one row; what a later attempt evaluated again replaces the earlier."""
    evaluations: list[tuple[int, e.Evaluated]] = []
    for other in record.others:
        match other.event:
            case e.RunStarted(step=back_to) | e.RolledBack(to_step=back_to):
                evaluations = [(line, event) for line, event in evaluations if event.step <= back_to]
            case e.Evaluated(rank=0) as event:
                evaluations.append((other.line, event))
            case e.Logged() as event:
                evaluations += [(other.line, evaluated) for evaluated in _logged_evaluations(event)]
    by_step: dict[int, dict[str, e.Evaluated]] = {}
    lines = {}
    for line, event in evaluations:
        by_step.setdefault(event.step, {}).update({event.split: event, "last": event})
        lines[event.step] = line
    steps = sorted(by_step)
    rows = [by_step[step] for step in steps]
    columns: dict[str, object] = {"step": steps, "printed": steps, "line": [lines[step] for step in steps]}
    columns["at_s"] = [row["last"].at_s or np.nan for row in rows]
    columns["took_s"] = [sum(row[split].took_s for split in _SPLITS if split in row) or np.nan for row in rows]
    columns["batches"] = [row["val"].batches if "val" in row else "" for row in rows]
    columns["val_bits_per_byte"] = [_number(row.get("bits") or row.get("val"), "bits_per_byte") for row in rows]
    not_finite = np.zeros(len(rows))
    for split, code in _SPLITS.items():
        said = [row.get(split) for row in rows]
        columns[split] = [_number(event, "loss") for event in said]
        not_finite += [0.0 if event is None or np.isfinite(float(event.loss)) else code for event in said]
        columns[f"{split}_se"] = [_number(event, "standard_error") for event in said]
        columns[f"{split}_batch_losses"] = [np.array(event.batch_losses if event else [], float) for event in said]
    return evals_from({**columns, "not_finite": not_finite}, len(steps))


_SPLITS = {"train": 1.0, "val": 2.0}  # and the code of a loss that is not finite


def _number(event: e.Evaluated | None, name: str) -> float:
    value = None if event is None else getattr(event, name)
    return np.nan if value is None else float(value)


def _logged_evaluations(event: e.Logged) -> Iterator[e.Evaluated]:
    said = logged_numbers(event)
    for split in _SPLITS:
        if split in said:
            yield bare_evaluation(event.step, split, said[split], at_s=event.at_s)
    if (bits := said.get("val_bits_per_byte")) is not None:
        yield bare_evaluation(event.step, "bits", "nan", bits_per_byte=bits, at_s=event.at_s)


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
