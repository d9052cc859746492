"""Where logs are found: a text, a file of any of the kinds, a folder of Weights & Biases, Hugging Face, Lightning or TensorBoard."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from nanolens.errors import fault
from nanolens.interop.logs import wandb_folder
from nanolens.interop.logs.given import Given
from nanolens.interop.logs.reader import read_text
from nanolens.logs.formats import tracker_files as tensorboard
from nanolens.logs.text import decode
from nanolens.message import msg
from nanolens.record.run import Run

INSIDE = ("trainer_state.json", "output.log", "main.log", "metrics.csv", "log.txt", "train.log")
"""Files that hold the numbers in folders of other trainers, in the order in which they are looked for."""


def read_source(source: str | bytes | Path, given: Given, *, format: str | None, name: str | None) -> list[Run]:
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
            msg("{path:code} cannot be read: {problem}", path=str(source), problem=(error.strerror or str(error)).lower()),
            fix=msg("give the path of a log, or {dash:code} for standard input", dash="-"),
        ) from None
    return _read_bytes(raw, given, format, name or source.stem)


def _as_path(text: str) -> Path | None:
    """A text of one short line may be a path; it is one when something is there."""
    if "\n" in text or not text.strip() or len(text) > 1000 or "\x00" in text:
        return None
    try:
        return Path(text) if Path(text).exists() else None
    except (OSError, ValueError):
        return None


def _read_bytes(raw: bytes, given: Given, format: str | None, name: str) -> list[Run]:
    if tensorboard.is_event_file(raw):
        return tensorboard.read_events([raw], given, name)
    if raw.startswith(wandb_folder.MAGIC):
        raise wandb_folder.needs_output_log(name)
    return _per_run(decode(raw), given, format, name)


def _read_folder(folder: Path, given: Given, format: str | None, name: str) -> list[Run]:
    events = sorted(folder.glob(tensorboard.FILES), key=lambda path: path.name)
    if wandb_folder.is_run(folder):
        text, about = wandb_folder.read_folder(folder, given)
        return _per_run(text, about, format, name)
    for inside in INSIDE:
        if (folder / inside).is_file():
            return _read_bytes((folder / inside).read_bytes(), given, format, name)
    if events:
        return tensorboard.read_events([path.read_bytes() for path in events], given, name)
    raise fault(
        msg("{folder:code} holds neither a run nor a log that is known", folder=str(folder)),
        fix=msg("give the log file itself; in a folder these are looked for: {names:code}", names=[*INSIDE, tensorboard.FILES]),
    )


def _per_run(text: str, given: Given, format: str | None, name: str) -> list[Run]:
    """Tables in the config that are named like a run speak for that run only; so does hardware said as `A: …; B: …`."""
    runs = read_text(text, given, format=format, name=name)
    labels = [re.match(r"[\w.\-]*", run.name)[0] for run in runs]  # type: ignore[index]
    tables = {key: value for key, value in given.config.items() if isinstance(value, dict)}
    machines = dict(re.findall(r"(?:^|;) {0,3}([\w.\-]{1,40}): ([^;]{1,200})", given.hardware or ""))
    if len(runs) < 2 or not any(label in tables or label in machines for label in labels):
        return runs
    plain = {key: value for key, value in given.config.items() if key not in tables}
    chosen = []
    for index, label in enumerate(labels):
        own = replace(given, config={**plain, **tables.get(label, {})}, hardware=machines.get(label, given.hardware))
        chosen.append(read_text(text, own, format=format, name=name)[index])
    return chosen
