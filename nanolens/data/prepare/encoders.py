"""Much text to token ids at once, on all cores, exactly as its tokenizer's `encode`; and the training of a BPE.

GPT-2's vocabulary is encoded by gigatoken where it is installed (about 15 times as fast as tiktoken on one core), and
part of every batch is encoded by tiktoken too and compared. Without it, and for an own BPE, tiktoken works in one
process per core: its regex engine slows down when threads share it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import numpy as np

from nanolens.data.prepare.documents import documents_of, last_cut
from nanolens.data.tokenizers import (
    BytePairTokenizer,
    CharTokenizer,
    GPT2Tokenizer,
    OwnBPETokenizer,
    Tokenizer,
    as_tiktoken_file,
    cut_long_runs,
    tokenizer_from_files,
)
from nanolens.errors import fault, require
from nanolens.message import Message, msg

Encoded = tuple[np.ndarray, np.ndarray]  # ids of all documents, and the bounds of each; its mark belongs to it

SMALL_BYTES = 4 << 20  # below this, loading a fast encoder or starting processes takes longer than encoding does


class Encoder(ABC):
    name: str
    because: Message | None

    @abstractmethod
    def encode(self, text: np.ndarray, bounds: np.ndarray, mark: int | None) -> Encoded:
        """Documents packed in `text`, each followed by `mark` if there is one. May be called by several threads."""

    def close(self) -> None:  # noqa: B027  most encoders start nothing
        """Ends what the encoder started."""


def encoder_for(tokenizer: Tokenizer, source_bytes: int, workers: int) -> Encoder:
    if isinstance(tokenizer, CharTokenizer):
        return CharEncoder(tokenizer)
    assert isinstance(tokenizer, BytePairTokenizer)
    if source_bytes <= SMALL_BYTES:
        return TiktokenEncoder(tokenizer, msg("the text is short"))
    if not isinstance(tokenizer, GPT2Tokenizer):
        return ProcessEncoder(tokenizer, workers, msg("gigatoken only knows the published split patterns"))
    if importlib.util.find_spec("gigatoken") is None:
        install = "pip install 'nanolens[fast]'"
        because = msg("gigatoken is not installed; {install:code} makes this many times faster", install)
        return ProcessEncoder(tokenizer, workers, because)
    try:
        return GigatokenEncoder(tokenizer)
    except (ImportError, AttributeError, TypeError) as error:  # young: another release may call things otherwise
        because = msg("nanolens does not know the installed version of gigatoken ({error})", str(error))
        return ProcessEncoder(tokenizer, workers, because)


def with_marks(ids: np.ndarray, bounds: np.ndarray, mark: int | None) -> Encoded:
    if mark is None:
        return ids, bounds
    return np.insert(ids, bounds[1:], mark), bounds + np.arange(len(bounds))


class CharEncoder(Encoder):
    name, because = "table", None  # from code point to id; there is nothing to choose

    def __init__(self, tokenizer: CharTokenizer):
        self.tokenizer = tokenizer
        self.unknown = tokenizer.vocab_size
        self.table = np.full(0x110000, self.unknown, dtype=np.uint32)
        self.table[[*map(ord, tokenizer.characters)]] = np.arange(self.unknown)

    def encode(self, text: np.ndarray, bounds: np.ndarray, mark: int | None) -> Encoded:
        codes, bounds = code_points(text, bounds)
        ids = self.table[codes]
        if len(ids) and ids.max() == self.unknown:
            raise self.tokenizer.unknown(text.tobytes().decode())
        return with_marks(ids, bounds, mark)


def code_points(text: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Characters as numbers, and the bounds counted in characters."""
    if not len(text) or text.max() < 0x80:
        return text, bounds
    begins = (text & 0xC0) != 0x80
    in_characters = np.concatenate([[0], np.cumsum(begins)])[bounds]
    return np.frombuffer(text.tobytes().decode().encode("utf-32-le"), dtype=np.uint32), in_characters


