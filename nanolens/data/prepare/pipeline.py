"""One request to `prepare`, and its pass over the documents: documents in, token files out.

Reading and writing in this thread, hashing and encoding in others, in order. Few batches are on the way at any time:
memory does not grow with the corpus."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nanolens.data.prepare.documents import (
    FEW_DOCUMENTS,
    AtCharacter,
    Batch,
    DamageReport,
    Dedup,
    Documents,
    NearDuplicates,
    Piece,
    SeenHashes,
    SplitRule,
    cut_at_character,
    hashes_of,
    split_keys,
    with_hashes,
)
from nanolens.data.prepare.encoders import OWN_PATTERN, Encoder, code_points, train_bpe
from nanolens.data.prepare.readers import SourceFile, read_documents
from nanolens.data.token_files import FORMAT, INDEX, choice_made, documents_file, tokens_file
from nanolens.data.tokenizers import (
    GPT2_PATTERN,
    TOKENIZER_KINDS,
    CharTokenizer,
    GPT2Tokenizer,
    OwnBPETokenizer,
    Tokenizer,
    tokenizer_from_files,
)
from nanolens.errors import fault
from nanolens.message import Message, msg

# Up to here characters are a sensible vocabulary, and few texts are large enough for 50,257 tokens
SMALL_CORPUS_BYTES = 16 << 20
OWN_BPE = ("bpe", "bpe-gpt2")  # trained on the text: split by our rule, or by GPT-2's
DEFAULT_BPE_SIZE = 4096
BPE_SAMPLE_BYTES = 64 << 20
SPLITS = ("train", "val")


@dataclass(frozen=True)
class PrepareProgress:
    """How far `prepare` is. `total_bytes` is of the sources on disk."""

    stage: str  # "download", "vocabulary" or "encode"
    done_bytes: int
    total_bytes: int
    documents: int = 0
    tokens: int = 0


OnProgress = Callable[[PrepareProgress], None]


@dataclass
class PrepareJob:
    """All that decides what is made, what was decided on the way, and how long each kind of work took."""

    found: list[SourceFile]
    given: list[str]
    tokenizer: str | Tokenizer
    vocab_size: int | None
    text_column: str | None
    dedup: Dedup
    val_frac: float | None
    name: str
    workers: int
    on_progress: OnProgress
    chosen: list[dict[str, object]] = field(default_factory=list)
    # Seconds of all threads in each kind of work: together more than the time that passed where cores work side by side
    stages_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if isinstance(self.tokenizer, str) and Path(self.tokenizer).is_dir():
            self.tokenizer = tokenizer_from_files(Path(self.tokenizer))
        if self.tokenizer == "auto":
            self.tokenizer = "char" if self.bytes <= SMALL_CORPUS_BYTES else "gpt2"
            because = msg(
                "the sources have {size:bytes}; up to {most:bytes} characters do well", self.bytes, SMALL_CORPUS_BYTES
            )
            self.choose("tokenizer", self.tokenizer, because)
        if not isinstance(self.tokenizer, Tokenizer) and self.tokenizer not in (*TOKENIZER_KINDS, *OWN_BPE):
            what = msg("there is no tokenizer named {name:code}", self.tokenizer)
            raise fault(what, fix=msg("use {kinds:code}, or a folder with a tokenizer", [*TOKENIZER_KINDS, OWN_BPE[1]]))
        if self.vocab_size is not None and self.tokenizer not in OWN_BPE:
            kind, where = str(self.tokenizer), msg("--vocab_size={size}", self.vocab_size)
            what = msg("vocab_size applies only to a BPE trained on your text; this tokenizer is {kind:code}", kind)
            raise fault(what, where=where, fix=msg("add {option:code}, or leave vocab_size out", "--tokenizer=bpe"))
        if self.val_frac is not None and not 0 < self.val_frac < 1:
            where = msg("--val_frac={value}", self.val_frac)
            raise fault(msg("the validation share must be between 0 and 1"), where=where)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.found)

    @property
    def settings(self) -> dict[str, object]:
        """What else than the sources decides the result."""
        return {
            "format": FORMAT,
            "tokenizer": self.tokenizer.fingerprint if isinstance(self.tokenizer, Tokenizer) else self.tokenizer,
            "vocab_size": (self.vocab_size or DEFAULT_BPE_SIZE) if self.tokenizer in OWN_BPE else None,
            "text_column": self.text_column,
            "dedup": self.dedup,
            "val_frac": self.val_frac,
        }

    def choose(self, what: str, value: object, because: Message) -> None:
        self.chosen.append(choice_made(what, value, because))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Books the time of the block."""
        started = time.perf_counter()
        yield
        with self._lock:
            self.stages_s[name] += time.perf_counter() - started


