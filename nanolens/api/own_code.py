"""When code that is kept with a run may be run: only if its owner named it, now or (these very bytes, on this machine) before.

A run folder may come from anybody. What a user names with `--arch=my_model.py` is theirs to run; its sha256 is remembered in the cache, so
that the copy in the run folder can be used later without naming it again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from nanolens import files
from nanolens.errors import fault
from nanolens.message import Message, msg
from nanolens.record.layout import OWN_MODEL

REMEMBERED = "own-models"  # folder of the cache: an empty file for each sha256


def remember(path: Path) -> None:
    with contextlib.suppress(OSError):  # without a cache it has to be named each time
        files.write_whole(files.cache_folder() / REMEMBERED / files.sha256_of(path), "")


def file_to_run(run: Path, recorded: str, named: str | None) -> tuple[Path, Message | None]:
    """The model file of a run that was made by `recorded`, and what the user should know of it. `named`: what was named in this call."""
    kept = run / OWN_MODEL
    if not kept.is_file():  # a run of an early version: there is only what the user names
        if named is None:
            raise _unnamed(msg("this model was made by {file:code}, and code is only run if you name it", file=recorded), run, recorded)
        return Path(named), None
    if named is not None and Path(named).is_file():
        remember(Path(named))
    if not (files.cache_folder() / REMEMBERED / files.sha256_of(kept)).is_file():
        if named is None:
            what = msg("this model was made by {file:code}, and code is only run if you name it", file=recorded)
        else:
            what = msg("{named:code} is not the code that this model was made by", named=named)
        raise _unnamed(what, run, str(kept))
    if Path(recorded).is_file() and files.sha256_of(Path(recorded)) != files.sha256_of(kept):
        return kept, msg("{file:code} has changed since the run began; its own copy {kept:code} is used", file=recorded, kept=str(kept))
    return kept, None


def _unnamed(what: Message, run: Path, file: str) -> Exception:
    return fault(what, where=msg("{folder:code}", folder=str(run)), fix=msg("read it, then add {option:code}", option=f"--arch={file}"))
