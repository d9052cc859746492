"""Before the work: was it done already, may it be done here, and is there room for it?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from nanolens import files
from nanolens.data.job import Job, is_compressed
from nanolens.data.sidecar import SOURCES, read_sidecar
from nanolens.data.sources import SourceFile
from nanolens.errors import fault
from nanolens.message import msg


def find_ready(out: Path, job: Job) -> dict[str, Any] | None:
    """The sidecar of `out`, if it was made from these files in this way and is still whole."""
    about = read_sidecar(out)
    if about is None or about.get("settings") != job.settings or files.damage(out, contents=False):
        return None
    try:
        noted = json.loads((out / SOURCES).read_bytes())
        known = noted["files"]
        if len(known) != len(job.found) or any(entry["bytes"] != file.bytes for entry, file in zip(known, job.found, strict=True)):
            return None
        same = all(_is_same(entry, file, noted["read_at_ns"]) for entry, file in zip(known, job.found, strict=True))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return about if same else None


def _is_same(entry: dict[str, Any], file: SourceFile, read_at_ns: int) -> bool:
    """A file with the same place, size and time of change is not read again, unless it was changed just before it was read."""
    untouched = entry["path"] == str(file.path.absolute()) and entry["modified_ns"] == file.modified_ns
    if untouched and file.modified_ns < read_at_ns - 2_000_000_000:
        return True
    return files.sha256_of(file.path) == entry["sha256"]


def require_place(out: Path, overwrite: bool) -> None:
    if not out.exists() or overwrite:
        return
    if out.is_dir() and not any(out.iterdir()):
        return
    about = read_sidecar(out)
    what = about["name"] if about else msg("something that nanolens did not prepare")
    raise fault(
        msg("the folder holds another dataset already: {what}", what=what),
        where=msg("{path:code}", path=str(out)),
        fix=msg("choose another folder with {out:code}, or replace it with {overwrite:code}", out="--out=DIR", overwrite="--overwrite"),
    )


def require_space(out: Path, job: Job) -> None:
    """Refuses only where the disk is clearly too small: how many tokens a text has is not known before."""
    packed = sum(file.bytes * (2.0 if is_compressed(file) else 1.0) for file in job.found)
    needed = int(packed * (2.0 if job.tokenizer == "char" else 0.4))
    if files.free_bytes(out.absolute()) < needed:
        files.require_free_space(out, needed, "preparing this")


def remove_dead(out: Path) -> None:
    """What a process that was killed left behind while preparing the same folder."""
    import psutil

    for left in out.parent.glob(f"{files.UNFINISHED}*-{out.name}"):
        number = left.name.removeprefix(files.UNFINISHED).split("-")[0]
        if number.isdigit() and not psutil.pid_exists(int(number)):
            shutil.rmtree(left, ignore_errors=True)
