"""A series from what a user names: a folder of runs, a sweep, folders of W&B or TensorBoard, a table, a git branch."""

from __future__ import annotations

import csv
import io
import math
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanolens.comparison.side import SeedGroup, Side
from nanolens.comparison.verdict import usual_spread
from nanolens.config.fields import settings as all_settings
from nanolens.errors import UserError, fault
from nanolens.logs import read_logs
from nanolens.logs.facts import literal
from nanolens.logs.text import decode
from nanolens.message import Message, msg
from nanolens.record.read import read_run
from nanolens.record.run import RunRecord
from nanolens.record.store import find_runs
from nanolens.refereeing.series import Series, Try, direction_in, direction_of, related, score_among, status_named

TABLE_NAMES = ("results.tsv", "results.csv")  # looked for in a folder without runs
TABLE_SUFFIXES = (".csv", ".tsv")
SPENT_NAMES = re.compile(
    r"(?:run_?time|duration|took|elapsed|seconds?|train(?:ing)?_(?:time|seconds)|wall_?(?:time|clock)?)(_s|_sec|_seconds)?",
    re.I,
)
STATUS_NAMES = re.compile(r"status|decision|verdict|outcome|kept|accepted", re.I)
TEXT_NAMES = re.compile(r"description|change|idea|notes?|message|what|hypothesis|title|experiment|summary", re.I)
NAME_NAMES = re.compile(r"commit|hash|sha|id|run|name|trial|number|#|", re.I)
NOT_SETTINGS = re.compile(
    r".*(?:memory|vram|_gb|mfu|tokens_per_s|time|date|created|user|tags?|state|host|gpu).*|_.*", re.I
)
_SCORED = re.compile(
    r"([A-Za-z][\w/ ]{0,24}?)\s*(?:[:=]|\bis\b|->|→|\()\s*(-?\d+\.\d+(?:[eE]-?\d+)?)"
    r"|(-?\d+\.\d{2,})\s*(bpb|nats|loss)\b"
)
FEWEST_TRIES = 3


def read_series(source: str, score: str | None = None, better: str | None = None) -> Series:
    path = Path(source)
    if path.is_file():
        found = _table(path, score) if path.suffix in TABLE_SUFFIXES else _logs(source, [path], score)
    elif path.is_dir():
        found = _folder(path, score)
    elif "@" in source and Path(source.partition("@")[0]).is_dir():
        repository, _, branch = source.partition("@")
        found = _branch(Path(repository), branch, score)
    else:
        what = msg("there is no folder, table or branch named {source:code}", source)
        raise fault(
            what,
            fix=msg(
                "give a folder of runs, a {table:code} or {csv:code}, or {branch:code}",
                ".tsv",
                ".csv",
                "REPOSITORY@BRANCH",
            ),
        )
    return _checked(found, better)


def _checked(series: Series, better: str | None) -> Series:
    scored = [each for each in series.tries if each.scores]
    if len(scored) < FEWEST_TRIES:
        what = msg(
            "{source:code} holds {count:count try|tries} with a score, too few to referee", series.source, len(scored)
        )
        raise fault(what, fix=msg("give at least {count:count}: the baseline and two changes", FEWEST_TRIES))
    is_lower = {"lower": True, "higher": False}.get(better or "", direction_of(series.score))
    if is_lower is None and (is_lower := direction_in(scored)) is None:
        what = msg("whether a lower {score:code} is better is not known", series.score)
        raise fault(what, fix=msg("say so with {lower:code} or {higher:code}", "--better=lower", "--better=higher"))
    return replace(series, is_lower_better=is_lower, tries=related(series.tries))


# --- runs


def _folder(path: Path, score: str | None) -> Series:
    if runs := find_runs(path):
        return _of_runs(str(path), sorted(map(read_run, runs), key=_began_s), score)
    for name in TABLE_NAMES:
        if (path / name).is_file():
            return _table(path / name, score)
    inside = [
        each for each in sorted(path.iterdir()) if each.is_dir() and not each.is_symlink() and each.name[0] != "."
    ]
    inside = inside or sorted(each for each in path.iterdir() if each.suffix in (".log", ".txt", ".jsonl"))
    if (path / ".git").exists() and not any(_is_of_tracker(each) for each in inside):
        return _branch(path, "HEAD", score)
    return _logs(str(path), inside, score)


