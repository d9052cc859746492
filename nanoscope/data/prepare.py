"""Text to a folder of tokens: `train.bin`, `val.bin`, and all that is known of them.

The folder is written beside its place and renamed when it is whole, so Ctrl-C leaves nothing behind. What it was made from is noted
with its sha256: preparing the same again takes no time, and preparing something else into it is refused unless asked for.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nanoscope import files
from nanoscope.data.compressed import COMPRESSED, Broken
from nanoscope.data.dedup import Dedup
from nanoscope.data.documents import Batch, Damaged, Documents
from nanoscope.data.encoders import code_points, encoder_for
from nanoscope.data.facts import entropy_nats, length_facts, pair_facts
from nanoscope.data.fingerprint import combined, fingerprint_of_tokens
from nanoscope.data.hashing import hashes_of
from nanoscope.data.pipeline import Encoding, Outcome, SplitWriter, Stages, encode_all, usable_cores
from nanoscope.data.read_text import count_characters
from nanoscope.data.sidecar import FORMAT, INDEX, META, SIDECAR, SOURCES, TokensOnDisk, documents_file, read_sidecar, tokens_file
from nanoscope.data.sources import STDIN, SourceFile, find_files, read_documents, spool_stdin
from nanoscope.data.split import SINGLE_TRAIN_FRAC, AtCharacter, ByHash, SplitRule, choose, fits
from nanoscope.data.tokenizers import KINDS, CharTokenizer, GPT2Tokenizer, Tokenizer, tokenizer_from_files
from nanoscope.data.train_bpe import train_bpe
from nanoscope.errors import fault
from nanoscope.files import UNFINISHED, free_bytes, whole_folder
from nanoscope.message import msg

SMALL_CORPUS_BYTES = 16 << 20  # up to here characters are a sensible vocabulary, and few texts are large enough for 50,257 tokens
VAL_FRAC, MOST_VAL_BYTES = 0.1, 32 << 20
BPE_SAMPLE_BYTES = 64 << 20
DEFAULT_BPE_SIZE = 4096


@dataclass(frozen=True)
class Progress:
    """How far `prepare` is. `total_bytes` is of the sources on disk."""

    stage: str  # "download", "vocabulary" or "encode"
    done_bytes: int
    total_bytes: int
    documents: int = 0
    tokens: int = 0


Told = Callable[[Progress], None]


@dataclass(frozen=True)
class Prepared:
    folder: Path
    about: Mapping[str, Any]  # the sidecar
    was_ready: bool = False  # nothing had to be done
    took_s: float = 0.0
    stages_s: Mapping[str, float] = field(default_factory=dict)  # thread seconds by kind of work


def prepare(
    sources: Iterable[str | Path],
    tokenizer: str | Tokenizer,
    out: Path,
    *,
    vocab_size: int | None = None,
    text_column: str | None = None,
    dedup: Dedup = "none",
    val_frac: float | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    name: str = "",
    progress: Told | None = None,
) -> Prepared:
    """`tokenizer` is "auto", "char", "gpt2", "bpe", a folder that holds one, or a Tokenizer."""
    started = time.perf_counter()
    with ExitStack() as stack:
        given = [str(source) for source in sources]
        here = [spool_stdin(Path(stack.enter_context(tempfile.TemporaryDirectory()))) if source == STDIN else source for source in given]
        found = find_files(here)
        job = _Job(found, given, tokenizer, vocab_size, text_column, dedup, val_frac, name or out.name, progress or (lambda _: None))
        if (ready := _ready(out, job)) is not None:
            return Prepared(out, ready, was_ready=True, took_s=time.perf_counter() - started)
        _require_place(out, overwrite)
        _require_space(out, job)
        _remove_dead(out)
        stages = Stages()
        try:
            known: dict[str, str] = {}
            with whole_folder(out, {"kind": "dataset"}, known) as fresh:
                about = _fill(fresh, job, workers or usable_cores(), stages, known)
                sealing = time.perf_counter()
        except OSError:
            if (ready := _ready(out, job)) is None:
                raise
            return Prepared(out, ready, was_ready=True, took_s=time.perf_counter() - started)  # another process was faster
        stages.add("seal", sealing)
    return Prepared(out, about, took_s=time.perf_counter() - started, stages_s=stages.seconds)


@dataclass
class _Job:
    """All that decides what is made."""

    found: list[SourceFile]
    given: list[str]
    tokenizer: str | Tokenizer
    vocab_size: int | None
    text_column: str | None
    dedup: Dedup
    val_frac: float | None
    name: str
    told: Told
    chosen: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if isinstance(self.tokenizer, str) and Path(self.tokenizer).is_dir():
            self.tokenizer = tokenizer_from_files(Path(self.tokenizer))
        if self.tokenizer == "auto":
            small = self.bytes <= SMALL_CORPUS_BYTES
            self.tokenizer = "char" if small else "gpt2"
            self.choose(
                "tokenizer", self.tokenizer, f"the sources have {self.bytes:,} bytes; up to {SMALL_CORPUS_BYTES:,} characters do well"
            )
        if not isinstance(self.tokenizer, Tokenizer) and self.tokenizer not in KINDS:
            raise fault(
                msg("there is no tokenizer {name:code}", name=self.tokenizer),
                fix=msg("use {kinds:code}, or a folder that holds one", kinds=list(KINDS)),
            )
        if self.vocab_size is not None and self.tokenizer != "bpe":
            raise fault(
                msg("only a BPE of your own has a size to choose; this tokenizer is {kind:code}", kind=str(self.tokenizer)),
                where=msg("--vocab_size={size}", size=self.vocab_size),
                fix=msg("add {option:code}, or leave the size out", option="--tokenizer=bpe"),
            )
        if self.val_frac is not None and not 0 < self.val_frac < 1:
            raise fault(msg("the share for validation must lie between 0 and 1"), where=msg("--val_frac={value}", value=self.val_frac))

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.found)

    @property
    def settings(self) -> dict[str, Any]:
        """What else than the sources decides the result."""
        kind = self.tokenizer.fingerprint if isinstance(self.tokenizer, Tokenizer) else self.tokenizer
        size = (self.vocab_size or DEFAULT_BPE_SIZE) if self.tokenizer == "bpe" else None
        return {
            "format": FORMAT,
            "tokenizer": kind,
            "vocab_size": size,
            "text_column": self.text_column,
            "dedup": self.dedup,
            "val_frac": self.val_frac,
        }

    def choose(self, what: str, value: object, because: str) -> None:
        self.chosen.append({"what": what, "value": value, "because": because})


# --- was it done before?


def _ready(out: Path, job: _Job) -> dict[str, Any] | None:
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


def _require_place(out: Path, overwrite: bool) -> None:
    if not out.exists() or overwrite:
        return
    if out.is_dir() and not any(out.iterdir()):
        return
    about = read_sidecar(out)
    what = about["name"] if about else msg("something that nanoscope did not prepare")
    raise fault(
        msg("the folder holds another dataset already: {what}", what=what),
        where=msg("{path:code}", path=str(out)),
        fix=msg("choose another folder with {out:code}, or replace it with {overwrite:code}", out="--out=DIR", overwrite="--overwrite"),
    )


def _require_space(out: Path, job: _Job) -> None:
    """Refuses only where the disk is clearly too small: how many tokens a text has is not known before."""
    packed = sum(file.bytes * (2.0 if _is_compressed(file) else 1.0) for file in job.found)
    needed = int(packed * (2.0 if job.tokenizer == "char" else 0.4))
    if free_bytes(out.absolute()) < needed:
        files.require_free_space(out, needed, "preparing this")


def _is_compressed(file: SourceFile) -> bool:
    return file.kind == "parquet" or file.path.suffix in COMPRESSED


def _remove_dead(out: Path) -> None:
    """What a process that was killed left behind while preparing the same folder."""
    import psutil

    for left in out.parent.glob(f"{UNFINISHED}*-{out.name}"):
        number = left.name.removeprefix(UNFINISHED).split("-")[0]
        if number.isdigit() and not psutil.pid_exists(int(number)):
            shutil.rmtree(left, ignore_errors=True)


# --- doing it


def _fill(folder: Path, job: _Job, workers: int, stages: Stages, hashed: dict[str, str]) -> dict[str, Any]:
    read_at_ns = time.time_ns()
    tokenizer = _tokenizer(job, stages)
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    encoder = encoder_for(tokenizer, job.bytes, workers)
    digests = _Digests(job.found)
    try:
        passes = _Passes(folder, job, tokenizer, encoder, dtype, workers, stages, digests.known)
        outcome, writers, damaged, rule = passes.run()
        sources = digests.all()
    finally:
        digests.stop()
        encoder.close()
    if encoder.because:
        job.choose("encoder", encoder.name, encoder.because)
    _require_tokens(outcome, writers, damaged, job)

    hashed.update({writer.name: digest for writer in writers.values() if (digest := writer.sha256())})
    started = time.perf_counter()
    counts = writers["train"].counts
    tokens = {split: TokensOnDisk(tokens_file(folder, split), dtype) for split in writers}
    facts = _facts(tokens, counts, folder, outcome, tokenizer)
    entries = [
        {"path": str(file.path.absolute()), "bytes": file.bytes, "modified_ns": file.modified_ns, "sha256": digest}
        for file, digest in zip(job.found, sources, strict=True)
    ]
    about = {
        "format": FORMAT,
        "name": job.name,
        "dtype": dtype.name,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": {"kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint},
        "end_of_document": passes.end_of_document,
        "train": {"tokens": writers["train"].tokens, "documents": writers["train"].documents, "bytes": outcome.text_bytes["train"]},
        "val": {"tokens": writers["val"].tokens, "documents": writers["val"].documents, "bytes": outcome.text_bytes["val"]},
        "split": _rule_in_words(rule, job),
        "sources": {"given": job.given, "files": len(entries), "bytes": job.bytes, "sha256": _sha256_of_all(sources)},
        "damaged": {"count": damaged.count, "named": damaged.named},
        "empty_documents": damaged.empty,
        "left_out_as_duplicates": {"documents": outcome.repeated, "bytes": outcome.repeated_bytes},
        "facts": facts,
        "chosen": job.chosen,
        "settings": job.settings,
        "fingerprint": combined(*(fingerprint_of_tokens(tokens[split]) for split in ("train", "val"))),
    }
    _write(folder, about, entries, read_at_ns, tokenizer)
    stages.add("facts", started)
    return about


class _Passes:
    """One pass over the documents, or two where only the first shows how they are to be split."""

    def __init__(
        self, folder, job: _Job, tokenizer: Tokenizer, encoder, dtype: np.dtype, workers: int, stages: Stages, digests: dict[Path, str]
    ):
        self.folder, self.job, self.tokenizer, self.encoder = folder, job, tokenizer, encoder
        self.dtype, self.workers, self.stages, self.digests = dtype, workers, stages, digests
        self.end_of_document: int | None = None

    def run(self) -> tuple[Outcome, dict[str, SplitWriter], Damaged, SplitRule]:
        rule = self._first_rule()
        result = self._run_once(rule)
        better = self._better_rule(rule, result[0])
        return (*self._run_once(better), better) if better else (*result, rule)

    def _first_rule(self) -> SplitRule:
        files_found, job = self.job.found, self.job
        if len(files_found) == 1 and files_found[0].kind == "text":
            try:
                return self._cut(count_characters(files_found[0].path))
            except (Broken, OSError) as problem:
                raise fault(
                    msg("this is not text that can be read: {problem}", problem=str(problem)),
                    where=msg("{path:code}", path=str(files_found[0].path)),
                    fix=msg("save it as UTF-8, for example with {command:code}", command="iconv -f LATIN1 -t UTF-8 OLD > NEW"),
                ) from None
        frac = job.val_frac
        if frac is None:
            frac = min(VAL_FRAC, MOST_VAL_BYTES / max(1, job.bytes))
            job.choose("val_frac", frac, f"a tenth of the documents, but not much more than {MOST_VAL_BYTES:,} bytes")
        return ByHash(frac)

    def _better_rule(self, rule: SplitRule, outcome: Outcome) -> SplitRule | None:
        if not isinstance(rule, ByHash):
            return None
        if outcome.documents - outcome.repeated == 1 and outcome.documents == 1:
            return self._cut(self._characters())
        if outcome.few_keys and not fits(outcome.text_bytes["val"], sum(outcome.text_bytes.values()), rule.val_frac):
            return choose(np.concatenate(outcome.few_keys), np.concatenate(outcome.few_sizes), rule.val_frac)
        return None

    def _cut(self, characters: int) -> AtCharacter:
        train_frac = SINGLE_TRAIN_FRAC if self.job.val_frac is None else 1 - self.job.val_frac
        return AtCharacter(int(characters * train_frac))

    def _characters(self) -> int:
        batches = read_documents(self.job.found, self.job.text_column, Damaged(), {})
        return sum(int(np.count_nonzero((batch.text & 0xC0) != 0x80)) for batch in batches)

    def _run_once(self, rule: SplitRule) -> tuple[Outcome, dict[str, SplitWriter], Damaged]:
        # A single document needs no mark at its end, and nanoGPT sets none there.
        self.end_of_document = None if isinstance(rule, AtCharacter) else self.tokenizer.end_of_document
        how = Encoding(self.encoder, rule, self.end_of_document, self.dtype, self.tokenizer.vocab_size, self.job.dedup)
        damaged = Damaged()
        batches = read_documents(self.job.found, self.job.text_column, damaged, self.digests)
        told = _Counted(self.job)
        outcome, writers = encode_all(batches, how, self.folder, self.workers, self.stages, told)
        return outcome, writers, damaged


class _Counted:
    """Adds up the bytes that were read."""

    def __init__(self, job: _Job, stage: str = "encode"):
        self.job, self.stage, self.done, self.total = job, stage, 0, job.bytes

    def __call__(self, read_bytes: int, documents: int = 0, tokens: int = 0) -> None:
        self.done += read_bytes
        self.job.told(Progress(self.stage, min(self.done, self.total), self.total, documents, tokens))


class _Digests:
    """sha256 of the sources: of those that the readers do not hash on the way, in a thread beside them."""

    def __init__(self, found: list[SourceFile]):
        self.known: dict[Path, str] = {}
        self._found, self._stop = found, threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._waiting = {
            file.path: self._pool.submit(self._digest, file.path)
            for file in found
            if file.kind != "text" or file.path.suffix in COMPRESSED or file.bytes > SMALL_CORPUS_BYTES
        }

    def _digest(self, path: Path) -> str:
        def check(_: int) -> None:
            if self._stop.is_set():
                raise InterruptedError

        return files.sha256_of(path, check)

    def all(self) -> list[str]:
        found = {path: future.result() for path, future in self._waiting.items()}
        return [found.get(file.path) or self.known.get(file.path) or files.sha256_of(file.path) for file in self._found]

    def stop(self) -> None:
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)


# --- the tokenizer


def _tokenizer(job: _Job, stages: Stages) -> Tokenizer:
    started = time.perf_counter()
    try:
        if isinstance(job.tokenizer, Tokenizer):
            return job.tokenizer
        match job.tokenizer:
            case "gpt2":
                return GPT2Tokenizer()
            case "char":
                return _characters_of(job)
            case "bpe":
                return _own_bpe(job)
        raise AssertionError(job.tokenizer)
    finally:
        stages.add("vocabulary", started)


def _characters_of(job: _Job) -> CharTokenizer:
    """All characters of the corpus, and a line end where it has several documents."""
    seen = np.zeros(0x110000, dtype=bool)
    documents = 0
    for batch in _read_for_vocabulary(job):
        seen[code_points(batch.text, np.array([0]))[0]] = True
        documents += len(batch) if isinstance(batch, Documents) else batch.is_last
    if documents > 1:
        seen[ord("\n")] = True
    return CharTokenizer([chr(code) for code in np.flatnonzero(seen)])


def _own_bpe(job: _Job) -> Tokenizer:
    size = job.vocab_size or DEFAULT_BPE_SIZE
    if job.vocab_size is None:
        job.choose("vocab_size", size, "none was given")
    trained = train_bpe(_sample_of(job), size)
    if trained.vocab_size < size:
        job.choose("vocab_size", trained.vocab_size, f"the text has no pair left to join; {size} was asked for")
    return trained


def _sample_of(job: _Job) -> Iterator[str]:
    """All documents where they are few, else a share of them, picked by their hashes so that the order of the files does not matter."""
    text_bytes = sum(file.bytes * (3 if _is_compressed(file) else 1) for file in job.found)
    share = min(1.0, BPE_SAMPLE_BYTES / max(1, text_bytes))
    for batch in _read_for_vocabulary(job):
        bounds = batch.bounds if isinstance(batch, Documents) else np.array([0, len(batch.text)])
        taken = np.flatnonzero(hashes_of(batch.text, bounds) < np.uint64(share * (2**64 - 2**11)))
        for document in taken.tolist():
            yield batch.text[bounds[document] : bounds[document + 1]].tobytes().decode()


def _read_for_vocabulary(job: _Job) -> Iterator[Batch]:
    told = _Counted(job, "vocabulary")
    for batch in read_documents(job.found, job.text_column, Damaged(), {}):
        told(batch.read_bytes)
        yield batch


# --- what was found


def _require_tokens(outcome: Outcome, writers: dict[str, SplitWriter], damaged: Damaged, job: _Job) -> None:
    if outcome.documents and writers["train"].tokens and writers["val"].tokens:
        return
    if damaged.count:
        raise fault(
            msg(
                "no text could be read; {count:count} rows or files are damaged, the first: {first}",
                count=damaged.count,
                first=damaged.named[0],
            ),
            where=msg("{given:code}", given=job.given),
            fix=msg("mend or leave out what is named, or name the column of the text with {option:code}", option="--text_column"),
        )
    raise fault(
        msg(
            "there is not enough text: {train:count} tokens for training, {val:count} for validation",
            train=writers["train"].tokens,
            val=writers["val"].tokens,
        ),
        where=msg("{given:code}", given=job.given),
        fix=msg("name more text"),
    )


def _facts(tokens: Mapping[str, TokensOnDisk], counts: np.ndarray, folder: Path, outcome: Outcome, tokenizer: Tokenizer) -> dict[str, Any]:
    index = {split: np.fromfile(documents_file(folder, split), dtype=INDEX) for split in ("train", "val")}
    all_hashes = np.concatenate([index["train"]["hash"], index["val"]["hash"]])
    in_train = np.isin(index["val"]["hash"], index["train"]["hash"])
    text_bytes = outcome.text_bytes
    return {
        "dataset_tokens": len(tokens["train"]),
        "val_tokens": len(tokens["val"]),
        "documents": outcome.documents - outcome.repeated,
        "bytes_per_token": text_bytes["train"] / len(tokens["train"]),
        "val_bytes_per_token": text_bytes["val"] / len(tokens["val"]),
        "unigram_nats": entropy_nats(counts),
        **pair_facts(tokens["train"], counts),
        "vocab_used": int(np.count_nonzero(counts)),
        "vocab_size": tokenizer.vocab_size,
        **length_facts(index["train"]["end"].astype(np.int64)),
        "repeated_documents_frac": 1 - len(np.unique(all_hashes)) / len(all_hashes),
        "val_documents_in_train_frac": float(in_train.mean()),
        "val_tokens_in_train_frac": _token_share(index["val"], in_train),
    }


def _token_share(index: np.ndarray, chosen: np.ndarray) -> float:
    lengths = np.diff(index["end"].astype(np.int64), prepend=0)
    return float(lengths[chosen].sum() / max(1, lengths.sum()))


def _rule_in_words(rule: SplitRule, job: _Job) -> dict[str, Any]:
    match rule:
        case AtCharacter(place):
            return {"how": "one document, cut before a character", "character": place}
        case ByHash(val_frac):
            return {"how": "by the document's hash", "val_frac": val_frac}
    return {"how": "few documents, chosen in the order of their hashes to fit the share", "documents": len(rule.val_keys)}


def _sha256_of_all(digests: list[str]) -> str:
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _write(folder: Path, about: dict[str, Any], entries: list[dict[str, Any]], read_at_ns: int, tokenizer: Tokenizer) -> None:
    (folder / SIDECAR).write_text(json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8")
    (folder / SOURCES).write_text(json.dumps({"read_at_ns": read_at_ns, "files": entries}), encoding="utf-8")
    for name, payload in tokenizer.to_files().items():
        (folder / name).write_bytes(payload)
    if isinstance(tokenizer, CharTokenizer):
        meta = {"vocab_size": tokenizer.vocab_size, "itos": dict(enumerate(tokenizer.characters)), "stoi": tokenizer.ids}
        (folder / META).write_bytes(pickle.dumps(meta))


__all__ = ["Prepared", "Progress", "Told", "prepare"]
