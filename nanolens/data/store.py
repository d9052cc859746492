"""Opens prepared data: our own folders, nanoGPT's, or a named corpus, which is prepared at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nanolens.data.corpora import CORPORA, Corpus, cache_folder, fetch, find_corpus, version_of
from nanolens.data.facts import count_tokens, entropy_nats, pair_facts, sample_windows
from nanolens.data.fingerprint import combined, fingerprint_of_tokens
from nanolens.data.prepare import Progress, Told, prepare
from nanolens.data.sidecar import FORMAT, INDEX, META, documents_file, read_sidecar, tokens_file
from nanolens.data.tokenizers import CharTokenizer, GPT2Tokenizer, Tokenizer, tokenizer_from_files
from nanolens.data.unpickle import read_plain_pickle
from nanolens.errors import fault
from nanolens.files import damage
from nanolens.message import msg

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
    chosen: tuple[Mapping[str, Any], ...] = ()  # what was decided without being asked: {"what", "value", "because"}
    about: Mapping[str, Any] = field(default_factory=dict)  # the sidecar, of a folder that has one

    @cached_property
    def fingerprint(self) -> str:
        """Of both splits; equal for equal tokens, whoever prepared them."""
        return combined(fingerprint_of_tokens(self.train), fingerprint_of_tokens(self.val))

    @property
    def tokenizer_fingerprint(self) -> str:
        return self.tokenizer.fingerprint if self.tokenizer else ""

    @property
    def text_fingerprint(self) -> str:
        """Of the val split's text, whatever tokenizer it was read with; empty where the folder does not say what it was made from.

        Runs on the same text under different tokenizers can be compared in bits per byte."""
        if not self.about:
            return ""
        parts = (self.about["sources"]["sha256"], self.about["split"], self.about["val"]["bytes"], self.about["val"]["documents"])
        return combined(*map(str, parts))

    def document_ends(self, split: str) -> np.ndarray | None:
        """Where each document ends in the tokens of a split, where that is known."""
        path = documents_file(self.folder, split)
        return np.memmap(path, dtype=INDEX, mode="r")["end"] if path.is_file() and path.stat().st_size else None


def open_dataset(name: str, progress: Told | None = None) -> Dataset:
    """`name` is a prepared folder, a folder below `data/`, or a named corpus."""
    for folder in (Path(name), Path(DATA) / name, Path(DATA) / name.replace("-", "_")):
        if tokens_file(folder, "train").is_file():
            return open_folder(folder)
    if corpus := find_corpus(name):
        return open_folder(prepare_corpus(corpus, progress=progress))
    raise _not_found(name)


def prepare_corpus(corpus: Corpus, progress: Told | None = None) -> Path:
    """A named corpus with its own tokenizer, prepared in the cache. Returns the folder."""
    out = cache_folder() / "prepared" / (corpus.name + version_of(corpus))
    about = read_sidecar(out)
    if about is not None and about["format"] == FORMAT and not damage(out, contents=False):
        return out  # wherever its text has gone since
    tell = progress or (lambda _: None)
    paths = fetch(corpus, lambda done, total: tell(Progress("download", done, total)))
    prepare(paths, corpus.tokenizer, out, val_frac=corpus.val_frac, overwrite=True, name=corpus.name, progress=progress)
    return out


def open_folder(folder: Path) -> Dataset:
    about = read_sidecar(folder)
    return _ours(folder, about) if about is not None else _nanogpts(folder)


def _ours(folder: Path, about: dict[str, Any]) -> Dataset:
    if about["format"] > FORMAT:
        raise fault(
            msg("this dataset was prepared by a newer nanolens"),
            where=msg("{path:code}", path=str(folder)),
            fix=msg("upgrade nanolens, or prepare it again"),
        )
    dtype = np.dtype(about["dtype"]).newbyteorder("<")
    splits = {split: _tokens(folder, split, dtype) for split in ("train", "val")}
    for split, tokens in splits.items():
        if len(tokens) != about[split]["tokens"]:
            raise fault(
                msg(
                    "the {split} split has {found:count} tokens and should have {expected:count}",
                    split=split,
                    found=len(tokens),
                    expected=about[split]["tokens"],
                ),
                where=msg("{path:code}", path=str(tokens_file(folder, split))),
                fix=msg("it was changed after it was prepared; prepare it again"),
            )
    tokenizer = tokenizer_from_files(folder)
    if tokenizer.fingerprint != about["tokenizer"]["fingerprint"]:
        raise fault(
            msg("the tokenizer in this folder is not the one that its tokens were made with"),
            where=msg("{path:code}", path=str(folder)),
            fix=msg("prepare the data again"),
        )
    return Dataset(
        about["name"], folder, splits["train"], splits["val"], about["vocab_size"], tokenizer, about["facts"], tuple(about["chosen"]), about
    )


def _nanogpts(folder: Path) -> Dataset:
    """A folder that nanoGPT's own scripts prepared: uint16 tokens, and a meta.pkl where the vocabulary is not GPT-2's."""
    train, val = (_tokens(folder, split, np.dtype("<u2")) for split in ("train", "val"))
    largest = int(max(_largest(train), _largest(val)))
    if (folder / META).is_file():
        vocab_size, tokenizer = _from_meta(folder / META)
        because = "meta.pkl says so"
    else:
        gpt2 = GPT2Tokenizer()
        tokenizer = gpt2 if largest < gpt2.vocab_size else None
        vocab_size = gpt2.vocab_size if tokenizer else largest + 1
        because = (
            "there is no meta.pkl, for which nanoGPT takes GPT-2's tokens"
            if tokenizer
            else f"there is no meta.pkl, and ids go up to {largest}"
        )
    if largest >= vocab_size:
        raise fault(
            msg("the tokens hold the id {largest:count}, and the vocabulary ends at {last:count}", largest=largest, last=vocab_size - 1),
            where=msg("{path:code}", path=str(folder)),
            fix=msg("the files do not belong together; prepare the data again"),
        )
    chosen = ({"what": "tokenizer", "value": tokenizer.kind if tokenizer else "unknown", "because": because},)
    return Dataset(folder.name, folder, train, val, vocab_size, tokenizer, _measured(train, val, vocab_size, tokenizer), chosen)


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
    return tokens if len(tokens) <= FULLY_CHECKED else np.concatenate([window[:-1] for window in sample_windows(tokens)])


def _tokens(folder: Path, split: str, dtype: np.dtype) -> np.ndarray:
    path = tokens_file(folder, split)
    try:
        size = path.stat().st_size
    except OSError:
        raise fault(
            msg("there is no {file:code}", file=path.name),
            where=msg("{path:code}", path=str(folder)),
            fix=msg("prepare the data again; training needs both splits"),
        ) from None
    if size % dtype.itemsize or not size:
        raise fault(
            msg("the file has {size:count} bytes, which are not whole tokens of {width} bytes", size=size, width=dtype.itemsize),
            where=msg("{path:code}", path=str(path)),
            fix=msg("it is cut off or of another kind; prepare the data again"),
        )
    return np.memmap(path, dtype=dtype, mode="r")


def _largest(tokens: np.ndarray) -> int:
    return int(_few_enough(tokens).max())


def tokenizer_from_meta(path: Path) -> Tokenizer | None:
    """What nanoGPT's meta.pkl says of the characters; None where it is a vocabulary of another kind."""
    return _from_meta(path)[1]