def tokenizer_for(job: PrepareJob) -> Tokenizer:
    """The one that is asked for; characters and an own BPE are found in the text."""
    if isinstance(job.tokenizer, Tokenizer):
        return job.tokenizer
    if job.tokenizer == "gpt2":
        return GPT2Tokenizer()
    if job.tokenizer == "char":
        return _characters_of(job)
    # llama.cpp splits text by GPT-2's rule, and not by ours
    return _own_bpe(job, GPT2_PATTERN if job.tokenizer == "bpe-gpt2" else OWN_PATTERN)


def _characters_of(job: PrepareJob) -> CharTokenizer:
    """All characters of the corpus, and a line end where it has several documents."""
    seen = np.zeros(0x110000, dtype=bool)
    documents = 0
    for batch in _read_for_vocabulary(job):
        seen[code_points(batch.text, np.array([0]))[0]] = True
        documents += len(batch) if isinstance(batch, Documents) else batch.is_last
    if documents > 1:
        seen[ord("\n")] = True
    return CharTokenizer([chr(code) for code in np.flatnonzero(seen)])


def _own_bpe(job: PrepareJob, pattern: str) -> OwnBPETokenizer:
    size = job.vocab_size or DEFAULT_BPE_SIZE
    if job.vocab_size is None:
        job.choose("vocab_size", size, msg("none was given"))
    trained = train_bpe(_sample_of(job), size, pattern)
    if trained.vocab_size < size:
        because = msg("the text has no pair left to join; {size:count} was asked for", size)
        job.choose("vocab_size", trained.vocab_size, because)
    return trained


def _sample_of(job: PrepareJob) -> Iterator[str]:
    """All documents where they are few, else a share, picked by their hashes: the order of files does not matter."""
    text_bytes = sum(file.bytes * (3 if file.is_compressed else 1) for file in job.found)
    share = min(1.0, BPE_SAMPLE_BYTES / max(1, text_bytes))
    for batch in _read_for_vocabulary(job):
        bounds = batch.bounds
        taken = np.flatnonzero(hashes_of(batch.text, bounds) < np.uint64(share * (2**64 - 2**11)))
        for document in taken.tolist():
            yield batch.text[bounds[document] : bounds[document + 1]].tobytes().decode()


def _read_for_vocabulary(job: PrepareJob) -> Iterator[Batch]:
    done = 0
    for batch in read_documents(job.found, job.text_column, DamageReport(), {}):
        done += batch.read_bytes
        job.on_progress(PrepareProgress("vocabulary", min(done, job.bytes), job.bytes))
        yield batch


@dataclass
class EncodeResult:
    """What one pass over the documents found; of all files, or of one part."""

    rule: SplitRule
    end_of_document: int | None  # None: documents follow each other without a mark
    damaged: DamageReport = field(default_factory=DamageReport)
    documents: int = 0
    repeated: int = 0  # left out as duplicates
    repeated_bytes: int = 0
    text_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    documents_of: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))  # each split
    counts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))  # of each token in the train split
    few: list[tuple[np.ndarray, np.ndarray]] | None = field(default_factory=list)  # split keys and sizes, while few
    source_digests: list[str] = field(default_factory=list)  # sha256 of each source
    file_digests: dict[str, str] = field(default_factory=dict)  # sha256 of token files that were written in one go