def _is_of_tracker(folder: Path) -> bool:
    return any(folder.glob("*.wandb")) or any(folder.glob("events.out.tfevents.*"))


def _began_s(run: RunRecord) -> float:
    stamps = run.steps.at_s[np.isfinite(run.steps.at_s)]
    return float(stamps[0]) if len(stamps) else run.number("created_at_s") or math.inf


def _logs(source: str, paths: Sequence[Path], score: str | None) -> Series:
    """The runs of logs and of trackers' folders; what cannot be read is named."""
    runs: list[RunRecord] = []
    not_read: list[str] = []
    for path in paths:
        try:
            runs += read_logs(path)
        except UserError:
            not_read.append(path.name)
    if not runs:
        what = msg("{source:code} holds no runs, no table and no log that can be read", source)
        raise fault(
            what,
            fix=msg(
                "give a folder of runs, a {table:code} or {csv:code}, or {branch:code}",
                ".tsv",
                ".csv",
                "REPOSITORY@BRANCH",
            ),
        )
    notes = (msg("not read: {names:code}", not_read),) if not_read else ()
    series = _of_runs(source, sorted(runs, key=_began_s), score)
    return replace(series, notes=(*series.notes, *notes))


def _of_runs(source: str, runs: Sequence[RunRecord], score: str | None) -> Series:
    if score not in (None, "val", "val_loss"):
        raise fault(
            msg("runs are refereed by their val loss, not by {score:code}", score),
            where=f"--score={score}",
            fix=msg("leave {option:code} out, or give a table with that column", "--score"),
        )
    sides = [Side(SeedGroup(run.name, (run,)), run.name) for run in runs]
    tries = tuple(_of_run(side) for side in sides)
    spreads = [usual_spread(side, float(side.curve.step[-1])) for side in sides if len(side.curve)]
    spread = None
    if spreads:
        usual = float(np.median(spreads))
        spread = usual, msg("typical spread between repeats of such a run, {spread:nats}", usual)
    notes = (msg("score: the val loss of each run's last evaluation"),)
    return Series(source, "val_loss", True, tries, notes, spread)


def _of_run(side: Side) -> Try:
    run, case = side.case.run, side.case
    asked = {
        key: case.get(key) for key in (*all_settings(), "data_fingerprint", "val_fingerprint", "tokenizer_fingerprint")
    }
    unasked = ("out_dir", "overwrite", "init_from", "trackers", "dataset", "lr_decay_iters", "checkpoint_interval")
    known = {
        key: value
        for key, value in asked.items()
        if value not in (None, "") and key not in unasked and not key.startswith("wandb")
    }
    is_over = run.get("state") not in ("failed", "running", "stopped")
    val = side.last_val
    scores = (val,) if val is not None and math.isfinite(val) and is_over else ()
    seconds = side.time_s if (wall := run.number("wall_s")) is None else wall
    return Try(run.name, scores, "unknown" if scores else "failed", "", known, seconds, side.eval_error)


# --- tables


def _table(path: Path, score: str | None) -> Series:
    text = decode(path.read_bytes())
    rows = list(csv.reader(io.StringIO(text), delimiter="\t" if "\t" in text.split("\n", 1)[0] else ","))
    if len(rows) < 2:
        raise fault(
            msg("{path:code} is no table with a header and rows", str(path)),
            fix=msg("name its columns in the first line"),
        )
    header, body = [name.strip() for name in rows[0]], [row for row in rows[1:] if any(cell.strip() for cell in row)]
    columns = {name: [row[i].strip() if i < len(row) else "" for row in body] for i, name in enumerate(header)}
    numeric = {
        name for name, cells in columns.items() if sum(_number(cell) is not None for cell in cells) * 2 > len(cells)
    }
    if score is not None and score not in columns:
        raise fault(
            msg("{path:code} has no column {score:code}", str(path), score),
            where=f"--score={score}",
            fix=msg("it has {names:code}", header),
        )
    named = score or getattr(score_among(header, numeric.__contains__), "name", None)
    if named is None:
        raise fault(
            msg("which column of {path:code} is the score?", str(path)),
            fix=msg(
                "name it with {option:code}; the columns of numbers are {names:code}", "--score=NAME", sorted(numeric)
            ),
        )
    tries = tuple(
        _row({name: cells[i] for name, cells in columns.items()}, named, numeric, i + 1) for i in range(len(body))
    )
    return Series(str(path), named, True, tries, (msg("score: the column {name:code}", named),))


