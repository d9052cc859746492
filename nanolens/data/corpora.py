"""Corpora that have a name.

Each is looked for in the folder that NANOLENS_DATA names, then in the cache, and then fetched once: `pydocs` from Python itself,
the small ones by a download whose sha256 is known beforehand, the large ones from the Hugging Face hub, which says the sha256 of
each file.
"""

from __future__ import annotations

import os
import platform
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nanolens.data.hub import fetch_shards
from nanolens.data.pydocs import VERSION, pydocs_as_jsonl
from nanolens.errors import fault
from nanolens.files import sha256_of, whole_file, write_whole
from nanolens.message import Message, msg

DATA_VARIABLE, CACHE_VARIABLE = "NANOLENS_DATA", "NANOLENS_CACHE"

Fetched = Callable[[int, int], None]
"""Called with bytes done and bytes in all (0 where that is not known)."""


@dataclass(frozen=True)
class BuiltIn:
    """Made from what Python carries."""


@dataclass(frozen=True)
class Download:
    url: str
    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Hub:
    """Parquet files of a dataset on the Hugging Face hub."""

    repository: str
    pattern: str


@dataclass(frozen=True)
class Corpus:
    name: str
    what: Message
    comes_from: BuiltIn | Download | Hub
    tokenizer: str  # unless the user asks for another
    val_frac: float | None = None  # None: as for any other source


_TINYSHAKESPEARE = Download(
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "tinyshakespeare.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    1_115_394,
)

CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus("pydocs", msg("what Python's own documentation says, 1.7 MB, nothing to download"), BuiltIn(), "char"),
        Corpus("shakespeare_char", msg("Shakespeare, 1.1 MB, by characters"), _TINYSHAKESPEARE, "char"),
        Corpus("shakespeare", msg("Shakespeare, 1.1 MB, in GPT-2's tokens"), _TINYSHAKESPEARE, "gpt2"),
        # Of 8 million documents nanoGPT keeps one in 2,000 for validation: 4.4 M tokens.
        Corpus(
            "openwebtext",
            msg("web pages linked from Reddit, 24 GB to fetch, 9 B tokens"),
            Hub("Skylion007/openwebtext", "*.parquet"),
            "gpt2",
            0.0005,
        ),
        Corpus(
            "fineweb-edu",
            msg("educational web pages, 2 GB to fetch for each 0.7 B tokens"),
            Hub("HuggingFaceFW/fineweb-edu", "sample/10BT/*.parquet"),
            "gpt2",
            0.0005,
        ),
    )
}


def find_corpus(name: str) -> Corpus | None:
    """By its name, with dashes and underscores alike."""
    plain = name.replace("-", "_").lower()
    return next((corpus for known, corpus in CORPORA.items() if known.replace("-", "_") == plain), None)


def fetch(corpus: Corpus, fetched: Fetched | None = None, shards: int | None = None) -> list[Path]:
    """The corpus as files on this machine. `shards` limits how many files of a large one are taken."""
    tell = fetched or (lambda done, total: None)
    match corpus.comes_from:
        case BuiltIn():
            return [_built_in()]
        case Download() as download:
            return [_downloaded(download, corpus.name, tell)]
        case Hub(repository, pattern):
            if (own := own_data(corpus.name)) and (there := sorted(own.rglob("*.parquet"))):
                return there[:shards]
            return fetch_shards(repository, pattern, cache_folder() / "corpora" / corpus.name, shards, tell)


def cache_folder() -> Path:
    """Where nanolens keeps what it can make or fetch again."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given)
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "nanolens"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "nanolens" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME", home / ".cache")) / "nanolens"


def own_data(name: str) -> Path | None:
    """A file or folder of this name in the user's own folder of corpora."""
    folder = os.environ.get(DATA_VARIABLE)
    path = Path(folder) / name if folder else None
    return path if path is not None and path.exists() else None


def version_of(corpus: Corpus) -> str:
    """What else than the name says which text it is."""
    return f"-{platform.python_version()}-v{VERSION}" if isinstance(corpus.comes_from, BuiltIn) else ""


def _built_in() -> Path:
    path = cache_folder() / "corpora" / f"pydocs{version_of(CORPORA['pydocs'])}.jsonl"
    if not path.exists():
        write_whole(path, pydocs_as_jsonl())
    return path


def _downloaded(download: Download, name: str, tell: Fetched) -> Path:
    cached = cache_folder() / "corpora" / download.file
    for path in (own_data(download.file), cached):
        if path and path.is_file() and sha256_of(path) == download.sha256:
            return path
    try:
        _download(download, cached, tell)
    except (urllib.error.URLError, OSError, TimeoutError) as error:
        raise fault(
            msg(
                "{name:code} is not on this machine and could not be fetched: {error}",
                name=name,
                error=str(getattr(error, "reason", error)),
            ),
            where=msg("{url:code}", url=download.url),
            fix=msg(
                "go online once, or save it as {file:code} in the folder that {variable:code} names; {built_in:code} needs no network",
                file=download.file,
                variable=DATA_VARIABLE,
                built_in="pydocs",
            ),
        ) from None
    return cached


def _download(download: Download, path: Path, tell: Fetched) -> None:
    with urllib.request.urlopen(download.url, timeout=30) as response, whole_file(path) as file:
        done = 0
        while block := response.read(1 << 16):
            file.write(block)
            done += len(block)
            if done > 2 * download.bytes:
                break
            tell(done, download.bytes)
        file.flush()
        found = sha256_of(Path(file.name))
        if found != download.sha256:
            raise fault(
                msg("what was downloaded is not what it should be: its sha256 is {found:code}", found=found),
                where=msg("{url:code}", url=download.url),
                fix=msg("try again from another network; a proxy may have answered in its place"),
            )
