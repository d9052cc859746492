"""The one place that writes to disk for keeps: whole or not at all, synced, checksummed, and never more than the disk
has room for.

After a crash, a kill or a full disk a path is as it was before or as it should be. Everything is first written beside
its place under a name that starts with `.new-`, synced, and renamed in one step of the operating system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

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
    """A binary file to write into; it takes `path`'s place when the block ends well, and else is removed."""
    with written_beside(path) as fresh, open(fresh, "wb") as file:
        yield file


@contextlib.contextmanager
def whole_folder(path: Path, facts: Mapping[str, object], known: Mapping[str, str] | None = None) -> Iterator[Path]:
    """A fresh folder to fill; when the block ends well it gets a manifest of what is in it and becomes `path`, whatever
    was there before. Files whose sha256 the block puts into `known` are not read again."""
    with written_beside(path) as fresh:
        fresh.mkdir()
        yield fresh
        seal(fresh, facts, known)


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A name beside `path` for a file or folder, which becomes `path` when the block ends well, and else is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{UNFINISHED}{os.getpid()}-{path.name}")
    _remove(fresh)
    try:
        yield fresh
        sync(fresh)
        if fresh.is_file() or not path.exists():
            os.replace(fresh, path)
        elif not exchange(fresh, path):
            # A kill between these two leaves the old one under its other name; `remove_unfinished` puts it back.
            old = path.with_name(f"{UNFINISHED}{os.getpid()}{OLD}{path.name}")
            os.rename(path, old)
            os.rename(fresh, path)
            sync(path.parent)
            _remove(old)
        sync(path.parent)
    finally:
        _remove(fresh)  # also what `path` was, where they were exchanged


def exchange(one: Path, other: Path) -> bool:
    """Lets two folders swap names in one step, with no moment without a whole one; False where that cannot be done."""
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
            sync(path)
            name = path.relative_to(folder).as_posix()
            files[name] = {"bytes": path.stat().st_size, "sha256": (known or {}).get(name) or sha256_of(path)}
    manifest = {**facts, "files": files}
    write_whole(folder / MANIFEST, json.dumps({**manifest, SEAL: _digest(manifest)}, indent=1))


@dataclass(frozen=True)
class Damage:
    """One thing in which a sealed folder differs from its manifest."""

    file: str
    problem: str  # "missing", "unreadable", "size" or "content"
    expected: str = ""
    found: str = ""


def read_manifest(folder: Path) -> dict | None:
    """The manifest, or None where there is none that can be read."""
    manifest = read_json(folder / MANIFEST) or {}
    return manifest if isinstance(manifest.get("files"), dict) else None


def damage(folder: Path, *, contents: bool = True) -> list[Damage]:
    """What is wrong with a sealed folder; nothing if each byte is as written. `contents=False` only compares sizes."""
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
    """Clears what a killed process left half-written in `folder`, which no other process may be writing to."""
    for old in folder.glob(f"{UNFINISHED}*{OLD}*"):
        place = folder / old.name.split(OLD, 1)[1]
        if not place.exists():
            os.rename(old, place)
    for left in folder.glob(f"{UNFINISHED}*"):
        _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sha256_of(path: Path, is_over: threading.Event | None = None) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            if is_over is not None and is_over.is_set():
                raise InterruptedError
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Makes a file durable, or the names in a folder. Windows has no such call for folders and does not need it."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Locks a file for this process until the block or the process ends; False where another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _open_locked(path)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):  # Windows removes no open file; it may stay
                path.unlink()
            os.close(handle)


def _open_locked(path: Path) -> int | None:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _lock(handle):
            os.close(handle)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)  # its owner has removed it between the two calls


def _lock(handle: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)  # a file system that has no locks refuses nobody
    return True


def free_bytes(path: Path) -> int:
    """Room on the disk that `path` is or would be on."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def require_free_space(path: Path, needed: int, purpose: str) -> None:
    """Refuses before the work starts rather than after an hour of it."""
    free = free_bytes(path.absolute())
    if free < needed:
        what = msg("{purpose} needs {needed:bytes} and the disk has {free:bytes} left", purpose, needed, free)
        raise fault(what, where=str(path), fix=msg("free some space, or choose a folder on another disk"))


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


def answer_file(kind: str, question: object) -> Path:
    """Where the cache keeps the answer to a question."""
    key = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()[:24]
    return cache_folder() / kind / f"{key}.json"


def remember(path: Path, answer: object) -> None:
    """A cache that cannot be written is done without."""
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps(answer))


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is none that can be read."""
    try:
        found = json.loads(path.read_bytes())
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None