def _from_meta(path: Path) -> tuple[int, Tokenizer | None]:
    meta = read_plain_pickle(path)
    size, characters = (meta.get("vocab_size"), meta.get("itos")) if isinstance(meta, dict) else (None, None)
    if type(size) is not int or not 0 < size < 1 << 32:
        raise fault(
            msg("it does not say how large the vocabulary is"), where=msg("{path:code}", path=str(path)), fix=msg("prepare the data again")
        )
    if isinstance(characters, dict) and all(isinstance(characters.get(place), str) for place in range(size)) and size <= 0x110000:
        in_order = [characters[place] for place in range(size)]
        if all(len(character) == 1 for character in in_order) and len(set(in_order)) == size:
            return size, CharTokenizer(in_order)
    return size, None


def _not_found(name: str) -> Exception:
    if Path(name).is_file():
        return fault(
            msg("{name:code} is text that has not been prepared", name=name),
            fix=msg("run {command:code} first", command=f"nanolens prepare {name}"),
        )
    here = [path.parent.name for path in Path(DATA).glob("*/train.bin")]
    near = difflib.get_close_matches(name, [*CORPORA, *here], n=1)
    return fault(
        msg("there is no dataset {name:code}", name=name),
        fix=msg("did you mean {near:code}?", near=near[0])
        if near
        else msg(
            "use one of {known:code}, or prepare your own text with {command:code}",
            known=[*here, *CORPORA],
            command="nanolens prepare FILE",
        ),
    )


__all__ = ["Dataset", "open_dataset", "open_folder", "prepare_corpus", "tokenizer_from_meta"]