def dtype_for(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class SplitTokens:
    ids: np.ndarray
    ends: np.ndarray  # of the documents in ids
    hashes: np.ndarray
    text_bytes: int
    counts: np.ndarray


class SplitWriter:
    """The files of one split. Takes tokens in order; can take back a document that came in pieces."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype, vocab_size: int):
        self._tokens = open(tokens_file(folder, split), "wb")  # noqa: SIM115  closed by the owner of the writer
        self._index = open(documents_file(folder, split), "wb")  # noqa: SIM115
        self.dtype = dtype
        self.digest = hashlib.sha256()  # of the token file, unless something was taken back
        self.was_rolled_back = False
        self.tokens = self.documents = self.text_bytes = 0
        self.counts = np.zeros(vocab_size, dtype=np.int64)
        self.mark()

    def add(self, part: SplitTokens) -> None:
        self._tokens.write(part.ids.data)
        self.digest.update(part.ids.data)
        index = np.empty(len(part.ends), dtype=INDEX)
        index["end"], index["hash"] = part.ends + self.tokens, part.hashes
        self._index.write(index.tobytes())
        self.tokens += len(part.ids)
        self.documents += len(index)
        self.text_bytes += part.text_bytes
        self.counts += part.counts

    def mark(self) -> None:
        """A long document begins here."""
        self._marked = (self.tokens, self.documents, self.text_bytes, self.counts.copy())

    @property
    def bytes_since_mark(self) -> int:
        return self.text_bytes - self._marked[2]

    def roll_back(self) -> None:
        """As if nothing had been added since the mark."""
        self.tokens, self.documents, self.text_bytes, self.counts = self._marked
        self._tokens.seek(self.tokens * self.dtype.itemsize)
        self._tokens.truncate()
        self._index.seek(self.documents * INDEX.itemsize)
        self._index.truncate()
        self.was_rolled_back = True

    def close(self) -> None:
        self._tokens.close()
        self._index.close()


@dataclass
class _EncodedBatch:
    ids: np.ndarray
    bounds: np.ndarray  # of the documents in ids
    sizes: np.ndarray  # bytes of text
    keys: np.ndarray
    hashes: np.ndarray
    signatures: list[object]  # of near duplicates, where those are looked for
    piece: Piece | None  # set where this is a part of one document
    read_bytes: int
    splits: dict[str, SplitTokens] = field(default_factory=dict)  # what is to be written


class EncodePass:
    """One pass over the documents: encodes in any thread, decides and writes in one."""

    def __init__(
        self, job: PrepareJob, folder: Path, tokenizer: Tokenizer, encoder: Callable[[], Encoder], rule: SplitRule
    ):
        """`encoder` waits until it is there."""
        self.job, self.folder, self.encoder, self.rule = job, folder, encoder, rule
        # A single document needs no mark at its end, and nanoGPT sets none there.
        self.result = EncodeResult(rule, None if isinstance(rule, AtCharacter) else tokenizer.end_of_document)
        self.writers = {
            split: SplitWriter(folder, split, dtype_for(tokenizer), tokenizer.vocab_size) for split in SPLITS
        }
        self.seen = SeenHashes() if job.dedup != "none" else None
        self.near = NearDuplicates() if job.dedup == "near" else None

    def run(self, files: list[SourceFile], digests: dict[Path, str]) -> EncodeResult:
        """Fills the token files in the folder; `digests` gets the sha256 of sources that were read whole."""
        job, result, writers, done = self.job, self.result, self.writers, 0
        batches = read_documents(files, job.text_column, result.damaged, digests)
        if isinstance(self.rule, AtCharacter):
            batches = cut_at_character(batches, self.rule)
        try:
            for encoded in self.in_order(with_hashes(batches)):
                with job.stage("write"):
                    self.write(encoded)
                done += encoded.read_bytes
                tokens = sum(writer.tokens for writer in writers.values())
                job.on_progress(PrepareProgress("encode", min(done, job.bytes), job.bytes, result.documents, tokens))
        finally:
            for writer in writers.values():
                writer.close()
        if isinstance(self.rule, AtCharacter):
            result.documents = 1  # the two were one
        for split, writer in writers.items():
            result.tokens[split], result.documents_of[split] = writer.tokens, writer.documents
            result.text_bytes[split] = writer.text_bytes
            if not writer.was_rolled_back:
                result.file_digests[tokens_file(self.folder, split).name] = writer.digest.hexdigest()
        result.counts = writers["train"].counts
        return result

    def in_order(self, batches: Iterator[Batch]) -> Iterator[_EncodedBatch]:
        """`map` of `encode` in threads: results in the order of the batches, few batches at a time."""
        waiting: deque[Future[_EncodedBatch]] = deque()
        pool = ThreadPoolExecutor(self.job.workers)
        try:
            while True:
                with self.job.stage("read"):
                    batch = next(batches, None)
                if batch is None:
                    break
                waiting.append(pool.submit(self.encode, batch))
                if len(waiting) > self.job.workers + 2:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def encode(self, batch: Batch) -> _EncodedBatch:
        text, bounds, piece = batch.text, batch.bounds, batch if isinstance(batch, Piece) else None
        signatures: list[object] = []
        with self.job.stage("hash"):
            if isinstance(batch, Piece):
                keys, hashes = np.array([[batch.key], [batch.hash]], dtype=np.uint64)
            else:
                hashes = batch.hashes if batch.hashes is not None else hashes_of(text, bounds)
                keys = split_keys(text, bounds, hashes)
                signatures = self.near.signatures(text, bounds) if self.near else []
        with self.job.stage("encode"):
            mark = self.result.end_of_document if piece is None or piece.is_last else None
            ids, id_bounds = self.encoder().encode(text, bounds, mark)
        encoded = _EncodedBatch(ids, id_bounds, np.diff(bounds), keys, hashes, signatures, piece, batch.read_bytes)
        with self.job.stage("arrange"):
            if self.seen is None or piece is not None:
                self._arrange(encoded, np.ones(len(keys), dtype=bool))
        return encoded

    def write(self, encoded: _EncodedBatch) -> None:
        if encoded.piece is not None:
            self._write_piece(encoded, encoded.piece)
            return
        if self.seen is not None:
            self._arrange(encoded, ~self._repeated(encoded))
        for split, part in encoded.splits.items():
            self.writers[split].add(part)
        self._remember_few(encoded.keys, encoded.sizes)
        self.result.documents += len(encoded.keys)

    def _write_piece(self, encoded: _EncodedBatch, piece: Piece) -> None:
        """A long document is written as it comes; if it turns out to have been there before, it is taken back."""
        ((split, part),) = encoded.splits.items()
        writer, result = self.writers[split], self.result
        if piece.is_first:
            writer.mark()
        writer.add(part)
        if not piece.is_last:
            return
        result.documents += 1
        size = writer.bytes_since_mark
        if self.seen is not None and self.seen.add(encoded.hashes)[0]:
            result.repeated += 1
            result.repeated_bytes += size
            writer.roll_back()
        self._remember_few(encoded.keys, np.array([size]))

    def _remember_few(self, keys: np.ndarray, sizes: np.ndarray) -> None:
        """Keys and sizes of all documents, while there are few."""
        if self.result.few is not None:
            self.result.few.append((keys, sizes))
        if self.result.documents > FEW_DOCUMENTS:
            self.result.few = None

    def _repeated(self, encoded: _EncodedBatch) -> np.ndarray:
        assert self.seen is not None
        repeated = self.seen.add(encoded.hashes)
        if self.near:
            fresh = np.flatnonzero(~repeated)
            repeated[fresh] = self.near.add([encoded.signatures[place] for place in fresh])
        self.result.repeated += int(repeated.sum())
        self.result.repeated_bytes += int(encoded.sizes[repeated].sum())
        return repeated

    def _arrange(self, encoded: _EncodedBatch, keep: np.ndarray) -> None:
        """By split, in the width of the file."""
        if isinstance(self.rule, AtCharacter):
            assert encoded.piece is not None
            val = np.array([encoded.piece.split == "val"])
        else:
            val = self.rule.is_val(encoded.keys)
        for split, places in (("train", np.flatnonzero(keep & ~val)), ("val", np.flatnonzero(keep & val))):
            if len(places):
                encoded.splits[split] = _tokens_of(encoded, places, self.writers[split])
        encoded.ids = encoded.ids[:0]


def _tokens_of(encoded: _EncodedBatch, documents: np.ndarray, writer: SplitWriter) -> SplitTokens:
    ends_here = encoded.piece is None or encoded.piece.is_last
    starts, stops = encoded.bounds[documents], encoded.bounds[documents + 1]
    if len(documents) == len(encoded.keys):
        ids = encoded.ids.astype(writer.dtype)
    else:
        slices = [encoded.ids[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        ids = np.concatenate(slices, dtype=writer.dtype, casting="unsafe")
    return SplitTokens(
        ids=ids,
        ends=np.cumsum(stops - starts) if ends_here else np.empty(0, dtype=np.int64),
        hashes=encoded.hashes[documents] if ends_here else encoded.hashes[:0],
        text_bytes=int(encoded.sizes[documents].sum()),
        counts=np.bincount(ids, minlength=len(writer.counts)),
    )
