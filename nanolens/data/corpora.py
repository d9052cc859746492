"""Corpora that have a name.

Each is looked for in the folder that NANOLENS_DATA names, then in the cache, and then fetched once: `pydocs` from
Python itself, the small ones by a download whose sha256 is known, the large ones from the Hugging Face hub.

`pydocs` is English text that every CPython carries: the language reference of `help()`'s topics and the docstrings of
the standard library, taken from the sources without importing anything. Plain ASCII, each paragraph once (topics repeat
each other), a module or topic per document; about 1.5 MB, and the same on every machine with the same Python."""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import sysconfig
import tomllib
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from nanolens.errors import fault, require
from nanolens.files import cache_folder, require_free_space, sha256_of, whole_file, write_whole
from nanolens.message import msg

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

DATA_VARIABLE = "NANOLENS_DATA"

Fetched = Callable[[int, int], None]  # called with bytes done and bytes in all (0 where that is not known)


class BuiltIn(msgspec.Struct, frozen=True, tag=True):
    pass


class Download(msgspec.Struct, frozen=True, tag=True):
    url: str
    file: str
    sha256: str
    bytes: int


class HubDataset(msgspec.Struct, frozen=True, tag=True):
    repository: str
    pattern: str


class NamedCorpus(msgspec.Struct, frozen=True):
    name: str
    tokenizer: str
    comes_from: BuiltIn | Download | HubDataset

    @property
    def val_frac(self) -> float | None:
        """None: as for any other source. Of 8 million documents nanoGPT keeps one in 2,000: 4.4 M tokens."""
        return 0.0005 if isinstance(self.comes_from, HubDataset) else None


_TABLE = tomllib.loads(Path(__file__).with_name("corpora.toml").read_text("utf-8"))
NAMED_CORPORA = {name: msgspec.convert({"name": name, **about}, NamedCorpus) for name, about in _TABLE.items()}


def find_corpus(name: str) -> NamedCorpus | None:
    """By its name, with dashes and underscores alike."""
    plain = name.replace("-", "_").lower()
    return next((corpus for known, corpus in NAMED_CORPORA.items() if known.replace("-", "_") == plain), None)


def fetch(corpus: NamedCorpus, fetched: Fetched | None = None, shards: int | None = None) -> list[Path]:
    """The corpus as files on this machine. `shards` limits how many files of a large one are taken."""
    tell = fetched or (lambda done, total: None)
    match corpus.comes_from:
        case BuiltIn():
            path = cache_folder() / "corpora" / f"pydocs{version_of(corpus)}.jsonl"
            if not path.exists():
                write_whole(path, pydocs_as_jsonl())
            return [path]
        case Download() as download:
            return [_downloaded(download, corpus.name, tell)]
        case HubDataset() as dataset:
            if (own := own_data(corpus.name)) and (there := sorted(own.rglob("*.parquet"))):
                return there[:shards]
            return fetch_shards(dataset, cache_folder() / "corpora" / corpus.name, shards, tell)


def own_data(name: str) -> Path | None:
    """A file or folder of this name in the user's own folder of corpora."""
    folder = os.environ.get(DATA_VARIABLE)
    return path if folder and (path := Path(folder) / name).exists() else None


def version_of(corpus: NamedCorpus) -> str:
    """What else than the name says which text it is."""
    return f"-{platform.python_version()}-v{VERSION}" if isinstance(corpus.comes_from, BuiltIn) else ""


def _downloaded(download: Download, name: str, tell: Fetched) -> Path:
    cached = cache_folder() / "corpora" / download.file
    for path in (own_data(download.file), cached):
        if path and path.is_file() and sha256_of(path) == download.sha256:
            return path
    try:
        _download(download, cached, tell)
    except OSError as error:
        reason = str(getattr(error, "reason", error))
        what = msg("{name:code} is not on this machine and could not be downloaded: {error}", name, reason)
        fix = msg(
            "go online once, or save it as {file:code} in the folder set by {variable:code}; {built_in:code} "
            "needs no network",
            download.file,
            DATA_VARIABLE,
            "pydocs",
        )
        raise fault(what, where=download.url, fix=fix) from None
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
            what = msg("the download is not the expected file: its sha256 is {found:code}", found)
            fix = msg("try again from another network; a proxy may have returned something else")
            raise fault(what, where=download.url, fix=fix)


VERSION = 2  # of how the text is put together
PASSED_OVER = frozenset(
    """test tests idlelib lib2to3 site-packages dist-packages turtledemo tkinter ensurepip __pycache__ pydoc_data
    distutils encodings lib-dynload __phello__ msilib""".split()
)
FEWEST_BYTES = 1_000_000
_SHORTEST = 200  # a document of less is a name and half a sentence