class TiktokenEncoder(Encoder):
    name = "tiktoken"

    def __init__(self, tokenizer: BytePairTokenizer, because: Message):
        self.tokenizer, self.because = tokenizer, because

    def encode(self, text: np.ndarray, bounds: np.ndarray, mark: int | None) -> Encoded:
        return with_marks(*encode_each(self.tokenizer, text, bounds), mark)


def encode_each(tokenizer: BytePairTokenizer, text: np.ndarray, bounds: np.ndarray) -> Encoded:
    # encode_to_numpy makes no Python list of the ids; with no special token allowed or refused it is encode_ordinary.
    encode = tokenizer.encoding.encode_to_numpy
    lengths, flat = [0], [np.empty(0, dtype=np.uint32)]
    for document in documents_of(text, bounds):
        parts = [encode(part, disallowed_special=()) for part in cut_long_runs(str(document, "utf-8"))]
        lengths.append(sum(map(len, parts)))
        flat += parts
    return np.concatenate(flat), np.cumsum(lengths, dtype=np.int64)


class ProcessEncoder(Encoder):
    """tiktoken in processes of its own, spoken to over pipes. They end when their input does, whatever befalls us."""

    name = "tiktoken"

    def __init__(self, tokenizer: BytePairTokenizer, workers: int, because: Message):
        self.because = because
        self._folder = tempfile.TemporaryDirectory(prefix="nanolens-")
        for name, payload in tokenizer.to_files().items():
            (Path(self._folder.name) / name).write_bytes(payload)
        command = [sys.executable, "-c", f"from {__name__} import work; work()", self._folder.name]
        pipe = subprocess.PIPE
        self._workers = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(workers)]
        self._idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)

    def encode(self, text: np.ndarray, bounds: np.ndarray, mark: int | None) -> Encoded:
        worker = self._idle.get()
        try:
            assert worker.stdin and worker.stdout
            pickle.dump((text, bounds), worker.stdin, protocol=5)
            worker.stdin.flush()
            ids, id_bounds = pickle.load(worker.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise EOFError("an encoding process ended early") from None
        finally:
            self._idle.put(worker)
        return with_marks(ids, id_bounds, mark)

    def close(self) -> None:
        for worker in self._workers:
            assert worker.stdin and worker.stdout
            with contextlib.suppress(OSError):
                worker.stdin.close()
            worker.wait()
            worker.stdout.close()
        self._folder.cleanup()


def work() -> None:
    """What such a process does: text and bounds come in on stdin, ids and bounds go out on stdout, until stdin ends.
    Not a multiprocessing worker: those import the caller's script again, which need not be prepared for that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started us; then our stdin ends
    tokenizer = tokenizer_from_files(Path(sys.argv[1]))
    assert isinstance(tokenizer, BytePairTokenizer)
    source = cast(io.BufferedReader, sys.stdin.buffer)
    while source.peek(1):
        pickle.dump(encode_each(tokenizer, *pickle.load(source)), sys.stdout.buffer, protocol=5)
        sys.stdout.buffer.flush()


class GigatokenEncoder(Encoder):
    """gigatoken, with a part of each batch encoded by tiktoken as well.

    A batch goes in as one text with a separator between the documents, which is the only special token it is told of.
    `<|endoftext|>` must not be one: gigatoken would take it for the end wherever a text speaks of it."""

    name = "gigatoken"
    SEPARATOR = "\0\x01nanolens ends the document here\x01\0"
    CHECKED_BYTES = 4 << 10  # of each batch

    def __init__(self, tokenizer: GPT2Tokenizer):
        from gigatoken.gigatoken_rs import BPETokenizer, PadTruncate

        self.tokenizer = tokenizer
        self._lock = threading.Lock()
        self.checked_bytes = 0
        self._one_row = PadTruncate(0)
        self._separator = self.SEPARATOR.encode()
        with tempfile.TemporaryDirectory(prefix="nanolens-") as folder:
            path = Path(folder) / "gpt2.tiktoken"
            path.write_bytes(as_tiktoken_file(tokenizer.ranks))
            self._encoder = BPETokenizer.from_tiktoken(path, "gpt2", {self.SEPARATOR: tokenizer.end_of_document})

    @property
    def because(self) -> Message:  # type: ignore[override]
        return msg("it is installed, and gave tiktoken's ids on {size:bytes} that both encoded", self.checked_bytes)

    def encode(self, text: np.ndarray, bounds: np.ndarray, mark: int | None) -> Encoded:
        documents = documents_of(text, bounds)
        joined = self._separator.join([*documents, b""])
        if joined.count(self._separator) != len(documents):  # a text that holds the separator itself
            return with_marks(*encode_each(self.tokenizer, text, bounds), mark)
        # The only call that releases Python's lock and gives a plain array; of one row nothing is padded.
        ids = self._encoder.encode_batch_padded([joined], self._one_row, parallel=False)[0][0]
        ends = np.flatnonzero(ids == self.tokenizer.end_of_document) + 1
        assert len(ends) == len(documents)
        id_bounds = np.concatenate([[0], ends])
        self._check(documents, ids, id_bounds)
        if mark == self.tokenizer.end_of_document:
            return ids, id_bounds
        assert mark is None and len(documents) == 1, "documents without marks come one by one"
        return ids[:-1], id_bounds - [0, 1]

    def _check(self, documents: list[memoryview], ids: np.ndarray, bounds: np.ndarray) -> None:
        """Short documents from anywhere in the batch; where all are long, the beginning of the shortest."""
        lengths = np.array([len(document) for document in documents])
        order = np.roll(np.arange(len(lengths)), -(len(ids) % len(lengths)))
        few = order[np.cumsum(lengths[order]) <= self.CHECKED_BYTES]
        for place in few.tolist() or [int(np.argmin(lengths))]:
            begins = documents[place][: self.CHECKED_BYTES].tobytes()
            is_whole = len(begins) == lengths[place]
            if not is_whole:
                begins = begins[: last_cut(begins) or 0]
            theirs = self.tokenizer.encode(begins.decode())
            # Not all of a long one: this holds Python's lock
            ends = bounds[place + 1] - 1 if is_whole else bounds[place] + len(theirs)
            if theirs != ids[bounds[place] : ends].tolist():
                what = msg("gigatoken and tiktoken disagree on {text:code}", begins[:80].decode(errors="replace"))
                command = "pip uninstall gigatoken"
                raise fault(what, fix=msg("run {command:code} to use tiktoken alone, and report this text", command))
            with self._lock:
                self.checked_bytes += len(begins)


OWN_PATTERN = (
    r"'(?:[sdmt]|ll|ve|re)(?![\p{L}\p{M}])"  # English contractions
    r"| ?[\p{L}\p{M}][\p{L}\p{M}\x{200C}\x{200D}]*+"  # a word, with its marks and joiners
    r"| ?(?:\p{N}\p{M}*+){1,3}"  # at most three digits
    r"| ?[^\s\p{L}\p{M}\p{N}][^\s\p{L}\p{N}]*+"  # punctuation and symbols, with their variation selectors
    r"|\s++$|\s{1,512}(?!\S)|\s"  # a bound, because the regex engine remembers what it may have to give back
)
"""Like GPT-2's split, but a combining mark stays with what it combines with: GPT-2's cuts 'नमस्ते' in four.
No piece holds a space or line end after something else, so `documents.py` may cut text there before it is encoded."""

SMALLEST = 256 + 1  # the bytes, and the end of text


def train_bpe(texts: Iterable[str], vocab_size: int, pattern: str = OWN_PATTERN) -> OwnBPETokenizer:
    """At most `vocab_size` tokens, the 256 bytes and the end of text among them; fewer where no pair is left."""
    if vocab_size < SMALLEST:
        what = msg("vocab_size = {size:count} is too small for a byte-level BPE", vocab_size)
        fix = msg("use {smallest:count} or more: 256 bytes, the end-of-text token, and the learned merges", SMALLEST)
        raise fault(what, where=msg("--vocab_size"), fix=fix)
    trainer = require("rustbpe", "tok").Tokenizer()
    trainer.train_from_iterator(iter(texts), vocab_size=vocab_size - 1, pattern=pattern)
    return OwnBPETokenizer(pattern, {bytes(token): rank for token, rank in trainer.get_mergeable_ranks()})
