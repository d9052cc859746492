"""Parquet files of a dataset on the Hugging Face hub. The library is imported only here, when a corpus of that size is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from nanolens.errors import fault, require
from nanolens.files import require_free_space, sha256_of
from nanolens.message import msg

CONVERTED = "refs/convert/parquet"  # where the hub keeps a parquet copy of datasets that were uploaded in another form


def fetch_shards(repository: str, pattern: str, folder: Path, shards: int | None, tell: Callable[[int, int], None]) -> list[Path]:
    """The first `shards` files that match, each with the sha256 that the hub names. Files that are there are not fetched again."""
    hub = require("huggingface_hub", "hub")
    try:
        revision, wanted = _listing(hub, repository, pattern, shards)
        total = sum(file.size for file in wanted)
        missing = [file for file in wanted if not _is_here(folder / file.path, file.size)]
        require_free_space(folder, sum(file.size for file in missing), repository)
        done = total - sum(file.size for file in missing)
        for file in missing:
            tell(done, total)
            _fetch_one(hub, repository, revision, file, folder)
            done += file.size
        tell(total, total)
        return [folder / file.path for file in wanted]
    except (OSError, ConnectionError) as error:
        raise fault(
            msg("{repository:code} could not be fetched: {error}", repository=repository, error=str(error).splitlines()[0][:200]),
            fix=msg(
                "go online, or put its parquet files into {folder:code} and set {variable:code}",
                folder=f"$NANOLENS_DATA/{folder.name}",
                variable="NANOLENS_DATA",
            ),
        ) from None


def _listing(hub, repository: str, pattern: str, shards: int | None):
    for revision in ("main", CONVERTED):
        try:
            names = hub.HfApi().list_repo_files(repository, repo_type="dataset", revision=revision)
        except hub.errors.RevisionNotFoundError:
            continue
        if chosen := sorted(name for name in names if fnmatch(name, pattern))[:shards]:
            return revision, hub.HfApi().get_paths_info(repository, chosen, repo_type="dataset", revision=revision)
    raise OSError(f"no file of it matches {pattern}")


def _is_here(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _fetch_one(hub, repository: str, revision: str, file, folder: Path) -> None:
    # Fetched beside its place and renamed once it is known to be right, so that a file in its place is always right.
    beside = folder / ".new"
    hub.hf_hub_download(repository, file.path, repo_type="dataset", revision=revision, local_dir=beside)
    if file.lfs is not None and (found := sha256_of(beside / file.path)) != file.lfs.sha256:
        (beside / file.path).unlink()
        raise fault(
            msg("{file:code} arrived damaged: its sha256 is {found:code}", file=file.path, found=found),
            fix=msg("run the same command again; files that arrived whole are kept"),
        )
    (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
    os.replace(beside / file.path, folder / file.path)