def pydocs_as_jsonl() -> bytes:
    from pydoc_data.topics import topics  # one dict of strings, of 700 kB

    seen: set[str] = set()
    lines = []
    for name, text in (*((f"topic {name}", text) for name, text in sorted(topics.items())), *_modules()):
        if len(kept := _new_paragraphs(text, seen)) >= _SHORTEST:
            lines.append(json.dumps({"name": name, "text": kept}))
    if sum(map(len, lines)) < FEWEST_BYTES:
        what = msg("this Python has no library sources, which the built-in corpus is made from")
        fix = msg("use a Python from python.org or your system, or prepare your own text")
        raise fault(what, where=sysconfig.get_path("stdlib"), fix=fix)
    return "\n".join(lines).encode() + b"\n"


def _modules() -> Iterator[tuple[str, str]]:
    library = Path(sysconfig.get_path("stdlib"))
    for folder, below, files in os.walk(library):
        below[:] = sorted(name for name in below if name not in PASSED_OVER and not name.startswith("config-"))
        for path in (Path(folder) / file for file in sorted(files) if file.endswith(".py")):
            source = path.read_bytes()
            # Parsing takes nearly all of the time, so only files of which a tenth looks like docstrings are parsed.
            if sum(map(len, re.findall(rb'"""(.*?)"""', source, re.DOTALL))) * 10 < len(source):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the library's own style, such as escapes that are on their way out
                tree = ast.parse(source)
            name = ".".join(path.relative_to(library).with_suffix("").parts).removesuffix(".__init__")
            yield name, "\n\n".join(_docstrings(tree, name))


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[str]:
    """In the order of the source, each under the name of what it describes."""
    if text := ast.get_docstring(node):
        arguments = ""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            named = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            arguments = f"({', '.join(argument.arg for argument in named)})"
        yield f"{name}{arguments}\n\n{text}"
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _docstrings(child, f"{name}.{child.name}")


def _new_paragraphs(text: str, seen: set[str]) -> str:
    kept = []
    for paragraph in re.split(r"\n[ \t]*\n", text.expandtabs()):
        paragraph = paragraph.strip("\n").rstrip()
        plain = " ".join(paragraph.split())
        # Short ones (a name, "Example:") may come again: they belong to what follows.
        if not plain or not paragraph.isascii() or not plain.isprintable() or (len(plain) > 40 and plain in seen):
            continue
        seen.add(plain)
        kept.append(paragraph)
    return "\n\n".join(kept)


CONVERTED = "refs/convert/parquet"  # where the hub keeps a parquet copy of datasets that were uploaded in another form


def fetch_shards(dataset: HubDataset, folder: Path, shards: int | None, tell: Fetched) -> list[Path]:
    """The first `shards` files that match, each with the sha256 that the hub names; only what is missing is fetched."""
    hub, repository = require("huggingface_hub", "hub"), dataset.repository
    try:
        revision, wanted = _listing(hub, dataset, shards)
        missing = [
            file for file in wanted if not (path := folder / file.path).is_file() or path.stat().st_size != file.size
        ]
        total, left = (sum(file.size for file in files) for files in (wanted, missing))
        require_free_space(folder, left, repository)
        for file in missing:
            tell(total - left, total)
            _fetch_one(hub, repository, revision, file, folder)
            left -= file.size
        tell(total, total)
        return [folder / file.path for file in wanted]
    except OSError as error:
        reason, place = str(error).splitlines()[0][:200], f"${DATA_VARIABLE}/{folder.name}"
        what = msg("{repository:code} could not be downloaded: {error}", repository, reason)
        fix = msg(
            "go online, or put its parquet files into {folder:code} and set {variable:code}", place, DATA_VARIABLE
        )
        raise fault(what, fix=fix) from None


def _listing(hub: ModuleType, dataset: HubDataset, shards: int | None) -> tuple[str, list[RepoFile]]:
    for revision in ("main", CONVERTED):
        where = {"repo_type": "dataset", "revision": revision}
        try:
            names = hub.HfApi().list_repo_files(dataset.repository, **where)
        except hub.errors.RevisionNotFoundError:
            continue
        if chosen := sorted(name for name in names if fnmatch(name, dataset.pattern))[:shards]:
            return revision, hub.HfApi().get_paths_info(dataset.repository, chosen, **where)
    raise OSError(f"no file of it matches {dataset.pattern}")


def _fetch_one(hub: ModuleType, repository: str, revision: str, file: RepoFile, folder: Path) -> None:
    # Fetched beside its place and renamed once it is known to be right, so that a file in its place is always right.
    beside = folder / ".new"
    hub.hf_hub_download(repository, file.path, repo_type="dataset", revision=revision, local_dir=beside)
    if file.lfs is not None and (found := sha256_of(beside / file.path)) != file.lfs.sha256:
        (beside / file.path).unlink()
        what = msg("{file:code} was damaged in download: its sha256 is {found:code}", file.path, found)
        raise fault(what, fix=msg("run the same command again; intact files are kept"))
    (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
    os.replace(beside / file.path, folder / file.path)