def _row(row: dict[str, str], score: str, numeric: set[str], number: int) -> Try:
    def first(pattern: re.Pattern[str]) -> str:
        return next((cell for name, cell in row.items() if name != score and pattern.fullmatch(name)), "")

    text, value = first(TEXT_NAMES), _number(row[score])
    status = status_named(first(STATUS_NAMES)) if first(STATUS_NAMES) else "unknown"
    if value is None or (value == 0 and status == "failed"):
        value, status = None, "failed"
    roles = (SPENT_NAMES, STATUS_NAMES, TEXT_NAMES, NAME_NAMES, NOT_SETTINGS)
    known = {
        name: literal(cell)
        for name, cell in row.items()
        if name != score
        and cell
        and not any(role.fullmatch(name) for role in roles)
        and score_among([name], numeric.__contains__) is None
    }
    scores = () if value is None or status == "failed" else (value,)
    return Try(first(NAME_NAMES)[:12] or str(number), scores, status, text, known, _number(first(SPENT_NAMES)))


def _number(cell: str) -> float | None:
    try:
        value = float(cell.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# --- a git branch


def _branch(repository: Path, branch: str, score: str | None) -> Series:
    if branch.startswith("-"):
        raise fault(msg("{branch:code} is no branch", branch), fix=msg("give {branch:code}", "REPOSITORY@BRANCH"))
    form = "--format=%h%x1f%B%x1e"
    command = ["git", "-C", str(repository), "log", "--first-parent", "--reverse", form, branch, "--"]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    except FileNotFoundError:
        raise fault(
            msg("{program:code} is not installed", "git"), fix=msg("install it, or give a table of the scores")
        ) from None
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = decode(error.stderr or b"").strip().splitlines()
        raise fault(
            msg(
                "{repository:code} has no branch {branch:code} that can be read: {problem}",
                str(repository),
                branch,
                said[-1] if said else "git",
            ),
            fix=msg("give {branch:code}", "REPOSITORY@BRANCH"),
        ) from None
    commits = [entry.strip().split("\x1f", 1) for entry in decode(done.stdout).split("\x1e") if entry.strip()]
    tries = [each for name, text in commits if (each := _commit(name, text, score)) is not None]
    if not tries:
        raise fault(
            msg("no commit of {branch:code} names a score", branch),
            fix=msg(
                "write it into the message, as in {example:code}, or name it with {option:code}",
                "val_loss: 1.4697",
                "--score=NAME",
            ),
        )
    names = [each.settings["score"] for each in tries]
    common = max(set(names), key=names.count)
    kept = tuple(replace(each, settings={}) for each in tries if each.settings["score"] == common)
    notes: tuple[Message, ...] = (
        msg(
            "score: {name:code} in the messages of {count:count commit|commits} of {total:count}",
            common,
            len(kept),
            len(commits),
        ),
    )
    return Series(f"{repository}@{branch}", str(common), True, kept, notes)


def _commit(name: str, text: str, score: str | None) -> Try | None:
    """The first score in a message; a commit that is not taken back was kept."""
    for word, value, other, unit in _SCORED.findall(text):
        called = "_".join((word or unit).split()[-2:])
        for label in (called, called.split("_")[-1]):
            if label == score or (score is None and score_among([label], lambda _: True) is not None):
                subject = text.strip().splitlines()[0]
                status = status_named(subject)
                status = status if status in ("discarded", "failed", "baseline") else "kept"
                scores = () if status == "failed" else (float(value or other),)
                return Try(name, scores, status, subject, {"score": label})
    return None
