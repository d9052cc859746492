"""Opens prepared data: our own folders, nanoGPT's, or a named corpus, which is prepared at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nanolens.data.corpora import NAMED_CORPORA, BuiltIn, NamedCorpus, fetch, find_corpus, version_of
from nanolens.data.prepare import prepare
from nanolens.data.prepare.facts import count_tokens, entropy_nats, pair_facts, sample_windows
from nanolens.data.prepare.pipeline import OnProgress, PrepareProgress
from nanolens.data.token_files import (
    FORMAT,
    INDEX,
    META,
    Sidecar,
    choice_made,
    combined,
    documents_file,
    fingerprint_of_tokens,
    read_plain_pickle,
    read_sidecar,
    tokens_file,
)
from nanolens.data.tokenizers import CharTokenizer, GPT2Tokenizer, Tokenizer, tokenizer_from_files
from nanolens.errors import fault
from nanolens.files import cache_folder, damage
from nanolens.message import msg
from nanolens.record.run import RunRecord

DATA = "data"  # nanoGPT keeps its datasets in folders below this one
FULLY_CHECKED = 1 << 27  # tokens of a foreign folder that are all looked at; of larger ones a sample is


@dataclass(frozen=True, eq=False)
class Dataset:
    name: str
    folder: Path
    train: np.ndarray
    val: np.ndarray
    vocab_size: int
    tokenizer: Tokenizer | None  # None where the folder does not say what its numbers mean
    facts: Mapping[str, Any]
    chosen: tuple[Mapping[str, Any], ...] = ()  # what was decided without being asked: `choice_made`
    about: Sidecar = field(default_factory=dict)  # empty for a folder that is not ours

    @cached_property
    def fingerprint(self) -> str:
        """Of both splits; equal for equal tokens, whoever prepared them."""
        return combined(fingerprint_of_tokens(self.train), fingerprint_of_tokens(self.val))

    @property
    def tokenizer_fingerprint(self) -> str:
        return self.tokenizer.fingerprint if self.tokenizer else ""

    @property
    def text_fingerprint(self) -> str:
        """Of the val split's text, whatever its tokenizer: where it is equal, runs can be compared in bits per byte.
        Empty where the folder does not say what it was made from."""
        if not self.about:
            return ""
        sources, split, val = (self.about[key] for key in ("sources", "split", "val"))
        return combined(sources["sha256"], str(split), str(val["bytes"]), str(val["documents"]))

    def document_ends(self, split: str) -> np.ndarray | None:
        """Where each document ends in the tokens of a split, where that is known."""
        path = documents_file(self.folder, split)
        return np.memmap(path, dtype=INDEX, mode="r")["end"] if path.is_file() and path.stat().st_size else None


def open_dataset(name: str, progress: OnProgress | None = None) -> Dataset:
    """`name` is a prepared folder, a folder below `data/`, or a named corpus."""
    if folder := _folder_here(name):
        return open_folder(folder)
    if corpus := find_corpus(name):
        return open_folder(prepare_corpus(corpus, progress=progress))
    raise _not_found(name)


@dataclass(frozen=True)
class DatasetSummary:
    folder: Path
    tokens: Mapping[str, int]  # of each split that is there
    vocab_size: int
    facts: Mapping[str, Any]


def describe_dataset(name: str) -> DatasetSummary | None:
    """A dataset that is prepared, or can be without a download; None where there is no such dataset here."""
    folder, corpus = _folder_here(name), find_corpus(name)
    if folder is None and corpus is not None:
        folder = _cached(corpus)
        if not tokens_file(folder, "train").is_file():
            folder = prepare_corpus(corpus) if isinstance(corpus.comes_from, BuiltIn) else None
    if folder is None:
        return None
    if (about := read_sidecar(folder)) is not None:
        tokens = {split: about[split]["tokens"] for split in ("train", "val")}
        return DatasetSummary(folder, tokens, about["vocab_size"], about["facts"])
    paths = {split: tokens_file(folder, split) for split in ("train", "val")}
    tokens = {split: path.stat().st_size // NANOGPT_DTYPE.itemsize for split, path in paths.items() if path.is_file()}
    vocab_size = _from_meta(folder / META)[0] if (folder / META).is_file() else GPT2Tokenizer().vocab_size
    return DatasetSummary(folder, tokens, vocab_size, {})


def _folder_here(name: str) -> Path | None:
    folders = (Path(name), Path(DATA) / name, Path(DATA) / name.replace("-", "_"))
    return next((folder for folder in folders if tokens_file(folder, "train").is_file()), None)


def _cached(corpus: NamedCorpus) -> Path:
    return cache_folder() / "prepared" / (corpus.name + version_of(corpus))


def prepare_corpus(corpus: NamedCorpus, progress: OnProgress | None = None) -> Path:
    """A named corpus with its own tokenizer, prepared in the cache. Returns the folder."""
    out = _cached(corpus)
    about = read_sidecar(out)
    if about is not None and about["format"] == FORMAT and not damage(out, contents=False):
        return out  # wherever its text has gone since
    tell = progress or (lambda _: None)
    paths = fetch(corpus, lambda done, total: tell(PrepareProgress("download", done, total)))
    prepare(paths, corpus.tokenizer, out, val_frac=corpus.val_frac, overwrite=True, name=corpus.name, progress=progress)
    return out


def open_folder(folder: Path) -> Dataset:
    about = read_sidecar(folder)
    return _ours(folder, about) if about is not None else _nanogpts(folder)


def open_trained_on(run: RunRecord) -> Dataset:
    """The very data that a run was trained on, or an error where it has changed."""
    folder = run.get("folder")
    is_there = isinstance(folder, str) and Path(folder).is_dir()
    dataset = open_folder(Path(str(folder))) if is_there else open_dataset(str(run.get("dataset")))
    recorded = run.get("data_fingerprint")
    if recorded and dataset.fingerprint != recorded:
        where = str(dataset.folder)
        what = msg("the data in {folder:code} is no longer what {run:code} was trained on", where, run.name)
        raise fault(what, fix=msg("prepare it again exactly as before: other text would say nothing about this run"))
    return dataset


def _ours(folder: Path, about: Sidecar) -> Dataset:
    if about["format"] > FORMAT:
        what, fix = msg("this dataset was prepared by a newer nanolens"), msg("upgrade nanolens, or prepare it again")
        raise fault(what, where=str(folder), fix=fix)
    dtype = np.dtype(about["dtype"]).newbyteorder("<")
    train, val = _tokens(folder, "train", dtype), _tokens(folder, "val", dtype)
    for split, tokens in (("train", train), ("val", val)):
        found, expected = len(tokens), about[split]["tokens"]
        if found != expected:
            what = msg(
                "the {split} split has {found:count} tokens and should have {expected:count}", split, found, expected
            )
            fix = msg("it was changed after it was prepared; prepare it again")
            raise fault(what, where=str(tokens_file(folder, split)), fix=fix)
    tokenizer = tokenizer_from_files(folder)
    if tokenizer.fingerprint != about["tokenizer"]["fingerprint"]:
        what = msg("the tokenizer in this folder is not the one its tokens were made with")
        raise fault(what, where=str(folder), fix=msg("prepare the data again"))
    vocab_size, facts, chosen = about["vocab_size"], about["facts"], tuple(about["chosen"])
    return Dataset(about["name"], folder, train, val, vocab_size, tokenizer, facts, chosen, about)


NANOGPT_DTYPE = np.dtype("<u2")


def _nanogpts(folder: Path) -> Dataset:
    """A folder that nanoGPT's own scripts prepared: uint16 tokens, and a meta.pkl unless they are GPT-2's."""
    train, val = (_tokens(folder, split, NANOGPT_DTYPE) for split in ("train", "val"))
    largest = max(int(_few_enough(tokens).max()) for tokens in (train, val))
    tokenizer: Tokenizer | None = GPT2Tokenizer()
    if (folder / META).is_file():
        vocab_size, tokenizer = _from_meta(folder / META)
        because = msg("{file:code} says so", META)
    elif largest < GPT2Tokenizer().vocab_size:
        vocab_size = GPT2Tokenizer().vocab_size
        because = msg("there is no {file:code}, so these are GPT-2's tokens, as nanoGPT takes them", META)
    else:
        vocab_size, tokenizer = largest + 1, None
        because = msg("there is no {file:code}, and ids go up to {largest:count}", META, largest)
    if largest >= vocab_size:
        last = vocab_size - 1
        what = msg("the tokens contain the id {largest:count}, and the vocabulary ends at {last:count}", largest, last)
        raise fault(what, where=str(folder), fix=msg("the files do not match; prepare the data again"))
    chosen = (choice_made("tokenizer", tokenizer.kind if tokenizer else "unknown", because),)
    facts = _measured(train, val, vocab_size, tokenizer)
    return Dataset(folder.name, folder, train, val, vocab_size, tokenizer, facts, chosen)


def _measured(train: np.ndarray, val: np.ndarray, vocab_size: int, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The facts that can be had from tokens alone, of a sample where they are many."""
    counts, val_counts = (count_tokens(_few_enough(tokens), vocab_size) for tokens in (train, val))
    facts = {
        "dataset_tokens": len(train),
        "val_tokens": len(val),
        "unigram_nats": entropy_nats(counts),
        **pair_facts(train, counts),
        "vocab_used": int(np.count_nonzero(counts)),
        "vocab_size": vocab_size,
        "counted_tokens": int(counts.sum()),
    }
    if tokenizer:
        facts["bytes_per_token"] = float(counts @ tokenizer.bytes_per_id / counts.sum())
        facts["val_bytes_per_token"] = float(val_counts @ tokenizer.bytes_per_id / val_counts.sum())
    return facts


