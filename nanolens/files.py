"""The one place that writes to disk for keeps: whole or not at all, synced, checksummed, and never more than the disk has room for.

After a crash, a kill or a full disk a path is either as it was before or as it should be. Everything is first written beside its
place under a name that starts with `.new-`, synced, and then renamed, which the operating system does in one step.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nanolens.errors import fault
from nanolens.message import msg

MANIFEST = "manifest.json"
SEAL = "seal"  # key of the manifest's own sha256
UNFINISHED = ".new-"
OLD = "-old-"


def write_whole(path: Path, payload: bytes | str) -> None:
    """After a crash `path` is either the old file or the new one, never half of either."""
    with whole_file(path) as file:
        file.write(payload.encode() if isinstance(payload, str) else payload)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file to write into; it takes `path`'s place when the block ends well, and is removed when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{UNFINISHED}{os.getpid()}-{path.name}")
    try:
        with open(fresh, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        sync_folder(path.parent)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def whole_folder(path: Path, facts: Mapping[str, object] | None = None, known: Mapping[str, str] | None = None) -> Iterator[Path]:
    """A fresh folder to fill; when the block ends well it gets a manifest of what is in it, is synced, and becomes `path`.

    An existing `path` is replaced: both folders exchange their names in one step, so there is no moment without a whole one. `known` may
    be filled in the block with the sha256 of files that were hashed while they were written, so that they need not be read again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{UNFINISHED}{os.getpid()}-{path.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        seal(fresh, facts or {}, known)
        if not path.exists():
            os.rename(fresh, path)
        elif not exchange(fresh, path):
            # Not in one step here. A kill between these two leaves the old one under its other name, and `remove_unfinished` puts it back.
            old = path.with_name(f"{UNFINISHED}{os.getpid()}{OLD}{path.name}")
            os.rename(path, old)
            os.rename(fresh, path)
            sync_folder(path.parent)
            shutil.rmtree(old, ignore_errors=True)
        sync_folder(path.parent)
        shutil.rmtree(fresh, ignore_errors=True)  # what `path` was, where they were exchanged
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def exchange(one: Path, other: Path) -> bool:
    """Lets two folders swap their names in one step of the operating system (Linux, macOS); False where that is not to be had."""
    name, flag = {"linux": ("renameat2", 2), "darwin": ("renameatx_np", 2)}.get(sys.platform, ("", 0))
    try:
        swap = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError, TypeError):
        return False
    here = -100 if sys.platform == "linux" else -2  # AT_FDCWD
    return swap(here, os.fsencode(one), here, os.fsencode(other), flag) == 0


def seal(folder: Path, facts: Mapping[str, object], known: Mapping[str, str] | None = None) -> None:
    """Writes the manifest: size and sha256 of each file, and `facts`. Every file is on the disk when this returns."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            sync_file(path)
            name = path.relative_to(folder).as_posix()
            files[name] = {"bytes": path.stat().st_size, "sha256": (known or {}).get(name) or sha256_of(path)}
    manifest = {**facts, "files": files}
    write_whole(folder / MANIFEST, json.dumps({**manifest, SEAL: _digest(manifest)}, indent=1))
    sync_folder(folder)


@dataclass(frozen=True)
class Damage:
    """One thing in which a sealed folder differs from its manifest."""

    file: str
    problem: str  # "missing", "unreadable", "size" or "content"
    expected: str = ""
    found: str = ""


def read_manifest(folder: Path) -> dict | None:
    """The manifest, or None where there is none that can be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        return manifest if isinstance(manifest.get("files"), dict) else None
    except (OSError, ValueError, AttributeError):
        return None


def damage(folder: Path, *, contents: bool = True) -> list[Damage]:
    """What is wrong with a sealed folder; an empty list when each byte is as it was written. `contents=False` only compares sizes."""
    manifest = read_manifest(folder)
    if manifest is None:
        return [Damage(MANIFEST, "missing")]
    sealed, digest = manifest.get(SEAL), _digest({key: value for key, value in manifest.items() if key != SEAL})
    if sealed != digest:
        return [Damage(MANIFEST, "content", str(sealed), digest)]
    found = []
    for name, known in manifest["files"].items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != known["bytes"]:
                found.append(Damage(name, "size", str(known["bytes"]), str(size)))
            elif contents and (digest := sha256_of(path)) != known["sha256"]:
                found.append(Damage(name, "content", known["sha256"], digest))
        except FileNotFoundError:
            found.append(Damage(name, "missing"))
        except (OSError, KeyError, TypeError) as error:
            found.append(Damage(name, "unreadable", found=str(error)))
    return found


def _digest(manifest: Mapping[str, object]) -> str:
    """Of the manifest's own values: a bit that flips in the list of checksums must not go unseen either."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def remove_unfinished(folder: Path) -> None:
    """Clears what a killed process left half-written in `folder`. Only for folders that no other process is writing to."""
    for old in folder.glob(f"{UNFINISHED}*{OLD}*"):
        place = folder / old.name.split(OLD, 1)[1]
        if not place.exists():
            os.rename(old, place)
    for left in folder.glob(f"{UNFINISHED}*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def sha256_of(path: Path, progress: Callable[[int], None] | None = None) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            if progress:
                progress(len(block))
    return digest.hexdigest()


def sync_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable. Windows has no such call and does not need it."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def free_bytes(path: Path) -> int:
    """Room on the disk that `path` is or would be on."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def require_free_space(path: Path, needed: int, purpose: str) -> None:
    """Refuses before the work starts rather than after an hour of it."""
    free = free_bytes(path.absolute())
    if free < needed:
        raise fault(
            msg("{purpose} needs {needed:bytes} and the disk has {free:bytes} left", purpose=purpose, needed=needed, free=free),
            where=msg("{path:code}", path=str(path)),
            fix=msg("free some space, or choose a folder on another disk"),
        )


def cache_folder() -> Path:
    """Where the operating system wants such files; `NANOLENS_CACHE` names another place."""
    if chosen := os.environ.get("NANOLENS_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "nanolens"