def _few_enough(tokens: np.ndarray) -> np.ndarray:
    if len(tokens) <= FULLY_CHECKED:
        return tokens
    return np.concatenate([window[:-1] for window in sample_windows(tokens)])


def _tokens(folder: Path, split: str, dtype: np.dtype) -> np.ndarray:
    path = tokens_file(folder, split)
    try:
        size = path.stat().st_size
    except OSError:
        fix = msg("prepare the data again; training needs both splits")
        raise fault(msg("{file:code} is missing", path.name), where=str(folder), fix=fix) from None
    width = dtype.itemsize
    if size % width or not size:
        what = msg("the file has {size:count} bytes, not a multiple of the {width} bytes per token", size, width)
        raise fault(what, where=str(path), fix=msg("it is truncated or of another kind; prepare the data again"))
    return np.memmap(path, dtype=dtype, mode="r")


def tokenizer_from_meta(path: Path) -> Tokenizer | None:
    """What nanoGPT's meta.pkl says of the characters; None where it is a vocabulary of another kind."""
    return _from_meta(path)[1]


def _from_meta(path: Path) -> tuple[int, Tokenizer | None]:
    meta = read_plain_pickle(path)
    size, characters = (meta.get("vocab_size"), meta.get("itos")) if isinstance(meta, dict) else (None, None)
    if type(size) is not int or not 0 < size < 1 << 32:
        raise fault(msg("it does not state the vocabulary size"), where=str(path), fix=msg("prepare the data again"))
    if not isinstance(characters, dict) or size > len(characters):
        return size, None
    in_order = [each for place in range(size) if isinstance(each := characters.get(place), str) and len(each) == 1]
    return size, CharTokenizer(in_order) if len(set(in_order)) == size else None


def _not_found(name: str) -> Exception:
    if Path(name).is_file():
        fix = msg("run {command:code} first", f"nanolens prepare {name}")
        return fault(msg("{name:code} is text that is not prepared yet", name), fix=fix)
    here = [path.parent.name for path in Path(DATA).glob("*/train.bin")]
    known, command = [*here, *NAMED_CORPORA], "nanolens prepare FILE"
    fix = msg("use one of {known:code}, or prepare your own text with {command:code}", known, command)
    if near := difflib.get_close_matches(name, [*NAMED_CORPORA, *here], n=1):
        fix = msg("did you mean {near:code}?", near[0])
    return fault(msg("there is no dataset named {name:code}", name), fix=fix)
